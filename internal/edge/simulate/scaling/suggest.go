package scaling

import (
	"errors"
	"math"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Suggestion is the cheapest setting that was found for the product's decision.
type Suggestion struct {
	Limits  service.Limits
	Summary Summary // the medians
	// Holds reports whether no more requests are late than allowed; if not, the
	// setting is the one with the fewest late requests.
	Holds bool
	Tried int // settings
}

// The settings that Suggest tries: every target as a share of the slots, with
// every least count, and with every idle time where none need run.
var (
	targets = []float64{0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}
	mins    = []int{0, 1, 2, 4, 8, 16}
	idles   = []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour}
	maxima  = []float64{0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2}
)

// Suggest searches the target, the least and the most replicas and the idle
// time for the fewest replica-seconds with at most a share of late requests,
// by replays of all cases, which differ in their seeds. It asks before each
// replay whether to go on.
func Suggest(cases []Case, share float64, goOn func() error) (Suggestion, error) {
	if len(cases) == 0 {
		return Suggestion{}, errors.New("there is nothing to replay")
	}
	s := &search{cases: cases, share: share, goOn: goOn}
	l := cases[0].Limits
	for _, least := range mins {
		for _, target := range targets {
			for _, idle := range idles {
				l.Min, l.Target, l.ScaleToZeroAfter = least, target*float64(cases[0].Pool.Slots), idle
				if least > cases[0].Limits.Max || least > 0 && idle != idles[0] {
					continue // the idle time has no effect
				}
				if err := s.try(l); err != nil {
					return Suggestion{}, err
				}
			}
		}
	}
	l = s.best.Limits
	if l.Min > 0 {
		l.ScaleToZeroAfter = cases[0].Limits.ScaleToZeroAfter
		s.best.Limits.ScaleToZeroAfter = l.ScaleToZeroAfter
	}
	peak := min(s.peak, l.Max)
	for _, part := range append([]float64{1}, maxima...) {
		l.Max = max(int(math.Ceil(part*float64(peak))), l.Min, 1)
		if err := s.try(l); err != nil {
			return Suggestion{}, err
		}
	}
	return s.best, nil
}

// search keeps the best of the settings tried.
type search struct {
	cases []Case
	share float64
	goOn  func() error
	best  Suggestion
	peak  int // the most replicas of the best
}

func (s *search) try(l service.Limits) error {
	var all []Summary
	peak := 0
	for _, c := range s.cases {
		if err := s.goOn(); err != nil {
			return err
		}
		r, err := Run(c.Pool, c.Trace, NewShipped(l, c.Trace.Begin))
		if err != nil {
			return err
		}
		all = append(all, r.Summarize(c.Goal))
		peak = max(peak, r.Peak)
	}
	s.best.Tried++
	m := Median(all)
	holds := m.Late <= s.share
	better := s.best.Tried == 1 || holds && !s.best.Holds
	if holds == s.best.Holds {
		if holds { // of equal costs the lower bound is the safer one
			better = better || m.ReplicaSeconds < s.best.Summary.ReplicaSeconds || m.ReplicaSeconds == s.best.Summary.ReplicaSeconds && l.Max < s.best.Limits.Max
		} else {
			better = better || m.Late < s.best.Summary.Late
		}
	}
	if better {
		s.best.Limits, s.best.Summary, s.best.Holds, s.peak = l, m, holds, peak
	}
	return nil
}
