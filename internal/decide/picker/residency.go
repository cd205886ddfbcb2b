package picker

import (
	"github.com/cespare/xxhash/v2"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// maxAdapters is how many adapters are remembered per endpoint.
const maxAdapters = 32

// usualAdapters is how many are taken to be loaded at once where an endpoint
// does not say.
const usualAdapters = 4

// Residency remembers which LoRA adapters an endpoint worked with last. An
// engine reports the adapters that are active; one that is loaded and idle is
// in no report, yet costs nothing to use. Engines keep the most recently used
// ones, so the most recent Max here are taken to be loaded. The zero value is
// an endpoint nothing is known of; a restart makes it so again.
type Residency struct {
	recent [maxAdapters]uint64 // hashes of names, the most recent first
	n      int                 // how many; 0 <= n <= maxAdapters
	slots  int                 // how many are loaded at once; 0 unknown
	busy   int                 // how many of them are in use, as last reported
}

// Used notes that a request for the adapter was sent there.
func (r *Residency) Used(adapter string) {
	if adapter != "" {
		r.touch(xxhash.Sum64String(adapter))
	}
}

// Observe notes what the endpoint said of its adapters; nil says nothing.
func (r *Residency) Observe(a *replica.Adapters) {
	if a == nil {
		return
	}
	r.slots, r.busy = max(0, a.Max), len(a.Running)
	for _, name := range a.Running[:min(len(a.Running), maxAdapters)] {
		r.Used(name)
	}
}

func (r *Residency) touch(h uint64) {
	at := r.rank(h)
	if at == r.n {
		r.n = min(r.n+1, maxAdapters)
		at = r.n - 1
	}
	copy(r.recent[1:at+1], r.recent[:at])
	r.recent[0] = h
}

// rank is how many were used since; n when it is not remembered.
func (r *Residency) rank(h uint64) int {
	for i, v := range r.recent[:r.n] {
		if v == h {
			return i
		}
	}
	return r.n
}

func (r *Residency) score(h uint64) float64 {
	slots := r.slots
	if slots == 0 {
		slots = usualAdapters
	}
	switch at := r.rank(h); {
	case at < r.n && at < slots:
		return 1
	case r.n < slots:
		return 0.8
	case r.busy < slots:
		return 0.6
	}
	return 0
}
