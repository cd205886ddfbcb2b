package command

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// interrupts is who is told of Ctrl-C in place of the command as a whole.
type interrupts struct {
	mu  sync.Mutex
	hit func() // nil: nobody
}

type interruptsKey struct{}

// signals is a context that ends at the first signal that asks to stop. The next one
// finds the default again, or whatever the command set up meanwhile.
func signals() (context.Context, context.CancelFunc) {
	who := &interrupts{}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), interruptsKey{}, who))
	came := make(chan os.Signal, 1)
	signal.Notify(came, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer signal.Stop(came)
		defer cancel()
		for {
			select {
			case s := <-came:
				if s != os.Interrupt || !who.tell() {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}

// tell reports whether somebody took the interrupt.
func (i *interrupts) tell() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.hit == nil {
		return false
	}
	i.hit()
	return true
}

func (i *interrupts) set(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.hit = f
}

// OnInterrupt has Ctrl-C call f, and not end the command of ctx, until release. f must
// not block.
func OnInterrupt(ctx context.Context, f func()) (release func()) {
	who, ok := ctx.Value(interruptsKey{}).(*interrupts)
	if !ok {
		return func() {}
	}
	who.set(f)
	return func() { who.set(nil) }
}
