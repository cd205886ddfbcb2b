// Package picker decides which endpoint of a pool answers a request.
//
// A Policy is filters, scorers and a choice, composed by a Config, which is
// data. Filters narrow the open endpoints down, scorers rate what is left, the
// choice takes one. Preset has the ones that come with the product: default,
// round-robin, least-request, and the two filter trees of the Gateway API
// Inference Extension, seed-50 and v0.3-128. docs/design/picking.md explains
// what they do and why.
//
// Pick reads an Input, which describes the pool and the request, and an Index,
// which remembers which endpoint was sent which prompts; it writes nothing but
// its Choice. Time and randomness are in the Input. There are no locks: any
// number of Picks may run at once, each with a Choice of its own, while nobody
// changes the Input's endpoints, their Residency or the Index. The owner sees
// to that.
package picker

import (
	"time"

	"github.com/cespare/xxhash/v2"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/latency"
)

// Endpoint is one address of a pool as the owner sees it. Its place in
// Input.Endpoints is its slot, which is also its number in the Index.
type Endpoint struct {
	// Name is for people, and what rendezvous hashing goes by: it must be the
	// same for the same endpoint in every gateway. An address is a
	// good one.
	Name string
	// Hash is NameHash of Name; 0 has it worked out at every pick.
	Hash uint64
	// Open reports that a request may be sent there now: ready, not suspected,
	// below its limit. An unused slot is not open.
	Open bool
	// InFlight counts our own requests there: reserved and not done. >= 0
	InFlight int
	// AtLoad is what InFlight was when Load was taken. What Load counts beyond
	// it is others' work, so none of our requests is counted twice.
	AtLoad int
	// Tokens are the uncached prompt tokens of our requests there that have
	// not begun to answer: the sum of their Choice.Uncached. >= 0
	Tokens int64
	// Load is what the endpoint last said of itself; nil when it never did.
	Load *replica.Load
	// Heard is since when it has gone on saying so, without a pause of
	// Config.Stale.
	Heard time.Time
	// Resident remembers which LoRA adapters are loaded there; nil when nobody
	// keeps it, and then only what Load says counts.
	Resident *Residency
}

// NameHash is what rendezvous hashing knows an endpoint by.
func NameHash(name string) uint64 { return xxhash.Sum64String(name) }

// rendezvous is the endpoint's hash for a key.
func (e *Endpoint) rendezvous(key uint64) uint64 {
	h := e.Hash
	if h == 0 {
		h = NameHash(e.Name)
	}
	return mix(key ^ h)
}

// Input is what a decision is made from. Pick changes nothing of it.
type Input struct {
	Now time.Time
	// Endpoints are the pool's, by slot.
	Endpoints []Endpoint
	// Allowed are the slots that may be chosen; nil for all.
	Allowed Set
	// WhyClosed returns for an explanation why the endpoint of a slot is not open;
	// if it is nil, the explanation only has that it is not.
	WhyClosed func(slot int) string
	// Tried are slots that are not chosen, since the request failed there.
	Tried []int

	// Adapter is the LoRA adapter's name, "" for the base model.
	Adapter string
	// Critical and Priority are how important the request is; negative
	// priorities are sheddable.
	Critical bool
	Priority int
	// Blocks are the prompt's, of IndexConfig.AppendBlocks; nil when prompts
	// do not matter.
	Blocks []uint64
	// Whole is the prompt's hash, of IndexConfig.Whole: it tells the same prompt again
	// from one that goes on by less than a block. 0 takes both for the same prompt.
	Whole uint64
	// Tokens is the prompt's length, estimated.
	Tokens int64
	// Session is a key: requests that share it go to the same endpoint as long
	// as that is open and not overloaded. "" for none.
	Session string

	// Latency is what is known of how long the endpoints take, by slot; nil when
	// nobody keeps it. Target is how long the request may take: endpoints that are
	// predicted to miss it are chosen only where all are, or where they hold more of the
	// prompt.
	Latency *latency.Model
	Target  latency.Target

	// Turn is counted up by the owner with every pick; round-robin goes by it.
	Turn uint64
	// Random returns a number in [0, n), n > 0. It is called at most once per
	// soft filter and once for the choice. nil draws 0.
	Random func(n uint32) uint32
}

