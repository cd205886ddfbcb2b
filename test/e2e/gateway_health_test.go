package e2e

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/test/loopback"
)

// fickle is a server that answers every completion with a status at once, or
// well after some time, and counts them.
func fickle(t *testing.T, status *atomic.Int64) (address string, asked *atomic.Int64) {
	asked = &atomic.Int64{}
	return server(t, func(c *net.TCPConn, r *bufio.Reader) {
		for inference(c, r) != nil {
			asked.Add(1)
			code := status.Load()
			if code == 200 {
				time.Sleep(10 * time.Millisecond) // as long as an engine works
			}
			_, _ = fmt.Fprintf(c, "HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", code)
		}
	}), asked
}

// TestFailingEngineLosesItsTraffic: of three engines one answers wrong, and at
// once, which makes it the least loaded. It gets hardly any request, no prompt
// sticks to it, and when it is well again it has its share by itself.
func TestFailingEngineLosesItsTraffic(t *testing.T) {
	for _, code := range []int64{500, 503, 401, 429} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			var bad, well atomic.Int64
			well.Store(200)
			bad.Store(200)
			a, failing := fickle(t, &bad)
			b, _ := fickle(t, &well)
			c, _ := fickle(t, &well)
			n, _ := front(t, a, b, c)
			var serial, refused atomic.Int64
			ask := func(int) (answer, error) {
				got, err := try("POST", n.gateway+"/v1/completions", fmt.Sprintf(`{"model":"chat","prompt":"%d"}`, serial.Add(1)))
				if got.status != 200 {
					refused.Add(1)
				}
				return got, err
			}
			share := func(requests int64) float64 {
				before, from := failing.Load(), refused.Load()
				answered, stop := n.load(4, ask, func(answer) bool { return true })
				n.reach(answered, requests)
				stop()
				got := float64(failing.Load()-before) / float64(answered.Load())
				t.Logf("%d answering %d: %.1f %% of %d requests, %d of them told so", code, bad.Load(), 100*got, answered.Load(), refused.Load()-from)
				return got
			}
			if got := share(60); got < .1 {
				t.Fatalf("a share of %.2f while it is well", got)
			}
			bad.Store(code)
			if got := share(300); got > .08 {
				t.Errorf("a share of %.2f while it fails", got)
			}
			before := failing.Load()
			for range 30 {
				_ = n.post("/v1/completions", `{"model":"chat","prompt":"`+strings.Repeat("one prompt again and again ", 100)+`"}`)
			}
			if again := failing.Load() - before; again > 3 {
				t.Errorf("%d of 30 requests with one prompt came to it", again)
			}
			bad.Store(200)
			eventually(t, "it has its share again", func() (bool, string) {
				got := share(60)
				return got > .2, fmt.Sprint(got)
			})
		})
	}
}

// TestPoolOfDeadServers: a pool whose only server refuses connections is not
// ready, says why, and is ready when it is there again.
func TestPoolOfDeadServers(t *testing.T) {
	n, _ := front(t, loopback.Reserve(t))
	if a := n.send("POST", strings.TrimSuffix(n.admin, "/metrics")+"/api/v1/explain/request", "{}"); a.status != 404 || !strings.Contains(a.String(), "no admin API here") {
		t.Errorf("the gateway alone was asked to explain: %s", a)
	}
	eventually(t, "requests are refused at once, with the reason", func() (bool, string) {
		begun := time.Now()
		got, err := try("POST", n.gateway+"/v1/completions", shortAsk)
		return err == nil && got.status == 503 && strings.Contains(got.String(), "no server is healthy") && time.Since(begun) < time.Second, got.String()
	})
}

