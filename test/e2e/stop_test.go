package e2e

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestStop ends up with SIGTERM and with SIGINT: children and grandchildren go
// within the grace, and the exit code is 0.
func TestStop(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := write(t, dir, "files.yaml", fileServer("files", dir, "{minReplicas: 1, maxReplicas: 1}"))
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			n := startNode(t, "-f", file)
			n.pid("files")
			before := n.processes()
			if len(before) < 4 && exists("/proc/self") { // up, sh, sleep, python3
				t.Errorf("want a grandchild, got %v", before)
			}
			if code := n.signal(s); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if left := n.processes(); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestReaderLeaves: in `up | tee`, Ctrl-C ends tee first. up serves on while nobody
// reads what it prints, and leaves nothing behind when it is asked to stop.
func TestReaderLeaves(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	n.pipe = w
	dir := t.TempDir()
	n.launch("-f", write(t, dir, "files.yaml", fileServer("files", dir, "{minReplicas: 1, maxReplicas: 1}")))
	_ = w.Close()
	var read sync.WaitGroup
	read.Go(func() { _, _ = io.Copy(n.out, r) }) // until r is closed
	n.serves()
	_ = r.Close()
	read.Wait()
	was := n.pid("files")
	if err := syscall.Kill(was, syscall.SIGKILL); err != nil { // which is logged
		t.Fatal(err)
	}
	eventually(t, "the replica is started again", func() (bool, string) {
		pid := n.pid("files")
		return pid != was, strconv.Itoa(pid)
	})
	if code := n.signal(syscall.SIGINT); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if left := n.processes(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestStopDrains: a stream in flight when up is asked to stop goes on to its
// end.
func TestStopDrains(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.gateway+"/v1/chat/completions",
		strings.NewReader(`{"model":"chat","max_tokens":60,"stream":true,"messages":[{"role":"user","content":"Hello"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines, events, last := bufio.NewScanner(resp.Body), 0, ""
	for lines.Scan() {
		if lines.Text() == "" {
			continue
		}
		if last = lines.Text(); events == 0 {
			if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		events++
	}
	if lines.Err() != nil || last != "data: [DONE]" || events < 60 {
		t.Errorf("the stream was cut after %d events, at %q (%v)", events, last, lines.Err())
	}
	if code := n.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := try(http.MethodGet, n.gateway+"/v2", ""); err == nil {
		t.Error("it still answers")
	}
}

// TestKeepReplicas: an up that is to keep its replicas leaves them running,
// and the next takes them over.
func TestKeepReplicas(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.up("--keep-replicas")
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "iris.yaml", irisManifest("iris", "{minReplicas: 1, maxReplicas: 1}")))
	pid := n.pid("iris")
	if code := n.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if !alive(pid) {
		t.Fatal("the replica went")
	}
	n.up()
	if now := n.pid("iris"); now != pid {
		t.Errorf("the next up has process %d, not %d", now, pid)
	}
	n.infer("/v2/models/iris/infer", irisTensor)
	n.signal(syscall.SIGTERM)
	gone(t, pid)
}
