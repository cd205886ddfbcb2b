package service

import "strings"

// ModelSource is the model a service serves: written in place, or by
// reference to a Model object.
type ModelSource struct {
	// Ref names a BaseModel or ClusterBaseModel; nil for a model in place.
	Ref *ObjectRef `json:"ref,omitempty"`
	// URI is where the files are ("file://models/iris.ubj", "s3://…"); relative
	// file URIs are resolved against the manifest's folder when it is read.
	URI        string `json:"uri,omitempty"`
	Attributes `json:",inline"`
	// Storage says, on a cluster, by which secret the files are fetched; nil for
	// a store that needs none, or whose keys are found otherwise.
	Storage *Storage `json:"storage,omitempty"`
	// Adapters are served beside it, in the same replicas; at most MaxAdapters.
	Adapters []Adapter `json:"adapters,omitempty"`
}

// Storage is KServe's storage: a key of the namespace's secret storage-config
// holds where a store is and its keys, as a JSON object of strings. The secret
// is for the pod that fetches; nobody else reads it. A URI that begins with
// storage:// leaves even the bucket to it.
type Storage struct {
	// Key of the secret; empty is "default_TYPE", which may be missing.
	Key string `json:"key,omitempty"`
	// Parameters go before what the secret says: type, bucket, region, …
	Parameters map[string]string `json:"parameters,omitempty"`
}

// Model is a model as an object of its own (OME's BaseModel and
// ClusterBaseModel; the latter has no namespace).
type Model struct {
	Meta        `json:",inline"`
	URI         string `json:"uri,omitempty"`
	Disabled    bool   `json:"disabled,omitempty"`
	DisplayName string `json:"displayName,omitempty"`
	Attributes  `json:",inline"`
	// FineTuned is set for an adapter, which serves nothing by itself.
	FineTuned *FineTuned `json:"fineTuned,omitempty"`
}

// NamedVersion is a name with an optional version, such as
// {safetensors, 1.0.0}.
type NamedVersion struct {
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`
}

// Attributes are what selection matches a model by. Empty means not stated.
type Attributes struct {
	Format       NamedVersion `json:"format,omitzero"`
	Framework    NamedVersion `json:"framework,omitzero"`
	Architecture string       `json:"architecture,omitempty"`
	Quantization string       `json:"quantization,omitempty"`
	// Parameters is the parameter count; 0 means unknown.
	Parameters int64 `json:"parameters,omitempty"`
	// AdapterRank is the rank of files that are a LoRA adapter's; 0 for others.
	AdapterRank int `json:"adapterRank,omitempty"`
	// Environment is the Python environment that the files bring with them, as
	// they name it; "" where there is none.
	Environment string `json:"environment,omitempty"`
	// From says where each attribute came from, by field name
	// ("architecture": "config.json"). An absent entry means the manifest.
	From map[string]string `json:"from,omitempty"`
}

// Fill takes from found what a does not state and notes in From where each
// such attribute came from (found.From, else source).
func (a Attributes) Fill(found Attributes, source string) Attributes {
	from := map[string]string{}
	for k, v := range a.From {
		from[k] = v
	}
	note := func(field string) {
		if f := found.From[field]; f != "" {
			from[field] = f
			return
		}
		from[field] = source
	}
	str := func(field string, dst *string, v string) {
		if *dst == "" && v != "" {
			*dst = v
			note(field)
		}
	}
	// A version found belongs to the name found: never lend it to another.
	if a.Format.Name == "" || strings.EqualFold(a.Format.Name, found.Format.Name) {
		str("format.version", &a.Format.Version, found.Format.Version)
	}
	if a.Framework.Name == "" || strings.EqualFold(a.Framework.Name, found.Framework.Name) {
		str("framework.version", &a.Framework.Version, found.Framework.Version)
	}
	str("format", &a.Format.Name, found.Format.Name)
	str("framework", &a.Framework.Name, found.Framework.Name)
	str("architecture", &a.Architecture, found.Architecture)
	str("quantization", &a.Quantization, found.Quantization)
	str("environment", &a.Environment, found.Environment)
	if a.Parameters == 0 && found.Parameters > 0 {
		a.Parameters = found.Parameters
		note("parameters")
	}
	if len(from) > 0 {
		a.From = from
	}
	return a
}
