package gateway

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

const completion = `{"model":"m","prompt":"hi"}`

var modelM = routing.Service(service.Key{Namespace: "default", Name: "m"})

// inTurn serves the calls of all its replicas by one handler, which is told the number
// of the call.
func inTurn(t *testing.T, n int, h func(call int, w http.ResponseWriter, r *http.Request)) (addresses []string, calls *atomic.Int32) {
	calls = &atomic.Int32{}
	for range n {
		addresses = append(addresses, replicaServer(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // or the end of the connection is not noticed
			h(int(calls.Add(1)), w, r)
		}))
	}
	return addresses, calls
}

func TestRetryOfARoute(t *testing.T) {
	budget := routing.DefaultRetryBudget
	for name, c := range map[string]struct {
		retry  routing.Retry
		status []int // of the calls; 0 is a replica that keeps silent
		path   string
		want   int
		calls  int32
	}{
		"as every route":           {routing.Retry{Attempts: -1, Budget: budget}, []int{500, 200}, "", 200, 2},
		"a status that it names":   {routing.Retry{Attempts: 2, Codes: []int{404}, Budget: budget}, []int{404, 404, 200}, "", 200, 3},
		"none that it names":       {routing.Retry{Attempts: 2, Codes: []int{503}, Budget: budget}, []int{500, 200}, "", 500, 1},
		"no attempts":              {routing.Retry{Attempts: 0, Budget: budget}, []int{500, 200}, "", 500, 1},
		"more than its attempts":   {routing.Retry{Attempts: 1, Budget: budget}, []int{500, 502, 200}, "", 502, 2},
		"no budget":                {routing.Retry{Attempts: 2}, []int{500, 200}, "", 500, 1},
		"a wait":                   {routing.Retry{Attempts: 2, Backoff: 30 * time.Millisecond, Budget: budget}, []int{500, 500, 200}, "", 200, 3},
		"silence":                  {routing.Retry{Attempts: 2, Budget: budget, Codes: []int{504}}, []int{0, 200}, "", 200, 2},
		"silence, not named":       {routing.Retry{Attempts: 2, Budget: budget, Codes: []int{503}}, []int{0, 200}, "", 504, 1},
		"an error in its stream":   {routing.Retry{Attempts: 2, Budget: budget}, []int{-1, 200}, "", 200, 1},
		"a call that may not be":   {routing.Retry{Attempts: 2, Budget: budget}, []int{500, 200}, "/own", 500, 1},
		"more replicas than there": {routing.Retry{Attempts: 9, Budget: budget}, []int{500, 500, 500, 500, 200}, "", 500, 4},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			addresses, calls := inTurn(t, 4, func(n int, w http.ResponseWriter, req *http.Request) {
				switch status := c.status[min(n, len(c.status))-1]; status {
				case 0:
					<-req.Context().Done()
				case -1:
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, "data: {}\n\n")
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				default:
					w.WriteHeader(status)
				}
			})
			r.d.SetPool(pool("m", addresses...))
			h := routing.Handling{Retry: &c.retry}
			if c.status[0] == 0 {
				h.TryTimeout = 100 * time.Millisecond
			}
			handled(r, h)
			path := "/v1/completions"
			if c.path != "" {
				path = c.path
				filtered(r, map[string]routing.Handling{c.path: h})
			}
			begun := time.Now()
			a := r.send("POST", path, completion)
			if a.code != c.want || calls.Load() != c.calls {
				t.Errorf("%d after %d calls: %s; want %d after %d", a.code, calls.Load(), a.body, c.want, c.calls)
			}
			if took := time.Since(begun); c.retry.Backoff > 0 && took < 3*c.retry.Backoff { // it doubles
				t.Errorf("the waits were too short: %v", took)
			}
			if s, _ := r.d.Status(modelM); name == "no budget" && s.Counts.RetriesRefused != 1 || s.Demand.Running != 0 {
				t.Errorf("%+v, %d running", s.Counts, s.Demand.Running)
			}
		})
	}
}

