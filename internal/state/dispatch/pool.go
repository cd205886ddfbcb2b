package dispatch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/picker"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// pool is the live state of one pool: its endpoints, the requests that wait for
// them, and the waker that asks for more. mu guards everything below it
// and is never held while something is waited for, nor while another pool's is
// taken.
type pool struct {
	d   *Dispatcher
	ref routing.Ref
	id  string
	// demand counts the pool's requests: a service's own counter, which
	// shared pools count in too, or one that nobody else counts in.
	demand *demandCounter
	// config is written with mu held.
	config atomic.Pointer[PoolConfig]
	// hashesPrompts: prompts make a difference here.
	hashesPrompts atomic.Bool
	// readsEntries: pictures, sounds and videos may be encoded apart.
	readsEntries atomic.Bool

	mu       sync.Mutex
	scalable *PoolConfig // of config
	closed   string      // why no request is taken any more; "" while open
	endpoints
	queue  queue
	waker  waker
	budget admission.Budget // of retries
	counts Counts
}

// Counts are events of one pool since it began.
type Counts struct {
	Dropped        uint64 `json:"dropped"`        // by the picker's policy
	Retries        uint64 `json:"retries"`        // requests sent to one more replica
	RetriesRefused uint64 `json:"retriesRefused"` // for want of budget
	Hedges         uint64 `json:"hedges"`         // requests sent to a second replica besides
	PickedOpen     uint64 `json:"pickedOpen"`     // without the pool's external picker, which gave no answer
	Usage          Usage  `json:"usage"`          // of the answers that said
}

func (c *Counts) add(u Usage) {
	c.Usage.Prompt += u.Prompt
	c.Usage.Completion += u.Completion
	c.Usage.Cached += u.Cached
}

func newPool(d *Dispatcher, ref routing.Ref) *pool {
	p := &pool{d: d, ref: ref, id: id(ref)}
	p.config.Store(&PoolConfig{})
	p.budget = admission.Budget{Ratio: d.cfg.RetryRatio, Rate: d.cfg.RetryRate}
	if ref.Pool {
		p.demand = newDemandCounter(d, "")
	} else {
		p.demand = d.demandOf(ref.Key)
	}
	for _, s := range p.sets() {
		s.d, s.pool = d, p
		s.input.Latency = &s.memory.latency
		s.input.Random = func(n uint32) uint32 { return uint32(d.random(int(n))) }
	}
	p.setPolicy(routing.Picker{})
	p.queue = queue{Machine: admission.New(d.cfg.Config), entry: &p.entry, clock: d.clock, every: d.cfg.ReportEvery, due: p.onTimer, answer: usualAnswer}
	p.waker = waker{cfg: &d.cfg, demand: d.demand, clock: d.clock, mu: &p.mu, due: p.wakeIfNeeded}
	return p
}

// set replaces the configuration, and admits the waiting requests that can go on.
func (p *pool) set(c *PoolConfig) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config.Store(c)
	p.scalable = c.scalable()
	p.setPolicy(c.Picker)
	p.queue.setBounds(c.Bounds, p.d.cfg.Config)
	p.queue.external = c.External.Name != ""
	p.endpoints.replace(c)
	p.hashesPrompts.Store(p.usePrompts())
	p.readsEntries.Store(len(p.encode.byID) > 0)
	if p.entry.alive > 0 {
		p.waker.started()
	}
	now := p.d.clock.Now()
	for _, g := range p.queue.unreachable() {
		p.fail(g, notAllowed(g), now)
	}
	p.serveQueue(now)
	if why := p.unavailableReason(); why != "" {
		p.failQueue(why, now)
	}
	p.wakeIfNeeded()
}

// recount counts the endpoints again, after some have changed for all pools.
func (p *pool) recount() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endpoints.recount()
	p.wakeIfNeeded()
}

// endpointChanged reads an endpoint again, and admits the waiting requests that
// can go on.
func (p *pool) endpointChanged(e *endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refresh(e.id)
	p.serveQueue(p.d.clock.Now())
}

// close refuses all waiting and later requests. Requests in flight go on.
func (p *pool) close(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = why
	p.failQueue(why, p.d.clock.Now())
}

// remove closes the pool and lets its endpoints go.
func (p *pool) remove(why string) {
	p.close(why)
	p.mu.Lock()
	p.clear()
	p.mu.Unlock()
}

