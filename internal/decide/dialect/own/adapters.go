package own

import (
	"strings"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

func readAdapters(r *manifest.Reader, path, own string, in []api.Adapter) []service.Adapter {
	var out []service.Adapter
	for i, a := range in {
		at := strict.Index(path, i)
		r.Name(at+".name", a.Name, false)
		if a.URI == "" {
			r.Errorf(at+".uri", "is missing: say where the adapter is")
		}
		r.URI(at+".uri", a.URI, false)
		adapter := service.Adapter{Name: a.Name, URI: a.URI}
		if a.Rank != nil {
			if adapter.Rank = *a.Rank; adapter.Rank < 1 || adapter.Rank > manifest.MaxRank {
				r.Errorf(at+".rank", "%d is no rank: write 1 to %d, or leave it out to have it read", adapter.Rank, manifest.MaxRank)
			}
		}
		out = append(out, adapter)
	}
	r.AdapterNames(path, own, out, func(i int) string { return strict.Index(path, i) + ".name" })
	return out
}

// readAdapterArgs reads how an engine is told of adapters; nil when absent.
func readAdapterArgs(r *manifest.Reader, path string, in *api.AdapterArgs) *service.AdapterArgs {
	if in == nil {
		return nil
	}
	named := false
	for _, w := range in.Each {
		named = named || strings.Contains(w, "{{.Adapter}}")
	}
	if !named {
		r.Errorf(path+".each", "does not name the adapter: write arguments with {{.Adapter}} and {{.AdapterPath}}")
	}
	if in.Model != "" && !strings.Contains(in.Model, "{{.Adapter}}") {
		r.Errorf(path+".model", "does not name the adapter: write {{.Adapter}} into the model's name, or leave it out")
	}
	return &service.AdapterArgs{Args: in.Args, Each: in.Each, Rank: in.Rank, Model: in.Model}
}
