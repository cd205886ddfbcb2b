package scrape

import (
	"container/heap"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// slack is how much earlier than due a server may be read, so that readings
// share wake-ups.
const slack = time.Millisecond

// unpark has a server read as soon as it may be: at once, or when the pause
// after its failures ends. Scraper.mu is held.
func (s *Scraper) unpark(srv *server, now time.Time) {
	for _, p := range srv.pools {
		p.parked.Add(-1)
	}
	if srv.failures == 0 || srv.due.Before(now) {
		srv.due = now
	}
	srv.pause = 0
	s.await(srv)
}

// park leaves a server alone until the next request of its pools.
func (s *Scraper) park(srv *server) {
	srv.phase = parked
	for _, p := range srv.pools {
		p.parked.Add(1)
	}
	if now := s.cfg.Clock.Now(); s.wanted(srv, now) { // a request came meanwhile
		s.unpark(srv, now)
	}
}

// await puts a server among those that are due.
func (s *Scraper) await(srv *server) {
	srv.phase = queued
	heap.Push(&s.mu.due, srv)
}

// pump starts workers for what is due, and sets the timer for what will be.
// Scraper.mu is held.
func (s *Scraper) pump() {
	if s.mu.closed {
		return
	}
	for s.mu.working < s.cfg.Workers {
		srv := s.next(s.cfg.Clock.Now())
		if srv == nil {
			break
		}
		s.mu.working++
		s.done.Add(1)
		go s.work(srv)
	}
	if len(s.mu.due) == 0 || s.mu.working == s.cfg.Workers {
		return // a worker that ends looks again
	}
	head := s.mu.due[0].due
	if s.mu.timer != nil {
		if !s.mu.wakeAt.After(head) {
			return
		}
		s.mu.timer()
	}
	s.mu.wakeAt = head
	s.mu.timer = s.cfg.Clock.AfterFunc(max(0, head.Sub(s.cfg.Clock.Now())), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.mu.wakeAt.Equal(head) {
			s.mu.timer = nil
		}
		s.pump()
	})
}

// next takes the server to read now, nil for none. Those that failed wait for
// one of the workers they may have.
func (s *Scraper) next(now time.Time) *server {
	few := max(1, s.cfg.Workers/4)
	for len(s.mu.backlog) > 0 && s.mu.failing < few {
		srv := s.mu.backlog[0]
		s.mu.backlog = s.mu.backlog[1:]
		if !srv.gone {
			return s.take(srv)
		}
	}
	for len(s.mu.due) > 0 && s.mu.due[0].due.Sub(now) <= slack {
		srv := heap.Pop(&s.mu.due).(*server)
		if srv.failures == 0 || s.mu.failing < few {
			return s.take(srv)
		}
		s.mu.backlog = append(s.mu.backlog, srv)
	}
	return nil
}

// take has the caller read a server.
func (s *Scraper) take(srv *server) *server {
	srv.phase = busy
	if srv.failures > 0 {
		s.mu.failing++
	}
	return srv
}

// work reads a server, and then others as long as some are due.
func (s *Scraper) work(srv *server) {
	defer s.done.Done()
	w := s.buffers.Get().(*worker)
	defer s.buffers.Put(w)
	for srv != nil {
		srv = s.one(w, srv)
	}
}

// one reads a server and returns the next that is due.
func (s *Scraper) one(w *worker, srv *server) *server {
	begun := s.cfg.Clock.Now()
	loads, at, err := w.readFrom(s.ctx, &s.cfg, srv.source, srv.target.Ranks)
	now := s.cfg.Clock.Now()
	took := now.Sub(begun)
	if s.ctx.Err() == nil {
		s.metrics.read(took, err)
	}
	if err == nil && s.ctx.Err() == nil {
		for rank, l := range loads {
			s.tell(srv, rank, func(*replica.Load) *replica.Load { return l })
		}
	}
	inFlight := 0
	if s.cfg.Traffic != nil {
		inFlight = s.cfg.Traffic.InFlight(srv.target.ID)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if srv.failures > 0 {
		s.mu.failing--
	}
	s.settle(srv, at, err, took, inFlight, now)
	if next := s.next(now); next != nil {
		s.pump()
		return next
	}
	s.mu.working--
	s.pump()
	return nil
}

// settle notes how a reading went and when the next one is due.
func (s *Scraper) settle(srv *server, at source, err error, took time.Duration, inFlight int, now time.Time) {
	if srv.gone || s.mu.closed {
		return
	}
	srv.err = err
	if err == nil {
		s.log(srv, nil)
		srv.failures, srv.source = 0, at
	} else {
		srv.failures++
		s.log(srv, err)
		if first, bad := srv.target.source(); bad == nil {
			srv.source = first // another engine may have come to this address
		}
	}
	srv.pause = s.cfg.pause(srv.pause, took, srv.failures, inFlight)
	srv.due = now.Add(time.Duration(float64(srv.pause) * (0.9 + 0.2*s.cfg.Random())))
	if inFlight == 0 && !s.wanted(srv, now) {
		s.park(srv)
		return
	}
	s.await(srv)
}

// dueHeap orders servers by when they are due.
type dueHeap []*server

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	srv := x.(*server)
	srv.index = len(*h)
	*h = append(*h, srv)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	srv := old[len(old)-1]
	old[len(old)-1] = nil
	*h, srv.index = old[:len(old)-1], -1
	return srv
}
