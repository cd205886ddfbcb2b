package dialect

import (
	"maps"
	"slices"

	"roundhouse.dev/roundhouse/internal/decide/dialect/gateway"
	"roundhouse.dev/roundhouse/internal/decide/dialect/kserve"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/ome"
	"roundhouse.dev/roundhouse/internal/decide/dialect/own"
	"roundhouse.dev/roundhouse/internal/decide/dialect/seldon"
)

// schemas are those of all dialects.
var schemas = slices.Concat(own.Schemas, kserve.Schemas, ome.Schemas, seldon.Schemas, gateway.Schemas)

// notes are those of all dialects.
var notes = func() manifest.Notes {
	out := maps.Clone(manifest.KubernetesNotes)
	for _, n := range []manifest.Notes{kserve.Notes, ome.Notes, seldon.Notes, gateway.Notes} {
		maps.Copy(out, n)
	}
	return out
}()

// versions lists the API versions that are read.
func versions() []string {
	var out []string
	for _, k := range schemas {
		if !slices.Contains(out, k.APIVersion) {
			out = append(out, k.APIVersion)
		}
	}
	return out
}

// kindsOf lists the kinds of an API version that are read.
func kindsOf(apiVersion string) []string {
	var out []string
	for _, k := range schemas {
		if k.APIVersion == apiVersion {
			out = append(out, k.Kind)
		}
	}
	return out
}

// foreign are kinds that are known and not read, by "apiVersion kind".
var foreign = map[string]manifest.Note{
	"v1 Namespace":      manifest.OnProcess("has no effect here: namespaces need not be made"),
	"v1 ServiceAccount": manifest.OnProcess("has no effect here: a process runs as the user who started it"),
	"v1 List":           manifest.Refused("is not read: write its items as documents of their own, with --- between"),
	"v1 Secret":         manifest.Refused("is not read: give credentials to the program's own environment"),
	"v1 ConfigMap":      manifest.Refused("is not read: only services, runtimes and models are"),

	"kustomize.config.k8s.io/v1beta1 Kustomization": manifest.Never("has no effect: every file is read by itself; give what kustomize builds where it changes them"),

	"serving.kserve.io/v1alpha1 InferenceGraph":          manifest.Refused("is not served yet: each of its services can be, alone"),
	"serving.kserve.io/v1alpha1 TrainedModel":            manifest.Refused("is not served yet: write an InferenceService for the model"),
	"serving.kserve.io/v1alpha1 LLMInferenceService":     manifest.Refused("is not read yet: write an InferenceService with modelFormat huggingface"),
	"serving.kserve.io/v1alpha2 LLMInferenceService":     manifest.Refused("is not read yet: write an InferenceService with modelFormat huggingface"),
	"serving.kserve.io/v1alpha1 LocalModelCache":         manifest.Refused("is not read: models are cached as they are fetched"),
	"serving.kserve.io/v1alpha1 LocalModelNodeGroup":     manifest.Refused("is not read: models are cached as they are fetched"),
	"serving.kserve.io/v1alpha1 ClusterStorageContainer": manifest.Refused("is not read: models are fetched by Roundhouse itself"),

	"ome.io/v1beta1 AcceleratorClass": manifest.OnProcess("has no effect: accelerators are found on the machine"),
	"ome.io/v1beta1 BenchmarkJob":     manifest.Refused("is not read: use \"roundhouse infer -i FILE\""),

	gateway.V1 + " Gateway":             manifest.OnProcess("has no effect on one machine: up is the one gateway"),
	gateway.V1 + " GatewayClass":        manifest.OnProcess("has no effect on one machine: up is the one gateway"),
	gateway.V1beta1 + " Gateway":        manifest.OnProcess("has no effect on one machine: up is the one gateway"),
	gateway.V1beta1 + " ReferenceGrant": manifest.OnProcess("has no effect on one machine: references may cross namespaces"),
	gateway.V1 + " GRPCRoute":           manifest.Refused("is not read: write an HTTPRoute with a match of the path /inference.GRPCInferenceService"),

	"mlops.seldon.io/v1alpha1 Model":      manifest.Refused("is not read: write a SeldonDeployment or an InferenceService for the model"),
	"mlops.seldon.io/v1alpha1 Pipeline":   manifest.Refused("is not served yet: each of its models can be, alone"),
	"mlops.seldon.io/v1alpha1 Experiment": manifest.Refused("is not served yet: each of its models can be, alone"),
}
