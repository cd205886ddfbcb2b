package autoscale

import (
	"maps"
	"math"
	"slices"
	"time"
)

const (
	// spacing is the least time between two samples of a Window, and samples how
	// many it keeps: enough for the long one.
	spacing = 2 * time.Second
	samples = 32
	// window is what a sudden change is seen in, and long what a steady rate is
	// averaged over. A burst is no more per second than its part of window.
	window = 10 * time.Second
	long   = time.Minute
	// chance is by how many standard deviations of a Poisson process the arrivals
	// of window must differ from the average of long to count as a change.
	chance = 3
	// prior is how many requests the learned service time counts for beside those
	// of long, and how many must have been seen for it to be known.
	prior = 5
	// memory is how many requests the learned service time is an average of, and
	// startups how many starts the learned startup times are of.
	memory   = 100
	startups = 16
	// unknownStartup is how many seconds a start takes as long as none was seen.
	unknownStartup = 30
	longest        = 3600
)

const (
	// spare is how many standard deviations of the load are kept free, or less
	// where requests are so short that a slot is soon free: with patience
	// mean waits a second is rarely exceeded. At least leastFree of the load is free, as
	// its average lags behind it.
	spare     = 1.5
	patience  = 4
	leastFree = 0.35
	// drainPart of a startup time, but no less than drainLeast seconds and than a
	// request takes, is within which a backlog is to be gone after a start.
	drainPart  = 0.12
	drainLeast = 2
	// forget is what part of what was learned of rises stays when another is seen.
	forget = 0.9
)

// Window holds what was counted at some times of the last minute.
type Window struct {
	ring [samples]sample
	next int // where the next goes
	n    int
}

type sample struct {
	at                  time.Time
	arrived, done, left uint64
	busy, load          float64
	running             int
}

// Len returns how many samples there are.
func (w *Window) Len() int { return w.n }

func sampleOf(d Demand, now time.Time) sample {
	return sample{at: now, arrived: d.Arrived, done: d.Done, left: d.Left, busy: d.BusySeconds, load: d.LoadSeconds, running: d.Running}
}

// due reports whether the next sample will be kept.
func (w *Window) due(now time.Time) bool {
	return w.n > 0 && (now.Sub(w.last().at) >= spacing || now.Before(w.last().at))
}

// add keeps a sample, unless the last one is too near.
func (w *Window) add(s sample) {
	if w.n > 0 && !w.due(s.at) {
		return
	}
	w.ring[w.next] = s
	w.next, w.n = (w.next+1)%samples, min(w.n+1, samples)
}

func (w *Window) last() *sample { return &w.ring[(w.next+samples-1)%samples] }

// flow is what happened in a length of time.
type flow struct {
	seconds       float64
	arrived, done float64
	busy, load    float64
	grown         float64 // running at its end less those at its begin
}

// since is what has happened in the last d. What came after a gap in which
// nobody looked has just come, so it counts in full; no flow is shorter than d.
func (w *Window) since(d time.Duration, now sample) flow {
	if w.n == 0 {
		return flow{seconds: d.Seconds()}
	}
	from := w.last()
	for i := 1; i <= w.n; i++ {
		from = &w.ring[(w.next+samples-i)%samples]
		if now.at.Sub(from.at) >= d {
			break
		}
	}
	f := from.until(now)
	if gap := now.at.Sub(from.at); gap < d || gap > d+2*spacing {
		f.seconds = d.Seconds()
	}
	return f
}

// until is what happened from one sample to another.
func (s *sample) until(now sample) flow {
	return flow{seconds: now.at.Sub(s.at).Seconds(), arrived: grown(s.arrived, now.arrived), done: max(0, grown(s.done, now.done)-grown(s.left, now.left)),
		busy: max(0, now.busy-s.busy), load: max(0, now.load-s.load), grown: float64(now.running - s.running)}
}

func grown(from, to uint64) float64 {
	if to < from { // counted anew
		return float64(to)
	}
	return float64(to - from)
}

