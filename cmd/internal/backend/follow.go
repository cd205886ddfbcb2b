package backend

import (
	"context"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// lookEvery is how often Follow looks at a service of which nothing is told: what
// changes there unnoticed, such as how far a download is.
const lookEvery = 5 * time.Second

// Follow looks at a service at each of its changes until it is as wanted or the limit
// is over, and returns it as it is then. seen is called with each look.
func Follow(ctx context.Context, b Backend, k service.Key, until func(admin.Service) bool, limit time.Duration, seen func(admin.Service)) (s admin.Service, err error) {
	// The limit ends the wait, and no look that is under way.
	over := time.NewTimer(limit)
	defer over.Stop()
	err = watch(ctx, b, &k, over.C, func() (bool, error) {
		if s, err = b.Service(ctx, k); err != nil {
			return true, err
		}
		seen(s)
		return until(s), nil
	})
	return s, err
}

// Watch calls look at once and whenever something changed, of one service or with nil of
// any, until it fails or ctx ends. What changes within the longest pace of a look is
// seen by one.
func Watch(ctx context.Context, b Backend, k *service.Key, look func() error) error {
	_, pause := b.Pace()
	return watch(ctx, b, k, nil, func() (bool, error) {
		if err := look(); err != nil {
			return true, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		return false, nil
	})
}

// watch looks at each change until a look is the last, over comes or ctx ends. Where
// changes cannot be followed it looks from time to time.
func watch(ctx context.Context, b Backend, k *service.Key, over <-chan time.Time, look func() (last bool, err error)) error {
	follow, stop := context.WithCancel(ctx)
	happened, ended := make(chan struct{}, 1), make(chan struct{})
	defer func() { stop(); <-ended }()
	go func() {
		defer close(ended)
		_ = b.FollowChanges(follow, k, func() { // a look says what failed
			select {
			case happened <- struct{}{}:
			default: // the look that is due sees this too
			}
		})
	}()
	every, end := time.NewTicker(lookEvery), ended
	defer every.Stop()
	for {
		if last, err := look(); last || err != nil {
			return err
		}
		select {
		case <-happened:
		case <-every.C:
		case <-end:
			_, most := b.Pace()
			every.Reset(most)
			end = nil
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
