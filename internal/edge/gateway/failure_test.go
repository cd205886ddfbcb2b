package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/test/loopback"
)

// hijack answers with raw bytes and closes the connection.
func hijack(raw string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(c, raw)
		_ = c.Close()
	}
}

func TestRetriesBeforeFirstByte(t *testing.T) {
	for name, raw := range map[string]string{
		"reset":           "",
		"half a header":   "HTTP/1.1 200 OK\r\nContent-Le",
		"header alone":    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
		"chunked, no end": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n",
		// As vLLM 0.32 says it to each request that it has, before it ends itself.
		"the engine's last words": "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" +
			`{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","type":"InternalServerError","param":null,"code":500}}`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.d.SetPool(pool("iris", replicaServer(t, hijack(raw)), replicaServer(t, echo)))
			for range 4 {
				r.send("POST", "/v2/models/iris/infer", "{}").want(t, 200, "POST /v2/models/iris/infer {}")
			}
		})
	}
	t.Run("last words that a client wrote", func(t *testing.T) {
		r := newRig(t, nil)
		r.d.SetPool(pool("iris", replicaServer(t, hijack("HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\n\r\n"+`{"error":"cannot parse {\"error\":{\"message\":\"EngineCore encountered an issue"}`))))
		r.send("POST", "/v2/models/iris/infer", "{}").want(t, 500, "cannot parse")
	})
	t.Run("alone", func(t *testing.T) {
		r := newRig(t, nil)
		var calls atomic.Int32
		var logged bytes.Buffer
		r.gw.warnings = observe.NewWarnings(slog.New(slog.NewTextHandler(&logged, nil)))
		r.d.SetPool(pool("iris", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
			calls.Add(1)
			hijack("")(w, req)
		})))
		r.send("POST", "/v1/completions", `{"model":"iris"}`).want(t, 502, "iris-0", "the connection was closed 2 times", "replica_failed")
		if n := calls.Load(); n != 2 {
			t.Errorf("sent %d times to the replica that may have died of it", n)
		}
		until(t, func() bool {
			s, _ := r.d.Status(routing.Service(service.ParseKey("default/iris")))
			return s.Demand.Running == 0
		})
		if n := strings.Count(logged.String(), "replica failed before it answered"); n != 1 {
			t.Errorf("the log has %d lines of the same failure, want 1:\n%s", n, &logged)
		}
	})
	for name, raw := range map[string]string{"no answer at all": "", "no HTTP": "what is this?\r\n\r\n", "no status": "HTTP/1.1 what\r\n\r\n", "no field": "HTTP/1.1 200 OK\r\nwhat\r\n\r\n",
		"two lengths": "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"} {
		t.Run(name+" of the only one is waited out", func(t *testing.T) {
			r := newRig(t, nil)
			var calls atomic.Int32
			r.d.SetPool(pool("iris", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
				if calls.Add(1) == 1 {
					hijack(raw)(w, req)
					return
				}
				echo(w, req)
			})))
			r.send("POST", "/v1/completions", `{"model":"iris"}`).want(t, 200, "completions")
		})
	}
	t.Run("killed alone, it waits for the restart", func(t *testing.T) {
		r := newRig(t, nil)
		inside, killed := make(chan struct{}), make(chan struct{})
		first := pool("iris", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
			close(inside)
			<-killed
			hijack("")(w, req)
		}))
		r.d.SetPool(first)
		got := make(chan answer, 1)
		go func() { got <- r.send("POST", "/v1/completions", `{"model":"iris"}`) }()
		<-inside
		down := pool("iris", first.Replicas[0].HTTP)
		down.Replicas[0].Phase = replica.Failed
		r.d.SetPool(down)
		close(killed)
		until(t, func() bool {
			s, _ := r.d.Status(routing.Service(service.ParseKey("default/iris")))
			return s.Demand.Queued == 1
		})
		r.d.SetPool(pool("iris", replicaServer(t, echo)))
		(<-got).want(t, 200, `POST /v1/completions {"model":"iris"}`)
	})
	t.Run("killed on a kept connection, before anybody noticed", func(t *testing.T) {
		r := newRig(t, nil)
		var calls atomic.Int32
		var srv *httptest.Server
		srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if calls.Add(1) == 1 {
				echo(w, req)
				return
			}
			_ = srv.Listener.Close() // so that a second try is refused
			hijack("")(w, req)
		}))
		t.Cleanup(srv.Close)
		r.d.SetPool(pool("iris", strings.TrimPrefix(srv.URL, "http://")))
		r.send("POST", "/v1/completions", `{"model":"iris"}`).want(t, 200, "completions")
		got := make(chan answer, 1)
		go func() { got <- r.send("POST", "/v1/completions", `{"model":"iris"}`) }()
		until(t, func() bool {
			s, _ := r.d.Status(routing.Service(service.ParseKey("default/iris")))
			return s.Demand.Queued == 1
		})
		p := pool("iris", replicaServer(t, echo))
		p.Replicas[0].ID = "new"
		r.d.SetPool(p)
		(<-got).want(t, 200, `POST /v1/completions {"model":"iris"}`)
	})
	t.Run("refused connections wait for a replica that works", func(t *testing.T) {
		r := newRig(t, nil)
		dead := loopback.Reserve(t)
		r.d.SetPool(pool("iris", dead))
		got := make(chan answer, 1)
		go func() { got <- r.send("POST", "/v2/models/iris/infer", "{}") }()
		until(t, func() bool { // it has failed once and waits
			s, _ := r.d.Status(routing.Service(service.ParseKey("default/iris")))
			return s.Demand.Queued == 1
		})
		p := pool("iris", replicaServer(t, echo))
		p.Replicas[0].ID = "new"
		r.d.SetPool(p)
		(<-got).want(t, 200, "infer")
	})
	t.Run("a long body is not sent again", func(t *testing.T) {
		r := newRig(t, func(c *Config, _ *dispatch.Config) { c.MaxReplayBytes = 10 })
		long := strings.Repeat("x", 11)
		var calls atomic.Int32
		counted := func(h http.HandlerFunc) http.HandlerFunc {
			return func(w http.ResponseWriter, req *http.Request) { calls.Add(1); h(w, req) }
		}
		r.d.SetPool(pool("iris", replicaServer(t, counted(hijack(""))), replicaServer(t, counted(echo))))
		r.send("POST", "/v2/models/iris/infer", long).want(t, 502, "cannot be sent again")
		r.send("POST", "/v2/models/iris/infer", long).want(t, 200, long)
		if calls.Load() != 2 {
			t.Errorf("%d calls, want 2", calls.Load())
		}
	})
}

