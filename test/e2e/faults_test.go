package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestReplicaKilled kills a replica under load: its requests move to another
// or fail with one clean error, and it is started again.
func TestReplicaKilled(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "iris.yaml", irisManifest("iris", "{minReplicas: 1, maxReplicas: 1}")))
	pid := n.pid("iris")
	var load sync.WaitGroup
	stop, failed := make(chan struct{}), &capture{}
	counts := make([]int, 4)
	for i := range counts {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				a, err := try("POST", n.gateway+"/v1/models/iris:predict", irisRow)
				counts[i]++
				if err != nil || a.status != 200 {
					_, _ = fmt.Fprintf(failed, "%s (%v)\n", strings.TrimSpace(a.String()), err)
				}
			}
		})
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another process is ready", func() (bool, string) {
		s := n.service("default/iris")
		return len(s.Replicas) == 1 && s.Replicas[0].Phase == "Ready" && s.Replicas[0].PID != pid, n.run("describe", "iris").out
	})
	close(stop)
	load.Wait()
	total := 0
	for _, c := range counts {
		total += c
	}
	errs := strings.Split(strings.TrimSpace(failed.String()), "\n")
	for _, e := range errs {
		if e != "" && !strings.HasPrefix(e, `502 {"error":`) && !strings.HasPrefix(e, `503 {"error":`) {
			t.Errorf("not a clean error: %s", e)
		}
	}
	if len(errs) > len(counts) {
		t.Errorf("%d requests failed, at most the %d in flight may", len(errs), len(counts))
	}
	t.Logf("%d requests over the kill, failed: %q", total, failed)
	if r := n.service("default/iris").Replicas[0]; r.Restarts < 1 {
		t.Errorf("the replica counts %d restarts", r.Restarts)
	}
}

// TestKilledUpReturns kills up with -9 and starts another over the same data:
// it adopts what still matches, and ends what was changed or deleted meanwhile.
func TestKilledUpReturns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	manifests := filepath.Join(dir, "manifests")
	names := []string{"same", "changed", "deleted", "files"}
	for _, name := range names[:3] {
		write(t, manifests, name+".yaml", irisManifest(name, "{minReplicas: 1, maxReplicas: 1}"))
	}
	write(t, manifests, "files.yaml", fileServer("files", dir, "{minReplicas: 1, maxReplicas: 1}"))
	n := startNode(t, "-f", manifests)
	pids := map[string]int{}
	for _, name := range names {
		pids[name] = n.pid(name)
	}
	if code := n.signal(syscall.SIGKILL); code != -1 {
		t.Fatalf("exit code %d after SIGKILL", code)
	}
	for name, pid := range pids {
		if !alive(pid) {
			t.Fatalf("%s went with up", name)
		}
	}
	write(t, manifests, "changed.yaml", strings.Replace(irisManifest("changed", "{minReplicas: 1, maxReplicas: 1}"), "spec:\n",
		"spec:\n  engine: {env: [{name: CHANGED, value: \"yes\"}]}\n", 1))
	if err := os.Remove(filepath.Join(manifests, "deleted.yaml")); err != nil {
		t.Fatal(err)
	}
	n.up("-f", manifests)
	gone(t, pids["changed"])
	gone(t, pids["deleted"])
	for _, name := range []string{"same", "files"} {
		if now := n.pid(name); now != pids[name] {
			t.Errorf("%s has process %d, had %d", name, now, pids[name])
		}
	}
	n.pid("changed")
	for _, name := range []string{"same", "changed"} {
		n.infer("/v2/models/"+name+"/infer", irisTensor)
	}
	if r := n.run("get", "deleted"); r.code != 1 {
		t.Errorf("the deleted service is still there: %s", r)
	}
	// What was adopted is ended like any other, its grandchildren too: the
	// node's end looks.
	if code := n.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestOneRestarts: a changed service restarts alone.
