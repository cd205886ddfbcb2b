package demand

import (
	"errors"
	"fmt"
	"math"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

const (
	// maxEngines is how many engines a report tells of; a gateway reads no more.
	maxEngines = 10_000
	// keepEngine is for how long a reading of an engine is kept: no decision counts
	// one that is older.
	keepEngine = time.Minute
	// maxCount is the most requests, blocks or tokens that an engine has.
	maxCount = 1 << 40
)

// Engine is what the engine of a pod told a gateway. Every gateway reads every
// engine, and of several readings the freshest counts. Gateways of releases before
// it was added send none, which says nothing of the engines.
type Engine struct {
	Service string `json:"s"` // namespace/name
	Pod     string `json:"p"`
	// Ago is how many milliseconds ago it was told.
	Ago int64 `json:"o,omitempty"`
	// Waiting and Running count where Queue is set, KV, Blocks and BlockTokens where
	// Cache is.
	Queue       bool    `json:"tq,omitempty"`
	Waiting     int     `json:"w,omitempty"`
	Running     int     `json:"r,omitempty"`
	Cache       bool    `json:"tk,omitempty"`
	KV          float64 `json:"k,omitempty"`
	Blocks      int     `json:"b,omitempty"`
	BlockTokens int     `json:"bt,omitempty"`
}

// EngineOf is what a gateway reports of a load; ok is false where the load says
// nothing that a service may scale on. A figure that cannot be is left out: the
// controller refuses a report with one as a whole.
func EngineOf(k service.Key, pod string, l *replica.Load, now time.Time) (e Engine, ok bool) {
	ago := max(0, now.Sub(l.At))
	if ago > keepEngine || pod == "" || len(pod) > maxNameBytes || len(k.String()) > maxNameBytes {
		return Engine{}, false
	}
	e = Engine{Service: k.String(), Pod: pod, Ago: ago.Milliseconds()}
	if l.Tells.Queue && inRange(l.Waiting, l.Running) {
		e.Queue, e.Waiting, e.Running = true, l.Waiting, l.Running
	}
	if l.Tells.KV && l.KV >= 0 && l.KV <= 1 && inRange(l.Blocks, l.BlockTokens) {
		e.Cache, e.KV, e.Blocks, e.BlockTokens = true, l.KV, l.Blocks, l.BlockTokens
	}
	return e, e.Queue || e.Cache
}

func inRange(all ...int) bool {
	for _, n := range all {
		if n < 0 || n > maxCount {
			return false
		}
	}
	return true
}

func (e *Engine) validate() error {
	if e.Service == "" || len(e.Service) > maxNameBytes || e.Pod == "" || len(e.Pod) > maxNameBytes || e.Ago < 0 || !inRange(e.Waiting, e.Running, e.Blocks, e.BlockTokens) {
		return errors.New("a name is missing or too long, or a number out of range")
	}
	if !(e.KV >= 0 && e.KV <= 1) || math.IsNaN(e.KV) {
		return fmt.Errorf("the part of the cache in use is %v: must be 0 to 1", e.KV)
	}
	return nil
}

// engineID is a pod as reports name it.
type engineID struct{ service, pod string }

// tell notes what a gateway's report tells of engines. A report that arrives late
// does not replace a newer reading.
func (g *gateway) tell(engines []Engine, now time.Time) {
	for i := range engines {
		e := &engines[i]
		id, ago := engineID{e.Service, e.Pod}, time.Duration(min(e.Ago, keepEngine.Milliseconds()+1))*time.Millisecond
		before, known := g.engines[id]
		if at := now.Add(-ago); ago <= keepEngine && (known || len(g.engines) < maxEngines) && at.After(before.At) {
			g.engines[id] = replica.Load{At: at, Waiting: e.Waiting, Running: e.Running, KV: e.KV, Blocks: e.Blocks, BlockTokens: e.BlockTokens,
				Tells: replica.Figures{Queue: e.Queue, KV: e.Cache}}
		}
	}
}

// engine is the freshest reading of a pod's engine, of whichever gateway; nil where
// there is none.
func (b *book) engine(service, pod string) *replica.Load {
	var best replica.Load
	for _, g := range b.gateways {
		if l, ok := g.engines[engineID{service, pod}]; ok && l.At.After(best.At) {
			best = l
		}
	}
	if best.At.IsZero() {
		return nil
	}
	return &best
}

// expire drops the readings that are too old to count.
func (g *gateway) expire(now time.Time) {
	for id, l := range g.engines {
		if now.Sub(l.At) > keepEngine {
			delete(g.engines, id)
		}
	}
	for id, t := range g.hosts {
		if now.Sub(t.at) > keepEngine {
			delete(g.hosts, id)
		}
	}
}
