package fleet

import (
	"context"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

// Draft is a copy of what is desired with objects applied to it, to explain
// them by. It stores nothing and must not be run.
func (f *Fleet) Draft(ctx context.Context, objects []Object) (*Fleet, error) {
	cfg := f.cfg
	cfg.Store, cfg.Traffic, cfg.Routing = discard{}, nowhere{}, nil
	d, err := New(cfg)
	if err != nil {
		return nil, err
	}
	for _, o := range f.resolver.objects(func(ID, Object) bool { return true }) {
		d.resolver.put(o)
	}
	_, err = d.Apply(ctx, objects, ApplyOptions{})
	return d, err
}

// nowhere is the traffic of drafts.
type nowhere struct{}

func (nowhere) Publish(View)                        {}
func (nowhere) Withdraw(service.Key)                {}
func (nowhere) Demand(service.Key) autoscale.Demand { return autoscale.Demand{} }
func (nowhere) InFlight(string) int                 { return 0 }

// discard is a store for drafts.
type discard struct{}

func (discard) PutObject(Object) error            { return nil }
func (discard) DeleteObject(ID) error             { return nil }
func (discard) PutRecord(Record) error            { return nil }
func (discard) DeleteRecord(service.Key) error    { return nil }
func (discard) Load() ([]Object, []Record, error) { return nil, nil, nil }
