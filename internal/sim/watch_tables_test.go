package sim

import (
	"io/fs"
	"path/filepath"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// This file looks at queues, indexes and tables: nothing grows beyond its bound.

const (
	// tablesEvery is the time between two looks at them.
	tablesEvery = 10 * time.Second
	// keptBlocks is how many blocks of prompts gateways remember of a replica. Those that
	// tell the size of their cache have fewer.
	keptBlocks = 300
	// keptDecisions are those of a component, as in docs/limits.md.
	keptDecisions = 120
	// lateEndpoints is how many endpoints a gateway may have beyond the replicas that
	// there are.
	lateEndpoints = 10
	// largestFile is what a manifest or a record takes at most, with all that is learned.
	largestFile = 64 << 10
)

// bounded are the dispatcher's bounds in a plan.
func (p *Plan) bounded() dispatch.Config {
	cfg := dispatch.DefaultConfig()
	cfg.Index.EndpointBlocks = keptBlocks
	if p.MaxQueue > 0 {
		cfg.MaxQueue = p.MaxQueue
	}
	return cfg
}

// tables looks at what gateways and the fleet keep.
func (w *watch) tables(now time.Time) {
	if now.Before(w.tabled) || w.world.trouble() {
		return
	}
	w.tabled = now.Add(tablesEvery)
	again, replicas := map[*gateway]int{}, len(w.world.outside)
	for _, c := range w.world.calls.open {
		if c.grant == nil && c.again {
			again[c.gateway]++ // it goes on waiting whatever the bound
		}
	}
	w.world.machine.locked(func() { replicas += len(w.world.machine.units) })
	for _, g := range w.world.gateways {
		if g.dead.Load() {
			continue
		}
		w.queues(g, again[g])
		if all := g.dispatcher.AllEndpoints(); len(all) > replicas+lateEndpoints {
			w.violate("tables keep to their bounds", service.Key{}, "%s has %d endpoints, and there are %d replicas", g.name, len(all), replicas)
		} else {
			for _, e := range all {
				if e.Blocks > keptBlocks {
					w.violate("tables keep to their bounds", e.Service, "%s remembers %d blocks of replica %s, of %d at most", g.name, e.Blocks, e.ID, keptBlocks)
				}
			}
		}
	}
	if n := len(w.keys); n > 0 && w.world.cluster == nil { // one at each look
		k := w.keys[int(now.Sub(w.world.begun)/tablesEvery)%n]
		histories, _ := w.world.process.fleet.ScaleHistory(k)
		for _, h := range histories {
			if len(h.Decisions) > keptDecisions {
				w.violate("tables keep to their bounds", k, "%d decisions are kept, of %d at most", len(h.Decisions), keptDecisions)
			}
		}
	}
}

// queues looks at the requests that wait at a gateway, beside those that wait again.
func (w *watch) queues(g *gateway, again int) {
	cfg := w.world.plan.bounded()
	for _, p := range g.dispatcher.Pools() {
		queued, flows, bytes := 0, 0, int64(0)
		for _, b := range p.Queue {
			queued, flows, bytes = queued+b.Queued, flows+b.Flows, bytes+b.Bytes
		}
		if queued > cfg.MaxQueue+again || flows > cfg.MaxFlows || bytes > cfg.MaxQueueBytes {
			w.violate("tables keep to their bounds", p.Pool.Key, "%d requests of %d bytes wait at %s, in %d flows: %d, %d and %d are the most, besides %d that wait again",
				queued, bytes, g.name, flows, cfg.MaxQueue, cfg.MaxQueueBytes, cfg.MaxFlows, again)
		}
	}
}

// files looks at what is stored.
func (w *watch) files() {
	_ = filepath.WalkDir(w.world.disk.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err == nil && info.Size() > largestFile {
			w.violate("tables keep to their bounds", service.Key{}, "%s has %d bytes", filepath.Base(path), info.Size())
		}
		return nil
	})
}
