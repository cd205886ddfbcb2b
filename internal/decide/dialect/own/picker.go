package own

import (
	"strings"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// readPoolPicker reads how an endpoint is chosen; package picker knows what there
// is.
func readPoolPicker(r *manifest.Reader, in *api.PoolPicker) routing.Picker {
	out := routing.Picker{Preset: in.Preset, Filters: poolFilters(in.Filters), Choice: in.Choice, Balance: in.Balance}
	for _, s := range in.Scorers {
		one := routing.Scorer{Name: s.Name, Weight: 1, Scale: s.Scale}
		if s.Weight != nil {
			one.Weight = *s.Weight
		}
		out.Scorers = append(out.Scorers, one)
	}
	r.Duration("spec.picker.fresh", in.Fresh)
	r.Duration("spec.picker.stale", in.Stale)
	if in.Fresh != nil {
		out.Fresh = in.Fresh.Duration
	}
	if in.Stale != nil {
		out.Stale = in.Stale.Duration
	}
	config, err := picker.Of(out)
	if err != nil {
		r.Errorf("spec.picker.preset", "%s", afterColon(err))
		return out
	}
	if err := config.Validate(); err != nil {
		path, message, ok := strings.Cut(err.Error(), ": ")
		if field, rest, is := strings.Cut(err.Error(), " is "); is && len(field) < len(path) {
			path, message, ok = field, "is "+rest, true
		}
		if !ok {
			path, message = "scorers", err.Error()
		}
		r.Errorf("spec.picker."+path, "%s", message)
	}
	return out
}

func poolFilters(in []api.PoolFilter) (out []routing.Filter) {
	for _, f := range in {
		out = append(out, routing.Filter{Name: f.Filter, Waiting: f.Waiting, KV: f.KV, Probability: f.Probability,
			Then: poolFilters(f.Then), Else: poolFilters(f.Else)})
	}
	return out
}

// afterColon is an error's text without the place it names first.
func afterColon(err error) string {
	_, text, ok := strings.Cut(err.Error(), ": ")
	if !ok {
		return err.Error()
	}
	return text
}
