package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// UserPlan is somebody who asks a service: for a while, then not, then again.
type UserPlan struct {
	Seed     uint64
	Service  string
	Route    string        // by which they ask instead
	From     time.Duration // when they begin
	For      time.Duration // how long they ask
	Pause    time.Duration // how long they then rest; 0: they never come again
	Every    time.Duration // mean time between two requests
	Patience time.Duration // after which they leave
	Retries  int           // of a request that failed
	Tokens   int           // mean length of an answer
	Priority string        // "vip" or "spot" of those whose requests go before or after others
	Subset   bool          // each request may go to one replica alone
	Slow     time.Duration // how much longer than the engine they take to read an answer, at most
	Limits   apikey.Limits // of their key, where there are keys
	Left     bool          // out of the plan
}

// callBook has all requests there are.
type callBook struct {
	world  *world
	number uint64
	open   map[uint64]*call
	asking map[uint64]*call // of which the dispatcher has not told
	ended  map[string]int
}

func (b *callBook) init(w *world) {
	b.world, b.open, b.asking, b.ended = w, map[uint64]*call{}, map[uint64]*call{}, map[string]int{}
}

// call is one request, which the gateway's side of an exchange takes through its
// life: as package gateway does, without bytes.
type call struct {
	book    *callBook
	id      uint64
	key     service.Key // its service; the name of its route, where it has one
	pool    service.Key // where its route led
	user    *UserPlan
	watched *watched
	rng     *rand.Rand
	gateway *gateway
	began   time.Time
	waits   time.Time // since when, while it has no grant
	retries int
	since   time.Time // its service was last made anew
	tokens  int
	prompt  [][]byte
	subset  []string          // the addresses it may go to; nil for any
	queued  bool              // it had to wait
	again   bool              // a replica had it before
	passed  int               // other requests that have gone on since it waits
	lower   int               // requests of lower priority that have gone before it
	turns   map[*UserPlan]int // of other users' requests that came later and have gone before it

	ctx    context.Context
	cancel context.CancelFunc
	pass   *keys.Pass
	grant  *dispatch.Grant
	unit   *unit // that has it; nil while none
	first  bool  // the answer has begun
	timer  func() bool
	leaves func() bool
	over   string
	left   time.Time // since when its user is gone, and the dispatcher has not said a word
}

// user has somebody ask for as long as they want.
func (b *callBook) user(u *UserPlan) {
	rng := rand.New(rand.NewPCG(u.Seed, 0x75736572))
	var ask func(until time.Time)
	begin := func() { ask(time.Now().Add(u.For)) }
	ask = func(until time.Time) {
		if time.Now().After(until) {
			if u.Pause > 0 {
				b.world.loop.after(u.Pause, begin)
			}
			return
		}
		b.start(u, rng, 0)
		b.world.loop.after(time.Duration(rng.ExpFloat64()*float64(u.Every)), func() { ask(until) })
	}
	b.world.loop.after(u.From, begin)
}

func (b *callBook) start(u *UserPlan, rng *rand.Rand, retries int) {
	b.number++
	key := service.Key{Namespace: "default", Name: cmp.Or(u.Route, u.Service)}
	s := b.world.watch.of(key)
	c := &call{book: b, id: b.number, key: key, user: u, watched: s, rng: rng, gateway: b.world.gateways[0],
		began: time.Now(), waits: time.Now(), retries: retries, since: s.made, tokens: 1 + rng.IntN(2*u.Tokens)}
	c.prompt = [][]byte{fmt.Appendf(nil, "%0512d", u.Seed%7), fmt.Appendf(nil, "%0256d", rng.Uint32())}
	if n := len(b.world.gateways); n > 1 {
		c.gateway = b.world.gateways[rng.IntN(n)]
	}
	b.open[c.id] = c
	c.ctx, c.cancel = context.WithCancel(context.Background())
	b.world.machine.asked(key)
	c.leaves = b.world.loop.after(u.Patience, c.leave)
	before := s.lastUse
	s.asked()
	if c.gateway.dead.Load() {
		c.end("refused: nobody listens")
		return
	}
	if !c.enter() {
		s.lastUse = before // the service was not asked
		return
	}
	d, model := c.gateway.dispatcher, c.key.Name
	if u.Priority != "" {
		model += "-" + u.Priority
	}
	var led func(service.Key) error
	if u.Route != "" {
		led = func(to service.Key) error { c.pool = to; return nil }
	}
	c.chooseSubset()
	b.asking[c.id] = c
	go func() {
		g, err := d.Admit(c.ctx, dispatch.Request{Model: model, Subset: c.subset, Protocol: service.ProtocolOpenAI, Prompt: c.prompt, Bytes: 800, FairnessID: fmt.Sprint(u.Seed), May: led})
		b.world.loop.post(c.id, func() { c.admitted(g, err) })
	}()
}

