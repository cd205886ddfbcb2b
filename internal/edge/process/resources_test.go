package process

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

func TestGPUsAreExclusive(t *testing.T) {
	p := open(t, Config{Devices: []string{"4", "5", "GPU-abc"}})
	sub, a := platformtest.On(t, p), platformtest.Key("a")
	sub.MustApply(revision(a, platformtest.Server{GPUs: 1}))
	sub.MustScale(a, 2)
	seen := map[string]bool{}
	for _, r := range sub.AwaitReady(a, 2) {
		seen[platformtest.Get(t, r, "/env?n=CUDA_VISIBLE_DEVICES")] = true
	}
	if !seen["4"] || !seen["5"] {
		t.Errorf("two replicas see %v", seen)
	}
	b := platformtest.Key("b")
	sub.MustApply(revision(b, platformtest.Server{GPUs: 2}))
	sub.MustScale(b, 1)
	r := sub.Await(b, "waits", phase(replica.Pending, "InsufficientGPUs"))[0]
	if r.Message != "needs 2 GPUs, 1 of 3 free" {
		t.Errorf("message: %q", r.Message)
	}
	none := platformtest.Key("none")
	sub.MustApply(revision(none, platformtest.Server{}))
	sub.MustScale(none, 1)
	if got := platformtest.Get(t, sub.AwaitReady(none, 1)[0], "/env?n=CUDA_VISIBLE_DEVICES"); got != "" {
		t.Errorf("a replica without GPUs sees %q", got)
	}
	sub.MustScale(a, 1)
	r = sub.AwaitReady(b, 1)[0]
	if got := platformtest.Get(t, r, "/env?n=CUDA_VISIBLE_DEVICES"); len(r.GPUs) != 2 || !strings.Contains(got, "GPU-abc") {
		t.Errorf("holds %v, sees %q", r.GPUs, got)
	}
	c := platformtest.Key("c")
	sub.MustApply(revision(c, platformtest.Server{GPUs: 8}))
	sub.MustScale(c, 1)
	sub.Await(c, "can never run", func(rs []replica.Replica) bool {
		return len(rs) == 1 && rs[0].Message == "needs 8 GPUs, 0 of 3 free"
	})
}

func TestReplaceOnFullGPUs(t *testing.T) {
	p := open(t, Config{Devices: []string{"0", "1"}})
	sub, k := platformtest.On(t, p), platformtest.Key("full")
	sub.MustApply(revision(k, platformtest.Server{GPUs: 1, Salt: "1"}))
	sub.MustScale(k, 2)
	sub.AwaitReady(k, 2)
	next := revision(k, platformtest.Server{GPUs: 1, Salt: "2"})
	sub.MustApply(next)
	sub.Await(k, "replaced", func(rs []replica.Replica) bool {
		return platformtest.AllReady(2)(rs) && rs[0].Revision == next.Hash && rs[1].Revision == next.Hash
	})
}

func TestMemoryLimit(t *testing.T) {
	p := open(t, Config{Restart: Restart{Min: time.Hour, Max: time.Hour}})
	dir, err := p.memory.make("probe", 1<<30)
	p.memory.remove(dir)
	if err != nil {
		_, _, r := one(t, p, "unlimited", platformtest.Server{Memory: 64 << 20})
		if !strings.Contains(r.Message, "not enforced") {
			t.Errorf("no warning: %+v", r)
		}
		t.Skipf("memory is not limited here: %v", err)
	}
	sub, k := platformtest.On(t, p), platformtest.Key("hungry")
	sub.MustApply(revision(k, platformtest.Server{Memory: 96 << 20, EatMB: 400}))
	sub.MustScale(k, 1)
	r := sub.Await(k, "out of memory", func(rs []replica.Replica) bool { return rs[0].Phase == replica.Failed })[0]
	if r.Reason != "OOMKilled" || !strings.Contains(r.Message, "96 MiB") {
		t.Errorf("out of memory as %+v", r)
	}
}

// gate is a Fetcher that waits to be let through.
type gate struct {
	open  chan struct{}
	calls atomic.Int32
	left  atomic.Int32 // fetches that were cancelled
	err   error
}

func (g *gate) Fetch(ctx context.Context, f service.Files, progress func(done, total int64)) (string, error) {
	g.calls.Add(1)
	if g.open == nil {
		return "/models" + strings.TrimPrefix(f.URI, "test:/"), g.err
	}
	progress(1<<20, 4<<20)
	select {
	case <-g.open:
		return "/models/" + strings.TrimPrefix(f.URI, "test://"), g.err
	case <-ctx.Done():
		g.left.Add(1)
		return "", ctx.Err()
	}
}