func TestHedge(t *testing.T) {
	r := newRig(t, nil)
	cancelled := make(chan struct{}, 1)
	addresses, calls := inTurn(t, 2, func(n int, w http.ResponseWriter, req *http.Request) {
		if n == 1 {
			<-req.Context().Done()
			cancelled <- struct{}{}
			return
		}
		_, _ = fmt.Fprint(w, "second")
	})
	r.d.SetPool(pool("m", addresses...))
	handled(r, routing.Handling{Hedge: &routing.Hedge{After: 20 * time.Millisecond, Budget: routing.DefaultRetryBudget}})
	r.send("POST", "/v1/completions", completion).want(t, 200, "second")
	<-cancelled
	until(t, func() bool { s, _ := r.d.Status(modelM); return s.Demand.Running == 0 })
	if s, _ := r.d.Status(modelM); s.Counts.Hedges != 1 || calls.Load() != 2 {
		t.Errorf("%+v after %d calls", s.Counts, calls.Load())
	}
	for _, e := range r.d.Endpoints(modelM) {
		if !e.Open || e.Record.Failures() != 0 {
			t.Errorf("a replica is blamed for what was cancelled: %+v", e)
		}
	}
	if got := r.counter("roundhouse_gateway_hedges_total", hedgeWon); got != 1 {
		t.Errorf("%v hedges are counted", got)
	}
}

// TestHedgeNamesTheModelAsEachReplicaDoes: each replica is asked for an adapter by the
// name that its own service has for it.
func TestHedgeNamesTheModelAsEachReplicaDoes(t *testing.T) {
	r := newRig(t, nil)
	type call struct{ replica, body string }
	asked := make(chan call, 2)
	all := dispatch.PoolConfig{Key: service.Key{Namespace: "default", Name: "both"}, Shared: true}
	for _, name := range []string{"a", "b"} {
		m := pool(name, replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			if asked <- (call{name, string(body)}); len(asked) == 1 {
				<-req.Context().Done()
				return
			}
			_, _ = fmt.Fprint(w, "second")
		}))
		m.Adapters = []dispatch.Adapter{{Name: "sql", ServedName: name + ":sql"}}
		all.Members = append(all.Members, m)
	}
	r.d.SetPool(all)
	r.d.SetObjects([]routing.Object{&routing.Pool{Meta: service.Meta{Key: all.Key}}, &routing.Route{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "r"}}, Models: []string{"sql"},
		Targets: []routing.Target{{Ref: routing.PoolRef(all.Key), Weight: 1}}, Handling: routing.Handling{Hedge: &routing.Hedge{After: 20 * time.Millisecond, Budget: routing.DefaultRetryBudget}}}})
	r.send("POST", "/v1/completions", `{"model":"sql","prompt":"hi"}`).want(t, 200, "second")
	first, second := <-asked, <-asked
	if first.replica == second.replica {
		t.Fatalf("one replica was asked twice: %+v, %+v", first, second)
	}
	for _, c := range []call{first, second} {
		if want := `{"model":"` + c.replica + `:sql","prompt":"hi"}`; c.body != want {
			t.Errorf("%s was sent %s, want %s", c.replica, c.body, want)
		}
	}
}

// TestHedgeLoses: the first replica's answer comes before that of the second, or the
// second fails.
func TestHedgeLoses(t *testing.T) {
	for name, second := range map[string]func(w http.ResponseWriter, req *http.Request){
		"is slower": func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() },
		"fails":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"breaks":    func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			asked := make(chan struct{})
			addresses, calls := inTurn(t, 2, func(n int, w http.ResponseWriter, req *http.Request) {
				if n == 2 {
					close(asked)
					second(w, req)
					return
				}
				<-asked
				_, _ = fmt.Fprint(w, "first")
			})
			r.d.SetPool(pool("m", addresses...))
			handled(r, routing.Handling{Hedge: &routing.Hedge{After: 20 * time.Millisecond, Budget: routing.DefaultRetryBudget}})
			r.send("POST", "/v1/completions", completion).want(t, 200, "first")
			until(t, func() bool { s, _ := r.d.Status(modelM); return s.Demand.Running == 0 })
			if calls.Load() != 2 {
				t.Errorf("%d calls", calls.Load())
			}
		})
	}
}

