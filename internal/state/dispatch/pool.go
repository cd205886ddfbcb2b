package dispatch

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// pool is the live state of one pool. mu guards everything below it and is
// never held while something is waited for, nor while another pool's is taken.
type pool struct {
	d   *Dispatcher
	ref routing.Ref
	id  string
	// demand counts the pool's requests: a service's own counter, which
	// shared pools count in too, or one that nobody else counts in.
	demand *demandCounter

	// hashesPrompts: prompts make a difference here.
	hashesPrompts atomic.Bool
	// canary is the percentage of requests for the service's canary.
	canary atomic.Int32
	// hasExternal: an external picker says where requests go.
	hasExternal atomic.Bool

	mu       sync.Mutex
	config   *PoolConfig
	scalable *PoolConfig // of config
	closed   string      // why no request is taken any more; "" while open
	entry    endpointSet // of the entry role
	prefill  endpointSet // of the role that computes prompts for it, if there is one
	queue    *admission.Machine
	timer    deadlineTimer
	budget   admission.Budget
	wakes    wakeState
	counts   Counts
	// pacing: requests are held, and let go as fast as the endpoints work.
	pacing bool
	// policy is what both endpoint sets were made from.
	policy routing.Picker
	// badPolicy and badBounds say what is wrong with the configuration's, so that the
	// defaults hold; "" when nothing is.
	badPolicy, badBounds string
}

// Counts are events of one pool since it began.
type Counts struct {
	Dropped        uint64 `json:"dropped"`        // by the picker's policy
	Retries        uint64 `json:"retries"`        // requests sent to one more replica
	RetriesRefused uint64 `json:"retriesRefused"` // for want of budget
	PickedOpen     uint64 `json:"pickedOpen"`     // without the pool's external picker, which gave no answer
	Usage          Usage  `json:"usage"`          // of the answers that said
}

func (c *Counts) add(u Usage) {
	c.Usage.Prompt += u.Prompt
	c.Usage.Completion += u.Completion
	c.Usage.Cached += u.Cached
}

func newPool(d *Dispatcher, ref routing.Ref) *pool {
	p := &pool{d: d, ref: ref, id: id(ref), config: &PoolConfig{}}
	p.queue = admission.New(d.cfg.Config)
	p.budget = admission.Budget{Ratio: d.cfg.RetryRatio, Rate: d.cfg.RetryRate}
	if ref.Pool {
		p.demand = newDemandCounter(d, "")
	} else {
		p.demand = d.account(ref.Key)
	}
	random := func(n uint32) uint32 { return uint32(d.random(int(n))) }
	p.entry.input.Random, p.prefill.input.Random = random, random
	p.entry.d, p.prefill.d = d, d
	p.setPolicy(routing.Picker{})
	return p
}

func (p *pool) host() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.config.Host
}

// adapters are the names of the service's adapters.
func (p *pool) adapters() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.config.adapterNames()
}

// set replaces the configuration and lets go on whoever can.
func (p *pool) set(f *PoolConfig) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.d.clock.Now()
	p.config, p.scalable = f, f.scalable()
	p.canary.Store(int32(min(max(f.CanaryPercent, 0), 100)))
	p.hasExternal.Store(f.External.Name != "")
	p.setPolicy(f.Picker)
	p.setBounds(f.Bounds)
	var entry, prefill []listedReplica
	var declared map[string]bool
	for part := range f.configs {
		for _, a := range part.Adapters {
			if declared == nil {
				declared = map[string]bool{}
			}
			declared[a.Name] = true
		}
		limit := part.Limits.MaxConcurrency
		if n := f.Bounds.MaxConcurrency; n > 0 && (limit == 0 || n < limit) {
			limit = n
		}
		var owner *demandCounter
		if f.Shared && !part.Shared {
			owner = p.d.account(part.Key)
		}
		for i := range part.Replicas {
			r := &part.Replicas[i]
			switch l := (listedReplica{r, part, owner, limit}); part.roleOf(r) {
			case part.Entry:
				entry = append(entry, l)
			case part.Prefill:
				prefill = append(prefill, l)
			}
		}
	}
	p.entry.declared, p.prefill.declared = declared, declared
	p.entry.replace(p, entry)
	p.prefill.replace(p, prefill)
	p.hashesPrompts.Store(p.entry.index != nil && len(entry)+len(prefill) > 1)
	p.endpointsChanged(now)
}

