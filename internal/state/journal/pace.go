package journal

import (
	"slices"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

const (
	// PaceStep is the time that a point tells of.
	PaceStep = 10 * time.Second
	// keptPoints is how many points are kept of a service: those of an hour.
	keptPoints = 360
)

// Point is what a service did in a step of time. A step in which it did nothing,
// and had no replica, has no point.
type Point struct {
	Time     time.Time `json:"time"` // its end
	Requests int       `json:"requests"`
	Failed   int       `json:"failed"`
	// ClientErrors were refused for what their clients did; they are not among Failed.
	ClientErrors int   `json:"clientErrors"`
	Tokens       int64 `json:"tokens"` // of the answers
	// WaitMS is the longest wait for a replica, FirstByteMS the mean time to an
	// answer's first byte, in milliseconds.
	WaitMS      float64 `json:"waitMs"`
	FirstByteMS float64 `json:"firstByteMs"`
	Load
}

// Load is what a service has at a moment.
type Load struct {
	Queued   int `json:"queued"`
	Running  int `json:"running"`
	Desired  int `json:"desired"`
	Starting int `json:"starting"`
	Ready    int `json:"ready"`
}

// Totals are what a service did since its first request in this process.
type Totals struct {
	Requests     int   `json:"requests"`
	Failed       int   `json:"failed"`
	ClientErrors int   `json:"clientErrors"`
	Tokens       int64 `json:"tokens"`
}

// Pace tells how requests to each service go: how many in a step, and those of the
// last hour. It is safe for concurrent use.
type Pace struct {
	mu struct {
		sync.Mutex
		of map[service.Key]*pace
	}
}

// pace is one service's: the step that is being counted, and those before.
type pace struct {
	total      Totals
	step       Point
	firstBytes int
	past       []Point
}

// NewPace makes an empty one.
func NewPace() *Pace {
	p := &Pace{}
	p.mu.of = map[service.Key]*pace{}
	return p
}

// Count counts a request that ended. Those to no service that was noted before are
// left out.
func (p *Pace) Count(r *Request) {
	if r.Service == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.mu.of[service.ParseKey(r.Service)]
	if s == nil {
		return
	}
	s.step.Requests++
	s.total.Requests++
	switch {
	case r.Failed():
		s.step.Failed++
		s.total.Failed++
	case r.ClientError():
		s.step.ClientErrors++
		s.total.ClientErrors++
	}
	if r.Usage != nil {
		s.step.Tokens += r.Usage.CompletionTokens
		s.total.Tokens += r.Usage.CompletionTokens
	}
	s.step.WaitMS = max(s.step.WaitMS, milliseconds(r.Queued))
	if r.FirstByte > 0 {
		s.firstBytes++
		s.step.FirstByteMS += (milliseconds(r.FirstByte) - s.step.FirstByteMS) / float64(s.firstBytes)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Note notes the load of a service, and returns what it has done.
func (p *Pace) Note(k service.Key, l Load) Totals {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.mu.of[k]
	if s == nil {
		s = &pace{}
		p.mu.of[k] = s
	}
	s.step.Load = Load{max(l.Queued, s.step.Queued), max(l.Running, s.step.Running), l.Desired, l.Starting, l.Ready}
	return s.total
}

// Step ends a step of all services.
func (p *Pace) Step(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.mu.of {
		done := s.step
		s.step, s.firstBytes = Point{}, 0
		if done == (Point{}) {
			continue
		}
		done.Time = now.UTC()
		if len(s.past) == keptPoints {
			s.past = slices.Delete(s.past, 0, 1)
		}
		s.past = append(s.past, done)
	}
}

// Past returns the points of a service of the last hour, the oldest first.
func (p *Pace) Past(k service.Key, now time.Time) []Point {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []Point{}
	if s := p.mu.of[k]; s != nil {
		for _, x := range s.past {
			if now.Sub(x.Time) <= keptPoints*PaceStep {
				out = append(out, x)
			}
		}
	}
	return out
}

// Forget drops what is known of a service.
func (p *Pace) Forget(k service.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.of, k)
}