func TestEventsAreFlushedOneByOne(t *testing.T) {
	r := newRig(t, nil)
	next := make(chan string)
	r.d.SetPool(pool("chat", replicaServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for part := range next {
			_, _ = io.WriteString(w, part)
			_ = http.NewResponseController(w).Flush()
		}
	})))
	go func() { next <- "data: 1\n\n" }()
	resp, err := r.client.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"chat","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewReader(resp.Body)
	read := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(lines, got); err != nil || string(got) != want {
			t.Fatalf("read %q, %v; want %q", got, err, want)
		}
	}
	// Each event arrives before the next is sent: the replica waits on next.
	read("data: 1\n\n")
	for i := 2; i < 10; i++ {
		next <- fmt.Sprintf("data: %d\r\n\r\n", i)
		read(fmt.Sprintf("data: %d\r\n\r\n", i))
	}
	next <- "data: a\n\nda"
	read("data: a\n\n")
	next <- "ta: b\n\n"
	read("data: b\n\n")
	next <- "data: [DONE]" // without its empty line
	close(next)
	read("data: [DONE]")
	if _, err := lines.ReadByte(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
}

func TestFailureWithinAnAnswer(t *testing.T) {
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
	for _, c := range []struct{ name, path, raw, want string }{
		{"openai stream", "/v1/completions", chunked + "Content-Type: text/event-stream\r\n\r\n15\r\ndata: 1\n\ndata: {\"half\r\n",
			"data: 1\n\nevent: error\ndata: {\"error\":{\"message\":\"the replica failed within its answer: "},
		{"oip stream", "/v2/models/iris/generate_stream", chunked + "Content-Type: text/event-stream\r\n\r\n9\r\ndata: 1\n\n\r\n",
			"data: 1\n\nevent: error\ndata: {\"error\":\"the replica failed within its answer: "},
		{"long event", "/v1/completions", chunked + "Content-Type: text/event-stream\r\n\r\n10000\r\n" + strings.Repeat("y", 0x10000) + "\r\n",
			strings.Repeat("y", 0x10000) + "\n\nevent: error\n"},
		{"stated length", "/v1/completions", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345", ""},
		{"chunked", "/v1/completions", chunked + "\r\n5\r\n12345\r\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil)
			r.d.SetPool(pool("iris", replicaServer(t, hijack(c.raw)), replicaServer(t, hijack(c.raw))))
			a := r.send("POST", c.path, `{"model":"iris"}`)
			if c.want == "" {
				if a.err == nil {
					t.Errorf("got a whole answer %q, want a cut connection", a.body)
				}
				return
			}
			if a.err != nil || a.code != 200 || !strings.HasPrefix(a.body, c.want) || !strings.HasSuffix(a.body, "\n\n") {
				t.Errorf("got %d %.300q %v, want %.300q", a.code, a.body, a.err, c.want)
			}
		})
	}
}

