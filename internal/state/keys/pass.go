package keys

import (
	"fmt"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
)

// Pass is one request's stay. Its methods are for the one goroutine that holds
// it. A nil Pass is that of a request that needs no key: it allows everything.
type Pass struct {
	ring     *Ring
	holder   *holder
	expected int64 // tokens taken ahead
	refunded bool
	left     bool
}

// Enter lets a request in with its key; secret is "" if it has none. The pass
// is nil when no key is needed. The error is ErrNoKey, ErrBadKey or a
// *Refusal. The caller must call Leave exactly once.
func (r *Ring) Enter(secret string) (*Pass, error) {
	if !r.Required() {
		return nil, nil
	}
	if secret == "" {
		return nil, ErrNoKey
	}
	id, ok := apikey.ID(secret)
	if !ok {
		return nil, ErrBadKey
	}
	now := r.cfg.Now()
	h := (*r.holders.Load())[id]
	if h == nil || !h.key.Matches(secret) || !h.key.Live(now) {
		return nil, ErrBadKey
	}
	if err := h.enter(now); err != nil {
		return nil, err
	}
	return &Pass{ring: r, holder: h}, nil
}

func (h *holder) enter(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	limits := h.key.Limits
	refuse := func(wait time.Duration, format string, args ...any) error {
		return &Refusal{Key: h.key.ID, Message: fmt.Sprintf("API key %s: ", h.key.ID) + fmt.Sprintf(format, args...), RetryAfter: wait}
	}
	if limits.Concurrent > 0 && h.running >= limits.Concurrent {
		return refuse(time.Second, "it has %d requests in flight, its limit", h.running)
	}
	if wait := h.requests.Wait(now); wait > 0 {
		return refuse(wait, "more than %d requests per minute", limits.RequestsPerMinute)
	}
	if wait := h.tokens.Wait(now); wait > 0 {
		return refuse(wait, "more than %d tokens per minute", limits.TokensPerMinute)
	}
	h.requests.Take(1, now)
	h.running++
	return nil
}

// Key is the key's id; "" of a nil Pass.
func (p *Pass) Key() string {
	if p == nil {
		return ""
	}
	return p.holder.key.ID
}

// Models are those the key is for; nil means all. Not to be changed.
func (p *Pass) Models() []string {
	if p == nil {
		return nil
	}
	return p.holder.key.Limits.Models
}

// Namespaces are those the key is for; nil means all. Not to be changed.
func (p *Pass) Namespaces() []string {
	if p == nil {
		return nil
	}
	return p.holder.key.Limits.Namespaces
}

// Knows reports whether the key is for a namespace.
func (p *Pass) Knows(namespace string) bool {
	all := p.Namespaces()
	return len(all) == 0 || slices.Contains(all, namespace)
}

// Allows reports whether the key is for the model, by any of its names.
func (p *Pass) Allows(names ...string) bool {
	models := p.Models()
	return len(models) == 0 || slices.ContainsFunc(names, func(n string) bool { return n != "" && slices.Contains(models, n) })
}

// AllowsIn reports whether the key is for what has a name in a namespace: in each
// namespace that a key names, its models go by their bare names.
func (p *Pass) AllowsIn(namespace, name string) bool {
	return slices.Contains(p.Namespaces(), namespace) && p.Allows(name)
}

// Expect takes tokens ahead of their settlement, so that requests that run side
// by side are not all let in by the same last token.
func (p *Pass) Expect(tokens int64) {
	if p == nil || p.holder.key.Limits.TokensPerMinute == 0 {
		return
	}
	p.holder.mu.Lock()
	defer p.holder.mu.Unlock()
	p.expected += tokens
	p.holder.tokens.Take(tokens, p.ring.cfg.Now())
}

// Refund gives back to the requests per minute what Enter took, for a request that
// was refused. Calls after the first do nothing.
func (p *Pass) Refund() {
	if p == nil || p.refunded {
		return
	}
	p.refunded = true
	p.holder.mu.Lock()
	defer p.holder.mu.Unlock()
	p.holder.requests.Take(-1, p.ring.cfg.Now())
}

// Leave settles the request at what it cost in tokens. Calls after the first do
// nothing.
func (p *Pass) Leave(tokens int64) {
	if p == nil || p.left {
		return
	}
	p.left = true
	h := p.holder
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	h.tokens.Take(tokens-p.expected, p.ring.cfg.Now())
}
