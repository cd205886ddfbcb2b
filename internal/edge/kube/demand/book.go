package demand

import (
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/state/prompts"
)

// book sums the reports of gateways. Time is an argument.
//
// The sums of a service's counters never fall: the book adds the growth of each
// instance's counters, and keeps it when the instance ends. It adds growth evenly
// over the time in which it happened. Reports of several gateways arrive one after
// the other, and the load of a whole second, added at one moment, would look like
// several times that load.
type book struct {
	started  time.Time
	silence  time.Duration // a gateway that does not report for so long is silent
	gateways map[string]*gateway
	live     map[string]bool // nil: not known yet
	past     map[string]sums // of gateways that are gone, by service
	services map[string]int  // how many gateways have a line of it
	pods     map[string]int  // in flight, over gateways
	prompts  prompts.Log
}

// gateway is a pod's newest instance.
type gateway struct {
	instance int64
	number   uint64
	heard    time.Time
	silent   bool
	full     bool // all its services are known
	lines    map[string]*entry
	engines  map[engineID]replica.Load
	hosts    map[engineID]told
	budget   int       // bytes of prompts that it may tell
	spent    time.Time // when budget was computed
}

// sums are the totals of a service, after all growth has been added.
type sums struct {
	arrived, done, left uint64
	load, busy          float64
	lastDone            time.Time
}

// entry is one service at one gateway.
type entry struct {
	number   uint64 // of the report that it comes from
	raw      sums   // as reported
	total    sums
	at       time.Time // when total was reported
	span     time.Duration
	before   sums // what had been added at that time
	queued   int
	running  int
	inFlight map[string]int
}

func newBook(started time.Time, silence time.Duration) *book {
	return &book{started: started, silence: silence, gateways: map[string]*gateway{}, past: map[string]sums{}, services: map[string]int{}, pods: map[string]int{}, prompts: prompts.NewLog(started)}
}

// maxSpan is the longest time over which growth is added.
const maxSpan = 10 * time.Second

// take adds a report. all reports whether the gateway must send a full one next;
// changed lists the services whose demand changed. A report that is older than
// the last one changes nothing.
func (b *book) take(r *Report, now time.Time) (all bool, changed []string) {
	g := b.gateways[r.Pod]
	if g != nil && r.Instance < g.instance && !g.silent {
		return false, nil // of the process before
	}
	// A process that has been silent for so long sends no late report. So this
	// report is of a newer process whose clock was set back.
	if g != nil && r.Instance != g.instance {
		b.retire(r.Pod, g)
		g = nil
	}
	if g == nil {
		if len(b.gateways) >= maxGateways {
			b.forgetOldest()
		}
		g = &gateway{instance: r.Instance, lines: map[string]*entry{}, engines: map[engineID]replica.Load{}, hosts: map[engineID]told{}}
		b.gateways[r.Pod] = g
	}
	g.heard = now
	g.tell(r.Engines, now)
	changed = g.lodge(r.Hosts, now)
	b.hear(g, r, now)
	if g.silent {
		g.silent, g.full = false, false
	}
	// What an instance counted before this book began does not count.
	born := now.Add(-time.Duration(r.Age) * time.Millisecond)
	fresh := born.After(b.started)
	listed := map[string]bool{}
	for i := range r.Services {
		l := &r.Services[i]
		listed[l.Service] = true
		if b.line(g, l, r.Number, fresh, born, now) {
			changed = append(changed, l.Service)
		}
	}
	if r.Full {
		g.full = true
		for name, e := range g.lines {
			if !listed[name] && e.number < r.Number {
				if e.queued+e.running > 0 {
					changed = append(changed, name)
				}
				b.quiet(e)
				e.number = r.Number
			}
		}
	}
	g.number = max(g.number, r.Number)
	return !g.full, changed
}

// line adds one service of a report and reports whether that changes the
// service's demand.
func (b *book) line(g *gateway, l *Line, number uint64, fresh bool, born, now time.Time) (changed bool) {
	e := g.lines[l.Service]
	raw := sums{arrived: l.Arrived, done: l.Done, left: l.Left, load: l.Load, busy: l.Busy}
	switch {
	case e != nil && number <= e.number:
		return false
	case l.Gone:
		if e != nil {
			b.quiet(e)
			delete(g.lines, l.Service)
			b.release(l.Service)
		}
		return e != nil
	case e == nil:
		if len(g.lines) >= maxServices {
			return false
		}
		e = &entry{at: born}
		if !fresh {
			e.raw, e.at = raw, now
		}
		g.lines[l.Service] = e
		b.services[l.Service]++
	}
	changed = l.Queued+l.Running > 0 || e.queued+e.running > 0 || e.raw.arrived != raw.arrived || e.raw.done != raw.done
	e.before = e.spread(now)
	e.span, e.at = min(now.Sub(e.at), maxSpan), now
	e.total.arrived += growth(e.raw.arrived, raw.arrived)
	e.total.done += growth(e.raw.done, raw.done)
	e.total.left += growth(e.raw.left, raw.left)
	e.total.load += growth(e.raw.load, raw.load)
	e.total.busy += growth(e.raw.busy, raw.busy)
	if l.Ago > 0 && (e.raw.done != raw.done || e.total.lastDone.IsZero()) {
		e.total.lastDone = later(e.total.lastDone, now.Add(-time.Duration(l.Ago-1)*time.Millisecond))
	}
	e.raw, e.number = raw, number
	b.set(e, l.Queued, l.Running, l.InFlight)
	return changed
}