// setPolicy makes the endpoint sets pick as pc says.
func (p *pool) setPolicy(pc routing.Picker) {
	if p.entry.policy != nil && reflect.DeepEqual(p.policy, pc) {
		return
	}
	policy, err := compile(pc)
	p.badPolicy = ""
	if err != nil {
		p.badPolicy = "picker: " + err.Error()
		if policy, err = compile(routing.Picker{}); err != nil {
			panic("dispatch: the default policy: " + err.Error())
		}
	}
	p.policy = pc
	for _, s := range []*endpointSet{&p.entry, &p.prefill} {
		s.policy = policy
		if prefix, _ := policy.Affinity(); !prefix {
			s.index = nil
		} else if s.index == nil {
			s.index, _ = picker.NewIndex(p.d.cfg.Index) // Config.Validate has checked it
		}
	}
}

// compile makes a policy of what a pool asks for.
func compile(pc routing.Picker) (*picker.Policy, error) {
	c, err := picker.Of(pc)
	if err != nil {
		return nil, err
	}
	return picker.New(c)
}

// setBounds lays a pool's own bounds over the Config's.
func (p *pool) setBounds(b routing.Bounds) {
	c := p.d.cfg.Config
	if b.MaxQueue != 0 {
		c.MaxQueue = b.MaxQueue
	}
	if b.MaxQueueBytes != 0 {
		c.MaxQueueBytes = b.MaxQueueBytes
	}
	p.badBounds = ""
	if err := c.Validate(); err != nil {
		p.badBounds = err.Error()
		c = p.d.cfg.Config
	}
	p.queue.Configure(c)
}

// recountSharers tells the other pools of shared endpoints that they are.
func (p *pool) recountSharers() {
	p.mu.Lock()
	others := map[*pool]bool{}
	for _, s := range []*endpointSet{&p.entry, &p.prefill} {
		for _, n := range s.shared {
			for _, q := range s.slots[n].endpoint.listedBy() {
				others[q] = true
			}
		}
	}
	p.mu.Unlock()
	delete(others, p)
	for q := range others {
		q.recount()
	}
}

// recount looks at all endpoints anew, after some have changed for all pools.
func (p *pool) recount() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entry.recount()
	p.prefill.recount()
	p.wakeIfNeeded()
}

// endpointsChanged lets go on whoever can, after the endpoints have changed.
func (p *pool) endpointsChanged(now time.Time) {
	if p.entry.alive > 0 {
		p.wakes.started()
	}
	p.failUnreachable(now)
	p.serveQueue(now)
	if why := p.unavailableReason(); why != "" {
		p.failQueue(why, now)
	}
	p.wakeIfNeeded()
}

// remove refuses all waiting and later requests and lets the endpoints go.
// Requests in flight go on.
func (p *pool) remove(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = why
	p.failQueue(why, p.d.clock.Now())
}

// releaseEndpoints lets the endpoints go; those that are busy stay until they are idle.
func (p *pool) releaseEndpoints() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entry.replace(p, nil)
	p.prefill.replace(p, nil)
}

// admit gives g a place, now or after waiting.
func (p *pool) admit(ctx context.Context, g *Grant) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	now := p.d.clock.Now()
	p.serveQueue(now)
	x, err := p.admitOrQueue(g, now)
	switch {
	case err != nil:
		p.mu.Unlock()
		return err
	case x == nil:
		p.mu.Unlock()
		return p.wait(ctx, g)
	}
	p.reserve(g, x, now)
	p.mu.Unlock()
	return nil
}