// Learned is what a service has shown of itself. It outlives the process that
// saw it.
type Learned struct {
	// Startups are how many seconds the last starts took, oldest first.
	Startups []float64 `json:"startups,omitempty"`
	// Newest is when the replica of the last of them was ready.
	Newest time.Time `json:"newest,omitzero"`
	// Wakes are how many seconds the last wakings from each level took, oldest
	// first, and LastWake when the last of them ended.
	Wakes    map[int][]float64 `json:"wakes,omitempty"`
	LastWake time.Time         `json:"lastWake,omitzero"`
	// Service is how many seconds a request runs, and Requests how many that
	// was seen of, as far as they count.
	Service  float64 `json:"serviceSeconds,omitempty"`
	Requests float64 `json:"requests,omitempty"`
	// Gaps are how many seconds the last idle gaps lasted, oldest first, and Returns
	// how many there have been.
	Gaps    []float64 `json:"gapSeconds,omitempty"`
	Returns uint64    `json:"returns,omitempty"`
	// Pauses are how many seconds the last pauses of the replica of each rank took,
	// oldest first: of at most 64 replicas 12 each.
	Pauses [][]float64 `json:"pauseSeconds,omitempty"`
	// Rises is the sum of how many more requests per second came than usual, and
	// Lasted that of how many of these still did a startup time later. Old ones count
	// less.
	Rises  float64 `json:"rises,omitempty"`
	Lasted float64 `json:"lasted,omitempty"`
	// Initial is the revision whose initial scale was reached last, with Knative's
	// autoscaler.
	Initial string `json:"initial,omitempty"`
}

// Startup returns how long a start usually takes; 0 where none was seen.
func (l Learned) Startup() time.Duration {
	if len(l.Startups) == 0 {
		return 0
	}
	return time.Duration(l.startup(median) * float64(time.Second))
}

// Wake returns how long waking from a level usually takes; 0 where none was seen.
func (l Learned) Wake(level int) time.Duration {
	s := slices.Sorted(slices.Values(l.Wakes[level]))
	if len(s) == 0 {
		return 0
	}
	return time.Duration(s[len(s)/2] * float64(time.Second))
}

// woken learns from the replicas that were woken since the last one that was.
func (l Learned) woken(rs []Replica) Learned {
	last := l.LastWake
	for _, r := range rs {
		w := r.Woke
		if w == nil || !w.At.After(last) {
			continue
		}
		kept := l.Wakes[w.Level][max(0, len(l.Wakes[w.Level])-startups+1):]
		l.Wakes = maps.Clone(l.Wakes)
		if l.Wakes == nil {
			l.Wakes = map[int][]float64{}
		}
		l.Wakes[w.Level] = append(slices.Clone(kept), w.Seconds)
		if w.At.After(l.LastWake) {
			l.LastWake = w.At
		}
	}
	return l
}

// startup returns the q-quantile of the startup times.
func (l Learned) startup(q float64) float64 {
	if len(l.Startups) == 0 {
		return unknownStartup
	}
	s := append(make([]float64, 0, startups), l.Startups...)
	slices.Sort(s)
	return min(max(s[min(int(q*float64(len(s))), len(s)-1)], 0), longest)
}

// StartupQuantile returns the q-quantile of the startup times that have been seen,
// and how many those are; 0 for none.
func (l Learned) StartupQuantile(q float64) (d time.Duration, seen int) {
	if len(l.Startups) == 0 {
		return 0, 0
	}
	return time.Duration(l.startup(q) * float64(time.Second)), len(l.Startups)
}

// seen is which processes have taught a Learned, or cannot.
type seen struct {
	since time.Time            // of the owner's first step
	at    map[string]time.Time // when the process of each replica started
}

