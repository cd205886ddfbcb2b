package kube

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// Between two tries of a list or a watch while no API server answers. The
// reflector's own waits grow to a minute, so that after an outage as long a
// gateway would be blind for as long again. A refused connection costs nobody
// anything, and jitter keeps all watches from coming back at one moment.
const (
	firstTry = 100 * time.Millisecond
	maxTry   = time.Second // and half of that again, by chance
)

// NewInformer makes an informer that is back within two seconds of an API
// server that was away, and tells of nothing but changes: the period in which
// controller-runtime would have everything looked at again is passed over. It
// is a cache.Options.NewInformer; every cache has it.
func NewInformer(lw toolscache.ListerWatcher, of runtime.Object, _ time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
	to := toolscache.ToListerWatcherWithContext(lw)
	return toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return patiently(ctx, func() (runtime.Object, error) { return to.ListWithContext(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return patiently(ctx, func() (watch.Interface, error) { return to.WatchWithContext(ctx, o) })
		},
	}, of, 0, by)
}

// patiently asks until somebody answers, whatever the answer: one that says
// that it has too much to do is waited for longer, by the reflector.
func patiently[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for wait := firstTry; ; wait = min(2*wait, maxTry) {
		got, err := ask()
		if !unheard(err) || ctx.Err() != nil {
			return got, err
		}
		select {
		case <-time.After(wait + rand.N(wait/2)):
		case <-ctx.Done():
			return got, err
		}
	}
}

// unheard reports whether an error means that no API server answered.
func unheard(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
