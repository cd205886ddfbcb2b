package demand

import (
	"time"

	"roundhouse.dev/roundhouse/internal/state/prompts"
)

// Bounds of what controllers pass on of prompts.
const (
	// maxToldPerSecond bounds what a controller passes on of one gateway; more is
	// dropped.
	maxToldPerSecond = 192 << 10
	// maxHeardBytes bounds the prompts in an answer.
	maxHeardBytes = 384 << 10
)

// hear keeps what a gateway tells of prompts for the others, within its budget.
func (b *book) hear(g *gateway, r *Report, now time.Time) {
	g.budget = min(2*prompts.MaxTold, g.budget+int(max(0, min(now.Sub(g.spent), prompts.Keep)).Seconds()*maxToldPerSecond))
	g.spent = now
	for _, p := range r.Prompts {
		if p.Ago > prompts.Keep.Milliseconds() || p.Size() > g.budget {
			continue
		}
		g.budget -= p.Size()
		b.prompts.Add(p, prompts.Source{Name: r.Pod, Instance: r.Instance}, now.Add(-time.Duration(p.Ago)*time.Millisecond))
	}
}

// Sent takes in that an endpoint was sent a prompt and began to answer, to be told
// to all targets. It does not block and does not keep blocks.
func (c *Client) Sent(endpoint string, blocks []uint64) {
	if c.cfg.Heard == nil {
		return
	}
	before := c.teller.Next()
	if !c.teller.Tell(endpoint, blocks, time.Now()) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.mu.targets {
		if t.told >= before { // it knows all before, and may wait long
			t.poke()
		}
	}
}

// heard passes on what a controller tells of other gateways. A controller's fault is no
// reason to stop reporting to it.
func (c *Client) heard(all []prompts.Prompt) {
	if c.cfg.Heard != nil {
		prompts.Hear(all, c.cfg.Heard)
	}
}