// started learns from the replicas that have become ready, from each process
// once: one that is ready again after a failed probe has not started again. What
// started before the owner's first step teaches nothing, whenever it comes to be
// looked at: an owner that has come back finds it ready later than it was.
func (l Learned) started(rs []Replica, before seen, now time.Time) (Learned, seen) {
	next, first := seen{since: before.since}, before.since.IsZero()
	if first {
		next.since = now
	}
	for _, r := range rs {
		if r.Started.IsZero() {
			continue
		}
		woken := r.Woke != nil && r.Woke.At.After(r.Started) // it was away while it slept
		known := first || woken || r.Started.Before(next.since) || before.at[r.ID].Equal(r.Started)
		if took := r.ReadyAt.Sub(r.Started); !known && r.Ready && took > 0 {
			kept := l.Startups[max(0, len(l.Startups)-startups+1):]
			l.Startups, known = append(slices.Clone(kept), took.Seconds()), true
			if r.ReadyAt.After(l.Newest) {
				l.Newest = r.ReadyAt
			}
		}
		if !known {
			continue
		}
		if next.at == nil {
			next.at = make(map[string]time.Time, len(rs))
		}
		next.at[r.ID] = r.Started
	}
	return l, next
}

// Differs reports whether l tells so much else than what was stored that it is
// worth a write: there have been starts since, and the usual startup or service
// time is another by a quarter; or that by which a surplus is kept; or the part of
// a rise that lasts is another by a tenth; or an eighth of the idle gaps are new.
func (l Learned) Differs(stored Learned) bool {
	for level := range l.Wakes {
		if other(l.Wake(level).Seconds(), stored.Wake(level).Seconds()) {
			return true
		}
	}
	if l.Initial != stored.Initial || math.Abs(l.lasting()-stored.lasting()) > 0.1 || l.paused(stored) {
		return true
	}
	if l.Returns > stored.Returns+uint64(len(stored.Gaps)/8) { // after each of the first eight
		return true
	}
	if l.Newest.Equal(stored.Newest) {
		return false
	}
	return len(l.Startups) > 0 && len(stored.Startups) == 0 || other(l.startup(median), stored.startup(median)) || other(l.Service, stored.Service)
}

// paused reports whether the pauses of a replica have it kept for another time, by a
// quarter, than those that were stored.
func (l Learned) paused(stored Learned) bool {
	startup := l.startup(median)
	for rank := range l.Pauses {
		if same := rank < len(stored.Pauses) && slices.Equal(l.Pauses[rank], stored.Pauses[rank]); !same && other(l.hold(rank, startup), stored.hold(rank, startup)) {
			return true
		}
	}
	return false
}

func other(a, b float64) bool { return a > 1.25*b || b > 1.25*a }

// served learns from the requests of f. One that runs still counts for half.
func (l Learned) served(f flow) Learned {
	if f.done <= 0 && l.Requests == 0 {
		return l
	}
	known := min(l.Requests, memory)
	n := max(known+f.done+f.grown/2, 1)
	l.Service, l.Requests = (l.Service*known+f.busy)/n, min(n, memory)
	return l
}

// seconds is how long a request runs, by those of f and what is known from
// before; 0 while too few are.
func (l Learned) seconds(f flow) float64 {
	if l.Requests < prior || l.Service <= 0 {
		return 0
	}
	return (f.busy + prior*l.Service) / (max(0, f.done+f.grown/2) + prior)
}

// rate is how many arrive per second: the average of long, unless what arrived
// in window differs from it by more than chance. Of more, a standard deviation
// is not counted: a handful of arrivals is no rate.
func rate(short, lasting flow) float64 {
	usual := lasting.arrived / lasting.seconds
	expected := usual * short.seconds
	switch change := short.arrived - expected; {
	case math.Abs(change) <= chance*math.Sqrt(max(expected, 1)):
		return usual
	case change > 0:
		return max(usual, (short.arrived-math.Sqrt(short.arrived))/short.seconds)
	}
	return short.arrived / short.seconds
}

// rises are arrivals above the usual rate, not older than a startup time, oldest
// first. What becomes of them by the time at which a replica would be ready that was
// started for them is learned.
type rises []rise

type rise struct {
	at           time.Time
	usual, above float64 // per second
}

// lasting is what part of a rise is usually left after a startup time; of what is not
// known, all.
func (l Learned) lasting() float64 {
	if l.Rises <= 0 {
		return 1
	}
	return l.Lasted / l.Rises
}

