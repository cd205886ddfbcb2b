package dialect

import (
	"strings"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// poolPicker reads how an endpoint is chosen; package picker knows what there
// is.
func (r *reading) poolPicker(in *api.PoolPicker) routing.Picker {
	out := routing.Picker{Preset: in.Preset}
	config, err := picker.Preset(in.Preset)
	if err != nil {
		r.errorf("spec.picker.preset", "%s", afterColon(err))
		return out
	}
	if len(in.Scorers) > 0 {
		config.Scorers = nil
	}
	for _, s := range in.Scorers {
		one := routing.Scorer{Name: s.Name, Weight: 1, Scale: s.Scale}
		if s.Weight != nil {
			one.Weight = *s.Weight
		}
		out.Scorers = append(out.Scorers, one)
		config.Scorers = append(config.Scorers, picker.Scorer{Name: one.Name, Weight: one.Weight, Scale: one.Scale})
	}
	if err := config.Validate(); err != nil {
		path, message, ok := strings.Cut(err.Error(), ": ")
		if field, rest, is := strings.Cut(err.Error(), " is "); is && len(field) < len(path) {
			path, message, ok = field, "is "+rest, true
		}
		if !ok {
			path, message = "scorers", err.Error()
		}
		r.errorf("spec.picker."+path, "%s", message)
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
