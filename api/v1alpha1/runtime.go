package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ServingRuntime is a runtime for the services of its own namespace.
type ServingRuntime struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta    `json:"metadata"`
	Spec            ServingRuntimeSpec   `json:"spec"`
	Status          ServingRuntimeStatus `json:"status,omitzero"`
}

// ClusterServingRuntime is a runtime for every namespace. It has none itself.
type ClusterServingRuntime struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta    `json:"metadata"`
	Spec            ServingRuntimeSpec   `json:"spec"`
	Status          ServingRuntimeStatus `json:"status,omitzero"`
}

// ServingRuntimeSpec is what a runtime can serve and how it runs.
type ServingRuntimeSpec struct {
	Disabled   bool `json:"disabled,omitempty"`
	MultiModel bool `json:"multiModel,omitempty"`
	// MultiNode: the runtime is for services that span nodes. A leader or a
	// worker implies it.
	MultiNode             bool              `json:"multiNode,omitempty"`
	SupportedModelFormats []SupportedFormat `json:"supportedModelFormats,omitempty"`
	// ProtocolVersions are all that it speaks: v1, v2, grpc-v1, grpc-v2, openAI,
	// cohere; none means any. Without openAI and cohere, calls of language
	// models' APIs are refused; with these alone, KServe's calls are.
	ProtocolVersions []string `json:"protocolVersions,omitempty"`
	// ModelSizeRange is the range of parameter counts that it serves.
	ModelSizeRange *SizeRange `json:"modelSizeRange,omitempty"`
	// AcceleratorClasses that it runs on. A service that asks for a class gets
	// only runtimes that list it.
	AcceleratorClasses []string       `json:"acceleratorClasses,omitempty"`
	StorageHelper      *StorageHelper `json:"storageHelper,omitempty"`
	Engine             *Component     `json:"engine,omitempty"`
	Decoder            *Component     `json:"decoder,omitempty"`
	Router             *Component     `json:"router,omitempty"`
	// Disaggregation is how engines and decoders are connected: header, vllm or
	// sglang; default: header.
	Disaggregation string `json:"disaggregation,omitempty"`
	// Adapters are the engine's arguments for LoRA adapters. Without them it
	// supports none, unless a catalog runtime with the same image does.
	Adapters *AdapterArgs `json:"adapters,omitempty"`
	// Local is short for engine.local.
	Local *Local `json:"local,omitempty"`
}

// AdapterArgs are arguments for services with adapters, in containers and as a
// process alike.
type AdapterArgs struct {
	// Args are added once; {{.Adapters}} is how many adapters there are.
	Args []string `json:"args,omitempty"`
	// Each is added after them, once for every adapter: {{.Adapter}} is its name
	// and {{.AdapterPath}} its folder.
	Each []string `json:"each"`
	// Rank is added if the ranks of all adapters are known: {{.AdapterRank}} is
	// the highest, rounded up to a power of two from 8 on.
	Rank []string `json:"rank,omitempty"`
	// Model is the name by which the engine knows an adapter. It may use
	// {{.Adapter}}, the default, and {{.Name}} of the service.
	Model string `json:"model,omitempty"`
}

// SupportedFormat is one kind of model a runtime serves: the union of KServe's
// entries (name, version) and OME's (modelFormat, modelFramework,
// modelArchitecture, quantization). An absent field matches any model.
type SupportedFormat struct {
	// Name and Version are short for modelFormat.
	Name              string         `json:"name,omitempty"`
	Version           string         `json:"version,omitempty"`
	ModelFormat       *VersionedName `json:"modelFormat,omitempty"`
	ModelFramework    *VersionedName `json:"modelFramework,omitempty"`
	ModelArchitecture string         `json:"modelArchitecture,omitempty"`
	Quantization      string         `json:"quantization,omitempty"`
	// AutoSelect allows services that name no runtime to get this one.
	AutoSelect bool `json:"autoSelect,omitempty"`
	// Priority is 1 or more; the highest wins, and absent is below any.
	Priority *int `json:"priority,omitempty"`
}

// VersionedName is a name and how its version is compared.
type VersionedName struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	// Operator is Equal (default), GreaterThan or GreaterThanOrEqual: the
	// runtime's version against the model's.
	Operator string `json:"operator,omitempty"`
}

// SizeRange bounds a parameter count ("5B", "9B"), both ends included.
type SizeRange struct {
	Min string `json:"min,omitempty"`
	Max string `json:"max,omitempty"`
}

// StorageHelper is what fetches a model before the runtime starts.
type StorageHelper struct {
	// Disabled hands the model's URI to the runtime as written.
	Disabled bool `json:"disabled,omitempty"`
}