// enter shows the user's key.
func (c *call) enter() bool {
	ring := c.gateway.keys
	if ring == nil {
		return true
	}
	var err error
	if c.pass, err = ring.Enter(c.book.world.secrets[c.user]); err != nil {
		c.book.world.watch.limited(c, err)
		c.end("429 key")
		return false
	}
	c.pass.Expect(int64(c.tokens))
	c.book.world.watch.entered(c)
	return true
}

// admitted takes in what the dispatcher says. A request whose user left
// meanwhile gives back what it was given.
func (c *call) admitted(g *dispatch.Grant, err error) {
	delete(c.book.asking, c.id)
	if c.user.Route != "" && c.pool.Name != "" {
		c.book.world.watch.led(c)
	}
	switch {
	case c.over != "":
		if err == nil && !c.gateway.dead.Load() {
			g.Done(dispatch.Outcome{})
		}
	case err != nil:
		c.refused(err)
	default:
		c.watched.canary.admitted(c, g)
		if c.grant = g; g.Waited() > 0 {
			c.queued = true
			c.book.world.watch.overtakes(c)
		}
		c.book.world.watch.given(c)
		c.send()
	}
}

// chooseSubset limits the request to one of the replicas that are ready.
func (c *call) chooseSubset() {
	if !c.user.Subset {
		return
	}
	c.book.world.machine.locked(func() {
		if o := c.book.world.machine.owners[c.key]; o != nil {
			for _, u := range o.units {
				if u.view.Phase == replica.Ready && (c.subset == nil || c.rng.IntN(2) == 0) {
					c.subset = []string{u.view.HTTP}
				}
			}
		}
	})
}

func (c *call) refused(err error) {
	var e *dispatch.Error
	switch {
	case errors.Is(err, dispatch.ErrBusy):
		c.watched.canary.all, c.watched.canary.canarys = 0, 0
		c.end("429")
	case errors.As(err, &e):
		c.book.world.trace("refused %d: %v", c.id, e)
		c.end("503")
	default:
		c.book.world.trace("refused %d: %v", c.id, err)
		c.end("error")
	}
}

// latency is the way to a replica.
func (c *call) latency() time.Duration { return time.Duration(100_000 + c.rng.IntN(900_000)) }

// send sends the request to the replica of its grant.
func (c *call) send() {
	w, address := c.book.world, c.grant.Address()
	w.trace("send %d to %s", c.id, c.grant.Replica())
	c.timer = w.loop.after(c.latency(), func() {
		u := w.machine.at(address)
		switch {
		case u == nil:
			c.retry(dispatch.Unsent(errors.New("connection refused")))
			return
		case u.mood.failing:
			c.timer = w.loop.after(c.latency(), func() { c.answer(500) })
			return
		}
		if !u.drained.IsZero() && time.Since(u.drained) > settled && !w.trouble() {
			w.violate("a replica that goes finishes", c.key, fmt.Sprintf("request %d is sent to %s, which is to go since %v", c.id, u.view.ID, time.Since(u.drained)))
		}
		if u.sleep.asleep > 0 {
			w.violate("a sleeper gets no request", c.key, fmt.Sprintf("request %d is sent to %s, which sleeps", c.id, u.view.ID))
		}
		c.unit = u
		u.calls[c.id] = c
		c.timer = w.loop.after(answerTimeout, c.slow)
		if !u.mood.hung {
			u.step(simulate.Arrive{Sequence: simulate.Sequence{ID: c.id, PromptTokens: promptTokens, OutputTokens: c.tokens}})
		}
	})
}

// effect is what its engine did with the request.
func (c *call) effect(u *unit, x simulate.Effect) {
	if c.over != "" {
		return
	}
	switch x.Kind {
	case simulate.RejectedFull:
		c.detach()
		c.answer(503)
	case simulate.Token:
		if !c.first {
			c.first = true
			c.timer()
			c.grant.FirstByte()
			c.book.world.watch.answered(c, false)
		}
	case simulate.Finished:
		if c.user.Slow > 0 { // the connection stays as long as the user reads
			c.timer()
			c.timer = c.book.world.loop.after(time.Duration(c.rng.Int64N(int64(c.user.Slow))), func() { c.read(x.Tokens) })
			return
		}
		c.read(x.Tokens)
	default:
	}
}

// read is the end of an answer.
func (c *call) read(tokens int) {
	if c.over != "" {
		return
	}
	c.detach()
	c.grant.Done(dispatch.Outcome{Usage: dispatch.Usage{Prompt: promptTokens, Completion: int64(tokens)}})
	c.end("answered")
}

