package scaling

import (
	"fmt"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Contestant makes the scalers of one policy.
type Contestant struct {
	Name    string
	Summary string
	// New makes a scaler for one replay.
	New func(pool Pool, trace *Trace, l service.Limits) (Scaler, error)
}

// Contestants are the policies to compare.
func Contestants() []Contestant {
	return []Contestant{
		{Name: "roundhouse", Summary: "the product's own decision", New: func(_ Pool, _ *Trace, l service.Limits) (Scaler, error) {
			return NewShipped(l), nil
		}},
		{Name: "knative", Summary: "Knative's KPA with its defaults, and the slots as containerConcurrency", New: func(p Pool, _ *Trace, l service.Limits) (Scaler, error) {
			return NewKnative(DefaultKnative(float64(p.Slots), l.Min, l.Max)), nil
		}},
		{Name: "clairvoyant", Summary: "knows the trace: the shortest waits that are possible, at the least cost", New: func(p Pool, t *Trace, _ service.Limits) (Scaler, error) {
			return NewClairvoyant(p, t)
		}},
	}
}

// FindContestant finds one by its name.
func FindContestant(name string) (Contestant, error) {
	var names []string
	for _, c := range Contestants() {
		if c.Name == name {
			return c, nil
		}
		names = append(names, c.Name)
	}
	return Contestant{}, fmt.Errorf("there is no policy %q; there are %s", name, strings.Join(names, ", "))
}
