package backend

import (
	"context"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// lookEvery is how often Follow looks at a service of which nothing is told: what
// changes there without an event, such as how far a download is.
const lookEvery = 5 * time.Second

// Follow looks at a service at each of its events until it is as wanted or the limit
// is over, and returns it as it is then. seen is called with each look. A cluster's
// events are not followed, so there it looks from time to time.
func Follow(ctx context.Context, b Backend, k service.Key, until func(admin.Service) bool, limit time.Duration, seen func(admin.Service)) (admin.Service, error) {
	// The limit ends the wait, and no look that is under way.
	over := time.NewTimer(limit)
	defer over.Stop()
	follow, stop := context.WithCancel(ctx)
	happened, ended := make(chan struct{}, 1), make(chan struct{})
	defer func() { stop(); <-ended }()
	go func() {
		defer close(ended)
		_ = b.FollowEvents(follow, &k, func(admin.NumberedEvent) error { // a look says what failed
			select {
			case happened <- struct{}{}:
			default: // the look that is due sees this too
			}
			return nil
		})
	}()
	every, end := time.NewTicker(lookEvery), ended
	defer every.Stop()
	for {
		s, err := b.Service(ctx, k)
		if err != nil {
			return s, err
		}
		seen(s)
		if until(s) {
			return s, nil
		}
		select {
		case <-happened:
		case <-every.C:
		case <-end:
			_, most := b.Pace()
			every.Reset(most)
			end = nil
		case <-over.C:
			return s, nil
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}
