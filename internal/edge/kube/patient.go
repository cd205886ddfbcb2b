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
// reflector's own waits grow to a minute, so that a gateway would miss changes
// for up to a minute after an outage. A refused connection costs little, and
// jitter keeps all watches from reconnecting at one moment.
const (
	firstTry = 100 * time.Millisecond
	maxTry   = time.Second // and half of that again, by chance
)

// NewInformer makes an informer that reconnects within two seconds after an API
// server's outage, and reports changes alone: controller-runtime's periodic
// resync is disabled. It is a cache.Options.NewInformer; every cache has it.
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

// patiently retries until the API server answers, whatever the answer: after an
// answer that it is overloaded, the reflector waits longer.
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