// Set is a set of slots: slot i is bit i%64 of word i/64.
type Set []uint64

// Add puts a slot in, growing the set as needed, and returns the set.
func (s Set) Add(slot int) Set {
	for len(s) <= slot>>6 {
		s = append(s, 0)
	}
	s[slot>>6] |= 1 << (slot & 63)
	return s
}

// Has reports whether a slot is in.
func (s Set) Has(slot int) bool {
	return slot>>6 < len(s) && s[slot>>6]>>(slot&63)&1 != 0
}

// random draws from [0, n).
func (in *Input) random(n int) int {
	if in.Random == nil || n <= 1 {
		return 0
	}
	return min(int(in.Random(uint32(n))), n-1)
}

// Outcome is how a decision ended.
type Outcome uint8

// The outcomes.
const (
	None    Outcome = iota // no endpoint can take the request
	Picked                 // Slot is the endpoint
	Dropped                // the policy sheds the request
)

func (o Outcome) String() string {
	return [...]string{"none", "picked", "dropped"}[o]
}

// Choice is a decision. One that is used again and again allocates nothing;
// it must not be shared by Picks at once. The zero value is ready.
type Choice struct {
	// Explain asks for a table of what every filter and scorer said. The
	// caller sets it; Pick leaves it.
	Explain bool

	Outcome Outcome
	Slot    int // -1 unless Picked
	// Open and Left are how many endpoints were open, and how many the filters
	// left.
	Open, Left int
	// Score is the chosen one's, 0 where nothing was scored.
	Score float64
	// Alike is how many scored nearly as well, of whom the prompt's beginning
	// said which is taken; 1 where it did not. Fuller is how many of them were
	// left out before, since they hold much more of other prompts than another.
	Alike, Fuller int
	// Matched is how many leading blocks of the prompt the chosen one was sent
	// before, Uncached how many of its tokens are new to it: what the owner
	// adds to Endpoint.Tokens until the answer begins.
	Matched  int
	Uncached int64
	// Forecast is what is expected of the chosen one, where Input.Latency is.
	Forecast

	run     pick
	matches Matches
	mean    float64 // requests per endpoint, with the one to come
	same    float64 // of the scores, what all endpoints have alike
	set     []int32
	columns
	trace trace
	table *table // only with Explain
}

func (c *Choice) reset(p *Policy, in *Input) {
	c.Outcome, c.Slot, c.Open, c.Left = None, -1, 0, 0
	c.Score, c.Alike, c.Fuller, c.Matched, c.Uncached, c.mean = 0, 1, 0, 0, 0, 0
	c.Forecast = Forecast{}
	c.matches.reset()
	c.trace = trace{policy: p}
	c.table = nil
	if n := len(in.Endpoints); cap(c.set) < n {
		n += n / 4
		c.set = make([]int32, n)
		c.columns.grow(n)
	}
	if c.Explain {
		c.table = newTable(p, in)
	}
}

// open lists the slots that may be chosen.
func (c *Choice) open(in *Input) []int32 {
	set := c.set[:0]
	for i := range in.Endpoints {
		if in.Endpoints[i].Open && (in.Allowed == nil || in.Allowed.Has(i)) {
			set = append(set, int32(i))
		}
	}
	for _, tried := range in.Tried {
		for i, slot := range set {
			if int(slot) == tried {
				set = append(set[:i], set[i+1:]...)
				break
			}
		}
	}
	c.Open = len(set)
	return set
}

// pick notes the endpoint that was chosen.
func (c *Choice) pick(slot int, ix *Index, in *Input) {
	c.Outcome, c.Slot = Picked, slot
	c.Matched = c.matches.At(slot)
	c.Uncached = max(0, in.Tokens)
	if c.Matched > 0 {
		c.Uncached = max(0, c.Uncached-int64(c.Matched*ix.config.BlockBytes/bytesPerToken))
	}
}
