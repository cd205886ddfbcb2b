package dispatch

// Adapter is a LoRA adapter of a service.
type Adapter struct {
	Name string // of the model in requests
	URI  string
	// ServedName is the model's name at the replicas; "" means Name.
	ServedName string
}

// adapterNames are the names of the adapters.
func (f *PoolConfig) adapterNames() []string {
	var out []string
	for _, a := range f.Adapters {
		out = append(out, a.Name)
	}
	return out
}

// adapter is the one of a name, nil for none.
func (f *PoolConfig) adapter(name string) *Adapter {
	for i := range f.Adapters {
		if f.Adapters[i].Name == name {
			return &f.Adapters[i]
		}
	}
	return nil
}
