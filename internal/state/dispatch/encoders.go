package dispatch

import (
	"slices"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// maxEncoders bounds the encoders that a request is given. A sidecar that has more
// entries to encode begins with the first encoder again.
const maxEncoders = 64

// entriesOf are the hashes of the pictures, sounds and videos of a request that
// encoders may compute.
func entriesOf(r *Request) []uint64 { return openai.AppendEntries(nil, r.Messages, maxEncoders) }

// encodes reports whether one of a configuration's replicas computes pictures for others.
func (f *PoolConfig) encodes(r *replica.Replica) bool {
	return f.Shared && (r.Role == service.RoleEncode || r.Encodes)
}

// chooseEncoders returns where each of the request's pictures, sounds and videos is to
// be encoded, for a replica of part's that answers; nil for where the prompt is computed.
// Replicas that do other work too encode for others only beside one that does nothing
// else: without one encoding is not apart. When a try has failed, its encoders may be
// why, so the next does without them.
func (e *endpoints) chooseEncoders(g *Grant, part *PoolConfig) []*slot {
	if len(g.entries) == 0 || g.alone || g.ordered || !part.Shared || e.encode.ready == 0 {
		return nil
	}
	var slots []*slot
	var all []picker.Encoder
	for _, s := range e.sets() {
		for n, x := range s.slots {
			if x != nil && x.encodes && x.accepts() && !x.full() && !slices.Contains(g.encoders, x.address) {
				slots = append(slots, x)
				all = append(all, picker.Encoder{Hash: s.input.Endpoints[n].Hash, InFlight: int(x.endpoint.inFlight.Load())})
			}
		}
	}
	chosen := picker.Encoders(all, g.entries)
	out := make([]*slot, len(chosen))
	for i, n := range chosen {
		out[i] = slots[n]
	}
	return out
}

// reserveEncoders gives g an encoder for each of its entries. It takes one place on
// each, however many entries are there: a request that says little would else close an
// encoder, or a server that also answers, to all others.
func (e *endpoints) reserveEncoders(g *Grant) {
	chosen := e.chooseEncoders(g, g.config)
	g.encoders = nil
	for _, x := range chosen {
		if !slices.Contains(g.reservation.encoders, x) {
			if !x.endpoint.claim(x.limit) {
				continue // it has no more places, or is on trial: the sidecar shares the entry out
			}
			g.reservation.encoders = append(g.reservation.encoders, x)
			x.set.refresh(x)
		}
		g.encoders = append(g.encoders, x.address)
	}
}

// releaseEncoders gives the places on encoders back. It returns the endpoints for which
// others have use.
func (e *endpoints) releaseEncoders(r *reservation) (freed []*endpoint) {
	for _, x := range r.encoders {
		to := x.set.release(x)
		if x.set == &e.entry { // this pool's requests may wait for it
			to = x.endpoint
		}
		if to != nil && !slices.Contains(freed, to) {
			freed = append(freed, to)
		}
	}
	r.encoders = nil
	return freed
}
