package scaling

import (
	"math"
	"time"
)

// Knative is Knative's autoscaler (KPA) with an activator that is always told
// what waits: request concurrency in buckets of a second, averaged over a
// stable and a panic window.
type Knative struct {
	cfg           KnativeConfig
	stable, panic window
	integral      float64 // View.LoadSeconds at the last report
	reported      time.Duration
	poke          bool // a first request is to be told at once
	poked         bool // it was, ahead of the report of its second
	panicSince    time.Duration
	panicking     bool
	panicCount    int
	delays        []delayed // the desired counts of the last ScaleDownDelay
	desired       int       // as last decided; -1 before
	activity      activity
	activeSince   time.Duration
	proxied       bool // the activator is in the path
	proxiedSince  time.Duration
}

// KnativeConfig are the settings of Knative's config-autoscaler and annotations.
type KnativeConfig struct {
	Min, Max         int
	Total            float64 // the concurrency that a replica takes: containerConcurrency, or the target
	Utilization      float64 // of Total is the target
	StableWindow     time.Duration
	PanicWindow      float64 // percent of the stable window
	PanicThreshold   float64 // percent of the ready replicas
	MaxScaleUpRate   float64
	MaxScaleDownRate float64
	BurstCapacity    float64 // target-burst-capacity
	ScaleDownDelay   time.Duration
	ZeroGrace        time.Duration // scale-to-zero-grace-period
	ActivationScale  int
}

// DefaultKnative is Knative's default configuration for replicas of total
// concurrent requests.
func DefaultKnative(total float64, least, most int) KnativeConfig {
	return KnativeConfig{Min: least, Max: most, Total: total, Utilization: 0.7, StableWindow: time.Minute, PanicWindow: 10, PanicThreshold: 200,
		MaxScaleUpRate: 1000, MaxScaleDownRate: 2, BurstCapacity: 211, ZeroGrace: 30 * time.Second}
}

// activity is the Active condition of Knative's PodAutoscaler.
type activity int

const (
	inactive activity = iota
	activating
	active
)

const (
	knativeTick   = 2 * time.Second // between decisions
	knativeReport = time.Second     // between reports, and the length of a bucket
)

type delayed struct {
	at    time.Duration
	count int
}

// NewKnative is an autoscaler that has seen nothing.
func NewKnative(cfg KnativeConfig) *Knative {
	span := max(time.Duration(float64(cfg.StableWindow)*cfg.PanicWindow/100), knativeReport)
	return &Knative{cfg: cfg, stable: newWindow(cfg.StableWindow), panic: newWindow(span), desired: -1}
}

// Reacts implements Scaler: a first request is told at once to an autoscaler
// that has decided on none.
func (k *Knative) Reacts(e Event) (time.Duration, bool) {
	k.poke = k.poke || e == Idle && k.desired <= 0
	return 0, k.poke
}

// Step implements Scaler.
func (k *Knative) Step(v *View) Decision {
	poke := k.poke
	if v.Now%knativeReport == 0 {
		k.report(v)
	}
	if poke {
		k.record(v.Now, 1)
		k.poke, k.poked = false, true
	}
	if poke || v.Now%knativeTick == 0 {
		k.decide(v)
	}
	count := k.apply(v)
	again := v.Now - v.Now%knativeReport + knativeReport
	if k.asleep(v) {
		again = 0
	}
	return Decision{Count: count, Again: again}
}

// asleep reports whether nothing can change until a request comes.
func (k *Knative) asleep(v *View) bool {
	return k.desired == 0 && k.activity == inactive && len(v.Replicas) == 0 && v.Queued+v.Running == 0
}

// report records the mean concurrency of the last second.
func (k *Knative) report(v *View) {
	since := max(k.reported, v.Now-knativeReport)
	if v.Now > since {
		mean := (v.LoadSeconds - k.integral) / knativeReport.Seconds()
		if k.poked { // the request that was told at once is not told twice
			mean = max(0, mean-1)
		}
		if v.Queued+v.Running > 0 || len(v.Replicas) > 0 || mean > 0 {
			k.record(v.Now, mean)
		}
	}
	k.integral, k.reported, k.poked = v.LoadSeconds, v.Now, false
}

func (k *Knative) record(now time.Duration, value float64) {
	k.stable.record(now, value)
	k.panic.record(now, value)
}

