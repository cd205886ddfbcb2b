package scaling

import (
	"math"
	"time"
)

// Average is an autoscaler that takes the mean of its last samples of the
// requests that wait or run, divided by a target, as KubeAI's does.
type Average struct {
	cfg     AverageConfig
	samples []float64 // a ring
	taken   int
}

// AverageConfig is how it samples and what it aims at.
type AverageConfig struct {
	Min, Max int
	Target   float64 // requests per replica
	Every    time.Duration
	Samples  int
}

// DefaultAverage is KubeAI's default: the mean of ten minutes, sampled every
// ten seconds.
func DefaultAverage(target float64, least, most int) AverageConfig {
	return AverageConfig{Min: least, Max: most, Target: target, Every: 10 * time.Second, Samples: 60}
}

// NewAverage is an autoscaler that has seen nothing: its samples are 0.
func NewAverage(cfg AverageConfig) *Average {
	return &Average{cfg: cfg, samples: make([]float64, cfg.Samples)}
}

// Reacts implements Scaler: a first request starts a replica at once.
func (a *Average) Reacts(e Event) (time.Duration, bool) { return 0, e == Idle }

// Step implements Scaler.
func (a *Average) Step(v *View) Decision {
	if v.Now%a.cfg.Every == 0 {
		a.samples[a.taken%len(a.samples)] = float64(v.Queued + v.Running)
		a.taken++
	}
	sum := 0.0
	for _, s := range a.samples {
		sum += s
	}
	count := int(math.Ceil(sum / float64(len(a.samples)) / a.cfg.Target))
	if v.Queued+v.Running > 0 {
		count = max(count, 1)
	}
	count = min(max(count, a.cfg.Min), a.cfg.Max)
	again := v.Now - v.Now%a.cfg.Every + a.cfg.Every
	if sum == 0 && v.Queued+v.Running == 0 && len(v.Replicas) == count {
		again = 0 // the ring holds zeros, and no sample would change that
	}
	return Decision{Count: count, Again: again}
}

// HPA is Kubernetes' HorizontalPodAutoscaler (v2) over the requests that wait
// or run per ready replica, with its tolerance, its policies of growth and its
// stabilization before it shrinks.
type HPA struct {
	cfg     HPAConfig
	past    []delayed // recommendations of the stabilization window
	changes []delayed // the counts before each of the last growths
	current int
}

// HPAConfig are the fields of an HPA that matter here.
type HPAConfig struct {
	Min, Max  int
	Target    float64 // requests per replica
	Every     time.Duration
	Tolerance float64
	// Stabilization is how long fewer replicas must be enough.
	Stabilization time.Duration
	// GrowPods and GrowPercent bound the growth within GrowPeriod: the larger of
	// the two.
	GrowPods    int
	GrowPercent float64
	GrowPeriod  time.Duration
}

// DefaultHPA has Kubernetes' defaults: every 15 s, a tolerance of 10 %, 5
// minutes of stabilization, and 4 replicas or 100 % more per 15 s. An HPA does
// not go below one.
func DefaultHPA(target float64, least, most int) HPAConfig {
	return HPAConfig{Min: max(least, 1), Max: most, Target: target, Every: 15 * time.Second, Tolerance: 0.1, Stabilization: 5 * time.Minute,
		GrowPods: 4, GrowPercent: 100, GrowPeriod: 15 * time.Second}
}

// NewHPA is an HPA at its least count.
func NewHPA(cfg HPAConfig) *HPA { return &HPA{cfg: cfg, current: cfg.Min} }

// Reacts implements Scaler: an HPA looks at its own times only.
func (*HPA) Reacts(Event) (time.Duration, bool) { return 0, false }

// Step implements Scaler.
func (h *HPA) Step(v *View) Decision {
	h.current = h.stabilized(v.Now, h.recommended(v))
	return Decision{Count: h.current, Again: v.Now + h.cfg.Every}
}

// recommended is the count by the metric alone, an average value per replica.
func (h *HPA) recommended(v *View) int {
	load := float64(v.Queued + v.Running)
	if ratio := load / (h.cfg.Target * float64(h.current)); math.Abs(1-ratio) <= h.cfg.Tolerance {
		return h.current
	}
	return int(math.Ceil(load / h.cfg.Target))
}

func (h *HPA) stabilized(now time.Duration, want int) int {
	h.past = after(h.past, now-h.cfg.Stabilization)
	h.past = append(h.past, delayed{at: now, count: want})
	if want < h.current { // the most recommended within the window, but no more than now
		for _, p := range h.past {
			want = max(want, p.count)
		}
		want = min(want, h.current)
	}
	if want > h.current {
		h.changes = after(h.changes, now-h.cfg.GrowPeriod)
		begin := h.current
		if len(h.changes) > 0 {
			begin = h.changes[0].count
		}
		limit := max(begin+h.cfg.GrowPods, int(math.Ceil(float64(begin)*(1+h.cfg.GrowPercent/100))))
		want = max(min(want, limit), h.current)
		h.changes = append(h.changes, delayed{at: now, count: h.current})
	}
	return min(max(want, h.cfg.Min), h.cfg.Max)
}

// after drops what is not later than a time.
func after(all []delayed, at time.Duration) []delayed {
	for len(all) > 0 && all[0].at <= at {
		all = all[1:]
	}
	return all
}

type delayed struct {
	at    time.Duration
	count int
}
