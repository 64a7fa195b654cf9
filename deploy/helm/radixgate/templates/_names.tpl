{{/*
Names and labels. Whatever is cut gets a part of a hash, so that two long names never become one.
*/}}

{{/* A dict of `name` and `max`: a DNS label of at most `max` characters. */}}
{{- define "radixgate.shorten" -}}
{{- $name := regexReplaceAll "[^a-z0-9-]" .name "-" -}}
{{- if regexMatch "^[0-9-]" $name -}}{{- $name = printf "rg-%s" $name -}}{{- end -}}
{{- if or (ne $name .name) (gt (len $name) (int .max)) -}}
{{- $name = printf "%s-%s" ($name | trunc (int (sub .max 7)) | trimSuffix "-") (sha256sum .name | trunc 6) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "radixgate.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- end -}}
{{- include "radixgate.shorten" (dict "name" $name "max" 50) -}}
{{- end -}}

{{/*
A list of the context and a suffix. 48 characters: a StatefulSet's pods carry its name and a hash in labels of 63, and
their ordinal in host names of 63.
*/}}
{{- define "radixgate.name" -}}
{{- $root := index . 0 -}}
{{- include "radixgate.shorten" (dict "name" (printf "%s-%s" (include "radixgate.fullname" $root) (index . 1)) "max" 48) -}}
{{- end -}}

{{/* A list of the context and a Service's name: the host that pods find it by. */}}
{{- define "radixgate.host" -}}
{{- $root := index . 0 -}}
{{- printf "%s.%s.svc" (index . 1) $root.Release.Namespace -}}
{{- with $root.Values.clusterDomain -}}.{{ . }}{{- end -}}
{{- end -}}

{{/* A list of the context and a component, as are the arguments of the next ones. */}}
{{- define "radixgate.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "radixgate.labels" -}}
{{- $root := index . 0 -}}
{{ include "radixgate.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: radixgate
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- include "radixgate.ownLabels" . }}
{{- end -}}

{{/* The same list, and labels as a third element: both these and commonLabels; no name is there twice. */}}
{{- define "radixgate.ownLabels" -}}
{{- $own := dict -}}
{{- if gt (len .) 2 -}}{{- $own = index . 2 -}}{{- end -}}
{{- with mustMerge (deepCopy $own) (index . 0).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: without version and chart, so that a new chart alone replaces no pod. */}}
{{- define "radixgate.podLabels" -}}
{{ include "radixgate.selector" . }}
{{- include "radixgate.ownLabels" . }}
{{- end -}}

{{/* A dict of `image`, `tag`: the reference of an image. */}}
{{- define "radixgate.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .tag) -}}
{{- end -}}
{{- end -}}

{{- define "radixgate.gatewayImage" -}}
{{- include "radixgate.image" (dict "image" .Values.gateway.image "tag" .Chart.AppVersion) -}}
{{- end -}}

{{/* Secrets, by what they hold. */}}
{{- define "radixgate.secretName" -}}
{{- .Values.secrets.existingSecret | default (include "radixgate.name" (list . "secrets")) -}}
{{- end -}}

{{/* The URL of tenants and keys, and that of pages: a dict of `name` and `key`. */}}
{{- define "radixgate.redisUrl" -}}
{{- if .Values.redis.enabled -}}
{{- dict "name" (.Values.redis.existingSecret | default (include "radixgate.name" (list . "redis"))) "key" "url" | toYaml -}}
{{- else -}}
{{- dict "name" .Values.redis.external.secretName "key" .Values.redis.external.key | toYaml -}}
{{- end -}}
{{- end -}}

{{/* What workers register with: the Secret with `url`, and `password` for the chart's own server. */}}
{{- define "radixgate.registrySecret" -}}
{{- .Values.registry.existingSecret | default (include "radixgate.name" (list . "registry")) -}}
{{- end -}}

{{- define "radixgate.pageStoreUrl" -}}
{{- if .Values.pageStore.enabled -}}
{{- dict "name" (.Values.pageStore.existingSecret | default (include "radixgate.name" (list . "pages"))) "key" "url" | toYaml -}}
{{- else -}}
{{- dict "name" .Values.pageStore.external.secretName "key" .Values.pageStore.external.key | toYaml -}}
{{- end -}}
{{- end -}}

{{- define "radixgate.workersName" -}}
{{- include "radixgate.name" (list . "workers") -}}
{{- end -}}

{{- define "radixgate.workerServerName" -}}
{{- .Values.tls.workers.serverName | default (include "radixgate.workersName" .) -}}
{{- end -}}

{{- define "radixgate.clientTlsSecret" -}}
{{- .Values.tls.clients.secretName | default (include "radixgate.name" (list . "tls")) -}}
{{- end -}}

{{- define "radixgate.workerTlsSecret" -}}
{{- .Values.tls.workers.workerSecretName | default (include "radixgate.name" (list . "worker-tls")) -}}
{{- end -}}

{{- define "radixgate.gatewayTlsSecret" -}}
{{- .Values.tls.workers.gatewaySecretName | default (include "radixgate.name" (list . "gateway-tls")) -}}
{{- end -}}
