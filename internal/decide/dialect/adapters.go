package dialect

import (
	"strings"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// maxRank is far above any adapter's rank.
const maxRank = 1 << 16

func (r *reading) ownAdapters(path, own string, in []api.Adapter) []service.Adapter {
	var out []service.Adapter
	for i, a := range in {
		at := strict.Index(path, i)
		r.name(at+".name", a.Name, false)
		if a.URI == "" {
			r.errorf(at+".uri", "is missing: say where the adapter is")
		}
		r.uri(at+".uri", a.URI, false)
		adapter := service.Adapter{Name: a.Name, URI: a.URI}
		if a.Rank != nil {
			if adapter.Rank = *a.Rank; adapter.Rank < 1 || adapter.Rank > maxRank {
				r.errorf(at+".rank", "%d is no rank: write 1 to %d, or leave it out to have it read", adapter.Rank, maxRank)
			}
		}
		out = append(out, adapter)
	}
	r.adapterNames(path, own, out, func(i int) string { return strict.Index(path, i) + ".name" })
	return out
}

// adapterNames checks how many adapters there are, and that their names differ
// and are not the service's own.
func (r *reading) adapterNames(path, own string, in []service.Adapter, at func(int) string) {
	if len(in) > service.MaxAdapters {
		r.errorf(path, "%d adapters are more than one service may have (%d)", len(in), service.MaxAdapters)
	}
	seen := map[string]int{}
	for i, a := range in {
		j, twice := seen[a.Name]
		switch {
		case a.Name == "":
		case a.Name == own:
			r.errorf(at(i), "%q is the name of the service itself: requests could not tell them apart", clip(own))
		case twice:
			r.errorf(at(i), "%q is also the name of adapter %d", clip(a.Name), j)
			continue
		}
		seen[a.Name] = i
	}
}

// ownAdapterArgs reads how an engine is told of adapters; nil when absent.
func (r *reading) ownAdapterArgs(path string, in *api.AdapterArgs) *service.AdapterArgs {
	if in == nil {
		return nil
	}
	named := false
	for _, w := range in.Each {
		named = named || strings.Contains(w, "{{.Adapter}}")
	}
	if !named {
		r.errorf(path+".each", "does not name the adapter: write arguments with {{.Adapter}} and {{.AdapterPath}}")
	}
	if in.Model != "" && !strings.Contains(in.Model, "{{.Adapter}}") {
		r.errorf(path+".model", "does not name the adapter: write {{.Adapter}} into the model's name, or leave it out")
	}
	return &service.AdapterArgs{Args: in.Args, Each: in.Each, Rank: in.Rank, Model: in.Model}
}

// ModelURIs are the URIs of files that an object names: its model's and its
// adapters'.
func (o Object) ModelURIs() []string {
	var out []string
	add := func(uri string) {
		if uri != "" {
			out = append(out, uri)
		}
	}
	switch {
	case o.Service != nil && o.Service.Model != nil:
		add(o.Service.Model.URI)
		for _, a := range o.Service.Model.Adapters {
			add(a.URI)
		}
	case o.Model != nil:
		add(o.Model.URI)
	}
	return out
}
