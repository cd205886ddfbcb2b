package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/records"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// handoverAfter is how long a controller leads before it starts anew for a
// service that was handed over. What runs for ten minutes is restarted at once.
const handoverAfter = 10 * time.Minute

// guarded is the platform of one of several installations: what another
// manages is neither written nor ended, although it has our labels.
type guarded struct {
	fleet.Platform
	other func(service.Key) *records.OtherInstallationError
	// guests are which models of other services a pod has loaded, as gateways tell.
	guests func(k service.Key, pod string) map[string]replica.Guest
}

// Observe implements fleet.Platform.
func (g guarded) Observe(ctx context.Context, k service.Key) ([]replica.Replica, error) {
	all, err := g.Platform.Observe(ctx, k)
	for i := range all {
		all[i].Guests = g.guests(k, all[i].ID)
	}
	return all, err
}

// Apply implements fleet.Platform.
func (g guarded) Apply(ctx context.Context, r workload.Revision) error {
	if other := g.other(r.Service); other != nil {
		return other
	}
	return g.Platform.Apply(ctx, r)
}

// Scale implements fleet.Platform.
func (g guarded) Scale(ctx context.Context, ref workload.Ref, n int, victims []string) error {
	if other := g.other(ref.Service); other != nil {
		return other
	}
	return g.Platform.Scale(ctx, ref, n, victims)
}

// ExternalCount implements fleet.ExternalScaler.
func (g guarded) ExternalCount(ref workload.Ref) (count int, external bool) {
	if scaler, ok := g.Platform.(fleet.ExternalScaler); ok {
		return scaler.ExternalCount(ref)
	}
	return 0, false
}

// Remove implements fleet.Platform.
func (g guarded) Remove(ctx context.Context, k service.Key) error {
	if g.other(k) != nil {
		return nil
	}
	return g.Platform.Remove(ctx, k)
}

// Services implements fleet.Platform.
func (g guarded) Services(ctx context.Context) ([]service.Key, error) {
	all, err := g.Platform.Services(ctx)
	return slices.DeleteFunc(all, func(k service.Key) bool { return g.other(k) != nil }), err
}

// handover restarts a leading controller when another installation hands a
// service over: decisions are read at the start alone.
type handover struct {
	services chan service.Key // capacity 1: was handed over
	after    time.Duration    // handoverAfter, but for tests
	log      logger
}

// noted notes that a service was handed over.
func (h *handover) noted(k service.Key) {
	select {
	case h.services <- k:
	default: // one restart takes over all services
	}
}

// run returns an error, which ends the program, when a service is handed over. A
// controller that has led for less than handoverAfter waits until then, since
// anybody who writes records in one namespace could end it again and again.
func (h *handover) run(ctx context.Context) error {
	begun := time.Now()
	select {
	case <-h.services: // before this one led
	default:
	}
	select {
	case k := <-h.services:
		if wait := h.after - time.Since(begun); wait > 0 {
			h.log.Info("another installation handed a service over: this controller restarts later to take it over, because it began to lead only recently", "service", k.String(), "in", wait.Round(time.Second))
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return nil
			}
		}
		return fmt.Errorf("%s was handed over by another installation: restarting to take it over unchanged", k)
	case <-ctx.Done():
		return nil
	}
}

// otherManager names who else manages a service, in words.
func (op *operator) otherManager(k service.Key) string {
	if other := op.records.OtherInstallation(k); other != nil {
		return other.Error()
	}
	return ""
}

// watchRecords notices when another installation takes a service, or leaves it.
func (op *operator) watchRecords(ctx context.Context) error {
	inf, err := op.manager.GetCache().GetInformer(ctx, &appsv1.ControllerRevision{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch the records: %w", err)
	}
	_, err = inf.AddEventHandler(kube.Handler(func(raw any, _ bool) {
		cr, ok := raw.(*appsv1.ControllerRevision)
		if !ok {
			return
		}
		k, changed, inherited, err := op.records.Look(ctx, cr)
		if err != nil {
			op.log.Error("cannot tell which installation manages a service", "error", err)
		}
		switch {
		case inherited:
			op.handover.noted(k)
		case changed:
			op.source.Again(k)
		}
	}))
	return err
}