func TestFetchIsShared(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	sub, k := platformtest.On(t, open(t, Config{Fetcher: g})), platformtest.Key("model")
	sub.MustApply(revision(k, platformtest.Server{ModelURI: "test://iris"}))
	sub.MustScale(k, 3)
	rs := sub.Await(k, "all fetch", func(rs []replica.Replica) bool {
		for _, r := range rs {
			if r.Phase != replica.Fetching || r.Progress == nil {
				return false
			}
		}
		return len(rs) == 3
	})
	if *rs[0].Progress != (replica.Progress{Done: 1 << 20, Total: 4 << 20}) {
		t.Errorf("progress: %+v", rs[0].Progress)
	}
	other := platformtest.Key("other")
	sub.MustApply(revision(other, platformtest.Server{}))
	sub.MustScale(other, 1)
	sub.AwaitReady(other, 1) // a fetch of one delays no other
	close(g.open)
	rs = sub.AwaitReady(k, 3)
	if n := g.calls.Load(); n != 1 {
		t.Errorf("%d fetches for one model", n)
	}
	if got := platformtest.Get(t, rs[0], "/env?n=MODEL_PATH"); got != "/models/iris" {
		t.Errorf("MODEL_PATH = %q", got)
	}
}

func TestFetchIsCancelled(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	sub, k := platformtest.On(t, open(t, Config{Fetcher: g})), platformtest.Key("model")
	sub.MustApply(revision(k, platformtest.Server{ModelURI: "test://iris"}))
	sub.MustScale(k, 1)
	sub.Await(k, "fetching", func(rs []replica.Replica) bool { return rs[0].Progress != nil })
	sub.MustScale(k, 0)
	sub.AwaitNone(k)
	for deadline := time.Now().Add(time.Minute); g.left.Load() != 1; {
		if time.Now().After(deadline) {
			t.Fatal("the fetch goes on for nobody")
		}
		<-time.After(time.Millisecond)
	}
}

func TestFetchFails(t *testing.T) {
	g := &gate{err: errors.New("404 for\n iris")}
	sub, k := platformtest.On(t, open(t, Config{Fetcher: g})), platformtest.Key("model")
	sub.MustApply(revision(k, platformtest.Server{ModelURI: "test://iris"}))
	sub.MustScale(k, 1)
	r := sub.Await(k, "failed", phase(replica.Failed, "ModelLoadFailed"))[0]
	if r.Message != "404 for iris" {
		t.Errorf("message: %q", r.Message)
	}
	sub.Await(k, "tried again", func(rs []replica.Replica) bool { return rs[0].Restarts >= 2 })
}

func TestFiftyServices(t *testing.T) {
	sub := platformtest.On(t, open(t, Config{}))
	start := time.Now()
	var keys []service.Key
	for i := range 50 {
		k := platformtest.Key(fmt.Sprintf("s%02d", i))
		keys = append(keys, k)
		sub.MustApply(revision(k, platformtest.Server{}))
		sub.MustScale(k, 1)
	}
	called := time.Since(start)
	for _, k := range keys {
		sub.AwaitReady(k, 1)
	}
	t.Logf("50 services: calls %s, all ready %s", called, time.Since(start))
	keysNow, err := sub.Services(t.Context())
	if err != nil || len(keysNow) != 50 {
		t.Errorf("%d services, %v", len(keysNow), err)
	}
}

func TestNothingBlocks(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	defer close(g.open)
	p := open(t, Config{Fetcher: g})
	k := platformtest.Key("slow")
	// Nobody reads Changed here, and what is fetched does not come: a call that
	// waits for either does not end.
	for i := range 200 {
		if err := p.Apply(t.Context(), revision(k, platformtest.Server{ModelURI: "test://m", Salt: fmt.Sprint(i % 3)})); err != nil {
			t.Fatal(err)
		}
		if err := p.Scale(t.Context(), workload.Ref{Service: k, Role: service.RoleEngine}, i%4, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Observe(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSpeed shows what a wake pays on top of the bare process start.
func TestSpeed(t *testing.T) {
	p := open(t, Config{})
	sub, k := platformtest.On(t, p), platformtest.Key("speed")
	sub.MustApply(revision(k, platformtest.Server{}))
	var started, ready time.Duration
	const n = 10
	for range n {
		t0 := time.Now()
		sub.MustScale(k, 1)
		sub.Await(k, "started", func(rs []replica.Replica) bool { return len(rs) == 1 && rs[0].PID > 0 })
		started += time.Since(t0)
		sub.AwaitReady(k, 1)
		ready += time.Since(t0)
		sub.MustScale(k, 0)
		sub.AwaitNone(k)
	}
	t.Logf("Scale to process %s, to ready %s (means of %d)", started/n, ready/n, n)
}
