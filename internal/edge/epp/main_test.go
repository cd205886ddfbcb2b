package epp

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"testing"
	"time"
)

// TestMain fails if goroutines are left when all tests have ended.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if f := flag.Lookup("test.fuzz"); f != nil && f.Value.String() != "" {
		os.Exit(code) // fuzzing has goroutines of its own
	}
	for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before && code == 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			fmt.Printf("%d goroutines, %d before\n", runtime.NumGoroutine(), before)
			_ = pprof.Lookup("goroutine").WriteTo(os.Stdout, 1)
			code = 1
		}
	}
	os.Exit(code)
}

// TestChurn asks from many goroutines while the pool's picker changes under
// them: every one gets an answer or a reason, and nothing is left.
func TestChurn(t *testing.T) {
	one, _ := serveOne(t, "127.0.0.1:0", "10.0.0.1:1")
	two, _ := serveOne(t, "127.0.0.1:0", "10.0.0.2:2")
	at := func(name string, addresses ...string) *Target {
		return &Target{Name: name, Authority: name, Plain: true, Addresses: addresses}
	}
	k := client(t, at("a", one), nil)
	stop, ticks := make(chan struct{}), make(chan struct{})
	var changing, asking sync.WaitGroup
	changing.Go(func() {
		targets := []*Target{at("a", two), at("a", two, one), at("b", one), nil, at("a"), at("b", two)}
		for i := 0; ; i++ {
			for range 20 { // requests between two changes
				select {
				case <-stop:
					return
				case <-ticks:
				}
			}
			if err := k.Set(pool, targets[i%len(targets)]); err != nil {
				t.Error(err)
			}
		}
	})
	answered := make([]int, 16)
	for i := range answered {
		asking.Go(func() {
			for range 100 {
				ticks <- struct{}{}
				v, err := k.Ask(t.Context(), pool, request(`{"model":"m"}`))
				if err != nil {
					if why := reason(err); why != Missing && why != Unreachable && why != Broken {
						t.Error(err)
					}
					continue
				}
				answered[i]++
				v.Close()
			}
		})
	}
	asking.Wait()
	close(stop)
	changing.Wait()
	if n := k.streams.Load(); n != 0 {
		t.Errorf("%d streams are left", n)
	}
	all := 0
	for _, n := range answered {
		all += n
	}
	if all < 200 {
		t.Errorf("%d of 1600 were answered", all)
	}
}