func (b *book) set(e *entry, queued, running int, inFlight map[string]int) {
	for pod, n := range e.inFlight {
		if b.pods[pod] -= n; b.pods[pod] <= 0 {
			delete(b.pods, pod)
		}
	}
	for pod, n := range inFlight {
		if n > 0 {
			b.pods[pod] += n
		}
	}
	e.queued, e.running, e.inFlight = queued, running, inFlight
}

func (b *book) quiet(e *entry) { b.set(e, 0, 0, nil) }

// growth is how much a counter grew. A counter that fell has restarted from 0.
func growth[T uint64 | float64](before, now T) T {
	if now < before {
		return now
	}
	return now - before
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// spread is how much of the total has been added by now.
func (e *entry) spread(now time.Time) sums {
	part := 1.0
	if gone := now.Sub(e.at); e.span > 0 && gone < e.span {
		part = max(0, float64(gone)/float64(e.span))
	}
	s := e.total
	s.arrived = e.before.arrived + uint64(part*float64(s.arrived-e.before.arrived))
	s.done = e.before.done + uint64(part*float64(s.done-e.before.done))
	s.left = e.before.left + uint64(part*float64(s.left-e.before.left))
	if part < 1 { // else the total itself, which no rounding may miss
		s.load = e.before.load + part*(s.load-e.before.load)
		s.busy = e.before.busy + part*(s.busy-e.before.busy)
	}
	return s
}

func (b *book) release(service string) {
	if b.services[service]--; b.services[service] <= 0 {
		delete(b.services, service)
		delete(b.past, service) // no gateway has a line of it
	}
}

// forget drops what is known of a service.
func (b *book) forget(service string) {
	for _, g := range b.gateways {
		if e := g.lines[service]; e != nil {
			b.quiet(e)
			delete(g.lines, service)
		}
	}
	delete(b.services, service)
	delete(b.past, service)
}

// retire adds a gateway's counters to the past. The past holds at most as many
// services as a report may have.
func (b *book) retire(pod string, g *gateway) {
	for name, e := range g.lines {
		b.quiet(e)
		p := b.past[name]
		p.arrived, p.done, p.load = p.arrived+e.total.arrived, p.done+e.total.done, p.load+e.total.load
		p.left, p.busy = p.left+e.total.left, p.busy+e.total.busy
		p.lastDone = later(p.lastDone, e.total.lastDone)
		if _, known := b.past[name]; known || len(b.past) < maxServices {
			b.past[name] = p
		}
		if b.services[name]--; b.services[name] <= 0 {
			delete(b.services, name)
		}
	}
	delete(b.gateways, pod)
}

func (b *book) forgetOldest() {
	var pod string
	var oldest *gateway
	for p, g := range b.gateways {
		if oldest == nil || g.heard.Before(oldest.heard) {
			pod, oldest = p, g
		}
	}
	if oldest != nil {
		b.retire(pod, oldest)
	}
}

// keep is how long the book remembers a gateway that is gone.
const keep = time.Hour

// sweep sets the demand of silent gateways to nothing and retires gateways that
// are gone. It returns the services whose demand changed.
func (b *book) sweep(now time.Time) (changed []string) {
	for pod, g := range b.gateways {
		g.expire(now)
		quiet := now.Sub(g.heard)
		if !g.silent && (quiet > b.silence || b.live != nil && !b.live[pod] && quiet > b.silence/3) {
			g.silent = true
			for name, e := range g.lines {
				if e.queued+e.running > 0 {
					changed = append(changed, name)
				}
				b.quiet(e)
			}
		}
		if g.silent && !b.live[pod] && quiet > keep {
			b.retire(pod, g)
		}
	}
	return changed
}

// unknown reports whether a gateway that takes requests has not sent a full report.
func (b *book) unknown() bool {
	if b.live == nil {
		return true
	}
	for pod := range b.live {
		if !b.hears(pod) {
			return true
		}
	}
	return false
}

// hears reports whether a gateway has sent a full report and is not silent.
func (b *book) hears(pod string) bool {
	g := b.gateways[pod]
	return g != nil && !g.silent && g.full
}

// unheard lists the gateways that take requests and have not sent a full report, by name.
func (b *book) unheard() (pods []string) {
	for pod := range b.live {
		if !b.hears(pod) {
			pods = append(pods, pod)
		}
	}
	slices.Sort(pods)
	return pods
}

// demand is the sum over gateways.
func (b *book) demand(service string, now time.Time) autoscale.Demand {
	p := b.past[service]
	d := autoscale.Demand{Arrived: p.arrived, Done: p.done, Left: p.left, LoadSeconds: p.load, BusySeconds: p.busy, LastDone: p.lastDone, Unknown: b.unknown()}
	for _, g := range b.gateways {
		e := g.lines[service]
		if e == nil {
			continue
		}
		s := e.spread(now)
		d.Queued, d.Running = d.Queued+e.queued, d.Running+e.running
		d.Arrived, d.Done, d.LoadSeconds = d.Arrived+s.arrived, d.Done+s.done, d.LoadSeconds+s.load
		d.Left, d.BusySeconds = d.Left+s.left, d.BusySeconds+s.busy
		d.LastDone = later(d.LastDone, s.lastDone)
	}
	return d
}
