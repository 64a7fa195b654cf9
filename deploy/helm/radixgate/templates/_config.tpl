{{/* The configuration of gateways, as TOML. */}}
{{- define "radixgate.gatewayConfig" -}}
{{- $drain := "gateway.drainSeconds" -}}
{{- include "radixgate.refuseOwned" (dict "of" "gateway" "tree" .Values.gateway.config "owned" (dict
  "gateway.listen" "bindHost; the port is 50051"
  "gateway.http.listen" "bindHost; the port is 8000"
  "gateway.metrics_listen" "bindHost; the port is 9464"
  "gateway.workers" "gateway.extraWorkers, beside those of the pools"
  "gateway.discovery.source" "registry.enabled"
  "gateway.discovery.extra_workers" "gateway.extraWorkers"
  "gateway.admin_token" "it is a secret; secrets.existingSecret"
  "gateway.operators" "their tokens are secrets, and this would be a ConfigMap"
  "gateway.extra_key_secret" "it is a secret; secrets.existingSecret"
  "gateway.redis.url" "it is a secret; redis.external.secretName"
  "redis" "redis.enabled, redis.external"
  "gateway.server.drain_s" "gateway.drainSeconds"
  "gateway.tls.cert_file" "tls.clients"
  "gateway.tls.key_file" "tls.clients"
  "gateway.tls.client_ca_file" "tls.clients.clientCaSecretName"
  "gateway.worker_link.tls" "tls.workers"
  "tracing" "tracing"
  "worker" "it is of workers"
)) -}}
{{- $bind := .Values.bindHost -}}
{{- $gateway := dict
  "listen" (printf "%s:50051" $bind)
  "metrics_listen" (printf "%s:9464" $bind)
  "http" (dict "listen" (printf "%s:8000" $bind))
  "server" (dict "drain_s" .Values.gateway.drainSeconds)
-}}
{{- if .Values.registry.enabled -}}
{{- $_ := set $gateway "discovery" (dict "source" "redis" "extra_workers" .Values.gateway.extraWorkers) -}}
{{- else -}}
{{- $_ := set $gateway "workers" (include "radixgate.workerAddresses" . | fromJsonArray) -}}
{{- end -}}
{{- if .Values.tls.clients.enabled -}}
{{- $tls := dict "cert_file" "/run/radixgate/tls/tls.crt" "key_file" "/run/radixgate/tls/tls.key" -}}
{{- if .Values.tls.clients.clientCaSecretName -}}
{{- $_ := set $tls "client_ca_file" "/run/radixgate/client-ca/ca.crt" -}}
{{- end -}}
{{- $_ := set $gateway "tls" $tls -}}
{{- end -}}
{{- if .Values.tls.workers.enabled -}}
{{- $_ := set $gateway "worker_link" (dict "tls" (dict
  "ca_file" "/run/radixgate/worker-link/ca.crt"
  "cert_file" "/run/radixgate/worker-link/tls.crt"
  "key_file" "/run/radixgate/worker-link/tls.key"
  "server_name" (include "radixgate.workerServerName" .)
)) -}}
{{- end -}}
{{- $own := dict "gateway" $gateway "log" (dict "format" "json") -}}
{{- include "radixgate.process" (dict "root" . "own" $own "config" .Values.gateway.config) -}}
{{- end -}}

