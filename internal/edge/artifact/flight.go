package artifact

import (
	"context"
	"sync"
	"time"
)

// Progress is how far a download is.
type Progress struct {
	Done  int64 // bytes here, those of an earlier attempt included
	Total int64 // bytes in all, or -1 while unknown
}

// meter collects progress from many goroutines and wakes whoever listens.
type meter struct {
	mu        sync.Mutex
	now       Progress
	listeners map[chan Progress]struct{}
}

func (m *meter) add(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Done += done
	m.now.Total += total
	for ch := range m.listeners {
		select { // a slow listener loses old figures, never the newest
		case <-ch:
		default:
		}
		ch <- m.now
	}
}

// listen returns a channel of capacity 1 that always holds the newest figure
// not yet read.
func (m *meter) listen() chan Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	ch := make(chan Progress, 1)
	ch <- m.now
	m.listeners[ch] = struct{}{}
	return ch
}

func (m *meter) ignore(ch chan Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.listeners, ch)
}

// flights are the downloads under way, one for all who want the same.
type flights struct {
	mu    sync.Mutex
	byKey map[string]*flight
}

// flight is one download and everybody who waits for it.
type flight struct {
	meter   meter
	cancel  context.CancelFunc
	waiters int           // guarded by flights.mu
	done    chan struct{} // closed after path and err are set
	path    string
	err     error
}

type work func(ctx context.Context, m *meter) (string, error)

// reportEvery is how often progress is reported that has not changed.
const reportEvery = time.Second

// share runs do once for all concurrent callers with the same key. A caller
// whose context ends leaves; the last to leave cancels the work.
func (s *flights) share(ctx context.Context, key string, progress func(Progress), do work) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	f := s.join(ctx, key, do)
	defer s.leave(key, f)
	figures := f.meter.listen()
	defer f.meter.ignore(figures)
	// Who shows no more than so many figures a second would else miss the last
	// one before a download comes to a stop.
	again := time.NewTicker(reportEvery)
	defer again.Stop()
	var last Progress
	for {
		select {
		case last = <-figures:
			report(progress, last)
		case <-again.C:
			report(progress, last)
		case <-f.done:
			select {
			case p := <-figures:
				report(progress, p)
			default:
			}
			return f.path, f.err
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func report(progress func(Progress), p Progress) {
	if progress != nil && p != (Progress{}) {
		progress(p)
	}
}

func (s *flights) join(ctx context.Context, key string, do work) *flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.byKey[key]; ok {
		f.waiters++
		return f
	}
	// The work outlives the caller who began it, so it keeps only the values
	// of that caller's context.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{cancel: cancel, waiters: 1, done: make(chan struct{})}
	f.meter.listeners = map[chan Progress]struct{}{}
	s.byKey[key] = f
	go func() {
		f.path, f.err = do(run, &f.meter)
		cancel()
		s.forget(key, f)
		close(f.done)
	}()
	return f
}

// leave drops one waiter. A flight nobody waits for is cancelled and forgotten
// at once: a later caller must not join work that is being torn down.
func (s *flights) leave(key string, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.waiters--
	if f.waiters > 0 {
		return
	}
	f.cancel()
	if s.byKey[key] == f {
		delete(s.byKey, key)
	}
}

func (s *flights) forget(key string, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[key] == f {
		delete(s.byKey, key)
	}
}