func TestOneRestarts(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	dir := t.TempDir()
	n.do("apply", "--wait", "-f", write(t, dir, "a.yaml", irisManifest("a", "{minReplicas: 1, maxReplicas: 1}")),
		"-f", write(t, dir, "b.yaml", irisManifest("b", "{minReplicas: 1, maxReplicas: 1}")))
	a, b := n.pid("a"), n.pid("b")
	contains(t, n.do("apply", "-f", dir), "service default/a unchanged", "service default/b unchanged")
	write(t, dir, "b.yaml", irisManifest("b", "{minReplicas: 1, maxReplicas: 2}"))
	contains(t, n.do("apply", "-f", dir), "service default/a unchanged", "service default/b configured")
	if n.pid("a") != a || n.pid("b") != b {
		t.Error("a change of scaling alone restarted a replica")
	}
	write(t, dir, "b.yaml", strings.Replace(irisManifest("b", "{minReplicas: 1, maxReplicas: 1}"), "spec:\n",
		"spec:\n  engine: {args: [--max-body-bytes=1000000]}\n", 1))
	n.do("apply", "-f", dir)
	gone(t, b)
	n.pid("b")
	if n.pid("a") != a {
		t.Error("another service's change restarted a")
	}
}

// closing is a service whose server, asked once for /close, listens no more
// while its process goes on; stuck is one that never listens.
func closing() string {
	return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: closing}
spec:
  protocol: v2
  scaling: {minReplicas: 1}
  engine:
    local:
      command:
        - python3
        - -c
        - |
          import http.server, sys, threading, time
          class Handler(http.server.BaseHTTPRequestHandler):
              def do_GET(self):
                  self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
                  if self.path == "/close": threading.Thread(target=server.shutdown).start()
          server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
          server.serve_forever(); server.server_close(); time.sleep(1000)
        - "{{.Port}}"
      readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 3600}
---
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: stuck}
spec:
  protocol: v2
  scaling: {minReplicas: 1, startupTimeout: 20m}
  engine:
    local:
      command: [sleep, "1000"]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`
}

// TestStatusKnowsWhatIsNotReady: a replica whose port is closed while its
// process runs stops being ready as soon as a request finds that out, whatever
// its probe's period; and the status of one that does not become ready says what
// its probe is told, and until when that may last.
func TestStatusKnowsWhatIsNotReady(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "-f", write(t, t.TempDir(), "closing.yaml", closing()))
	eventually(t, "it serves", func() (bool, string) {
		out := n.run("get", "closing").out
		return strings.Contains(out, "Serving"), out
	})
	if a := n.get("http://" + n.service("default/closing").Replicas[0].HTTP + "/close"); a.status != 200 {
		t.Fatal(a)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() { // one of them finds it closed, and waits for a replica
		for ctx.Err() == nil {
			req, err := http.NewRequestWithContext(ctx, "POST", n.gateway+"/v2/models/closing/infer", strings.NewReader(`{"inputs":[]}`))
			if err != nil {
				t.Error(err)
				return
			}
			if resp, err := client.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}
	})
	eventually(t, "it is seen to serve no more", func() (bool, string) {
		out := n.status("closing")
		return strings.Contains(out, "no longer ready: ") && strings.Contains(out, "connection refused"), out
	})
	cancel()
	asking.Wait()
	eventually(t, "what the probe is told", func() (bool, string) {
		out := n.status("stuck")
		return strings.Contains(out, "engine: 0 of 1 ready: not ready yet: GET /health: ") && strings.Contains(out, "connection refused; ended if it is not 20m0s after its start"), out
	})
}

// TestLogsOfWhatCannotRun say why there are none.
func TestLogsOfWhatCannotRun(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "-f", write(t, t.TempDir(), "none.yaml", strings.Replace(irisManifest("none", "{minReplicas: 0}"), "name: xgboost", "name: nosuch", 1)))
	if r := n.run("logs", "none"); r.code != 1 || !strings.Contains(r.err, "nosuch") || strings.Contains(r.err, "first request") {
		t.Errorf("logs: %s", r)
	}
}
