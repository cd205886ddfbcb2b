package dialect

import (
	"reflect"
	"slices"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// The versions that are read.
const (
	kserveV1beta1  = "serving.kserve.io/v1beta1"
	kserveV1alpha1 = "serving.kserve.io/v1alpha1"
	omeV1beta1     = "ome.io/v1beta1"
	// SeldonDeployment's versions differ in name alone.
	seldonV1       = "machinelearning.seldon.io/v1"
	seldonV1alpha3 = "machinelearning.seldon.io/v1alpha3"
	seldonV1alpha2 = "machinelearning.seldon.io/v1alpha2"
	// The Gateway API Inference Extension's, before and since its kinds settled.
	gieV1alpha2 = "inference.networking.x-k8s.io/v1alpha2"
	gieV1       = "inference.networking.k8s.io/v1"
	gatewayV1   = "gateway.networking.k8s.io/v1"
	// HTTPRoute's versions differ in name alone.
	gatewayV1beta1 = "gateway.networking.k8s.io/v1beta1"
)

// kind is one kind of manifest: the type it is decoded into and how that goes
// into the hub.
type kind struct {
	apiVersion, kind string
	shape            reflect.Type
	read             func(r *reading, manifest any, o *Object)
}

// read1 makes a kind of a manifest type and its reading.
func read1[T any](apiVersion, name string, read func(*reading, *T, *Object)) kind {
	return kind{apiVersion, name, reflect.TypeFor[T](), func(r *reading, m any, o *Object) { read(r, m.(*T), o) }}
}

// kinds is every kind that is read.
var kinds = []kind{
	read1(api.APIVersion, api.KindModelService, readModelService),
	read1(api.APIVersion, api.KindServingRuntime, func(r *reading, m *api.ServingRuntime, o *Object) {
		r.runtime(m.Metadata, service.ScopeNamespace, o)
		readOwnRuntime(r, &m.Spec, o.Runtime)
	}),
	read1(api.APIVersion, api.KindClusterServingRuntime, func(r *reading, m *api.ClusterServingRuntime, o *Object) {
		r.runtime(m.Metadata, service.ScopeCluster, o)
		readOwnRuntime(r, &m.Spec, o.Runtime)
	}),
	read1(kserveV1beta1, "InferenceService", readKServeService),
	read1(kserveV1alpha1, "ServingRuntime", func(r *reading, m *kserveRuntime, o *Object) {
		r.runtime(m.Metadata, service.ScopeNamespace, o)
		readKServeRuntime(r, &m.Spec, o.Runtime)
	}),
	read1(kserveV1alpha1, "ClusterServingRuntime", func(r *reading, m *kserveRuntime, o *Object) {
		r.runtime(m.Metadata, service.ScopeCluster, o)
		readKServeRuntime(r, &m.Spec, o.Runtime)
	}),
	read1(omeV1beta1, "InferenceService", readOMEService),
	read1(omeV1beta1, "ServingRuntime", func(r *reading, m *omeRuntime, o *Object) {
		r.runtime(m.Metadata, service.ScopeNamespace, o)
		readOMERuntime(r, &m.Spec, o.Runtime)
	}),
	read1(omeV1beta1, "ClusterServingRuntime", func(r *reading, m *omeRuntime, o *Object) {
		r.runtime(m.Metadata, service.ScopeCluster, o)
		readOMERuntime(r, &m.Spec, o.Runtime)
	}),
	read1(omeV1beta1, "BaseModel", func(r *reading, m *omeBaseModel, o *Object) { readOMEModel(r, m, false, o) }),
	read1(omeV1beta1, "ClusterBaseModel", func(r *reading, m *omeBaseModel, o *Object) { readOMEModel(r, m, true, o) }),
	read1(omeV1beta1, kindFineTunedWeight, readOMEWeight),
	read1(seldonV1, "SeldonDeployment", readSeldon),
	read1(seldonV1alpha3, "SeldonDeployment", readSeldon),
	read1(seldonV1alpha2, "SeldonDeployment", readSeldon),
	read1(api.APIVersion, api.KindRoute, readRoute),
	read1(api.APIVersion, api.KindPool, readPool),
	read1(gieV1alpha2, "InferenceModel", readInferenceModel),
	read1(gieV1alpha2, "InferencePool", readInferencePoolV1alpha2),
	read1(gieV1, "InferencePool", readInferencePoolV1),
	read1(gieV1alpha2, "InferenceObjective", readInferenceObjective),
	read1(gieV1alpha2, "InferenceModelRewrite", readInferenceModelRewrite),
	read1(gatewayV1, "HTTPRoute", readHTTPRoute),
	read1(gatewayV1beta1, "HTTPRoute", readHTTPRoute),
}

// versions lists the API versions that are read.
func versions() []string {
	var out []string
	for _, k := range kinds {
		if !slices.Contains(out, k.apiVersion) {
			out = append(out, k.apiVersion)
		}
	}
	return out
}

// kindsOf lists the kinds of an API version that are read.
func kindsOf(apiVersion string) []string {
	var out []string
	for _, k := range kinds {
		if k.apiVersion == apiVersion {
			out = append(out, k.kind)
		}
	}
	return out
}

// note is what is said of a kind or a field that is not read into the hub.
type note struct {
	message  string
	warning  bool
	platform Platform
}

// foreign are kinds that are known and not read, by "apiVersion kind".
var foreign = map[string]note{
	"v1 Namespace":      {"has no effect here: namespaces need not be made", true, Process},
	"v1 ServiceAccount": {"has no effect here: a process runs as the user who started it", true, Process},
	"v1 List":           {"is not read: write its items as documents of their own, with --- between", false, AnyPlatform},
	"v1 Secret":         {"is not read: give credentials to the program's own environment", false, AnyPlatform},
	"v1 ConfigMap":      {"is not read: only services, runtimes and models are", false, AnyPlatform},

	"kustomize.config.k8s.io/v1beta1 Kustomization": {"has no effect: every file is read by itself; give what kustomize builds where it changes them", true, AnyPlatform},

	"serving.kserve.io/v1alpha1 InferenceGraph":          {"is not served yet: each of its services can be, alone", false, AnyPlatform},
	"serving.kserve.io/v1alpha1 TrainedModel":            {"is not served yet: write an InferenceService for the model", false, AnyPlatform},
	"serving.kserve.io/v1alpha1 LLMInferenceService":     {"is not read yet: write an InferenceService with modelFormat huggingface", false, AnyPlatform},
	"serving.kserve.io/v1alpha2 LLMInferenceService":     {"is not read yet: write an InferenceService with modelFormat huggingface", false, AnyPlatform},
	"serving.kserve.io/v1alpha1 LocalModelCache":         {"is not read: models are cached as they are fetched", false, AnyPlatform},
	"serving.kserve.io/v1alpha1 LocalModelNodeGroup":     {"is not read: models are cached as they are fetched", false, AnyPlatform},
	"serving.kserve.io/v1alpha1 ClusterStorageContainer": {"is not read: models are fetched by Roundhouse itself", false, AnyPlatform},

	"ome.io/v1beta1 AcceleratorClass": {"has no effect: accelerators are found on the machine", true, Process},
	"ome.io/v1beta1 BenchmarkJob":     {"is not read: use \"roundhouse infer -i FILE\"", false, AnyPlatform},

	gatewayV1 + " Gateway":             {"has no effect on one machine: up is the one gateway", true, Process},
	gatewayV1 + " GatewayClass":        {"has no effect on one machine: up is the one gateway", true, Process},
	gatewayV1beta1 + " Gateway":        {"has no effect on one machine: up is the one gateway", true, Process},
	gatewayV1beta1 + " ReferenceGrant": {"has no effect on one machine: references may cross namespaces", true, Process},
	gatewayV1 + " GRPCRoute":           {"is not read: write an HTTPRoute with a match of the path /inference.GRPCInferenceService", false, AnyPlatform},

	"mlops.seldon.io/v1alpha1 Model":      {"is not read: write a SeldonDeployment or an InferenceService for the model", false, AnyPlatform},
	"mlops.seldon.io/v1alpha1 Pipeline":   {"is not served yet: each of its models can be, alone", false, AnyPlatform},
	"mlops.seldon.io/v1alpha1 Experiment": {"is not served yet: each of its models can be, alone", false, AnyPlatform},
}