// grant describes a request to its pool. Prompts are hashed here, without a
// lock.
func (p *pool) grant(r *Request, t route.Target) *Grant {
	g := &Grant{pool: p, named: t.Named, protocol: r.Protocol, model: t.Model, session: r.Session, subset: r.Subset, until: r.Deadline, idempotent: r.Idempotent, waiting: r.Waiting}
	g.tally.pool, g.route = p.demand, p.d.stateOf(&t)
	g.pace.target, g.copied = targetOf(r, t.Latency), r.Copy
	if g.handling = t.Handling; g.handling == nil {
		g.handling = &plain
	}
	g.waiter.Priority, g.waiter.Fairness, g.waiter.Bytes, g.waiter.Owner = t.Priority, r.FairnessID, max(0, r.Bytes), g
	if !t.Named {
		g.adapter = t.Model
		if g.adapter == "" {
			g.adapter = r.Model
		}
	}
	g.hash = scratch.Get().(*hashes)
	g.hash.blocks, g.hash.whole, g.hash.generation = g.hash.blocks[:0], 0, 0
	for _, part := range r.Prompt {
		g.bytes += len(part)
	}
	g.tokens = int64(g.bytes / bytesPerToken)
	if p.hashesPrompts.Load() && len(r.Prompt) > 0 {
		model := g.adapter
		if model == "" {
			model = p.id
		}
		g.hash.blocks = p.d.cfg.Index.AppendBlocks(g.hash.blocks, picker.Seed(model, r.CacheSalt), r.Prompt)
		g.hash.whole = p.d.cfg.Index.Whole(g.hash.blocks, r.Prompt)
	}
	if p.readsEntries.Load() {
		g.entries = entriesOf(r)
	}
	return g
}

// bytesPerToken is the usual length of a token of text.
const bytesPerToken = 4

// admit gives g a place, now or after waiting.
func (p *pool) admit(ctx context.Context, g *Grant) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	now := p.d.clock.Now()
	g.pace.arrived, g.waiter.Tokens = now, p.queue.estimate(g)
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

// admitOrQueue reserves a replica for g or queues it; the error is why it did
// neither.
func (p *pool) admitOrQueue(g *Grant, now time.Time) (*slot, error) {
	if err := p.checkAdmissible(g); err != nil {
		return nil, err
	}
	w := &g.waiter
	p.setDeadline(g, now)
	s := p.queue.state(g, now)
	s.Available = true
	var x *slot
	if d, _ := p.queue.Judge(w, s, now); d == admission.Admit {
		var dropped bool
		if x, dropped = p.entry.pick(g, nil, now); dropped {
			return nil, p.droppedError()
		}
		s.Late = x == nil && p.entry.choice.Late
		s.Available = x != nil || s.Late
	}
	if g.copied && x == nil {
		return nil, busy(p.id, "no replica has a place for a copy of a request", admission.NoCapacity, p.retryAfter(now))
	}
	v := p.queue.Arrive(w, s, now)
	if v.Decision == admission.Shed {
		return nil, shed(p.id, p.queue.shedReason(w, v.Reason), v.Reason, p.retryAfter(now))
	}
	p.budget.Request(now)
	g.route.request(now)
	if t := &g.tally; p.wakesOther() &&
		(t.stage == uncounted || v.Decision == admission.Queue && t.member == nil) {
		t.countFor(p.d.demandOf(p.scalable.owner()), now)
	}
	if v.Decision == admission.Admit {
		return x, nil
	}
	p.queue.pacing = p.queue.pacing || v.Reason == admission.Paced
	p.queue.deferring = p.queue.deferring || v.Reason == admission.Deferred
	g.tally.moveTo(queued, now)
	p.startWaiting(g, now)
	for _, out := range v.Evicted {
		p.fail(out.Owner.(*Grant), shed(p.id, p.queue.shedReason(out, admission.Evicted), admission.Evicted, p.retryAfter(now)), now)
	}
	return nil, nil
}

// wakesOther reports whether it is another service that is woken for the pool's requests,
// and whose demand they are.
func (p *pool) wakesOther() bool {
	return p.scalable != nil && (p.ref.Pool || p.scalable.owner() != p.ref.Key)
}

