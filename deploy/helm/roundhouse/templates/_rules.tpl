{{/*
What is allowed, each rule with who needs it. "namespaced" rules go into a
ClusterRole, or with watchNamespaces into a Role of each; "cluster" rules are
about what no namespace holds; "own" rules hold in the release's namespace.
*/}}

{{- define "roundhouse.rules.manifests" -}}
# The controller and the gateways read services, routes and pools of every
# dialect that is installed.
- apiGroups: [roundhouse.dev]
  resources: [modelservices, routes, pools]
  verbs: [get, list, watch]
- apiGroups: [serving.kserve.io, ome.io]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [serving.kserve.io]
  resources: [llminferenceservices, trainedmodels, inferencegraphs]
  verbs: [get, list, watch]
- apiGroups: [machinelearning.seldon.io]
  resources: [seldondeployments]
  verbs: [get, list, watch]
- apiGroups: [inference.networking.k8s.io, inference.networking.x-k8s.io]
  resources: [inferencepools, inferencepoolimports, inferencemodels, inferenceobjectives, inferencemodelrewrites]
  verbs: [get, list, watch]
- apiGroups: [llm-d.ai]
  resources: [inferenceobjectives, inferencemodelrewrites]
  verbs: [get, list, watch]
# Both judge which routes are the gateway's.
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes, grpcroutes, gateways, referencegrants]
  verbs: [get, list, watch]
{{- if and .Values.gateway.enabled .Values.gateway.https.enabled }}
# Listeners for HTTPS name their certificates.
- apiGroups: [""]
  resources: [secrets]
  verbs: [list, watch]
{{- end }}
# Both find replicas by EndpointSlices, and decisions in ControllerRevisions.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch]
{{- end }}

{{- define "roundhouse.rules.manifests.cluster" -}}
# Both learn which dialects are installed.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch]
# Gateways of a GatewayClass that names Roundhouse.
- apiGroups: [gateway.networking.k8s.io]
  resources: [gatewayclasses]
  verbs: [get, list, watch]
{{- if not .Values.watchNamespaces }}
# Which namespaces adopt whose manifests.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get, list, watch]
{{- end }}
{{- end }}

{{- define "roundhouse.rules.controller" -}}
{{ include "roundhouse.rules.manifests" . }}
# The runtimes and models that services are run with.
- apiGroups: [roundhouse.dev, serving.kserve.io, ome.io]
  resources: [servingruntimes]
  verbs: [get, list, watch]
- apiGroups: [ome.io]
  resources: [basemodels]
  verbs: [get, list, watch]
# What services are laid over.
- apiGroups: [serving.kserve.io]
  resources: [llminferenceserviceconfigs]
  verbs: [get, list, watch]
{{- if .Values.rbac.schedulerConfigMaps }}
# ConfigMaps that LLMInferenceServices name for their scheduler. The metadata of
# all is watched once one is named, and the content of those is read.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch]
{{- end }}
# Status, in the dialect a manifest came in.
- apiGroups: [roundhouse.dev]
  resources: [modelservices/status, servingruntimes/status, routes/status, pools/status]
  verbs: [get, patch, update]
- apiGroups: [serving.kserve.io, ome.io]
  resources: [inferenceservices/status]
  verbs: [get, patch, update]
- apiGroups: [serving.kserve.io]
  resources: [llminferenceservices/status, trainedmodels/status, inferencegraphs/status]
  verbs: [get, patch, update]
- apiGroups: [machinelearning.seldon.io]
  resources: [seldondeployments/status]
  verbs: [get, patch, update]
- apiGroups: [inference.networking.k8s.io, inference.networking.x-k8s.io]
  resources: [inferencepools/status, inferencepoolimports/status, inferencemodels/status, inferenceobjectives/status, inferencemodelrewrites/status]
  verbs: [get, patch, update]
- apiGroups: [llm-d.ai]
  resources: [inferenceobjectives/status, inferencemodelrewrites/status]
  verbs: [get, patch, update]
- apiGroups: [gateway.networking.k8s.io]
  resources: [gateways/status, httproutes/status, grpcroutes/status]
  verbs: [get, patch, update]
# Objects of a service belong to its manifest: some clusters let only those name
# an owner who may write its finalizers.
- apiGroups: [roundhouse.dev]
  resources: [modelservices/finalizers]
  verbs: [update]
- apiGroups: [serving.kserve.io, ome.io]
  resources: [inferenceservices/finalizers]
  verbs: [update]
- apiGroups: [serving.kserve.io]
  resources: [llminferenceservices/finalizers, trainedmodels/finalizers]
  verbs: [update]
- apiGroups: [machinelearning.seldon.io]
  resources: [seldondeployments/finalizers]
  verbs: [update]
