package fleet

import (
	"context"
	"maps"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Draft is a copy of what is desired with objects applied to it, to explain
// them by. It stores nothing and must not be run.
func (f *Fleet) Draft(ctx context.Context, objects []Object) (*Fleet, error) {
	cfg := f.cfg
	cfg.Store = discard{}
	d, err := New(cfg)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	maps.Copy(d.mu.runtimes, f.mu.runtimes)
	maps.Copy(d.mu.models, f.mu.models)
	f.mu.Unlock()
	_, err = d.Apply(ctx, objects, ApplyOptions{})
	return d, err
}

// discard is a store for drafts.
type discard struct{}

func (discard) PutObject(Object) error            { return nil }
func (discard) DeleteObject(ID) error             { return nil }
func (discard) PutRecord(Record) error            { return nil }
func (discard) DeleteRecord(service.Key) error    { return nil }
func (discard) Load() ([]Object, []Record, error) { return nil, nil, nil }
