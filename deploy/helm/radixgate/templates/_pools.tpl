{{/* Pools of workers: what each has of its own, over workerDefaults. As YAML, by name. */}}
{{- define "radixgate.pools" -}}
{{- $pools := .Values.workers | default (dict "default" dict) -}}
{{- range $name, $own := $pools }}
{{ $name | quote }}:
{{ mustMergeOverwrite (deepCopy $.Values.workerDefaults) (deepCopy $own) | toYaml | indent 2 }}
{{- end }}
{{- end -}}

{{/* A list of the context and a pool's name: the name of its StatefulSet. */}}
{{- define "radixgate.poolName" -}}
{{- include "radixgate.name" (list (index . 0) (printf "worker-%s" (index . 1))) -}}
{{- end -}}

{{/* HOST:PORT of every worker, a JSON list: what gateways know them by where workers do not register. */}}
{{- define "radixgate.workerAddresses" -}}
{{- $addresses := list -}}
{{- $host := include "radixgate.host" (list . (include "radixgate.workersName" .)) -}}
{{- range $name, $pool := include "radixgate.pools" . | fromYaml -}}
{{- $poolName := include "radixgate.poolName" (list $ $name) -}}
{{- range $ordinal := until (int $pool.replicas) -}}
{{- $addresses = append $addresses (printf "%s-%d.%s:50061" $poolName $ordinal $host) -}}
{{- end -}}
{{- end -}}
{{- concat $addresses .Values.gateway.extraWorkers | toJson -}}
{{- end -}}

{{/* A pool: how many bytes its container needs, with every part of them. */}}
{{- define "radixgate.poolBytes" -}}
{{- $sum := 0 -}}
{{- range $part, $quantity := .memory -}}
{{- if not (and (eq $part "devicePool") (gt (int $.gpu.count) 0)) -}}
{{- $sum = add $sum (include "radixgate.bytes" $quantity) -}}
{{- end -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* A list of the pool's name and the pool: requests and limits. Fails where the limit is too low for the pools. */}}
{{- define "radixgate.poolResources" -}}
{{- $name := index . 0 -}}
{{- $pool := index . 1 -}}
{{- $needed := include "radixgate.poolBytes" $pool | int64 -}}
{{- $resources := deepCopy $pool.resources -}}
{{- $requests := $resources.requests | default dict -}}
{{- $limits := $resources.limits | default dict -}}
{{- if not $limits.memory -}}
{{- $_ := set $limits "memory" (include "radixgate.quantity" $needed) -}}
{{- end -}}
{{- if lt (include "radixgate.bytes" $limits.memory | int64) $needed -}}
{{- fail (printf "workers.%s.resources.limits.memory is %v, and memory.* needs %s together (model, pools, adapters, shm, overhead): raise the limit or make a pool smaller" $name $limits.memory (include "radixgate.quantity" $needed)) -}}
{{- end -}}
{{- if not $requests.memory -}}{{- $_ := set $requests "memory" $limits.memory -}}{{- end -}}
{{- if gt (include "radixgate.bytes" $requests.memory | int64) (include "radixgate.bytes" $limits.memory | int64) -}}
{{- fail (printf "workers.%s.resources.requests.memory is %v, more than the limit, %v" $name $requests.memory $limits.memory) -}}
{{- end -}}
{{- if gt (int $pool.gpu.count) 0 -}}
{{- $_ := set $requests $pool.gpu.resource (int $pool.gpu.count) -}}
{{- $_ := set $limits $pool.gpu.resource (int $pool.gpu.count) -}}
{{- end -}}
{{- dict "requests" $requests "limits" $limits | toYaml -}}
{{- end -}}

{{/* Whole cores of "2", 2, "500m": what a worker on CPUs computes with where no quota says it. */}}
{{- define "radixgate.cores" -}}
{{- $text := toString . -}}
{{- if hasSuffix "m" $text -}}
{{- max 1 (div (trimSuffix "m" $text | int) 1000) -}}
{{- else -}}
{{- max 1 (floor (float64 $text) | int) -}}
{{- end -}}
{{- end -}}

{{/* How fast a pool's scaler goes: up as a line forms, down one at a time, for what a worker has cached goes with it. */}}
{{- define "radixgate.workerScaling" -}}
scaleUp: {stabilizationWindowSeconds: 30, policies: [{type: Percent, value: 100, periodSeconds: 60}, {type: Pods, value: 2, periodSeconds: 60}]}
scaleDown: {stabilizationWindowSeconds: {{ int .scaleDownSeconds }}, policies: [{type: Pods, value: 1, periodSeconds: 120}]}
{{- end -}}
