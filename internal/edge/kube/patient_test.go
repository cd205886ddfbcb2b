package kube_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"roundhouse.dev/roundhouse/internal/edge/kube"
)

// server answers lists and watches of pods, or nobody does.
type server struct {
	mu      sync.Mutex
	trouble error
	version int
	watches []*watch.RaceFreeFakeWatcher
	asked   int
}

func (s *server) answer() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.trouble
}

func (s *server) list(context.Context, metav1.ListOptions) (runtime.Object, error) {
	if err := s.answer(); err != nil {
		return nil, err
	}
	return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(s.version)}}, nil
}

func (s *server) watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		return nil, apierrors.NewBadRequest("lists are not streamed")
	}
	if err := s.answer(); err != nil {
		return nil, err
	}
	w := watch.NewRaceFreeFake()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches = append(s.watches, w)
	return w, nil
}

// fail has every request fail, and ends what is being watched; nil mends it.
func (s *server) fail(err error) (asked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked, s.asked, s.trouble = s.asked, 0, err
	for _, w := range s.watches {
		w.Stop()
	}
	s.watches = nil
	return asked
}

// informer says nothing of errors: what does has a clock for all tests.
func (s *server) informer(t *testing.T) toolscache.SharedIndexInformer {
	inf := kube.NewInformer(&toolscache.ListWatch{ListWithContextFunc: s.list, WatchFuncWithContext: s.watch}, &corev1.Pod{}, 0, toolscache.Indexers{})
	if err := inf.SetWatchErrorHandlerWithContext(func(context.Context, *toolscache.Reflector, error) {}); err != nil {
		t.Fatal(err)
	}
	return inf
}

func (s *server) watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches) > 0
}

// TestOutage is over for a watch within two seconds of the API server's
// return, however long it was, and costs little meanwhile. An API server that
// answers that it has too much to do is left alone for longer.
func TestOutage(t *testing.T) {
	dial := &url.Error{Op: "Get", URL: "https://10.96.0.1", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
	for name, c := range map[string]struct {
		err    error
		within time.Duration
		asked  int // a minute, at most
	}{
		"refused":   {dial, 2 * time.Second, 80},
		"reset":     {&url.Error{Op: "Get", Err: syscall.ECONNRESET}, 2 * time.Second, 80},
		"busy":      {apierrors.NewTooManyRequests("later", 1), 2 * time.Minute, 10},
		"forbidden": {apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no")), 2 * time.Minute, 10},
	} {
		for _, away := range []time.Duration{20 * time.Second, time.Minute, 10 * time.Minute} {
			t.Run(fmt.Sprint(name, away), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &server{version: 1}
					inf := s.informer(t)
					ctx, end := context.WithCancel(t.Context())
					defer end()
					done := make(chan struct{})
					go func() { defer close(done); inf.RunWithContext(ctx) }()
					await(t, time.Minute, s.watched)
					time.Sleep(5 * time.Minute) // of the bubble's clock: a watch that has been well for a while
					s.fail(c.err)
					time.Sleep(away)
					asked := s.fail(nil)
					if most := c.asked * int(max(away, time.Minute)/time.Minute); asked < 1 || asked > most {
						t.Errorf("asked %d times in %s, %d at most", asked, away, most)
					}
					await(t, c.within, s.watched)
					end()
					<-done
				})
			})
		}
	}
}

// TestOutageEnds has an informer end while nobody answers.
func TestOutageEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{trouble: syscall.ECONNREFUSED}
		inf := s.informer(t)
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); inf.RunWithContext(ctx) }()
		time.Sleep(10 * time.Second)
		end()
		<-done // and nothing of it is left when the bubble ends
	})
}

// TestNoResync: what did not change is not told again, however long it stays,
// whatever period controller-runtime asks for.
func TestNoResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{version: 1}
		inf := kube.NewInformer(&toolscache.ListWatch{ListWithContextFunc: s.list, WatchFuncWithContext: s.watch}, &corev1.Pod{}, 10*time.Hour, toolscache.Indexers{})
		var told atomic.Int32
		if _, err := inf.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { told.Add(1) }, UpdateFunc: func(any, any) { told.Add(1) }}); err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); inf.RunWithContext(ctx) }()
		await(t, time.Minute, s.watched)
		s.mu.Lock()
		s.watches[0].Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "2"}})
		s.mu.Unlock()
		time.Sleep(48 * time.Hour)
		if n := told.Load(); n != 1 {
			t.Errorf("told %d times of one pod that came", n)
		}
		end()
		<-done
	})
}

// await waits for at most a while of the bubble's clock.
func await(t *testing.T, most time.Duration, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > most {
			t.Fatalf("not within %s", most)
		}
	}
}