// TestFailuresWithinAnswersAreLoggedOnce: a replica that breaks off every answer does
// not fill the log.
func TestFailuresWithinAnswersAreLoggedOnce(t *testing.T) {
	r := newRig(t, nil)
	var logged bytes.Buffer
	r.gw.warnings = observe.NewWarnings(slog.New(slog.NewTextHandler(&logged, nil)))
	r.d.SetPool(pool("iris", replicaServer(t, hijack("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n9\r\ndata: 1\n\n\r\n"))))
	for range 3 {
		if a := r.send("POST", "/v1/completions", `{"model":"iris"}`); !strings.Contains(a.body, "failed within its answer") {
			t.Fatalf("%d %q %v", a.code, a.body, a.err)
		}
	}
	if n := strings.Count(logged.String(), "replica failed within its answer"); n != 1 {
		t.Errorf("the log has %d lines of the same failure, want 1:\n%s", n, &logged)
	}
}

func TestCancellationReachesTheReplica(t *testing.T) {
	r := newRig(t, nil)
	started, ended := make(chan struct{}), make(chan struct{})
	r.d.SetPool(pool("chat", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		if req.URL.Path == "/v1/chat/completions" { // a stream under way
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		started <- struct{}{}
		<-req.Context().Done()
		ended <- struct{}{}
	})))
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			req, err := http.NewRequestWithContext(ctx, "POST", r.url+path, strings.NewReader(`{"model":"chat"}`))
			if err == nil {
				var resp *http.Response
				if resp, err = r.client.Do(req); err == nil {
					_, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
			}
			done <- err
		}()
		<-started
		cancel()
		<-ended
		if err := <-done; err == nil {
			t.Errorf("%s: no error at the client", path)
		}
		waitIdle(r)
	}
	s, _ := r.d.Status(routing.Service(service.ParseKey("default/chat")))
	if s.Demand.Arrived != 2 || s.Demand.Done != 2 {
		t.Errorf("demand %+v", s.Demand)
	}
}

// waitIdle returns once nothing is queued or in flight.
func waitIdle(r *rig) {
	until(r.t, func() bool {
		busy := 0
		for _, s := range r.d.Pools() {
			busy += s.Demand.Queued + s.Demand.Running
		}
		return busy == 0
	})
}

func TestClientThatLeavesTheQueue(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("iris"))
	ctx, cancel := context.WithCancel(t.Context())
	r.demand.onWake = func(string) { cancel() }
	req, err := http.NewRequestWithContext(ctx, "POST", r.url+"/v2/models/iris/infer", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := r.client.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Error("answered")
	}
	waitIdle(r)
}

func TestQueueBoundAndDeadline(t *testing.T) {
	r := newRig(t, func(_ *Config, d *dispatch.Config) { d.MaxQueue, d.MaxWait = 1, 300*time.Millisecond })
	woken := make(chan struct{}, 1)
	r.demand.onWake = func(string) { woken <- struct{}{} }
	r.d.SetPool(pool("iris"))
	first := make(chan answer, 1)
	go func() { first <- r.send("POST", "/v1/completions", `{"model":"iris"}`) }()
	<-woken
	a := r.send("POST", "/v2/models/iris/infer", "{}")
	a.want(t, 429, `{"error":"default/iris: the queue is full (1 requests)`)
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
	}
	(<-first).want(t, 503, "no replica took the request within 300ms", "model_unavailable", "server_error")
}

