package fleet

import (
	"context"
	"fmt"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// A revision that replaces another notes it until it has been ready itself, so
// that whoever owns the replicas next knows what serves meanwhile.

// before is the revision that goes on serving until the one of hash is ready:
// the present one if it has a ready replica, else the one that serves in its
// stead; nil for none, and on a cluster.
func (f *Fleet) before(ctx context.Context, w *work, hash string) *workload.Revision {
	if w.record == nil || f.cfg.Cluster {
		return nil
	}
	now := w.record.Revision
	serving := now.Before
	if now.Hash != hash {
		rs, err := f.cfg.Platform.Observe(ctx, w.key)
		if err == nil && slices.ContainsFunc(rs, func(r replica.Replica) bool { return r.Revision == now.Hash && r.Phase == replica.Ready }) {
			serving = &now
			serving.Before = nil
		}
	}
	if serving != nil && serving.Hash == hash {
		return nil
	}
	return serving
}

// settle forgets the revision before once each role of the present one has a
// replica that is ready.
func (f *Fleet) settle(ctx context.Context, w *work) error {
	if w.record == nil || w.record.Revision.Before == nil {
		return nil
	}
	for _, c := range w.record.Revision.Components {
		if !slices.ContainsFunc(w.replicas, func(r replica.Replica) bool {
			return r.Role == c.Role && r.Revision == w.record.Revision.Hash && r.Phase == replica.Ready
		}) {
			return nil
		}
	}
	settled := *w.record
	settled.Revision.Before = nil
	if err := f.cfg.Store.PutRecord(settled); err != nil {
		return fmt.Errorf("store that revision %s of %s has been ready: %w", settled.Revision.Name, w.key, err)
	}
	w.record, w.applied = &settled, false
	return f.applyRevision(ctx, w)
}

// returning reports whether a replica of the revision before is on its way.
func (s *snapshot) returning() bool {
	b := s.record.Revision.Before
	return b != nil && slices.ContainsFunc(s.replicas, func(r replica.Replica) bool {
		return r.Revision == b.Hash && (r.Phase == replica.Pending && r.Reason == "" || r.Phase == replica.Fetching || r.Phase == replica.Starting)
	})
}