// decide is the autoscaler's tick.
func (k *Knative) decide(v *View) {
	if k.stable.empty(v.Now) {
		return // no data: the last decision stays
	}
	serving := v.Ready()
	ready := max(1, float64(serving))
	target := max(0.01, k.cfg.Total*k.cfg.Utilization)
	up, down := math.Ceil(k.cfg.MaxScaleUpRate*ready), math.Floor(ready/k.cfg.MaxScaleDownRate)
	observed := k.panic.average(v.Now)
	stable, panic := math.Ceil(k.stable.average(v.Now)/target), math.Ceil(observed/target)
	wantStable, wantPanic := int(min(max(stable, down), up)), int(min(max(panic, down), up))
	if k.cfg.ActivationScale > 1 {
		if stable > 0 {
			wantStable = max(wantStable, k.cfg.ActivationScale)
		}
		if panic > 0 {
			wantPanic = max(wantPanic, k.cfg.ActivationScale)
		}
	}
	switch over := panic/ready >= k.cfg.PanicThreshold/100; {
	case over:
		k.panicking, k.panicSince = true, v.Now
	case k.panicking && v.Now > k.panicSince+k.cfg.StableWindow:
		k.panicking, k.panicCount = false, 0
	}
	want := wantStable
	if k.panicking {
		k.panicCount = max(k.panicCount, wantStable, wantPanic)
		want = k.panicCount
	}
	k.desired = k.delay(v.Now, want)
	capacity := float64(serving) * k.cfg.Total
	k.proxy(v.Now, k.cfg.BurstCapacity < 0 || k.cfg.BurstCapacity > 0 && math.Floor(capacity-k.cfg.BurstCapacity-observed) < 0)
}

// delay is the largest of the counts of the last ScaleDownDelay.
func (k *Knative) delay(now time.Duration, want int) int {
	if k.cfg.ScaleDownDelay <= 0 {
		return want
	}
	for len(k.delays) > 0 && (k.delays[0].at <= now-k.cfg.ScaleDownDelay) {
		k.delays = k.delays[1:]
	}
	for len(k.delays) > 0 && k.delays[len(k.delays)-1].count <= want {
		k.delays = k.delays[:len(k.delays)-1]
	}
	k.delays = append(k.delays, delayed{at: now, count: want})
	return k.delays[0].count
}

// proxy notes whether the activator is in the path.
func (k *Knative) proxy(now time.Duration, in bool) {
	if in && !k.proxied {
		k.proxiedSince = now
	}
	k.proxied = in
}

// apply bounds the desired count and handles the way to zero, as the
// reconciler does: one stays until the service was active for the stable window
// and the activator was in the path for the grace period.
func (k *Knative) apply(v *View) int {
	now, present := v.Now, len(v.Replicas)
	if k.desired < 0 {
		return max(present, k.cfg.Min)
	}
	want := max(k.desired, k.cfg.Min)
	if k.cfg.Max > 0 {
		want = min(want, k.cfg.Max)
	}
	if want > 0 {
		k.activate(v)
		return want
	}
	switch k.activity {
	case activating: // it never goes to zero while it starts
		k.activate(v)
		return present
	case active:
		if now-k.activeSince < k.cfg.StableWindow {
			return min(present, 1)
		}
		k.activity = inactive
		k.proxy(now, true)
		return present
	default:
		if present > 0 && now-k.proxiedSince < k.cfg.ZeroGrace {
			return present
		}
		return 0
	}
}

// activate computes the Active condition of a service that is wanted.
func (k *Knative) activate(v *View) {
	switch served := v.Ready() >= max(k.cfg.Min, 1); {
	case !served:
		k.activity = activating
	case k.activity != active:
		k.activity, k.activeSince = active, v.Now
	}
}

// window averages the values of the last seconds, over as many of them as have
// passed since the first; after a window without a value it begins anew.
type window struct {
	buckets     []float64
	total       float64
	first, last int64 // seconds
	begun       bool
}

func newWindow(span time.Duration) window {
	return window{buckets: make([]float64, (span+knativeReport-1)/knativeReport)}
}

func (w *window) at(second int64) *float64 { return &w.buckets[second%int64(len(w.buckets))] }

func (w *window) record(now time.Duration, value float64) {
	second := int64(now / knativeReport)
	switch {
	case !w.begun || second-w.last >= int64(len(w.buckets)):
		clear(w.buckets)
		w.begun, w.total, w.first = true, 0, second
	default:
		for s := w.last + 1; s <= second; s++ {
			w.total -= *w.at(s)
			*w.at(s) = 0
		}
	}
	w.last = second
	*w.at(second) += value
	w.total += value
}

func (w *window) empty(now time.Duration) bool {
	return !w.begun || int64(now/knativeReport)-w.last > int64(len(w.buckets))
}

func (w *window) average(now time.Duration) float64 {
	second, size := int64(now/knativeReport), int64(len(w.buckets))
	if !w.begun || second-w.last >= size {
		return 0
	}
	total := w.total
	for s := w.last + 1; s <= second; s++ {
		total -= *w.at(s)
	}
	n := min(w.last-w.first+1, size-(second-w.last))
	return math.Floor(total/float64(n)*1e6) / 1e6
}