// rose learns from the arrivals of a step. r is those that are not over.
func (l Learned) rose(r rises, short, lasting flow, now time.Time) (Learned, rises) {
	startup, present, usual := l.startup(median), short.arrived/short.seconds, lasting.arrived/lasting.seconds
	for len(r) > 0 && now.Sub(r[0].at).Seconds() >= startup {
		first := r[0]
		r = r[1:]
		l.Rises = forget*l.Rises + first.above
		l.Lasted = forget*l.Lasted + min(max(0, present-first.usual), first.above)
	}
	above, n := rate(short, lasting)-usual, len(r)
	if above > 0 && n < samples && (n == 0 || now.Sub(r[n-1].at) >= max(window/2, seconds(startup)/samples)) {
		r = append(slices.Clone(r), rise{at: now, usual: usual, above: above})
	}
	return l, r
}

// Numbers are what a count was made of.
type Numbers struct {
	// Rate is of arrivals per second, Service how many seconds one runs, 0 while
	// that is unknown, and Load their product: how many run at once.
	Rate    float64 `json:"rate"`
	Service float64 `json:"serviceSeconds"`
	Load    float64 `json:"load"`
	// Backlog is how many requests there are beyond Load.
	Backlog float64 `json:"backlog"`
	// Startup is how many seconds a start takes.
	Startup float64 `json:"startupSeconds"`
	// Base is the count that Load needs, Wanted that which has the backlog gone
	// in time as well.
	Base   int `json:"base"`
	Wanted int `json:"wanted"`
	// Signals are the measured metrics.
	Signals []Signal `json:"signals,omitempty"`
}

// plan is how replicas answer a load: what one takes, and when each is there.
type plan struct {
	target  float64 // units of load that a replica is to have
	slots   float64 // units of load that a replica takes at most
	load    float64
	rise    float64   // of the load, above the usual
	lasting float64   // what part of it is left when a start is over
	service float64   // seconds that a request takes a unit for
	backlog float64   // requests beyond the load
	ready   []float64 // seconds until each that exists is ready, soonest first
	start   float64   // seconds until one that is started now is ready
	drain   float64   // seconds after it within which the backlog is to be gone
}

// free is how many units are to be free for the variation of a load. Utilization
// rises with size.
func (p *plan) free(load float64) float64 {
	return max(leastFree*load, min(spare*math.Sqrt(load), patience*p.service))
}

// base is how many the load needs.
func (p *plan) base() int { return p.baseOf(p.load) }

// baseOf is how many a load needs.
func (p *plan) baseOf(load float64) int {
	return ceil(max(load/p.target, (load+p.free(load))/p.slots))
}

// wanted is the least count that takes the load and has the backlog gone in
// time: first those that exist, soonest first, then new ones.
func (p *plan) wanted() int {
	n := p.base()
	if p.backlog <= 0 {
		return n
	}
	end := p.start + p.drain
	left := min(max(p.lasting, 1e-3), 1-1e-3)
	// A rise fades exponentially, so its mean until the end is this part of it.
	work := p.backlog*p.service + (p.load-p.rise)*end + p.rise*end*(1-left)/-math.Log(left)
	for i, r := range p.ready {
		if i >= n && work <= 0 {
			return i
		}
		work -= p.slots * max(0, end-r)
	}
	k := max(n, len(p.ready))
	work -= p.slots * p.drain * float64(k-len(p.ready))
	if work > 0 {
		k += ceil(work / (p.slots * p.drain))
	}
	return k
}

func ceil(x float64) int { return int(min(math.Ceil(x-1e-9), 1<<20)) }

// supply is in how many seconds each replica will be ready, soonest first. One
// that failed begins anew.
func supply(rs []Replica, startup float64, now time.Time) []float64 {
	out := make([]float64, 0, len(rs))
	for _, r := range rs {
		switch {
		case r.Ready:
			out = append(out, 0)
		case r.Starting && !r.Started.IsZero():
			// One that takes longer than usual takes some more.
			age := max(0, now.Sub(r.Started).Seconds())
			out = append(out, max(startup-age, startup/10))
		default:
			out = append(out, startup)
		}
	}
	slices.Sort(out)
	return out
}
