package picker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxRows is how many endpoints a table lists: the chosen one and the best.
const maxRows = 32

// trace is which filters a decision went through.
type trace struct {
	policy *Policy
	steps  [maxSteps]traced
	n      int
}

type traced struct {
	id       uint8
	in, left int32
}

// table is what every filter and scorer said of every endpoint.
type table struct {
	policy *Policy
	rows   []row // by slot
	given  []int32
	none   string // the last filter that left nothing
}

type row struct {
	name  string
	out   string // why it was not among those that were scored; "" if it was
	cells [maxScorers]cell
	total float64
	// silent is what it is rated down by for having fallen silent.
	silent float64
	// predicted is how long the endpoint is predicted to take; "" when that is not
	// known.
	predicted string
}

type cell struct {
	said       bool
	raw, score float64
}

func newTable(p *Policy, in *Input) *table {
	t := &table{policy: p, rows: make([]row, len(in.Endpoints))}
	for i := range t.rows {
		e := &in.Endpoints[i]
		t.rows[i].name = e.Name
		switch {
		case !e.Open && in.WhyClosed != nil:
			t.rows[i].out = in.WhyClosed(i)
		case !e.Open:
			t.rows[i].out = "takes no requests now"
		case in.Allowed != nil && !in.Allowed.Has(i):
			t.rows[i].out = "is not among the addresses that the request may go to"
		case slices.Contains(in.Tried, i):
			t.rows[i].out = "has failed this request"
		}
	}
	return t
}

// before notes what a filter is given, since it works in place.
func (c *Choice) before(set []int32) int {
	if c.table != nil {
		c.table.given = append(c.table.given[:0], set...)
	}
	return len(set)
}

// passed notes what a filter left.
func (c *Choice) passed(s *step, given int, left []int32) {
	t := &c.trace
	t.steps[t.n] = traced{id: uint8(s.id), in: int32(given), left: int32(len(left))}
	t.n++
	if c.table == nil {
		return
	}
	if len(left) == 0 {
		// Only if the request is dropped does it matter which filter left none.
		why := c.table.none
		if s.Filter != filterDrop {
			c.table.none = s.describe()
			return
		}
		for _, slot := range c.table.given {
			c.table.rows[slot].out = why
		}
		return
	}
	for _, slot := range c.table.given {
		if !slices.Contains(left, slot) {
			c.table.rows[slot].out = s.describe()
		}
	}
}

// scored notes what a scorer said. per is 0 where the values are scores.
func (c *Choice) scored(p *Policy, column int, set []int32, values []float64, lo, per float64) {
	if c.table == nil {
		return
	}
	for i, slot := range set {
		score := values[i]
		if per > 0 {
			score = 1 - (values[i]-lo)*per
		}
		r := &c.table.rows[slot]
		r.cells[column] = cell{said: true, raw: values[i], score: score}
		r.total += p.scorers[column].Weight * score
	}
}

// notReporting notes that an endpoint that stopped reporting loses by of its score.
func (c *Choice) notReporting(slot int32, by float64) {
	if c.table != nil {
		r := &c.table.rows[slot]
		r.silent, r.total = by, r.total-by
	}
}

func (s *step) describe() string {
	out := s.Filter
	f := filters[s.Filter]
	if f.why != "" {
		return f.why
	}
	if f.waiting {
		out += fmt.Sprintf(" waiting=%d", s.Waiting)
	}
	if f.kv {
		out += fmt.Sprintf(" kv=%v", s.KV)
	}
	if f.probability {
		out += fmt.Sprintf(" probability=%v", s.Probability)
	}
	return out
}

// maxWhyNone is how many endpoints a reason names.
const maxWhyNone = 3

// whyNone is what keeps the endpoints from the request, as far as an
// explanation was asked for.
func (c *Choice) whyNone() string {
	if c.table == nil {
		return ""
	}
	var all []string
	for _, r := range c.table.rows {
		if r.name != "" && r.out != "" {
			all = append(all, r.name+" "+r.out)
		}
	}
	switch n := len(all) - maxWhyNone; {
	case len(all) == 0:
		return ""
	case n > 0:
		all = append(all[:maxWhyNone], fmt.Sprintf("%d more", n))
	}
	return ": " + strings.Join(all, "; ")
}

// Reason is the decision in one line. It may be called until the next Pick.
func (c *Choice) Reason() string {
	var b strings.Builder
	switch c.Outcome {
	case None:
		return "no endpoint can take the request" + c.whyNone()
	case Dropped:
		fmt.Fprintf(&b, "dropped; %d open", c.Open)
	case Picked:
		fmt.Fprintf(&b, "slot %d of %d open", c.Slot, c.Open)
	}
	p := c.trace.policy
	for _, t := range c.trace.steps[:c.trace.n] {
		if name := p.names[t.id]; name != filterDrop && (t.left < t.in || filters[name].why == "") {
			fmt.Fprintf(&b, "; %s %d of %d", name, t.left, t.in)
		}
	}
	if c.Outcome == Picked && len(p.scorers) > 0 && (c.Left > 1 || c.table != nil) {
		fmt.Fprintf(&b, "; score %.3f", c.Score)
		if c.Matched > 0 {
			fmt.Fprintf(&b, ", %d blocks of the prompt known", c.Matched)
		}
		if c.Late {
			b.WriteString(", none predicted to meet the request's target")
		}
		if c.Alike > 1 {
			fmt.Fprintf(&b, ", %d alike", c.Alike)
			if c.Fuller > 0 {
				fmt.Fprintf(&b, ", %d of them left out for the prompts there", c.Fuller)
			}
			if c.Alike-c.Fuller > 1 {
				b.WriteString(": by the prompt's beginning")
			}
		}
	}
	return b.String()
}

// String is the decision with, after Explain, a line per endpoint: the best
// first, then those that filters removed.
func (c *Choice) String() string {
	var b strings.Builder
	b.WriteString(c.Reason() + "\n")
	if c.table == nil {
		return b.String()
	}
	rows := c.table.rows
	order := make([]int, len(rows))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Or(
			cmp.Compare(later(i != c.Slot), later(j != c.Slot)),
			cmp.Compare(later(rows[i].out != ""), later(rows[j].out != "")),
			cmp.Compare(rows[j].total, rows[i].total))
	})
	for _, i := range order[:min(len(order), maxRows)] {
		c.table.write(&b, i)
	}
	if more := len(order) - maxRows; more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return b.String()
}

func later(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func (t *table) write(b *strings.Builder, slot int) {
	r := &t.rows[slot]
	name := r.name
	if len(name) > 64 {
		name = name[:64]
	}
	fmt.Fprintf(b, "%d %q", slot, name)
	if r.predicted != "" {
		fmt.Fprintf(b, "  (%s)", r.predicted)
	}
	if r.out != "" {
		fmt.Fprintf(b, " out: %s\n", r.out)
		return
	}
	for i, s := range t.policy.scorers {
		if x := r.cells[i]; x.said {
			fmt.Fprintf(b, "  %s %.4g→%.3f×%g", cmp.Or(s.label, s.Name), x.raw, x.score, s.Weight)
		}
	}
	if r.silent > 0 {
		fmt.Fprintf(b, "  silent −%.3f", r.silent)
	}
	if len(t.policy.scorers) > 0 {
		fmt.Fprintf(b, "  = %.3f", r.total)
	}
	b.WriteByte('\n')
}