{{/* A list of the context, a pool's name and the pool: the configuration of its workers, as TOML. */}}
{{- define "radixgate.workerConfig" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $pool := index . 2 -}}
{{- $gpu := gt (int $pool.gpu.count) 0 -}}
{{- $bind := $root.Values.bindHost -}}
{{- $owned := dict
  "worker.worker_id" "it is the pod's name"
  "worker.listen" "bindHost; the port is 50061"
  "worker.metrics_listen" "bindHost; the port is 9101"
  "worker.drain_s" "drainSeconds, which the grace period is computed from"
  "worker.registry.url" "registry.enabled; the URL is a secret"
  "worker.registry.advertise" "it is the pod's name in the workers' Service"
  "worker.model.model" "model"
  "worker.model.device" "gpu.count"
  "worker.cache.host_bytes" "memory.hostPool, which the container's memory is computed from"
  "worker.cache.host_slots" "memory.hostPool, which the container's memory is computed from"
  "worker.cache.host_ratio" "memory.hostPool, which the container's memory is computed from"
  "worker.cache.pin" "pin"
  "worker.cache.storage.url" "storage.kind"
  "worker.cache.storage.max_bytes" "storage.size, or pageStore.maxMemory"
  "worker.lora.adapters" "adapters"
  "worker.lora.max_host_bytes" "memory.adapters"
  "worker.tls" "tls.workers"
  "tracing" "tracing"
  "gateway" "it is of gateways"
  "redis" "it is of gateways; registry.enabled"
-}}
{{- if not $gpu -}}
{{- $_ := set $owned "worker.cache.memory_bytes" "memory.devicePool, which the container's memory is computed from" -}}
{{- $_ := set $owned "worker.cache.num_slots" "memory.devicePool, which the container's memory is computed from" -}}
{{- end -}}
{{- include "radixgate.refuseOwned" (dict "of" (printf "workers.%s" $name) "tree" $pool.config "owned" $owned) -}}
{{- $model := dict "model" $pool.model "device" (ternary "cuda" "cpu" $gpu) -}}
{{- $cache := dict "host_bytes" (include "radixgate.bytes" $pool.memory.hostPool | int64) "pin" $pool.pin -}}
{{- if not $gpu -}}
{{- $_ := set $cache "memory_bytes" (include "radixgate.bytes" $pool.memory.devicePool | int64) -}}
{{- $cpu := ($pool.resources.limits | default dict).cpu | default ($pool.resources.requests | default dict).cpu -}}
{{- with $cpu -}}{{- $_ := set $model "threads" (include "radixgate.cores" . | int64) -}}{{- end -}}
{{- end -}}
{{- with include "radixgate.storage" . | fromYaml -}}{{- $_ := set $cache "storage" . -}}{{- end -}}
{{- $worker := dict
  "listen" (printf "%s:50061" $bind)
  "metrics_listen" (printf "%s:9101" $bind)
  "drain_s" $pool.drainSeconds
  "model" $model
  "cache" $cache
  "lora" (dict "max_host_bytes" (include "radixgate.bytes" $pool.memory.adapters | int64 | max 1) "adapters" $pool.adapters)
-}}
{{- if $root.Values.tls.workers.enabled -}}
{{- $_ := set $worker "tls" (dict
  "cert_file" "/run/radixgate/tls/tls.crt"
  "key_file" "/run/radixgate/tls/tls.key"
  "client_ca_file" "/run/radixgate/tls/ca.crt"
) -}}
{{- end -}}
{{- $own := dict "worker" $worker "log" (dict "format" "json") -}}
{{- include "radixgate.process" (dict "root" $root "own" $own "config" $pool.config) -}}
{{- end -}}

{{/* The same list: what a pool's workers are told of storage, as YAML. The URL of a Redis is a secret and is not here. */}}
{{- define "radixgate.storage" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $pool := index . 2 -}}
{{- $kind := $pool.storage.kind -}}
{{- if and (ne $kind "none") (eq (include "radixgate.bytes" $pool.memory.hostPool | int64) 0) -}}
{{- fail (printf "workers.%s.storage.kind is %q, and memory.hostPool is 0: pages go through the host pool" $name $kind) -}}
{{- end -}}
{{- if eq $kind "file" -}}
url: file:///var/lib/radixgate/pages/store
max_bytes: {{ div (mul (include "radixgate.bytes" $pool.storage.size | int64) 9) 10 }}
{{- else if eq $kind "redis" -}}
{{- if not (or $root.Values.pageStore.enabled $root.Values.pageStore.external.secretName) -}}
{{- fail (printf "workers.%s.storage.kind is \"redis\": enable pageStore, or set pageStore.external.secretName" $name) -}}
{{- end -}}
max_bytes: {{ div (mul (include "radixgate.bytes" $root.Values.pageStore.maxMemory | int64) 8) 10 }}
{{- end -}}
{{- end -}}

{{/* A dict of `root`, `own` and `config`: both together, with tracing, as TOML. */}}
{{- define "radixgate.process" -}}
{{- $tree := mustMergeOverwrite (deepCopy .own) (deepCopy .config) -}}
{{- with .root.Values.tracing -}}
{{- if .endpoint -}}
{{- $_ := set $tree "tracing" (dict "endpoint" .endpoint "sample_ratio" .sampleRatio "asked_per_minute" (int .askedPerMinute)) -}}
{{- end -}}
{{- end -}}
{{- include "radixgate.toml" (dict "path" list "tree" $tree) | trim -}}
{{- end -}}
