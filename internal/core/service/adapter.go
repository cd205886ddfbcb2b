package service

// MaxAdapters is how many adapters one service may have.
const MaxAdapters = 64

// Adapter is a LoRA adapter: a small file of weights that an engine lays over
// the model it has loaded, for those requests that name it.
type Adapter struct {
	// Name is the model's name in requests for it.
	Name string `json:"name"`
	// URI is where its files are.
	URI string `json:"uri,omitempty"`
	// Ref is the FineTunedWeight that says where (OME); nil for one in place.
	Ref *ObjectRef `json:"ref,omitempty"`
	// Rank is the rank of its matrices; 0 means not known.
	Rank int `json:"rank,omitempty"`
}

// AdapterArgs is how a runtime's engine is told of adapters: arguments of its
// main container or its local command. They are templates over what those are
// templates over, and {{.Adapters}}, how many there are.
type AdapterArgs struct {
	// Args stand once.
	Args []string `json:"args,omitempty"`
	// Each stands after them, once for every adapter: {{.Adapter}} is its name
	// and {{.AdapterPath}} its folder.
	Each []string `json:"each"`
	// Rank stands before both where the ranks are known: {{.AdapterRank}} is the
	// highest, rounded up to a power of two from 8 on.
	Rank []string `json:"rank,omitempty"`
	// Model is the model's name that the engine knows an adapter by, a template
	// over what Each is, but for the folder; "" means {{.Adapter}}.
	Model string `json:"model,omitempty"`
}

// FineTuned is what a Model object that holds an adapter says of it (OME's
// FineTunedWeight).
type FineTuned struct {
	// Base is the model it was made from; its namespace is "" for one of the
	// cluster.
	Base Key `json:"base"`
	// Type is how it was made, in its author's words ("LoRA").
	Type string `json:"type,omitempty"`
	// Merged reports that the files are those of a whole model.
	Merged bool `json:"merged,omitempty"`
	Rank   int  `json:"rank,omitempty"`
}

// AdapterNames are the names of a service's adapters, in their order.
func (s *Service) AdapterNames() []string {
	if s == nil || s.Model == nil {
		return nil
	}
	var out []string
	for _, a := range s.Model.Adapters {
		out = append(out, a.Name)
	}
	return out
}
