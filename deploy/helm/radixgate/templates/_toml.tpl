{{/*
Trees of values as TOML. Helm's own toToml writes every number that comes from YAML as a float, which settings that
count things refuse.
*/}}

{{/* A dict of `path`, a list of names, and `tree`. */}}
{{- define "radixgate.toml" -}}
{{- $path := .path -}}
{{- range $key, $value := .tree -}}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ include "radixgate.tomlKey" $key }} = {{ include "radixgate.tomlValue" $value }}
{{- end -}}
{{- end -}}
{{- range $key, $value := .tree -}}
{{- if kindIs "map" $value -}}
{{- $inner := append $path (include "radixgate.tomlKey" $key) }}

[{{ join "." $inner }}]
{{- include "radixgate.toml" (dict "path" $inner "tree" $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "radixgate.tomlKey" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . -}}{{ . }}{{- else -}}{{ include "radixgate.tomlText" . }}{{- end -}}
{{- end -}}

{{/* Text as JSON writes it, but for characters that neither TOML nor YAML takes as they are. */}}
{{- define "radixgate.tomlText" -}}
{{- $text := toRawJson . -}}
{{- if regexMatch `[\x{7f}-\x{9f}\x{feff}]` $text -}}
{{- range append (untilStep 127 160 1) 65279 -}}
{{- $text = replace (printf "%c" .) (printf `\u%04x` .) $text -}}
{{- end -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{- define "radixgate.tomlValue" -}}
{{- if kindIs "string" . -}}
{{- include "radixgate.tomlText" . -}}
{{- else if kindIs "invalid" . -}}
{{- fail "a list in `config` has null in it: TOML knows no such value" -}}
{{- else if kindIs "float64" . -}}
{{- if and (eq . (floor .)) (lt . 9e15) (gt . -9e15) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- else if kindIs "slice" . -}}
{{- $items := list -}}
{{- range . -}}{{- $items = append $items (include "radixgate.tomlValue" .) -}}{{- end -}}
[{{ join ", " $items }}]
{{- else if kindIs "map" . -}}
{{- $items := list -}}
{{- range $key, $value := . -}}
{{- $items = append $items (printf "%s = %s" (include "radixgate.tomlKey" $key) (include "radixgate.tomlValue" $value)) -}}
{{- end -}}
{ {{- join ", " $items -}} }
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* A dict of `of`, `tree` and `owned`, paths with dots: fails if the tree sets one that the chart sets itself. */}}
{{- define "radixgate.refuseOwned" -}}
{{- $of := .of -}}
{{- $tree := .tree -}}
{{- range $path, $instead := .owned -}}
{{- $at := $tree -}}
{{- $found := true -}}
{{- range splitList "." $path -}}
{{- if and $found (kindIs "map" $at) (hasKey $at .) -}}
{{- $at = index $at . -}}
{{- else -}}
{{- $found = false -}}
{{- end -}}
{{- end -}}
{{- if $found -}}
{{- fail (printf "%s.config sets %s, which the chart sets itself: %s" $of $path $instead) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A quantity ("1.5Gi", 4096) as a number of bytes. */}}
{{- define "radixgate.bytes" -}}
{{- if kindIs "string" . -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" . -}}
{{- $unit := trimPrefix $number . -}}
{{- if or (not $number) (not (hasKey $units $unit)) -}}
{{- fail (printf "%q is no quantity of bytes: write it as 512Mi or 64Gi" .) -}}
{{- end -}}
{{- mulf (float64 $number) (float64 (index $units $unit)) | ceil | int64 -}}
{{- else -}}
{{- int64 . -}}
{{- end -}}
{{- end -}}

{{/* Bytes as the shortest quantity that says the same. */}}
{{- define "radixgate.quantity" -}}
{{- $bytes := int64 . -}}
{{- if eq (mod $bytes 1073741824) 0 -}}{{ div $bytes 1073741824 }}Gi
{{- else if eq (mod $bytes 1048576) 0 -}}{{ div $bytes 1048576 }}Mi
{{- else -}}{{ $bytes }}
{{- end -}}
{{- end -}}