// TestHedgeKeepsTheTimeout: the second replica has what is left of the route's timeout.
func TestHedgeKeepsTheTimeout(t *testing.T) {
	const timeout, after = time.Second, 700 * time.Millisecond
	r := newRig(t, nil)
	addresses, calls := inTurn(t, 2, func(_ int, _ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	r.d.SetPool(pool("m", addresses...))
	handled(r, routing.Handling{Timeout: timeout, Hedge: &routing.Hedge{After: after, Budget: routing.DefaultRetryBudget}})
	begun := time.Now()
	r.send("POST", "/v1/completions", completion).want(t, 504)
	if took := time.Since(begun); took < timeout || took >= timeout+after || calls.Load() != 2 {
		t.Errorf("%d replicas are given up after %v", calls.Load(), took)
	}
}

// TestHedgesDoNotCopyBodies: a route that hedges takes no more memory for a body.
func TestHedgesDoNotCopyBodies(t *testing.T) {
	const size = 8 << 20
	r := newRig(t, nil)
	addresses, _ := inTurn(t, 2, func(_ int, w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	r.d.SetPool(pool("m", addresses...))
	body := `{"model":"m","prompt":"` + strings.Repeat("x", size) + `"}`
	takes := func(h routing.Handling) int64 {
		handled(r, h)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r.send("POST", "/v1/completions", body).want(t, 200)
		runtime.ReadMemStats(&after)
		return int64(after.TotalAlloc - before.TotalAlloc) //nolint:gosec // far from overflow
	}
	takes(routing.Handling{}) // the first request's connections
	plain := takes(routing.Handling{})
	if more := takes(routing.Handling{Hedge: &routing.Hedge{After: time.Hour, Budget: routing.DefaultRetryBudget}}) - plain; more > size/2 {
		t.Errorf("it takes %d bytes more for a body of %d", more, size)
	}
}

func TestNoHedge(t *testing.T) {
	ms := 10 * time.Millisecond
	for name, c := range map[string]struct {
		path, body string
		hedge      *routing.Hedge
		replicas   int
	}{
		"off":               {"/v1/completions", completion, nil, 2},
		"no budget":         {"/v1/completions", completion, &routing.Hedge{After: ms}, 2},
		"no other replica":  {"/v1/completions", completion, &routing.Hedge{After: ms, Budget: routing.DefaultRetryBudget}, 1},
		"nothing learned":   {"/v1/completions", completion, &routing.Hedge{Percentile: 50, Budget: routing.DefaultRetryBudget}, 2},
		"leaves a response": {"/v1/responses", `{"model":"m","input":"hi"}`, &routing.Hedge{After: ms, Budget: routing.DefaultRetryBudget}, 2},
		"a sequence":        {"/v2/models/m/infer", `{"parameters":{"sequence_id":1},"inputs":[]}`, &routing.Hedge{After: ms, Budget: routing.DefaultRetryBudget}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			addresses, calls := inTurn(t, c.replicas, func(_ int, w http.ResponseWriter, _ *http.Request) {
				time.Sleep(10 * ms) // long after a hedge would be due
				_, _ = fmt.Fprint(w, "{}")
			})
			r.d.SetPool(pool("m", addresses...))
			handled(r, routing.Handling{Hedge: c.hedge, Timeout: time.Hour})
			r.send("POST", c.path, c.body).want(t, 200)
			if calls.Load() != 1 {
				t.Errorf("%d replicas are asked", calls.Load())
			}
		})
	}
}

// TestHedgesCutTheTail: one request of twenty is slow; the slowest of a hundred is not,
// and the replicas get no more than the budget's part of further work.
func TestHedgesCutTheTail(t *testing.T) {
	const requests, slow = 200, 3 * time.Second
	r := newRig(t, nil)
	var counted atomic.Int32 // of first calls
	addresses, calls := inTurn(t, 3, func(_ int, w http.ResponseWriter, req *http.Request) {
		if n, hedge := req.Header.Get("X-Number"), counted.Load(); n != fmt.Sprint(hedge) {
			counted.Add(1)
			if (hedge+1)%20 == 0 {
				select {
				case <-req.Context().Done():
				case <-time.After(slow):
				}
			}
		}
		_, _ = fmt.Fprint(w, "{}")
	})
	r.d.SetPool(pool("m", addresses...))
	handled(r, routing.Handling{Hedge: &routing.Hedge{After: 100 * time.Millisecond, Budget: routing.RetryBudget{Percent: 10}}})
	var took []time.Duration
	for n := range requests {
		begun := time.Now()
		r.send("POST", "/v1/completions", completion, "X-Number", fmt.Sprint(n+1)).want(t, 200)
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	if p99 := took[requests*99/100]; p99 >= slow {
		t.Errorf("the slowest of a hundred takes %v", p99)
	}
	if more := int(calls.Load()) - requests; more < requests/20/2 || more > requests/10 {
		t.Errorf("%d of %d requests are sent twice, want about %d and at most %d", more, requests, requests/20, requests/10)
	}
	if s, _ := r.d.Status(modelM); int(s.Counts.Hedges) != int(calls.Load())-requests {
		t.Errorf("%d hedges are counted", s.Counts.Hedges)
	}
}
