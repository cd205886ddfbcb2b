{{/*
What the pods of all components share. Each is given a dict: root, component
("gateway") and values, which are the component's.
*/}}

{{- define "roundhouse.podMetadata" -}}
labels:
  {{- include "roundhouse.selector" . | nindent 2 }}
  {{- with .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if or .values.podAnnotations .checksum }}
annotations:
  {{- with .checksum }}
  checksum/config: {{ . }}
  {{- end }}
  {{- with .values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The account, made unless it is somebody else's; with the namespace besides. */}}
{{- define "roundhouse.serviceAccount" -}}
{{- if .values.serviceAccount.create }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "roundhouse.account" . }}
  namespace: {{ .namespace }}
  labels: {{- include "roundhouse.labels" . | nindent 4 }}
  {{- with .values.serviceAccount.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Who a pod runs as, and where. */}}
{{- define "roundhouse.pod" -}}
{{- with .root.Values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if .values.affinity }}
affinity: {{- toYaml .values.affinity | nindent 2 }}
{{- else if ne .component "gateway" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "roundhouse.selector" . | nindent 14 }}
{{- end }}
{{- if .values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else if eq .component "gateway" }}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "roundhouse.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* What a container may use and do. */}}
{{- define "roundhouse.container" -}}
{{- with .values.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.securityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Variables: Go's memory limit, and those that are stated. */}}
{{- define "roundhouse.env" -}}
{{- with include "roundhouse.memoryLimit" .values -}}
- {name: GOMEMLIMIT, value: {{ . | quote }}}
{{ end }}
{{- with .values.env }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/*
90 % of a container's memory limit in bytes, so that Go collects before the kernel
kills; nothing without a limit, or where env states GOMEMLIMIT.
*/}}
{{- define "roundhouse.memoryLimit" -}}
{{- $limit := dig "limits" "memory" "" (.resources | default dict) }}
{{- if kindIs "float64" $limit }}{{ $limit = int64 $limit }}{{ end }}
{{- $limit = toString $limit }}
{{- range .env }}{{ if eq .name "GOMEMLIMIT" }}{{ $limit = "" }}{{ end }}{{ end }}
{{- if regexMatch "^[0-9]+(\\.[0-9]+)?(k|[KMGT]i|[MGT])?$" $limit }}
{{- $unit := regexFind "[a-zA-Z]+$" $limit }}
{{- $bytes := dict "" 1 "k" 1000 "Ki" 1024 "M" 1000000 "Mi" 1048576 "G" 1000000000 "Gi" 1073741824 "T" 1000000000000 "Ti" 1099511627776 }}
{{- mulf (trimSuffix $unit $limit) (get $bytes $unit) 0.9 | floor | int64 }}
{{- end }}
{{- end }}

{{/* At most how many pods may be evicted at a time. */}}
{{- define "roundhouse.disruptionBudget" -}}
{{- with .values.podDisruptionBudget }}
{{- if .enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $.name }}
  namespace: {{ $.namespace }}
  labels: {{- include "roundhouse.labels" $ | nindent 4 }}
spec:
  maxUnavailable: {{ .maxUnavailable }}
  selector:
    matchLabels: {{- include "roundhouse.selector" $ | nindent 6 }}
{{- end }}
{{- end }}
{{- end }}
