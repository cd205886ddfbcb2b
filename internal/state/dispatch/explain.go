package dispatch

import (
	"fmt"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// Explanation is what would become of a request now, and why.
type Explanation struct {
	// Route is which objects lead to Pool.
	Route string `json:"route"`
	Pool  string `json:"pool"`
	State State  `json:"state"` // the pool's
	// External is which endpoint picker is asked about such a request: Pick is
	// then what the dispatcher would do by itself; "" for none.
	External string `json:"external,omitempty"`
	// Model is the name the replica would be given; "" leaves the request's.
	Model    string `json:"model,omitempty"`
	Priority int32  `json:"priority"`
	// Decision and Because are admission's; Refused says why a request has no
	// chance, whatever admission would say.
	Decision admission.Decision `json:"decision"`
	Because  admission.Reason   `json:"because,omitempty"`
	Refused  string             `json:"refused,omitempty"`
	// Queued requests wait; at a Saturation of 1 those that can be shed are.
	Queued     int     `json:"queued"`
	Saturation float64 `json:"saturation"`
	// Pick is the choice of an endpoint, Prefill that of one to compute the
	// prompt; nil when it does not come to that.
	Pick    *Pick `json:"pick,omitempty"`
	Prefill *Pick `json:"prefill,omitempty"`
}

// Pick is one choice of an endpoint.
type Pick struct {
	Replica string `json:"replica,omitempty"` // "" when none was chosen
	Address string `json:"address,omitempty"`
	Reason  string `json:"reason"`
	// Uncached is how many of the prompt's tokens are new to it, estimated.
	Uncached int64 `json:"uncached"`
	// Table is what filters and scorers say of the endpoints, a line each.
	Table []string `json:"table"`
}

// Explain returns what Admit would do with the request now. Nothing is reserved,
// nobody woken. Where weights decide, it draws anew like any request. Errors
// are those of package route, or an *Error.
func (d *Dispatcher) Explain(r Request) (Explanation, error) {
	_, p, t, err := d.route(&r)
	if err != nil {
		return Explanation{}, err
	}
	g := p.grant(&r, t)
	defer func() { scratch.Put(g.hash) }()
	x := Explanation{Route: t.Why(), Pool: p.id, Priority: t.Priority, Model: t.Model}

	p.mu.Lock()
	defer p.mu.Unlock()
	now := d.clock.Now()
	if t.Named {
		x.Model = p.config.ServedName
	}
	x.State, _ = p.config.state()
	x.External = p.config.External.String()
	x.Queued, x.Saturation = p.queue.Len(), p.saturation(nil, now)
	if err := p.checkAdmissible(g); err != nil {
		x.Decision, x.Refused = admission.Shed, err.Error()
		return x, nil
	}
	g.waiter.Deadline = r.Deadline
	s := p.admissionState(g, now)
	s.Room = true
	x.Decision, x.Because = p.queue.Judge(&g.waiter, s, now)
	if x.Decision != admission.Admit {
		return x, nil
	}
	p.entry.prepare(g, nil, now)
	var c picker.Choice
	x.Pick = p.entry.explain(&c)
	if c.Outcome == picker.Dropped {
		x.Decision, x.Because = admission.Shed, admission.Saturated
		return x, nil
	}
	if s.Room = c.Outcome == picker.Picked; !s.Room {
		x.Decision, x.Because = p.queue.Judge(&g.waiter, s, now)
		return x, nil
	}
	if p.wantsPrefill(p.entry.slots[c.Slot].config, c.Uncached) {
		g.subset = nil
		p.limitPrefillTo(p.entry.slots[c.Slot].config)
		p.prefill.prepare(g, nil, now)
		x.Prefill = p.prefill.explain(&picker.Choice{})
	}
	return x, nil
}

// explain makes a choice from the set's input, and says why.
func (s *endpointSet) explain(c *picker.Choice) *Pick {
	c.Explain = true
	in := s.input
	in.WhyClosed = func(n int) string { return s.slots[n].whyClosed() }
	s.policy.Pick(&in, s.index, c)
	out := &Pick{Reason: c.Reason(), Uncached: c.Uncached}
	if c.Outcome == picker.Picked {
		out.Replica, out.Address = s.slots[c.Slot].endpoint.id, s.slots[c.Slot].address
	}
	_, table, _ := strings.Cut(c.String(), "\n")
	for line := range strings.Lines(table) {
		out.Table = append(out.Table, strings.TrimSuffix(line, "\n"))
	}
	return out
}

// String is the explanation in lines for people.
func (x Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "route: %s\npool: %s (%s)\n", x.Route, x.Pool, x.State)
	if x.External != "" {
		fmt.Fprintf(&b, "endpoint picker: %s is asked, and not for this explanation; what the gateway would do by itself:\n", x.External)
	}
	if x.Model != "" {
		fmt.Fprintf(&b, "model for the replica: %s\n", x.Model)
	}
	fmt.Fprintf(&b, "admission: %s", x.Decision)
	if x.Because != "" {
		fmt.Fprintf(&b, ", %s", x.Because)
	}
	fmt.Fprintf(&b, "; priority %d, %d waiting, saturation %.2f\n", x.Priority, x.Queued, x.Saturation)
	if x.Refused != "" {
		fmt.Fprintf(&b, "refused: %s\n", x.Refused)
	}
	x.Pick.write(&b, "replica")
	x.Prefill.write(&b, "prefill")
	return b.String()
}

func (p *Pick) write(b *strings.Builder, what string) {
	if p == nil {
		return
	}
	chosen := "none"
	if p.Replica != "" {
		chosen = p.Replica + " " + p.Address
	}
	fmt.Fprintf(b, "%s: %s (%s)\n", what, chosen, p.Reason)
	for _, line := range p.Table {
		fmt.Fprintf(b, "  %s\n", line)
	}
}

// whyClosed is why an endpoint takes no requests now.
func (x *slot) whyClosed() string {
	switch {
	case x == nil:
		return "is gone"
	case x.endpoint.draining.Load():
		return "is draining"
	case x.phase != replica.Ready:
		return "is " + string(x.phase)
	case !x.endpoint.breaker.allows():
		return "gets no requests for a while: " + x.endpoint.breaker.ejected()
	case x.limit > 0 && x.endpoint.inFlight.Load() >= int64(x.limit):
		return fmt.Sprintf("is at maxConcurrency %d", x.limit)
	}
	return "takes no requests now"
}
