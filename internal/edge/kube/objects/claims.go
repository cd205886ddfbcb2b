package objects

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// claim is one manifest of an object of the fleet.
type claim struct {
	ref      Ref
	created  time.Time
	object   *fleet.Object // nil when it cannot be read
	document []byte
	problems []string
	warnings []string
	other    *kube.StatusWriter
	// What follows is guarded by Source.serial, the rest does not change.
	reported  string // the refusal that was last reported
	conflicts bool   // it was refused because of other objects
}

// applied is one of the manifests there have been under its name, with its
// content: nil where that is its record's.
type applied struct {
	item
	uid    types.UID
	object *fleet.Object
}

// claims are the manifests of the fleet's objects, and which of them the fleet
// has.
type claims struct {
	mu sync.Mutex
	// all are the manifests of one object, of which only one counts.
	all map[fleet.ID]map[item]*claim
	// applied is which manifest the sink has; the zero value stands for one
	// that was kept by its record.
	applied map[fleet.ID]applied
}

func newClaims() claims {
	return claims{all: map[fleet.ID]map[item]*claim{}, applied: map[fleet.ID]applied{}}
}

// put stores a manifest's claim, nil for none: then it returns the claim
// before.
func (cs *claims) put(i item, c *claim) (gone *claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	id := i.id()
	of := cs.all[id]
	if c == nil {
		gone = of[i]
		if delete(of, i); len(of) == 0 {
			delete(cs.all, id)
		}
		return gone
	}
	if of == nil {
		of = map[item]*claim{}
		cs.all[id] = of
	}
	of[i] = c
	return nil
}

// get returns a manifest's claim, nil for none.
func (cs *claims) get(i item) *claim {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.all[i.id()][i]
}

// ids returns the objects that have manifests.
func (cs *claims) ids() []fleet.ID {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return slices.Collect(maps.Keys(cs.all))
}

// of returns the manifests of an object.
func (cs *claims) of(id fleet.ID) []item {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return slices.Collect(maps.Keys(cs.all[id]))
}

// items returns the manifests of a kind.
func (cs *claims) items(k *Kind) []item {
	return cs.having(func(i item, _ *claim) bool { return i.kind == k })
}

// conflicting returns the manifests that were refused because of other objects.
func (cs *claims) conflicting() []item {
	return cs.having(func(_ item, c *claim) bool { return c.conflicts })
}

func (cs *claims) having(ok func(item, *claim) bool) (out []item) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, of := range cs.all {
		for i, c := range of {
			if ok(i, c) {
				out = append(out, i)
			}
		}
	}
	return out
}

// winner returns the manifest of an object that counts: of several the oldest,
// and of those of one second the first in the order of kinds.
func (cs *claims) winner(id fleet.ID) (item, *claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	var at item
	var best *claim
	for i, c := range cs.all[id] {
		if best == nil || c.created.Before(best.created) || c.created.Equal(best.created) && slices.Index(Kinds, i.kind) < slices.Index(Kinds, at.kind) {
			at, best = i, c
		}
	}
	return at, best
}

// served returns the objects that the sink has.
func (cs *claims) served() []fleet.ID {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return slices.Collect(maps.Keys(cs.applied))
}

// recorded returns the manifests of a kind whose records are used in their
// place.
func (cs *claims) recorded(k *Kind) (out []item) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for id, at := range cs.applied {
		if at == (applied{}) && id.Kind == k.ID {
			out = append(out, item{k, types.NamespacedName{Namespace: id.Namespace, Name: id.Name}})
		}
	}
	return out
}

func (cs *claims) getApplied(id fleet.ID) (at applied, known bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	at, known = cs.applied[id]
	return at, known
}

func (cs *claims) setApplied(id fleet.ID, at applied) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.applied[id] = at
}

// withdraw notes that the sink no longer has an object.
func (cs *claims) withdraw(id fleet.ID) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(cs.applied, id)
}