// answer is one of a replica that did not do the work.
func (c *call) answer(status int) {
	if c.over != "" {
		return
	}
	c.book.world.watch.answered(c, status == 500)
	if c.grant.Answered(dispatch.Answer{Result: breaker.OfStatus(status), Retryable: true}) {
		c.send()
		return
	}
	c.first = true
	c.grant.FirstByte()
	c.grant.Done(dispatch.Outcome{})
	c.end(fmt.Sprint(status))
}

// slow ends a request whose answer does not begin.
func (c *call) slow() {
	if c.over != "" || c.first {
		return
	}
	c.hangUp()
	c.grant.Done(dispatch.Outcome{Failed: errors.New("slow")})
	c.end("504")
}

// retry moves the request to another replica after a failure.
func (c *call) retry(failed error) {
	if c.over != "" {
		return
	}
	c.book.world.trace("retry %d: %v", c.id, failed)
	g := c.grant
	c.waits, c.queued, c.again = time.Now(), true, true
	c.grant = nil // it is Retry's until that returns
	c.book.asking[c.id] = c
	go func() {
		err := g.Retry(c.ctx, failed)
		c.book.world.loop.post(c.id, func() {
			delete(c.book.asking, c.id)
			switch {
			case c.over != "":
				if !c.gateway.dead.Load() {
					g.Done(dispatch.Outcome{})
				}
			case err != nil:
				g.Done(dispatch.Outcome{})
				c.refused(err)
			default:
				c.grant = g
				c.send()
			}
		})
	}()
}

// detach takes the request from its engine's books.
func (c *call) detach() {
	if c.timer != nil {
		c.timer()
	}
	if c.unit != nil {
		delete(c.unit.calls, c.id)
		c.unit = nil
	}
}

// hangUp closes the connection to its engine.
func (c *call) hangUp() {
	if u := c.unit; u != nil {
		c.detach()
		u.step(simulate.Cancel{ID: c.id})
		return
	}
	c.detach()
}

// lost tells the requests of an engine that has ended. The machine's lock is held.
func (b *callBook) lost(u *unit) {
	ids := make([]uint64, 0, len(u.calls))
	for id := range u.calls {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		c := u.calls[id]
		delete(u.calls, id)
		c.unit = nil
		b.world.loop.after(c.latency(), c.cut)
	}
}

// cut is the end of the connection to its replica.
func (c *call) cut() {
	if c.over != "" {
		return
	}
	c.detach()
	if !c.first {
		c.retry(dispatch.Lost(errors.New("connection reset by peer")))
		return
	}
	if c.grant.Answered(dispatch.Answer{Result: breaker.Failed, Retryable: true}) {
		c.book.world.watch.violate("a request ends once", c.key, "request %d is sent again after its answer has begun", c.id)
		return
	}
	c.grant.Done(dispatch.Outcome{Failed: errors.New("connection reset by peer")})
	c.end("cut")
}

// leave is the end of its user's patience.
func (c *call) leave() {
	if c.over != "" {
		return
	}
	c.cancel()
	c.hangUp()
	if c.grant != nil { // else whoever waits for it gives it back
		c.grant.Done(dispatch.Outcome{})
		c.grant = nil
	}
	c.end("left")
}

// end is the request's end, and perhaps the beginning of another try.
func (c *call) end(how string) {
	w := c.book.world
	if c.over != "" {
		w.violate("a request ends once", c.key, fmt.Sprintf("request %d ended as %q and as %q", c.id, c.over, how))
		return
	}
	c.over, c.left = how, time.Now()
	if c.pass != nil {
		c.pass.Leave(int64(c.tokens))
		w.watch.allowance(c.user).running--
	}
	c.leaves()
	c.cancel()
	delete(c.book.open, c.id)
	w.watch.given(c)
	w.machine.asked(c.key)
	c.book.ended[how]++
	w.trace("end %d %s", c.id, how)
	c.watched.ended()
	if how != "answered" && how != "left" && c.retries < c.user.Retries {
		w.loop.after(time.Duration(float64(time.Second)*(0.5+c.rng.Float64())*float64(int(1)<<c.retries)), func() { c.book.start(c.user, c.rng, c.retries+1) })
	}
}

// abandon ends all requests of a gateway that died.
func (b *callBook) abandon(g *gateway) {
	ids := make([]uint64, 0, len(b.open))
	for id, c := range b.open {
		if c.gateway == g {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		if c := b.open[id]; c != nil { // else its answer was on its way
			c.hangUp()
			c.end("gateway died")
		}
	}
	maps.DeleteFunc(b.asking, func(_ uint64, c *call) bool { return c.gateway == g })
}
