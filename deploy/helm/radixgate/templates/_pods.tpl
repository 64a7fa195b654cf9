{{/* What pods and containers of all components share. */}}

{{/* Security of a pod. */}}
{{- define "radixgate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Security of a container; the argument lists capabilities that it gets. */}}
{{- define "radixgate.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- with . }}
  add: {{ toJson . }}
  {{- end }}
{{- end -}}

{{/* A list of the context, a component's labels (JSON) and the values that say where its pods go. */}}
{{- define "radixgate.scheduling" -}}
{{- $labels := index . 1 -}}
{{- $values := index . 2 -}}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- $spread := $values.spread | default "none" }}
{{- if or (ne $spread "none") $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- if ne $spread "none" }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: {{ ternary "DoNotSchedule" "ScheduleAnyway" (eq $spread "hard") }}
    labelSelector:
      matchLabels: {{- $labels | nindent 8 }}
  {{- end }}
  {{- end }}
  {{- with $values.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A list of the context and a component: fields that every pod's spec begins with. */}}
{{- define "radixgate.podBase" -}}
{{- $root := index . 0 -}}
serviceAccountName: {{ include "radixgate.name" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- include "radixgate.podSecurity" . | nindent 2 }}
{{- end -}}

{{/*
A dict of `tls`, `port`, `metrics`, `service` (of gRPC's health), `startupSeconds`: the probes of a gateway or worker.
The kubelet's gRPC probe speaks no TLS, so that readiness is asked for on the metrics port there. /livez knows more than
gRPC's health: whether the engine still moves.
*/}}
{{- define "radixgate.probes" -}}
startupProbe:
  {{- if .tls }}
  httpGet: {path: /livez, port: metrics}
  {{- else }}
  grpc: {port: {{ .port }}, service: {{ .startupService | quote }}}
  {{- end }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ max 1 (div (add (int .startupSeconds) 4) 5) }}
readinessProbe:
  {{- if .tls }}
  httpGet: {path: /readyz, port: metrics}
  {{- else }}
  grpc: {port: {{ .port }}, service: {{ .service }}}
  {{- end }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{/* A preStop hook that sleeps; none where there is nothing to wait for. */}}
{{- define "radixgate.preStop" -}}
{{- if gt (int .) 0 }}
lifecycle:
  preStop:
    sleep:
      seconds: {{ int . }}
{{- end }}
{{- end -}}
