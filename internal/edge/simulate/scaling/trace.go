package scaling

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// Request is one request of a trace.
type Request struct {
	At      time.Duration // since the trace's beginning; never before the one ahead
	Service time.Duration // how long it occupies a slot
}

// Trace is requests in the order they come.
type Trace struct {
	Name     string
	Requests []Request
	// Length is the time that replicas are paid for at least.
	Length time.Duration
	// Begin is when it begins, for schedules; zero where that is unknown.
	Begin time.Time
	// Skipped counts the lines of a file that are no request of the model.
	Skipped int
}

// Bounds of a trace.
const (
	MaxRequests = 5_000_000
	MaxLength   = 366 * 24 * time.Hour
	MaxService  = 24 * time.Hour
)

// Validate returns what is wrong with a trace.
func (t *Trace) Validate() error {
	if len(t.Requests) == 0 || len(t.Requests) > MaxRequests {
		return fmt.Errorf("the trace has %d requests: want 1 to %d", len(t.Requests), MaxRequests)
	}
	if t.Length < 0 || t.Length > MaxLength {
		return fmt.Errorf("the trace lasts %v: want at most %v", t.Length, MaxLength)
	}
	last := time.Duration(0)
	for i, r := range t.Requests {
		switch {
		case r.At < last:
			return fmt.Errorf("request %d comes at %v, before the one ahead of it", i+1, r.At)
		case r.At > MaxLength:
			return fmt.Errorf("request %d comes at %v: want at most %v", i+1, r.At, MaxLength)
		case r.Service <= 0 || r.Service > MaxService:
			return fmt.Errorf("request %d takes %v: want more than 0 and at most %v", i+1, r.Service, MaxService)
		}
		last = r.At
	}
	return nil
}

// Startup is how long replicas take to start: from Low to High, evenly, or
// lognormal with the median Low and the deviation Sigma of the logarithm.
type Startup struct {
	Low, High time.Duration
	Sigma     float64
}

// MaxStartup bounds a startup time.
const MaxStartup = 24 * time.Hour

// ParseStartup reads "60s", "30s-90s" or "lognormal:60s:0.4".
func ParseStartup(text string) (Startup, error) {
	wrong := fmt.Errorf("%q is no startup time: write it as 60s, 30s-90s, or lognormal:60s:0.4 (median, deviation of the logarithm)", text)
	var s Startup
	var err error
	rest, lognormal := strings.CutPrefix(text, "lognormal:")
	median, sigma, given := strings.Cut(rest, ":")
	low, high, spread := strings.Cut(text, "-")
	switch {
	case lognormal && given:
		if s.Low, err = time.ParseDuration(strings.TrimSpace(median)); err != nil {
			return s, wrong
		}
		if _, err := fmt.Sscan(sigma, &s.Sigma); err != nil || !(s.Sigma > 0) {
			return Startup{}, wrong
		}
		s.High = s.Low
	case lognormal:
		return s, wrong
	default:
		if s.Low, err = time.ParseDuration(low); err != nil {
			return s, wrong
		}
		s.High = s.Low
		if spread {
			if s.High, err = time.ParseDuration(high); err != nil {
				return Startup{}, wrong
			}
		}
	}
	return s, s.Validate()
}

// Validate returns what is out of range.
func (s Startup) Validate() error {
	if s.Low < 0 || s.High < s.Low || s.High > MaxStartup || !(s.Sigma >= 0 && s.Sigma <= 3) {
		return fmt.Errorf("startup is %v to %v, deviation %v: want 0 to %v, the second no less than the first, a deviation of 0 to 3", s.Low, s.High, s.Sigma, MaxStartup)
	}
	return nil
}

// Mean is the mean startup time.
func (s Startup) Mean() time.Duration {
	return time.Duration(float64(s.Low+s.High) / 2 * math.Exp(s.Sigma*s.Sigma/2))
}

func (s Startup) draw(random *rand.Rand) time.Duration {
	switch {
	case s.Sigma > 0:
		return min(time.Duration(float64(s.Low)*math.Exp(s.Sigma*random.NormFloat64())), MaxStartup)
	case s.High > s.Low:
		return s.Low + time.Duration(random.Int64N(int64(s.High-s.Low)+1))
	}
	return s.Low
}
