{{- define "roundhouse.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "roundhouse.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{/* The image with ONNX Runtime, where it is not what the controller takes by itself. */}}
{{- define "roundhouse.onnxImage" -}}
{{- $own := .Values.image }}
{{- with .Values.onnxImage }}
{{- if not .enabled -}}
none
{{- else if or .repository .tag .digest -}}
{{ .repository | default (printf "%s-onnx" $own.repository) }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $own.tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The account of a component: a dict with root, component and values. */}}
{{- define "roundhouse.account" -}}
{{- .values.serviceAccount.name | default (printf "%s-%s" (include "roundhouse.name" .root) .component) -}}
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
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "roundhouse.selector" -}}
app.kubernetes.io/name: roundhouse
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}