func TestSilentReplica(t *testing.T) {
	silent := replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		if req.URL.Path == "/v1/chat/completions" {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		<-req.Context().Done()
	})
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.AnswerTimeout = 50 * time.Millisecond })
	r.d.SetPool(pool("iris", silent))
	r.send("POST", "/v1/completions", `{"model":"iris"}`).want(t, 504, "did not begin its answer within 50ms")
	own := pool("own", silent)
	own.Limits.AnswerTimeout = 20 * time.Millisecond
	r.d.SetPool(own)
	r.send("POST", "/v1/completions", `{"model":"own"}`).want(t, 504, "did not begin its answer within 20ms")
	r = newRig(t, func(c *Config, _ *dispatch.Config) { c.StallTimeout = 50 * time.Millisecond })
	r.d.SetPool(pool("iris", silent))
	r.send("POST", "/v1/chat/completions", `{"model":"iris"}`).want(t, 200, "data: 1\n\nevent: error\n", errSlow.Error())
}

func TestBufferedBytesAreBounded(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.MaxBodyBytes, c.MaxBufferedBytes = 1000, 5000 })
	inside, release := make(chan struct{}), make(chan struct{})
	r.d.SetPool(pool("iris", replicaServer(t, func(http.ResponseWriter, *http.Request) { inside <- struct{}{}; <-release })))
	body := `{"model":"iris","x":"` + strings.Repeat("x", 900) + `"}`
	first := make(chan answer, 1)
	go func() { first <- r.send("POST", "/v1/completions", body) }()
	<-inside
	r.send("POST", "/v1/completions", body).want(t, 429, "buffer for request bodies is full")
	close(release)
	(<-first).want(t, 200)
	waitIdle(r)
	go func() { <-inside }()
	r.send("POST", "/v1/completions", body).want(t, 200)
}

// TestMixedLoad sends 1,000 requests of every kind while replicas come and go
// and fail: every request is answered, and nothing is left over.
func TestMixedLoad(t *testing.T) {
	r := newRig(t, func(_ *Config, d *dispatch.Config) {
		d.Breaker.LostRest, d.Breaker.MaxLostRest, d.MaxQueue = time.Millisecond, 5*time.Millisecond, 2000
	})
	var addresses []string
	for i := range 4 {
		var n atomic.Int32
		addresses = append(addresses, replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
			if n.Add(1)%(17+int32(i)) == 0 {
				hijack("")(w, req)
				return
			}
			echo(w, req)
		}))
	}
	addresses = append(addresses, loopback.Reserve(t))
	names := []string{"iris", "digits", "chat"}
	for _, name := range names {
		r.d.SetPool(pool(name))
	}
	stop := make(chan struct{})
	var churned, clients sync.WaitGroup
	churned.Go(func() {
		rnd := rand.New(rand.NewPCG(3, 3))
		for serial := 0; ; serial++ {
			p := pool(names[rnd.IntN(3)])
			p.Limits.MaxConcurrency = 8
			for i, a := range addresses {
				if rnd.IntN(3) > 0 {
					one := pool(p.Key.Name, a).Replicas[0]
					one.ID = fmt.Sprintf("%s-%d-%d", p.Key.Name, i, serial/8)
					p.Replicas = append(p.Replicas, one)
				}
			}
			r.d.SetPool(p)
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	var codes [600]atomic.Int32
	gate := make(chan struct{}, 200) // sockets, not requests, are scarce
	for i := range 1000 {
		clients.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			name := names[i%3]
			unique := fmt.Sprintf(`{"model":"%s","n":%d}`, name, 9007199254740993+i)
			path := []string{"/v1/completions", "/v2/models/" + name + "/infer", "/v1/models/" + name + ":predict"}[i%7%3]
			a := r.send("POST", path, unique)
			if a.err != nil {
				t.Errorf("%s: %v", path, a.err)
				return
			}
			codes[a.code].Add(1)
			if a.code == 200 && a.body != "POST "+path+" "+unique {
				t.Errorf("%s got the answer %q", unique, a.body)
			}
		})
	}
	clients.Wait()
	close(stop)
	churned.Wait()
	waitIdle(r)
	total := int32(0)
	for code := range codes {
		if n := codes[code].Load(); n > 0 {
			total += n
			t.Logf("%d: %d", code, n)
		}
	}
	if ok := codes[200].Load(); total != 1000 || ok < 800 || ok+codes[502].Load()+codes[503].Load() != 1000 {
		t.Errorf("%d answered, %d with 200", total, ok)
	}
	for _, name := range names {
		s, _ := r.d.Status(routing.Service(service.ParseKey(name)))
		if s.Demand.Arrived != s.Demand.Done {
			t.Errorf("%s: %+v", name, s.Demand)
		}
		for id, n := range s.InFlight {
			if n != 0 {
				t.Errorf("%s has %d in flight", id, n)
			}
		}
	}
	if held := r.gw.buffered.Used(); held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
}
