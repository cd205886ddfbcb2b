package demand

import (
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

// book sums what gateways have reported. Time is an argument.
//
// Of every service, the sums of counters never fall: an instance's counters
// are followed by their growth, which stays when the instance goes. Growth is
// spread over as long as it took to come about, since reports of several
// gateways arrive one after the other, and a second's load added at one
// moment would look like several times that.
type book struct {
	started  time.Time
	silence  time.Duration // after which a gateway is not heard any more
	gateways map[string]*gateway
	live     map[string]bool // nil: not known yet
	past     map[string]sums // of gateways that are gone, by service
	services map[string]int  // how many gateways have a line of it
	pods     map[string]int  // in flight, over gateways
}

// gateway is a pod's newest instance.
type gateway struct {
	instance int64
	number   uint64
	heard    time.Time
	silent   bool
	full     bool // all its services are known
	lines    map[string]*entry
}

// sums are what has come about, once all of it has been spread.
type sums struct {
	arrived, done uint64
	load, busy    float64
	lastDone      time.Time
}

// entry is one service at one gateway.
type entry struct {
	number   uint64 // of the report it is of
	raw      sums   // as reported
	total    sums
	at       time.Time // when total was reported
	span     time.Duration
	before   sums // what was spread at that time
	queued   int
	running  int
	inFlight map[string]int
}

func newBook(started time.Time, silence time.Duration) *book {
	return &book{started: started, silence: silence, gateways: map[string]*gateway{}, past: map[string]sums{}, services: map[string]int{}, pods: map[string]int{}}
}

// maxSpan is the longest that growth is spread over.
const maxSpan = 10 * time.Second

// take notes a report. all reports whether a full one is wanted, changed are
// the services whose demand has changed. Reports that are older than what is
// known change nothing.
func (b *book) take(r *Report, now time.Time) (all bool, changed []string) {
	g := b.gateways[r.Pod]
	if g != nil && r.Instance < g.instance && !g.silent {
		return false, nil // of the process before
	}
	// One that has gone silent sends nothing late: the other is the later
	// process, its clock set back.
	if g != nil && r.Instance != g.instance {
		b.retire(r.Pod, g)
		g = nil
	}
	if g == nil {
		if len(b.gateways) >= maxGateways {
			b.forgetOldest()
		}
		g = &gateway{instance: r.Instance, lines: map[string]*entry{}}
		b.gateways[r.Pod] = g
	}
	g.heard = now
	if g.silent {
		g.silent, g.full = false, false
	}
	// What an instance counted before this book was opened is history.
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

// line notes one service of a report and reports whether that changes its
// demand.
func (b *book) line(g *gateway, l *Line, number uint64, fresh bool, born, now time.Time) (changed bool) {
	e := g.lines[l.Service]
	raw := sums{arrived: l.Arrived, done: l.Done, load: l.Load, busy: l.Busy}
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

// growth is by how much a counter has grown; one that fell began anew.
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

// spread is what of the total has been spread by now.
func (e *entry) spread(now time.Time) sums {
	part := 1.0
	if gone := now.Sub(e.at); e.span > 0 && gone < e.span {
		part = max(0, float64(gone)/float64(e.span))
	}
	s := e.total
	s.arrived = e.before.arrived + uint64(part*float64(s.arrived-e.before.arrived))
	s.done = e.before.done + uint64(part*float64(s.done-e.before.done))
	if part < 1 { // else the total itself, which no rounding may miss
		s.load = e.before.load + part*(s.load-e.before.load)
		s.busy = e.before.busy + part*(s.busy-e.before.busy)
	}
	return s
}

func (b *book) release(service string) {
	if b.services[service]--; b.services[service] <= 0 {
		delete(b.services, service)
		delete(b.past, service) // nobody knows it any more
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

// retire folds a gateway's counters into the past, which is kept of so many
// services as a report may have.
func (b *book) retire(pod string, g *gateway) {
	for name, e := range g.lines {
		b.quiet(e)
		p := b.past[name]
		p.arrived, p.done, p.load = p.arrived+e.total.arrived, p.done+e.total.done, p.load+e.total.load
		p.busy += e.total.busy
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

// keep is for how long a gateway that is gone may come back and be known.
const keep = time.Hour

// sweep has gateways that are silent ask for nothing, and folds away those
// that are gone. It returns the services whose demand that changed.
func (b *book) sweep(now time.Time) (changed []string) {
	for pod, g := range b.gateways {
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

// unknown reports whether a gateway that takes requests has not told all.
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

// hears reports whether a gateway has told all, and still tells.
func (b *book) hears(pod string) bool {
	g := b.gateways[pod]
	return g != nil && !g.silent && g.full
}

// unheard are the gateways that take requests and have not told all, by name.
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
	d := autoscale.Demand{Arrived: p.arrived, Done: p.done, LoadSeconds: p.load, BusySeconds: p.busy, LastDone: p.lastDone, Unknown: b.unknown()}
	for _, g := range b.gateways {
		e := g.lines[service]
		if e == nil {
			continue
		}
		s := e.spread(now)
		d.Queued, d.Running = d.Queued+e.queued, d.Running+e.running
		d.Arrived, d.Done, d.LoadSeconds = d.Arrived+s.arrived, d.Done+s.done, d.LoadSeconds+s.load
		d.BusySeconds += s.busy
		d.LastDone = later(d.LastDone, s.lastDone)
	}
	return d
}
