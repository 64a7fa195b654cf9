{{/* What a schema cannot say: values that do not fit each other. */}}
{{- define "radixgate.checks" -}}
{{- with .Values.gateway.autoscaling -}}
{{- if and .enabled (lt (int .maxReplicas) (int .minReplicas)) -}}
{{- fail (printf "gateway.autoscaling.maxReplicas is %d, less than minReplicas, %d" (int .maxReplicas) (int .minReplicas)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.gateway.service -}}
{{- if eq (int .grpcPort) (int .httpPort) -}}
{{- fail (printf "gateway.service.grpcPort and gateway.service.httpPort are both %d" (int .grpcPort)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.secrets -}}
{{- if eq .adminTokenKey .extraKeySecretKey -}}
{{- fail (printf "secrets.adminTokenKey and secrets.extraKeySecretKey are both %q: these are two secrets" .adminTokenKey) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.registry.enabled (not .Values.redis.enabled) (not .Values.registry.existingSecret) -}}
{{- fail "registry.existingSecret is empty: workers register in an external Redis with a URL of their own, of a user that sees {radixgate}:worker* and nothing else (README.md, \"Secrets\"); or set registry.enabled false" -}}
{{- end -}}
{{- range $of, $server := dict "redis" .Values.redis "pageStore" .Values.pageStore -}}
{{- $bytes := include "radixgate.bytes" $server.maxMemory | int64 -}}
{{- if lt $bytes 16777216 -}}
{{- fail (printf "%s.maxMemory is %v: 16Mi is the least that is of use" $of $server.maxMemory) -}}
{{- end -}}
{{- if and (eq $of "redis") $server.enabled (lt (include "radixgate.bytes" $server.persistence.size | int64) (mul 2 $bytes)) -}}
{{- fail (printf "redis.persistence.size is %v, less than twice redis.maxMemory, %v: the file is rewritten beside the old one" $server.persistence.size $server.maxMemory) -}}
{{- end -}}
{{- end -}}
{{- range $name, $pool := include "radixgate.pools" . | fromYaml -}}
{{- with $pool.autoscaling -}}
{{- if and .enabled (lt (int .maxReplicas) (int .minReplicas)) -}}
{{- fail (printf "workers.%s.autoscaling.maxReplicas is %d, less than minReplicas, %d" $name (int .maxReplicas) (int .minReplicas)) -}}
{{- end -}}
{{- if and .enabled (not $.Values.registry.enabled) -}}
{{- fail (printf "workers.%s.autoscaling.enabled is true, and registry.enabled is false: gateways would not know of new workers" $name) -}}
{{- end -}}
{{- end -}}
{{- if and (eq (int $pool.gpu.count) 0) (eq (include "radixgate.bytes" $pool.memory.devicePool | int64) 0) -}}
{{- fail (printf "workers.%s.memory.devicePool is 0: a worker on CPUs has no other place for KV" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