// TestDeadPoolIsNotReady: the state of a pool is unknown until its servers have
// been checked, and `apply --wait` waits for that; then `get` and `describe` say
// that no server is healthy, and why, and `explain request` that a request would
// be refused, with exit code 1.
func TestDeadPoolIsNotReady(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	address := loopback.Reserve(t)
	mute, err := net.Listen("tcp", "127.0.0.1:0") // it answers nothing: the check takes its time
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mute.Close() }()
	out := n.do("apply", "-f", write(t, t.TempDir(), "mute.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: mute}
spec: {addresses: ["`+mute.Addr().String()+`"], healthCheck: {path: /health, timeout: 1m}}
`))
	contains(t, out, "pool default/mute created: 1 address; no server has been checked yet")
	contains(t, n.do("get", "pools"), "Checking: 1 address; no server has been checked yet")
	contains(t, n.do("describe", "pool", "mute"), mute.Addr().String()+"  not checked yet")
	r := n.run("apply", "--wait", "--timeout", "30s", "-f", write(t, t.TempDir(), "pool.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: gone}
spec: {addresses: ["`+address+`"], healthCheck: {interval: 100ms}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: chat}
spec: {targets: [{pool: gone}]}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: half}
spec: {targets: [{pool: mute, weight: 0}, {service: missing, weight: 1}]}
`))
	if r.code != 1 {
		t.Errorf("apply --wait of a pool without a healthy server: %s", r)
	}
	contains(t, r.err, "pool default/gone is not ready: 1 address; no server is healthy: "+address, "route default/chat is not ready: pool gone has no endpoint",
		"route default/half is not ready: there is no service default/missing")
	if r := n.do("get", "pools"); !strings.Contains(r, "False") || !strings.Contains(r, "no server is healthy: "+address) {
		t.Errorf("the pool:\n%s", r)
	}
	if r := n.do("get", "routes"); !strings.Contains(r, "False") || !strings.Contains(r, "pool gone has no endpoint: 1 address; no server is healthy: "+address) {
		t.Errorf("a route to it alone:\n%s", r)
	}
	contains(t, n.do("describe", "inferencemodels"), "No inferencemodels found")
	contains(t, n.do("describe", "pool", "gone"), "Endpoints:", address, "Failed: ", "connection refused", "FIRST-BYTE")
	n.do("delete", "pool", "mute")
	n.do("delete", "route", "half")
	r = n.runWith(shortAsk, "explain", "request", "-")
	if r.code != 1 || !strings.Contains(r.out, "refused: ") || !strings.Contains(r.err, "would be refused") {
		t.Errorf("explained: %s", r)
	}
}

// TestHangingEngine: a service's replica that is stopped answers nothing more.
// A request that it has ends after --answer-timeout, and the other replica gets
// those that come.
func TestHangingEngine(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.up("--answer-timeout", "1s")
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", onPlain(2, "")))
	eventually(t, "both are ready", func() (bool, string) {
		ready := 0
		for _, r := range n.service("default/chat").Replicas {
			if r.Phase == "Ready" {
				ready++
			}
		}
		return ready == 2, n.run("describe", "chat").out
	})
	pid := n.service("default/chat").Replicas[0].PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	late := 0
	ask := func() bool {
		got, err := try("POST", n.gateway+"/v1/completions", `{"model":"chat","prompt":"hello","max_tokens":2}`)
		switch {
		case err != nil:
			t.Fatal(err)
		case got.status == 504 && strings.Contains(got.body, "did not begin its answer within 1s"):
			late++
		case got.status != 200:
			t.Fatalf("%v", got)
		}
		return got.status == 200
	}
	eventually(t, "a request is ended", func() (bool, string) { ask(); return late > 0, "all were answered" })
	eventually(t, "it has lost its traffic", func() (bool, string) {
		for range 20 {
			if !ask() {
				return false, fmt.Sprintf("%d requests came to it", late)
			}
		}
		return true, ""
	})
}

// TestAnswerTimeoutOfServicesAndPools: a service bounds the time until its
// replica begins an answer, and a Pool over it goes over that. Neither restarts
// a replica.
func TestAnswerTimeoutOfServicesAndPools(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	plain := strings.Replace(onPlain(1, ""), "metadata: {name: chat}", "metadata: {name: chat, labels: {app: chat}}", 1)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", plain))
	pid := n.pid("chat")
	bounded := strings.Replace(plain, "maxReplicas: 2", "maxReplicas: 2, answerTimeout: 300ms", 1) + `---
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: chats}
spec: {selector: {app: chat}, answerTimeout: 200ms}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: pooled}
spec: {models: [pooled], targets: [{pool: chats, model: chat}]}
`
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "bounded.yaml", bounded))
	ask := func(model string, status int, says string) {
		t.Helper()
		eventually(t, model+" is answered "+fmt.Sprint(status), func() (bool, string) {
			got, err := try("POST", n.gateway+"/v1/completions", `{"model":"`+model+`","prompt":"hello","max_tokens":2}`)
			return err == nil && got.status == status && strings.Contains(got.body, says), fmt.Sprint(got, err)
		})
	}
	ask("pooled", 200, "")
	if now := n.pid("chat"); now != pid {
		t.Fatalf("pid %d, was %d", now, pid)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	ask("chat", 504, "did not begin its answer within 300ms")
	ask("pooled", 504, "did not begin its answer within 200ms")
}
