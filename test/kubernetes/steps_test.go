//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"slices"
	"testing"
	"time"
)

// step is a part of a test that lives with the product for a while.
type step struct {
	name  string
	bound time.Duration // 0: three minutes
	run   func(context.Context, *product)
}

// live takes steps one after another. They build on one another, but only one
// of those that all others need ends the test by failing.
func (p *product) live(t *testing.T, needed []string, steps []step) {
	for _, s := range steps {
		if s.bound == 0 {
			s.bound = 3 * time.Minute
		}
		passed := t.Run(s.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), s.bound)
			defer cancel()
			p.t = t
			began := time.Now()
			s.run(ctx, p)
			t.Logf("%s took %.1f s", s.name, time.Since(began).Seconds())
		})
		if !passed && slices.Contains(needed, s.name) {
			t.FailNow()
		}
	}
}