// checkAdmissible returns why g may neither go on nor wait.
func (p *pool) checkAdmissible(g *Grant) error {
	c := p.config.Load()
	if p.closed != "" {
		return unavailable(p.id, p.closed, nil)
	}
	if !g.protocol.AnsweredBy(c.Protocols) {
		return &ProtocolError{c.Key, c.Protocols}
	}
	if why := p.unavailableReason(); why != "" {
		return p.config.Load().refusal(p.id, why)
	}
	if g.subset != nil {
		if p.entry.allowedSlots(g); p.entry.allowedCount == 0 {
			return notAllowed(g)
		}
	}
	return nil
}

// setDeadline bounds how long g waits.
func (p *pool) setDeadline(g *Grant, now time.Time) {
	longest := p.d.cfg.MaxWait
	if w := p.config.Load().Bounds.MaxWait; w > 0 {
		longest = w
	}
	if m := p.scalable; m != nil && m.Limits.StartupTimeout > 0 {
		longest = min(longest, m.Limits.StartupTimeout)
	}
	g.waiter.Deadline = now.Add(longest)
	if d := g.handling.Timeout; d > 0 && d < longest {
		g.waiter.Deadline = now.Add(d)
	}
	if !g.until.IsZero() && g.until.Before(g.waiter.Deadline) {
		g.waiter.Deadline = g.until
	}
}

// reserve puts g in flight on x, where it has a place, and on a prefill
// replica and encoders if they are to help.
func (p *pool) reserve(g *Grant, x *slot, now time.Time) {
	g.tally.countFor(x.demand, now)
	g.reservation = reservation{slot: x, uncached: p.entry.choice.Uncached, cached: p.entry.cachedBlocks, awaiting: true, since: now}
	g.replica, g.address, g.rank, g.grpc, g.config = x.endpoint.id, x.address, x.rank, x.grpc, x.config
	x.endpoint.tokens.Add(g.reservation.uncached)
	g.pace.sent, g.pace.began, g.pace.each, g.pace.Forecast = now, time.Time{}, 0, p.entry.choice.Forecast
	g.pace.at = p.entry.memory.latency.Place(x.number)
	p.entry.await(x)
	p.reservePrefill(g, now)
	p.reserveEncoders(g)
	p.entry.refresh(x)
	g.tally.moveTo(running, now)
}

// hasAny reports whether one of the addresses is that of an endpoint of the pool.
func (p *pool) hasAny(addresses []string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(addresses, func(a string) bool { return p.entry.lookup(a) != nil })
}

// startWaiting has g, already in the queue, wait, and wakes who can serve it.
func (p *pool) startWaiting(g *Grant, now time.Time) {
	p.queue.start(g, now)
	p.wakeIfNeeded()
	if m := p.scalable; m != nil && p.entry.ready == 0 && p.waker.rises(m.replicasFor(p.queue.Len())) {
		// Those of a burst start together.
		p.demand.reportNow(now)
		g.tally.member.reportNow(now)
	}
}

// requeue makes g wait before all others of its priority.
func (p *pool) requeue(g *Grant, now time.Time) {
	if g.result == nil { // it has never waited before
		p.setDeadline(g, now)
	}
	p.queue.Return(&g.waiter)
	p.startWaiting(g, now)
}

// wait blocks until g has left the queue. Where its client leaves first, a
// place that it was given just now goes to the next.
func (p *pool) wait(ctx context.Context, g *Grant) error {
	if ok, err := p.await(ctx, g); ok {
		return err
	}
	p.mu.Lock()
	now := p.d.clock.Now()
	if g.waiter.Waiting() {
		p.queue.Leave(&g.waiter)
		p.queue.end(g, now)
	}
	var freed freedEndpoints
	if g.reservation.slot != nil {
		freed = p.release(&g.reservation)
	}
	g.finish(now)
	p.serveQueue(now)
	p.mu.Unlock()
	freed.notifyPools()
	return ctx.Err()
}

// serveQueue hands free places to the waiting requests.
func (p *pool) serveQueue(now time.Time) {
	p.queue.serve(now,
		func(g *Grant, x *slot) {
			p.reserve(g, x, now)
			p.queue.end(g, now)
			g.result <- nil
		},
		func(g *Grant) { p.fail(g, p.droppedError(), now) })
	if p.queue.deferring { // nothing else may happen until their time is over
		p.queue.setTimer(now)
	}
}