// admitOrQueue gives g a place or has it wait, and says why it gets neither.
func (p *pool) admitOrQueue(g *Grant, now time.Time) (*slot, error) {
	if err := p.checkAdmissible(g); err != nil {
		return nil, err
	}
	w := &g.waiter
	w.Deadline = now.Add(p.maxWait())
	if !g.until.IsZero() && g.until.Before(w.Deadline) {
		w.Deadline = g.until
	}
	s := p.admissionState(g, now)
	s.Room = true
	var x *slot
	if d, _ := p.queue.Judge(w, s, now); d == admission.Admit {
		var dropped bool
		if x, dropped = p.entry.pick(g, nil, now); dropped {
			p.counts.Dropped++
			return nil, p.droppedError()
		}
		s.Room = x != nil
	}
	v := p.queue.Arrive(w, s, now)
	if v.Decision == admission.Shed {
		return nil, p.shedError(w, v.Reason)
	}
	p.budget.Request(now)
	if g.stage == uncounted {
		g.memberDemand = p.memberDemand()
	}
	if v.Decision == admission.Admit {
		return x, nil
	}
	if g.stage == queued && g.memberDemand == nil { // its picker has been asked
		g.memberDemand = p.memberDemand()
		g.memberDemand.move(uncounted, queued, now)
	}
	p.pacing = p.pacing || v.Reason == admission.Held
	p.moveTo(g, queued, now)
	p.startWaiting(g, now)
	for _, out := range v.Evicted {
		p.fail(out.Owner.(*Grant), p.shedError(out, admission.Evicted), now)
	}
	return nil, nil
}

// droppedError reports that the policy has shed a request.
func (p *pool) droppedError() *Error {
	return p.busyError("the pool's policy sheds the request: "+p.entry.choice.Reason(), admission.Saturated)
}

// checkAdmissible returns why g may neither go on nor wait.
func (p *pool) checkAdmissible(g *Grant) error {
	if p.closed != "" {
		return p.unavailableError(p.closed, nil)
	}
	if !g.protocol.AnsweredBy(p.config.Protocols) {
		return &ProtocolError{p.config.Key, p.config.Protocols}
	}
	if why := p.unavailableReason(); why != "" {
		return p.refusedError(why)
	}
	if g.subset != nil {
		if p.entry.allowedSlots(g); p.entry.allowedCount == 0 {
			return p.notAllowedError(g)
		}
	}
	return nil
}

// notAllowedError reports that g may go to none of the pool's endpoints.
func (p *pool) notAllowedError(g *Grant) *Error {
	return p.unavailableError(fmt.Sprintf("none of the %d addresses the request may go to is an endpoint of the pool", len(g.subset)), nil)
}

// shedError returns why a request gets no place.
func (p *pool) shedError(w *admission.Waiter, why admission.Reason) *Error {
	c := p.queue.Config()
	switch why {
	case admission.QueueFull:
		return p.busyError(fmt.Sprintf("the queue is full (%d requests)", p.queue.Len()), why)
	case admission.BytesFull:
		return p.busyError(fmt.Sprintf("the queue is full: its requests hold %d bytes and this one has %d, of at most %d",
			p.queue.Bytes(), w.Bytes, c.MaxQueueBytes), why)
	case admission.Saturated:
		return p.busyError(fmt.Sprintf("no replica has capacity, so requests of priority %d are refused", w.Priority), why)
	case admission.Evicted:
		return p.busyError(fmt.Sprintf("the queue is full, and a request of a priority above %d took the place", w.Priority), why)
	}
	err := p.unavailableError("the request's deadline is over", nil)
	err.Reason = why
	return err
}

// unavailableReason returns why waiting makes no sense; "" when it does.
func (p *pool) unavailableReason() string {
	if p.entry.ready > 0 || p.scalable != nil || p.config.Shared && p.entry.alive > 0 {
		return ""
	}
	return p.config.unavailableReason()
}

// retryAfter estimates when the queue has moved: a request's mean time here,
// in whole seconds from 1 to 60.
func (p *pool) retryAfter() time.Duration {
	return min(max(p.demand.meanTime().Truncate(time.Second), time.Second), time.Minute)
}

// refusedError is why waiting makes no sense, and when asking again may.
func (p *pool) refusedError(why string) *Error {
	err := p.unavailableError(why, nil)
	for m := range p.config.configs {
		if after := m.Cause.RetryAfter; after > 0 && (err.RetryAfter == 0 || after < err.RetryAfter) {
			err.RetryAfter = after
		}
	}
	return err
}

func (p *pool) busyError(message string, why admission.Reason) *Error {
	return &Error{Kind: ErrBusy, Pool: p.id, Message: message, Reason: why, RetryAfter: p.retryAfter()}
}

func (p *pool) unavailableError(message string, cause error) *Error {
	return &Error{Kind: ErrUnavailable, Pool: p.id, Message: message, Cause: cause}
}
