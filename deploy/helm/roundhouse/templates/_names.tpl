{{- define "roundhouse.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "roundhouse.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{/* The PriorityClass of placeholders, which has no namespace of its own. */}}
{{- define "roundhouse.reserveClass" -}}
{{ .Release.Namespace }}-{{ include "roundhouse.name" . }}-reserve
{{- end }}

{{/* The cache of the Hugging Face Hub that pods ask; nothing without one. */}}
{{- define "roundhouse.hubCache" -}}
{{- if .Values.hubCache.url }}
{{- .Values.hubCache.url }}
{{- else if .Values.hubCache.enabled -}}
http://{{ include "roundhouse.name" . }}-hub-cache.{{ .Release.Namespace }}.svc:8083
{{- end }}
{{- end }}

{{/* Labels of every object; the component is given in a dict with the root. */}}
{{- define "roundhouse.labels" -}}
{{ include "roundhouse.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "roundhouse.selector" -}}
app.kubernetes.io/name: roundhouse
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* What every pod may: nothing but run. */}}
{{- define "roundhouse.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "roundhouse.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "roundhouse.placement" -}}
{{- $given := dict }}
{{- range $field := list "nodeSelector" "tolerations" "priorityClassName" }}
{{- with get $ $field }}{{ $_ := set $given $field . }}{{ end }}
{{- end }}
{{- with $given }}{{ toYaml . }}{{ end }}
{{- end }}
