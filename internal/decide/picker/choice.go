package picker

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
	// said which is taken; 1 where it did not.
	Alike int
	// Matched is how many leading blocks of the prompt the chosen one was sent
	// before, Uncached how many of its tokens are new to it: what the owner
	// adds to Endpoint.Tokens until the answer begins.
	Matched  int
	Uncached int64

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
	c.Score, c.Alike, c.Matched, c.Uncached, c.mean = 0, 1, 0, 0, 0
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
