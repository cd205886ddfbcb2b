//go:build peers

package hub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

// lines is what a process prints, to be read while it runs.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestReplicaOfUp: a replica of `roundhouse up` downloads with huggingface_hub
// through the cache that up starts, and nobody has told it to but up.
func TestReplicaOfUp(t *testing.T) {
	hub := hubtest.New()
	t.Cleanup(hub.Close)
	files := map[string][]byte{"config.json": []byte(`{}`), "model.safetensors": random(8<<20 + 1)}
	hub.Add("models", "org/model").Commit("main", files, "model.safetensors")
	dir := t.TempDir()
	binary := filepath.Join(dir, "roundhouse")
	if out, err := exec.Command("go", "build", "-o", binary, "../../../cmd/roundhouse").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	here, err := filepath.Abs("client.py")
	if err != nil {
		t.Fatal(err)
	}
	result := filepath.Join(dir, "result.json")
	manifest := filepath.Join(dir, "service.yaml")
	command := fmt.Sprintf("%s %s snapshot org/model > %s.tmp && mv %s.tmp %s && exec %s -m http.server --bind 127.0.0.1 {{.Port}}",
		python(t, "current"), here, result, result, result, python(t, "current"))
	if err := os.WriteFile(manifest, []byte(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: client}
spec:
  protocol: v2
  scaling: {minReplicas: 1, maxReplicas: 1}
  engine:
    local:
      command: [sh, -c, "`+command+`"]
      readinessProbe: {tcpSocket: {port: "{{.Port}}"}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	up := exec.Command(binary, "up", "-f", manifest, "--listen", "127.0.0.1:0", "--grpc-listen", "", "--admin-listen", "127.0.0.1:0",
		"--data-dir", data, "--hub-cache", "127.0.0.1:0")
	home := t.TempDir()
	up.Env = append(os.Environ(), "HF_ENDPOINT="+hub.URL, "HF_HOME="+home, "HOME="+home, "HF_TOKEN=", "HF_HUB_DISABLE_TELEMETRY=1", "HF_HUB_DISABLE_UPDATE_CHECK=1",
		"NO_PROXY=127.0.0.1", "HTTPS_PROXY=http://127.0.0.1:9", "HTTP_PROXY=http://127.0.0.1:9")
	var said lines
	up.Stdout, up.Stderr = &said, &said
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = up.Process.Signal(syscall.SIGTERM)
		_ = up.Wait()
	})
	var got map[string]any
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if raw, err := os.ReadFile(result); err == nil {
			if err := json.Unmarshal(raw, &got); err != nil {
				t.Fatalf("%v: %s", err, raw)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no result; up said:\n%s", said.String())
		}
	}
	equal(t, got, hashes(files))
	if blobs, err := filepath.Glob(filepath.Join(data, "hub", "blobs", "*", "*")); err != nil || len(blobs) != len(files) {
		t.Errorf("in the cache: %v, %v", blobs, err)
	}
}