// onTimer ends the waiting of those whose deadline is over. While requests are
// held, it has their endpoints' loads read on.
func (p *pool) onTimer() {
	p.mu.Lock()
	now := p.d.clock.Now()
	p.queue.timer = deadlineTimer{}
	for w := p.queue.Due(now); w != nil; w = p.queue.Due(now) {
		g := w.Owner.(*Grant)
		p.fail(g, p.timeoutError(g, w.Deadline.Sub(g.since)), now)
	}
	p.serveQueue(now)
	p.queue.setTimer(now)
	held := p.queue.pacing
	p.mu.Unlock()
	if held && p.d.cfg.Asked != nil {
		p.d.cfg.Asked(p.ref)
	}
}

// fail tells g, which has left the queue, that it gets no place.
func (p *pool) fail(g *Grant, why error, now time.Time) {
	p.queue.end(g, now)
	g.finish(now)
	g.result <- why
}

// failQueue ends the waiting of all.
func (p *pool) failQueue(why string, now time.Time) {
	for w := p.queue.Drain(); w != nil; w = p.queue.Drain() {
		p.fail(w.Owner.(*Grant), p.config.Load().refusal(p.id, why), now)
	}
}

// wakeIfNeeded asks for replicas if requests wait, of whatever priority, and
// no replica is alive.
func (p *pool) wakeIfNeeded() {
	if m := p.scalable; m != nil && p.queue.Len() > 0 && p.entry.alive == 0 && p.closed == "" {
		p.waker.ask(m.owner().String(), m.replicasFor(p.queue.Len()))
	}
}

// unavailableReason returns why waiting makes no sense; "" when it does.
func (p *pool) unavailableReason() string {
	c := p.config.Load()
	if p.entry.ready > 0 || p.scalable != nil || c.Shared && p.entry.alive > 0 {
		return ""
	}
	return c.unavailableReason()
}

// waitReason returns what the waiting requests wait for.
func (p *pool) waitReason() string {
	c := p.config.Load()
	state, message := c.state()
	switch {
	case state == StateReady:
		return p.queue.saturationReason(c.Limits.MaxConcurrency)
	case state == StateAsleep && p.waker.err != nil:
		return "it could not be started: " + p.waker.err.Error()
	case state == StateAsleep:
		return "it was asked to start, and no replica has appeared"
	default:
		return message
	}
}

// timeoutError returns why a request has waited in vain: ErrBusy if there are replicas
// that work, and others have had their places.
func (p *pool) timeoutError(g *Grant, waited time.Duration) *Error {
	why := p.waitReason()
	if g.failed.last != nil {
		why += "; the last try: " + g.failed.last.Error()
	}
	err := unavailable(p.id, fmt.Sprintf("no replica took the request within %v: %s", waited.Round(time.Millisecond), why), p.waker.err)
	for _, x := range p.entry.slots {
		if g.failed.last == nil && x != nil && x.accepts() {
			err.Kind, err.Cause = ErrBusy, nil
		}
	}
	err.RetryAfter, err.Reason = p.retryAfter(p.d.clock.Now()), admission.Overdue
	return err
}

// droppedError reports, and counts, that the policy has shed a request.
func (p *pool) droppedError() *Error {
	p.counts.Dropped++
	return busy(p.id, "the pool's policy sheds the request: "+p.entry.choice.Reason(), admission.Saturated, p.demand.retryAfter())
}

// status is the pool at this moment; t has the name that routes to it.
func (p *pool) status(t *route.Table) Status {
	learned := p.entry.learner.accuracy()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.d.clock.Now()
	c := p.config.Load()
	s := Status{Pool: c, Demand: p.demand.demand(now), InFlight: make(map[string]int, len(p.entry.byID)),
		Fault: strings.Trim(p.fault+"; "+p.queue.fault, "; "), Queue: p.queue.Bands(), Saturation: p.entry.saturation(p.queue.Config(), nil, now),
		Admission: p.queue.Counts(), Counts: p.counts, Latency: learned}
	if s.Name = t.Name(c.Key); p.ref.Pool {
		s.Name = c.Key.String()
	}
	s.State, s.Message = c.state()
	if s.State == StateAsleep && p.queue.Len() > 0 {
		s.State, s.Message = StateLoading, p.waitReason()
	}
	for _, x := range p.entry.slots {
		if x != nil {
			s.InFlight[x.endpoint.id] = int(x.endpoint.inFlight.Load())
		}
	}
	return s
}
