package ome

import (
	"encoding/json"
	"strconv"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// readFineTuned reads the FineTunedWeights that a service names: each is an adapter
// of its name.
func readFineTuned(r *manifest.Reader, path, own string, weights []string) []service.Adapter {
	var out []service.Adapter
	for i, name := range weights {
		r.Name(strict.Index(path, i), name, true)
		out = append(out, service.Adapter{Name: name, Ref: &service.ObjectRef{Name: name, Kind: manifest.KindFineTunedWeight}})
	}
	r.AdapterNames(path, own, out, func(i int) string { return strict.Index(path, i) })
	return out
}

// readWeight reads a FineTunedWeight. What was merged into whole models is
// told by the key that OME tells it by.
func readWeight(r *manifest.Reader, m *fineTunedWeight, o *manifest.Object) {
	r.Model(m.Metadata, true, o)
	spec, out := &m.Spec, o.Model
	out.Disabled, out.DisplayName = spec.Disabled, spec.DisplayName
	out.FineTuned = &service.FineTuned{Type: spec.ModelType, Rank: rankOf(spec.HyperParameters)}
	if b := spec.BaseModelRef; b == nil {
		r.Errorf("spec.baseModelRef", "is missing: name the model that the weights were made from")
	} else {
		r.Name("spec.baseModelRef.name", b.Name, true)
		out.FineTuned.Base = service.Key{Namespace: b.Namespace, Name: b.Name}
	}
	if c, ok := spec.Configuration.(map[string]any); ok {
		out.FineTuned.Merged = c["merged_weights"] == true
	}
	if spec.Storage != nil {
		out.URI = spec.Storage.StorageURI
	}
	if out.URI == "" {
		r.Errorf("spec.storage.storageUri", "is missing: say where the weights' files are")
	}
	r.URI("spec.storage.storageUri", out.URI, true)
}

// rankNames are what authors call the rank among the parameters of a training.
var rankNames = []string{"rank", "lora_rank", "r", "lora_r"}

// rankOf is the rank of an adapter as its hyperparameters state it; 0 where they
// do not.
func rankOf(parameters any) int {
	m, _ := parameters.(map[string]any)
	for _, name := range rankNames {
		text := ""
		switch v := m[name].(type) {
		case string:
			text = v
		case json.Number:
			text = v.String()
		case int:
			text = strconv.Itoa(v)
		case int64:
			text = strconv.FormatInt(v, 10)
		case float64:
			text = strconv.FormatFloat(v, 'f', -1, 64)
		}
		if n, err := strconv.Atoi(text); err == nil && n > 0 && n <= manifest.MaxRank {
			return n
		}
	}
	return 0
}
