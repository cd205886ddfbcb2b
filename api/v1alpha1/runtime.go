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
	// cohere; none means any. Calls of language models' APIs are refused where
	// neither openAI nor cohere is listed, and KServe's where these alone are.
	ProtocolVersions []string `json:"protocolVersions,omitempty"`
	// ModelSizeRange is the range of parameter counts it is meant for.
	ModelSizeRange *SizeRange `json:"modelSizeRange,omitempty"`
	// AcceleratorClasses it runs on; without one it serves no service that asks for one.
	AcceleratorClasses []string       `json:"acceleratorClasses,omitempty"`
	StorageHelper      *StorageHelper `json:"storageHelper,omitempty"`
	Engine             *Component     `json:"engine,omitempty"`
	Decoder            *Component     `json:"decoder,omitempty"`
	Router             *Component     `json:"router,omitempty"`
	// Disaggregation is what the engines expect beside a decoder: header, vllm
	// or sglang; absent means header.
	Disaggregation string `json:"disaggregation,omitempty"`
	// Adapters is how the engine is told of LoRA adapters; absent means that it
	// takes none, unless a runtime of the catalog with the same image does.
	Adapters *AdapterArgs `json:"adapters,omitempty"`
	// Local is short for engine.local.
	Local *Local `json:"local,omitempty"`
}

// AdapterArgs are arguments for services with adapters, in containers and as a
// process alike.
type AdapterArgs struct {
	// Args stand once; {{.Adapters}} is how many adapters there are.
	Args []string `json:"args,omitempty"`
	// Each stands after them, once for every adapter: {{.Adapter}} is its name
	// and {{.AdapterPath}} its folder.
	Each []string `json:"each"`
	// Rank stands where the ranks of all adapters are known: {{.AdapterRank}} is
	// the highest, rounded up to a power of two from 8 on.
	Rank []string `json:"rank,omitempty"`
	// Model is the model's name that requests to the engine ask for an adapter
	// by: {{.Adapter}}, which it is where absent, and {{.Name}} of the service.
	Model string `json:"model,omitempty"`
}

// SupportedFormat is one kind of model a runtime serves: the union of KServe's
// entries (name, version) and OME's (modelFormat, modelFramework,
// modelArchitecture, quantization). What is absent matches any model.
type SupportedFormat struct {
	// Name and Version are short for modelFormat.
	Name              string         `json:"name,omitempty"`
	Version           string         `json:"version,omitempty"`
	ModelFormat       *VersionedName `json:"modelFormat,omitempty"`
	ModelFramework    *VersionedName `json:"modelFramework,omitempty"`
	ModelArchitecture string         `json:"modelArchitecture,omitempty"`
	Quantization      string         `json:"quantization,omitempty"`
	// AutoSelect lets the entry be chosen for services that name no runtime.
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
