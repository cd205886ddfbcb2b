package fleet

import (
	"context"
	"io"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Platform runs replicas: processes on one machine, pods on a cluster. One
// conformance suite (package platformtest) holds every implementation to this
// contract. Every method is safe for concurrent use.
type Platform interface {
	// Host tells what can run here, and answers what it is asked. Without
	// questions it is cheap enough to call per selection; with some it may run
	// programs, within a bounded time.
	Host(ctx context.Context, ask ...selection.Check) (selection.Host, error)
	// Apply makes r the revision of its service. It starts nothing by itself
	// and never writes a count: a role new to the platform has count 0, a
	// known one keeps its count, and replicas of an older revision are
	// replaced (new ones ready first, where resources allow). Applying the
	// same revision again changes nothing. Roles that r no longer has go. While
	// none of r has become ready, replicas of r.Before are started again where
	// they ended, a returning owner's too.
	Apply(ctx context.Context, r workload.Revision) error
	// Scale sets the wanted count of one role. When replicas must go, victims
	// go first. It returns when the change is under way, not when it is done.
	Scale(ctx context.Context, ref workload.Ref, n int, victims []string) error
	// Remove ends everything of a service and forgets it. Removing what is
	// not there is no error.
	Remove(ctx context.Context, k service.Key) error
	// Observe returns the service's replicas from a cache, oldest first.
	Observe(ctx context.Context, k service.Key) ([]replica.Replica, error)
	// Services lists what the platform holds, so that a returning owner can
	// remove what is no longer wanted.
	Services(ctx context.Context) ([]service.Key, error)
	// Logs opens a replica's output. The caller closes it.
	Logs(ctx context.Context, id string, o LogOptions) (io.ReadCloser, error)
	// Changed carries the key of a service whose replicas changed. Keys are
	// coalesced: a slow reader loses repetitions, never the last change.
	Changed() <-chan service.Key
}

// LogOptions says which part of a replica's output is wanted.
type LogOptions struct {
	Follow   bool
	Tail     int  // last lines; 0 means all that is kept
	Previous bool // of the process before the present one
}
