package prefetch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// source is models of a test, and where they come from.
type source struct {
	mu      sync.Mutex
	models  []Model
	fails   map[string]error
	gate    map[string]chan struct{} // a fetch waits for its end
	running int
	most    int
	asked   map[string]int
	here    bool // all models are: none is fetched
	told    []string
}

func (s *source) start(t *testing.T) *Fetches {
	t.Helper()
	f := New(Config{List: func() []Model {
		s.mu.Lock()
		defer s.mu.Unlock()
		return append([]Model{}, s.models...)
	}, Fetch: s.fetch, Told: func(k service.Key, o Outcome) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = append(s.told, fmt.Sprint(k.Name, " ", o.State, " ", o.Reason))
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { f.Run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
	return f
}

func (s *source) fetch(ctx context.Context, f service.Files, progress func(done, total int64)) error {
	s.mu.Lock()
	s.running++
	s.most = max(s.most, s.running)
	s.asked[f.URI]++
	gate, err, here := s.gate[f.URI], s.fails[f.URI], s.here
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
	}()
	if !here {
		progress(1, 2)
	}
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err == nil && !here {
		progress(2, 2)
	}
	return err
}

func (s *source) set(models ...Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.models = models
}

func model(name string) Model {
	return Model{Key: service.Key{Name: name}, Files: service.Files{URI: "s3://" + name}}
}

func newSource(models ...Model) *source {
	return &source{models: models, fails: map[string]error{}, gate: map[string]chan struct{}{}, asked: map[string]int{}}
}

func check(t *testing.T, f *Fetches, name string, want service.CacheState, reason string) {
	t.Helper()
	synctest.Wait()
	if got := f.Outcome(service.Key{Name: name}); got.State != want || got.Reason != reason {
		t.Errorf("%s: %+v, want %s %q", name, got, want, reason)
	}
}

// TestFetches: models are fetched, a bounded number at a time.
func TestFetches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(model("a"), model("b"), model("c"))
		for _, m := range s.models {
			s.gate[m.Files.URI] = make(chan struct{})
		}
		f := s.start(t)
		check(t, f, "a", service.CacheDownloading, "")
		if got := f.Outcome(service.Key{Name: "a"}); got.Done != 1 || got.Total != 2 {
			t.Errorf("%+v", got)
		}
		check(t, f, "c", service.CachePending, "2 models are fetched at a time: it waits for others")
		close(s.gate["s3://a"])
		check(t, f, "a", service.CacheDownloaded, "")
		check(t, f, "c", service.CacheDownloading, "")
		close(s.gate["s3://b"])
		close(s.gate["s3://c"])
		check(t, f, "b", service.CacheDownloaded, "")
		check(t, f, "c", service.CacheDownloaded, "")
		s.mu.Lock()
		s.here = true
		s.mu.Unlock()
		f.Changed()
		check(t, f, "c", service.CacheDownloaded, "")
		if s.most != maxFetches || len(s.told) != 3 {
			t.Errorf("%+v", s)
		}
	})
}

// TestRotated: a model that has come is asked for again when a secret has changed, and
// nothing is told where it is the same; one that is another now, or that the secret does not
// open, is.
func TestRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(model("a"))
		f := s.start(t)
		check(t, f, "a", service.CacheDownloaded, "")
		s.mu.Lock()
		s.here = true
		s.mu.Unlock()
		f.Changed()
		check(t, f, "a", service.CacheDownloaded, "")
		if s.asked["s3://a"] != 2 || fmt.Sprint(s.told) != "[a NodeDownloaded ]" {
			t.Errorf("%+v", s)
		}
		s.mu.Lock()
		s.fails["s3://a"] = errors.New("403")
		s.mu.Unlock()
		f.Changed()
		check(t, f, "a", service.CacheFailed, "403")
		s.mu.Lock()
		s.fails["s3://a"], s.here = nil, false
		s.mu.Unlock()
		f.Changed()
		check(t, f, "a", service.CacheDownloaded, "")
		if fmt.Sprint(s.told) != "[a NodeDownloaded  a NodeDownloadError 403 a NodeDownloaded ]" {
			t.Errorf("%v", s.told)
		}
	})
}

// TestFetchesAgain: what fails is tried again after waits that grow, at once where
// something changed, and is told once.
func TestFetchesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(model("a"))
		s.fails["s3://a"] = errors.New("denied")
		f := s.start(t)
		check(t, f, "a", service.CacheFailed, "denied")
		time.Sleep(10*time.Second + 20*time.Second + 40*time.Second + time.Second)
		check(t, f, "a", service.CacheFailed, "denied")
		if s.asked["s3://a"] != 4 || len(s.told) != 1 {
			t.Errorf("asked %v, told %v", s.asked, s.told)
		}
		s.mu.Lock()
		delete(s.fails, "s3://a")
		s.mu.Unlock()
		f.Changed()
		check(t, f, "a", service.CacheDownloaded, "")
		if s.asked["s3://a"] != 5 || len(s.told) != 2 {
			t.Errorf("asked %v, told %v", s.asked, s.told)
		}
	})
}

// TestFetchesEnd: the fetch of a model that is gone or changed ends, and its place is
// another's.
func TestFetchesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(model("a"), model("b"), model("c"))
		s.gate["s3://a"], s.gate["s3://b"] = make(chan struct{}), make(chan struct{})
		f := s.start(t)
		check(t, f, "b", service.CacheDownloading, "")
		changed := model("b")
		changed.Files.URI = "s3://other"
		s.set(changed, model("c"))
		f.Changed()
		check(t, f, "a", service.CachePending, "")
		check(t, f, "b", service.CacheDownloaded, "")
		check(t, f, "c", service.CacheDownloaded, "")
		refused := model("d")
		refused.Refused = "no room"
		s.set(refused)
		f.Changed()
		check(t, f, "d", service.CacheFailed, "no room")
		s.set(model("d"))
		f.Changed()
		check(t, f, "d", service.CacheDownloaded, "")
		if s.running != 0 || s.most != maxFetches || len(f.all) != 1 {
			t.Errorf("%+v, %d are known", s, len(f.all))
		}
	})
}
