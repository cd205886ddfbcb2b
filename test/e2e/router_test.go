package e2e

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// runRouter is a router as anybody may write one: a reverse proxy that was told
// where to go on its command line. This test's own binary is the program.
func runRouter(listen, to string) {
	target, err := url.Parse("http://" + to)
	if err == nil {
		err = http.ListenAndServe(listen, httputil.NewSingleHostReverseProxy(target))
	}
	fmt.Fprintln(os.Stderr, "router:", err)
	os.Exit(1)
}

// routed is a service with such a router before its engines.
func routed(t *testing.T, engines int, more string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  protocol: openAI
  engine:
    scaling: {minReplicas: %d, maxReplicas: %d}
    local:
      command: [roundhouse, simulate, engine, --port, "{{.Port}}", --model, chat%s]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
  router:
    local:
      command: [%q, router, "127.0.0.1:{{.Port}}", "$(ROUNDHOUSE_ENGINE_ADDRESS)"]
      readinessProbe: {tcpSocket: {port: 8080}}
`, engines, engines, more, self)
}

// TestRouterIsToldWhereItsEnginesAre: a router that knows one address of its
// engines goes on while they are killed, scaled up and replaced; and it is
// adopted by the next up, which listens at the same address.
func TestRouterIsToldWhereItsEnginesAre(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	manifest := write(t, t.TempDir(), "chat.yaml", routed(t, 1, ""))
	n.do("apply", "--wait", "-f", manifest)
	engine, router := n.part("chat", "engine", 0), n.part("chat", "router", 0)
	ask := func(what string) {
		t.Helper()
		if a := n.post("/v1/completions", fresh(64)); !ok(a) {
			t.Errorf("%s: %s", what, a)
		}
	}
	ask("at first")
	if a := n.send("GET", "http://"+router.HTTP+"/get_model_info", ""); a.status == 502 {
		t.Errorf("what is no inference does not come to the engine: %s", a)
	}

	if err := syscall.Kill(engine.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ask("with the engine killed") // it waits for the restart
	n.part("chat", "engine", engine.PID)

	var failed atomic.Int64
	var last atomic.Value
	stop, clients := make(chan struct{}), sync.WaitGroup{}
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if a := n.post("/v1/completions", fresh(64)); !ok(a) {
					failed.Add(1)
					last.Store(a.String())
				}
			}
		})
	}
	write(t, dirOf(manifest), "chat.yaml", routed(t, 3, ""))
	n.do("apply", "--wait", "-f", manifest)
	eventually(t, "three engines answer", func() (bool, string) {
		return n.answering("chat", "engine") == 3, n.run("describe", "chat").out
	})
	if now := n.part("chat", "router", 0); now.PID != router.PID {
		t.Error("the router was restarted with its engines")
	}
	before := map[int]bool{}
	for _, p := range n.replicas("chat") {
		before[p.PID] = true
	}
	write(t, dirOf(manifest), "chat.yaml", routed(t, 3, `, --speed, "2"`))
	n.do("apply", "--wait", "-f", manifest)
	eventually(t, "all replicas are new ones", func() (bool, string) {
		now := n.replicas("chat")
		return len(now) == 4 && !slices.ContainsFunc(now, func(p part) bool { return before[p.PID] || p.Phase != "Ready" }), n.run("describe", "chat").out
	})
	close(stop)
	clients.Wait()
	if f := failed.Load(); f > 0 {
		t.Errorf("%d requests failed while engines came and went, the last: %v", f, last.Load())
	}

	router = n.part("chat", "router", 0)
	n.signal(syscall.SIGKILL)
	n.up()
	if now := n.part("chat", "router", 0); now.PID != router.PID {
		t.Error("the router was restarted by the next up")
	}
	ask("of the next up")
	n.do("delete", "modelservice", "chat")
}

// parts are a service's replicas of a role.
func (n *node) parts(service, role string) (found []part) {
	n.t.Helper()
	for _, p := range n.replicas(service) {
		if p.Role == role {
			found = append(found, p)
		}
	}
	return found
}

// answering is how many replicas of a role have answered requests.
func (n *node) answering(service, role string) (some int) {
	n.t.Helper()
	for _, p := range n.parts(service, role) {
		if p.Phase == "Ready" && n.figure("http://"+p.HTTP+"/metrics", "vllm:request_success_total") > 0 {
			some++
		}
	}
	return some
}

func dirOf(path string) string { return path[:strings.LastIndexByte(path, '/')] }
