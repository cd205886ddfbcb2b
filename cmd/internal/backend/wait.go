package backend

import (
	"context"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// Resolved reports whether a service has a runtime, or the reason why none fits.
func Resolved(s admin.Service) bool {
	return len(s.Status.Conditions) > 0 && s.Status.Generation == s.Generation
}

// Settled reports whether a service is ready, or cannot become ready without a
// change.
func Settled(s admin.Service) bool {
	ready := s.Ready()
	switch {
	case !Resolved(s):
		return false
	case ready.Status == "True":
		// Replicas are being replaced, or the canary's start.
		return s.Status.Model.Transition != service.InProgress && s.Canary() != service.InProgress
	case ready.Status == "False":
		return ready.Reason != "Starting" && ready.Reason != "Fetching" && ready.Reason != "Pending"
	}
	return false
}

// UpToDate reports whether a service is ready and answers as its present manifest
// says.
func UpToDate(s admin.Service) bool {
	done := func(t service.Transition) bool { return t == service.UpToDate || t == "" }
	return s.Ready().Status == "True" && done(s.Status.Model.Transition) && done(s.Canary())
}

// Await polls a service until it is as wanted or the limit is over, and returns it
// as it is then.
func Await(ctx context.Context, c Backend, k service.Key, until func(admin.Service) bool, limit time.Duration, p *progress.Bar) (admin.Service, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer p.Done()
	var last admin.Service
	first, most := c.Pace()
	for wait := first; ; wait = min(2*wait, most) {
		svc, err := c.Service(ctx, k)
		switch {
		case ctx.Err() == context.DeadlineExceeded && last.Name != "":
			return last, nil
		case err != nil:
			return svc, err
		case until(svc):
			return svc, nil
		}
		last = svc
		p.Service(svc)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			if ctx.Err() == context.Canceled {
				return last, ctx.Err()
			}
			return last, nil
		}
	}
}
