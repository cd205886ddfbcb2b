package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// simulatedService is a service of engines that answer 600 tokens a second.
func simulatedService(seed string) string {
	return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: chat, labels: {app: chat}}
spec:
  protocol: openAI
  scaling: {minReplicas: 2, maxReplicas: 2}
  engine:
    local:
      command: [roundhouse, simulate, engine, --port, "{{.Port}}", --model, chat, --speed, "10", --seed, "` + seed + `"]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`
}

// TestRollingRestart: a changed manifest replaces both replicas of a service
// while it is asked for streams and short answers. None fails, and no stream
// is cut: replicas that go finish theirs.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	dir := t.TempDir()
	n.do("apply", "--wait", "-f", write(t, dir, "chat.yaml", simulatedService("1")))
	old := map[int]bool{}
	for _, r := range n.service("default/chat").Replicas {
		old[r.PID] = true
	}
	if len(old) != 2 {
		t.Fatalf("%d replicas at first, want 2", len(old))
	}
	answered, stop := n.load(6, func(worker int) (answer, error) {
		if worker < 3 {
			return try("POST", n.gateway+"/v1/completions", fresh(64))
		}
		return try("POST", n.gateway+"/v1/completions", `{"model":"chat","prompt":"on and on","stream":true,"max_tokens":150,"ignore_eos":true}`)
	}, func(a answer) bool {
		return ok(a) && !strings.Contains(a.body, "event: error") &&
			(!strings.HasPrefix(a.body, "data: ") || strings.HasSuffix(a.body, "data: [DONE]\n\n"))
	})
	n.reach(answered, 20)
	n.do("apply", "-f", write(t, dir, "chat.yaml", simulatedService("2")))
	eventually(t, "two new replicas are ready and the old ones gone", func() (bool, string) {
		s := n.service("default/chat")
		ready := 0
		for _, r := range s.Replicas {
			if r.Phase == "Ready" && !old[r.PID] {
				ready++
			}
		}
		return ready == 2 && len(s.Replicas) == 2, n.run("describe", "chat").out
	})
	n.reach(answered, 20)
	if bad := stop(); len(bad) > 0 {
		t.Errorf("%d of %d requests failed, as %.500s", len(bad), answered.Load(), bad[0])
	}
	t.Logf("%d requests over the roll", answered.Load())
	for pid := range old {
		gone(t, pid)
	}
}

// TestPoolEmptied: the only service of a pool is deleted while requests come.
// Those in flight end, later ones are told that there is nobody; with the
// service back they are answered again.
func TestPoolEmptied(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	dir := t.TempDir()
	manifest := write(t, dir, "chat.yaml", simulatedService("1"))
	n.do("apply", "--wait", "-f", manifest)
	n.do("apply", "-f", write(t, dir, "pool.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: engines}
spec: {selector: {app: chat}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: pooled}
spec: {models: [pooled], targets: [{pool: engines, model: chat}]}
`))
	ask := strings.Replace(shortAsk, "chat", "pooled", 1)
	var mu sync.Mutex
	kinds := map[int]int{}
	answered, stop := n.load(4, func(int) (answer, error) {
		a, err := try("POST", n.gateway+"/v1/completions", ask)
		mu.Lock()
		kinds[a.status]++
		mu.Unlock()
		return a, err
	}, func(a answer) bool {
		return ok(a) || a.status == 503 && strings.Contains(a.body, "pool default/engines")
	})
	n.reach(answered, 40)
	n.do("delete", "chat")
	eventually(t, "nobody is there", func() (bool, string) {
		a := n.post("/v1/completions", ask)
		return a.status == 503, a.String()
	})
	n.do("apply", "--wait", "-f", manifest)
	eventually(t, "it answers again", func() (bool, string) {
		a := n.post("/v1/completions", ask)
		return ok(a), a.String()
	})
	if bad := stop(); len(bad) > 0 {
		t.Errorf("%d requests were not answered or told that nobody is there, as %s", len(bad), bad[0])
	}
	t.Logf("answers: %v", kinds)
}

// TestSlowAndLargeRequests: clients that send a header or a body slowly keep
// nobody else waiting, and a header is waited for 10 seconds; headers and
// bodies over the limits are refused before they have come.
func TestSlowAndLargeRequests(t *testing.T) {
	t.Parallel()
	good, asked := counting(t)
	n, _ := front(t, good)
	var slow []*net.TCPConn
	for i := range 200 {
		c := n.dial(t)
		text := "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le"
		if i%2 == 1 {
			text = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{\"model\":\"ch"
		}
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, c)
	}
	for range 50 {
		if a := n.post("/v1/completions", shortAsk); a.status != 200 {
			t.Errorf("beside slow clients: %s", a)
		}
	}
	if got := asked.Load(); got != 50 {
		t.Errorf("the server was asked %d times, want 50", got)
	}

	refused := func(what, head string, status int) {
		t.Helper()
		c := n.dial(t)
		go func() { _, _ = c.Write([]byte(head)) }() // may be refused before it is sent
		a := readAnswer(t, bufio.NewReader(c), http.MethodPost)
		if a.status != status {
			t.Errorf("%s: %d %s, want %d", what, a.status, a.body, status)
		}
	}
	// The server's bound is 4 KiB above the stated one.
	refused("a header of 70 KiB", "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Long: "+strings.Repeat("x", 70<<10)+"\r\nContent-Length: 2\r\n\r\n{}", 431)
	refused("a body that says it is over the limit", fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n{", 64<<20+1), 413)
	var chunk strings.Builder
	for range 65 {
		fmt.Fprintf(&chunk, "%x\r\n%s\r\n", 1<<20, strings.Repeat(" ", 1<<20))
	}
	refused("a body in chunks that goes over it", "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"+chunk.String()+"0\r\n\r\n", 413)

	// A header that never ends is waited for as long as the limit says.
	for i, c := range slow {
		if i%2 == 0 {
			if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("a slow header is waited for longer than %s", patience)
			}
		}
		_ = c.Close()
	}
	if a := n.post("/v1/completions", shortAsk); a.status != 200 {
		t.Errorf("afterwards: %s", a)
	}
}
