{{/* Servers that the chart runs, as YAML by component: what holds tenants and keys, and what holds pages. */}}
{{- define "radixgate.servers" -}}
{{- $servers := dict -}}
{{- with .Values.redis -}}
{{- if .enabled -}}
{{- $_ := set $servers "redis" (mustMergeOverwrite (deepCopy .) (dict "clients" (ternary (list "gateway" "worker") (list "gateway") $.Values.registry.enabled) "persistent" true)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.pageStore -}}
{{- if .enabled -}}
{{- $_ := set $servers "pages" (mustMergeOverwrite (deepCopy .) (dict "clients" (list "worker") "persistent" false)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $servers -}}
{{- end -}}

{{/* A server: its configuration, without the password. */}}
{{- define "radixgate.serverConfig" -}}
bind * -::*
port 6379
dir /data
maxmemory {{ include "radixgate.bytes" .maxMemory }}
save ""
{{- if .persistent }}
# Nothing may be lost: beyond maxmemory writes fail.
maxmemory-policy noeviction
appendonly yes
appendfsync everysec
{{- else }}
# A cache: what has a time to live may go, and everything has one but the index of it.
maxmemory-policy volatile-lru
appendonly no
{{- end }}
{{- end -}}

{{/* How a server is started. In quotes of its configuration, a password may have quotes and backslashes. */}}
{{- define "radixgate.serverStart" -}}
set -eu
umask 077
password=$(sed 's/["\\]/\\&/g' /run/radixgate/redis/password)
{ cat /etc/radixgate/valkey.conf; printf 'requirepass "%s"\n' "$password"; } > /tmp/valkey.conf
if [ -f /run/radixgate/registry/password ]; then
  # Workers register themselves, and see nothing of tenants and keys.
  digest=$(printf %s "$(cat /run/radixgate/registry/password)" | sha256sum | cut -d ' ' -f 1)
  echo "user worker on #$digest resetkeys ~{radixgate}:worker* resetchannels -@all {{ include "radixgate.workerCommands" . }}" >> /tmp/valkey.conf
fi
exec valkey-server /tmp/valkey.conf
{{- end -}}

{{/* What a worker's user of Redis may do, as worker/registry/keys.py names it. */}}
{{- define "radixgate.workerCommands" -}}
+hello +auth +client|setinfo +client|setname +select +ping +evalsha +script|load +time +get +set +del +hget +hmget +hset +pexpire +zadd +zrem +zscore
{{- end -}}

{{/* A server: memory of its container. Rewriting the append-only file copies what is written meanwhile. */}}
{{- define "radixgate.serverMemory" -}}
{{- $bytes := include "radixgate.bytes" .maxMemory | int64 -}}
{{- add (div (mul $bytes (ternary 3 5 .persistent)) (ternary 2 4 .persistent)) 67108864 | include "radixgate.quantity" -}}
{{- end -}}
