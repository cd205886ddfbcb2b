package process

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// fetches shares one fetch among all who want the same model at once.
type fetches struct {
	fetcher Fetcher

	mu      sync.Mutex
	flights map[string]*flight // by URI
}

// flight is one fetch under way; it ends early when nobody wants it any more.
type flight struct {
	cancel context.CancelFunc
	done   chan struct{}
	path   string // valid after done
	err    error

	mu       sync.Mutex
	users    map[int]func(replica.Progress)
	next     int
	progress replica.Progress
}

// get brings uri here. progress is called with what is known whenever that
// changes, not after get returned.
func (f *fetches) get(ctx context.Context, uri string, progress func(replica.Progress)) (string, error) {
	if f.fetcher == nil {
		return "", fmt.Errorf("model %s: this platform fetches no models", service.RedactURI(uri))
	}
	for {
		fl, user := f.join(uri, progress)
		select {
		case <-fl.done:
			f.leave(uri, fl, user)
			// Its last user may have left, and so cancelled it, just before
			// we came: then it says nothing about our own fetch.
			if errors.Is(fl.err, context.Canceled) && ctx.Err() == nil {
				continue
			}
			return fl.path, fl.err
		case <-ctx.Done():
			f.leave(uri, fl, user)
			return "", ctx.Err()
		}
	}
}

func (f *fetches) join(uri string, progress func(replica.Progress)) (*flight, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.flights[uri]
	if fl == nil {
		ctx, cancel := context.WithCancel(context.Background())
		fl = &flight{cancel: cancel, done: make(chan struct{}), users: map[int]func(replica.Progress){}}
		if f.flights == nil {
			f.flights = map[string]*flight{}
		}
		f.flights[uri] = fl
		go f.run(ctx, uri, fl)
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.next++
	fl.users[fl.next] = progress
	if fl.progress != (replica.Progress{}) {
		progress(fl.progress)
	}
	return fl, fl.next
}

func (f *fetches) run(ctx context.Context, uri string, fl *flight) {
	path, err := f.fetcher.Fetch(ctx, uri, fl.report)
	f.mu.Lock()
	if f.flights[uri] == fl {
		delete(f.flights, uri)
	}
	f.mu.Unlock()
	fl.path, fl.err = path, err
	fl.cancel()
	close(fl.done)
}

func (f *fetches) leave(uri string, fl *flight, user int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.mu.Lock()
	defer fl.mu.Unlock()
	delete(fl.users, user)
	if len(fl.users) == 0 {
		fl.cancel()
		if f.flights[uri] == fl {
			delete(f.flights, uri)
		}
	}
}

func (fl *flight) report(done, total int64) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.progress = replica.Progress{Done: done, Total: total}
	for _, u := range fl.users {
		u(fl.progress)
	}
}