# Replicas.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [get, patch, update]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets/scale]
  verbs: [get, patch, update]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# The names of the secrets that an account lists: pods fetch models with them.
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get]
{{- if .Values.rbac.routerAccounts }}
# A router that looks for pods itself, as SGLang's does, gets an account and a
# role that may. The API server lets nobody give away what he does not hold
# himself, which of this account is little; pods are among it, below.
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- if .Values.rbac.trainedModels }}
# The models that the pods of a service load while they run are listed in a
# ConfigMap, beside the service. Of ConfigMaps with other labels nothing is read.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
# The records of what was decided.
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [create, patch, update, delete]
# Pods are read, and marked as the first to go when a count falls; their logs
# say why one failed.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# A count that a HorizontalPodAutoscaler or KEDA keeps is left to it. A service
# that scales by cpu or memory gets one of its own.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
# A service that scales by them and by something else is counted by what
# metrics-server measures.
- apiGroups: [metrics.k8s.io]
  resources: [pods]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch, update]
# What nodes keep of models ahead of their use, by DaemonSets whose pods fetch it.
- apiGroups: [serving.kserve.io]
  resources: [localmodelnamespacecaches]
  verbs: [get, list, watch]
- apiGroups: [serving.kserve.io]
  resources: [localmodelnamespacecaches/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [daemonsets]
  verbs: [list, watch, create, patch, delete]
# What is to be kept ready. Its placeholders are a Deployment, above.
- apiGroups: [roundhouse.dev]
  resources: [reserves]
  verbs: [get, list, watch]
- apiGroups: [roundhouse.dev]
  resources: [reserves/status]
  verbs: [patch]
# Benchmarks, whose status it writes.
- apiGroups: [ome.io]
  resources: [benchmarkjobs]
  verbs: [get, list, watch]
- apiGroups: [ome.io]
  resources: [benchmarkjobs/status]
  verbs: [get, patch, update]
{{- if or .Values.reserves.enabled .Values.benchmarks.enabled }}
# Images are pulled, and the load of benchmarks is sent, by Jobs.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch, create, delete]
{{- end }}
{{- end }}

{{- define "roundhouse.rules.controller.cluster" -}}
{{ include "roundhouse.rules.manifests.cluster" . }}
# The runtimes and models of all namespaces.
- apiGroups: [roundhouse.dev, serving.kserve.io, ome.io]
  resources: [clusterservingruntimes]
  verbs: [get, list, watch]
- apiGroups: [serving.kserve.io]
  resources: [clusterstoragecontainers]
  verbs: [get, list, watch]
- apiGroups: [serving.kserve.io]
  resources: [localmodelcaches, localmodelnodegroups]
  verbs: [get, list, watch]
- apiGroups: [serving.kserve.io]
  resources: [localmodelcaches/status]
  verbs: [patch]
- apiGroups: [ome.io]
  resources: [clusterbasemodels, finetunedweights, acceleratorclasses]
  verbs: [get, list, watch]
- apiGroups: [roundhouse.dev]
  resources: [clusterservingruntimes/status]
  verbs: [get, patch, update]
- apiGroups: [gateway.networking.k8s.io]
  resources: [gatewayclasses/status]
  verbs: [get, patch, update]
{{- if .Values.reserves.enabled }}
# Reserves go by how many nodes there are and which images they have.
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- end }}
# Whose token a gateway's report shows.
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- if .Values.installCRDs }}
# CRDs: other projects' are made where they are absent, ours are kept up to date.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [create]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames:
    {{- range $file, $_ := .Files.Glob "files/crds/*.yaml" }}
    - {{ ($.Files.Get $file | fromYaml).metadata.name }}
    {{- end }}
  verbs: [patch]
{{- end }}
{{- end }}

{{- define "roundhouse.rules.controller.own" -}}
{{ include "roundhouse.rules.front" . }}
# Who leads.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [roundhouse-controller]
  verbs: [get, update, patch]
# The certificate for gateways' reports, which the controller makes, and its
# authority for gateways to read.
- apiGroups: [""]
  resources: [secrets, configmaps]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [roundhouse-controller]
  verbs: [get, update]
# What services used, a ConfigMap for each day.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, update, delete]
# Which gateways there are.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
# Events about who leads.
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [create, patch, update]
{{- end }}

{{- define "roundhouse.rules.front" -}}
# The ports and the address of the gateway, which Gateways have.
- apiGroups: [""]
  resources: [services]
  resourceNames: [{{ include "roundhouse.name" . }}-gateway]
  verbs: [get, list, watch]
{{- end }}

{{- define "roundhouse.rules.gateway" -}}
{{ include "roundhouse.rules.manifests" . }}
# InferencePools select pods, anybody's.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# They name the Services of their endpoint pickers, and routes any.
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch]
# A request to a sleeping service starts its first replica, whether or not a
# controller is alive.
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [get, patch]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets/scale]
  verbs: [get, patch]
{{- end }}

{{- define "roundhouse.rules.gateway.own" -}}
{{ include "roundhouse.rules.front" . }}
# The controller's authority, and where its pods take reports.
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [roundhouse-controller]
  verbs: [get]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
{{- end }}

{{- define "roundhouse.rules.endpointPicker" -}}
# The pools, what belongs to them, and their pods.
- apiGroups: [inference.networking.k8s.io, inference.networking.x-k8s.io]
  resources: [inferencepools, inferencemodels, inferenceobjectives, inferencemodelrewrites]
  verbs: [get, list, watch]
- apiGroups: [llm-d.ai]
  resources: [inferenceobjectives, inferencemodelrewrites]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- end }}

{{- define "roundhouse.rules.endpointPicker.cluster" -}}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch]
{{- end }}
