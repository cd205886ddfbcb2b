package replay

import "time"

// shared is that a gateway's request began to be answered by an engine, on its way
// to the other gateways.
type shared struct {
	due     time.Duration
	from    *gateway
	engine  int
	request int
}

// tell has the other gateways know, after Config.ShareDelay, where a request went.
func (r *run) tell(n, engine int, now time.Duration) {
	if r.cfg.Share && len(r.gateways) > 1 {
		r.shared = append(r.shared, shared{due: now + r.cfg.ShareDelay, from: r.flights[n].by, engine: engine, request: n})
	}
}

// hear has the gateways know what has reached them by now. What was told first
// arrives first.
func (r *run) hear(now time.Duration) {
	for len(r.shared) > 0 && r.shared[0].due <= now {
		s := r.shared[0]
		r.shared = r.shared[1:]
		blocks := r.trace.Requests[s.request].pickerBlocks()
		for _, g := range r.gateways {
			if g != s.from {
				g.index.Sent(s.engine, blocks)
			}
		}
	}
}

// kept counts the requests that go on from the whole prompt of an earlier one, as
// the turns of a conversation do, and how many of these the engine answered that
// had answered the earlier one.
func (r *run) kept() (kept, followed int) {
	ends := map[uint64]int{} // the last block of a prompt → who answered it last
	for n := range r.trace.Requests {
		blocks, engine := r.trace.Requests[n].pickerBlocks(), r.answers[n].Engine
		for i := len(blocks) - 2; i >= 0 && engine >= 0; i-- {
			if before, ok := ends[blocks[i]]; ok {
				if followed++; before == engine {
					kept++
				}
				break
			}
		}
		if len(blocks) > 0 && engine >= 0 {
			ends[blocks[len(blocks)-1]] = engine
		}
	}
	return kept, followed
}
