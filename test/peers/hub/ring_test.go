//go:build peers

package hub

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/ring"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
	"roundhouse.dev/roundhouse/test/loopback"
)

// program builds the program, of which the nodes are processes.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "roundhouse")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../../../cmd/roundhouse").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// nodes starts a ring of processes.
func nodes(t *testing.T, program, upstream string, n int) (urls []string, cmds []*exec.Cmd) {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a secret of all the nodes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range n {
		urls = append(urls, "http://"+loopback.Reserve(t))
	}
	for _, url := range urls {
		cmd := exec.CommandContext(t.Context(), program, "hub-cache", "--listen", strings.TrimPrefix(url, "http://"), "--dir", t.TempDir(), "--upstream", upstream,
			"--self", url, "--peers", strings.Join(urls, ","), "--peers-secret-file", secret)
		var logs bytes.Buffer
		cmd.Stderr = &logs
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, _ = cmd.Process.Kill(), cmd.Wait()
			if t.Failed() {
				t.Logf("%s:\n%s", url, logs.Bytes())
			}
		})
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, out) }()
		cmds = append(cmds, cmd)
	}
	return urls, cmds
}

// TestRing has clients download from a node of a ring while another node, which
// keeps one of the files, is killed in the middle.
func TestRing(t *testing.T) {
	roundhouse := program(t)
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			hub := hubtest.New()
			defer hub.Close()
			urls, cmds := nodes(t, roundhouse, hub.URL, 3)
			files := map[string][]byte{"config.json": []byte(`{}`), "empty.txt": nil}
			large := []string{}
			for size := 30 << 20; len(large) < 3; size++ {
				data := random(size)
				sum := sha256.Sum256(data)
				if owner := ring.New(urls).Owners(hex.EncodeToString(sum[:]), 1)[0]; owner == urls[2-len(large)] { // the first belongs to the one that is killed
					name := fmt.Sprintf("model-0000%d-of-00003.safetensors", len(large)+1)
					files[name] = data
					large = append(large, name)
				}
			}
			hub.Add("models", "org/model").Commit("main", files, large...)
			hold := make(chan struct{})
			held, atOnce := 18<<20, 3
			if m.name == "2024, hf_transfer" {
				held, atOnce = 7<<20, 1 // one file after the other, 10 MB at a time
			}
			hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: held})
			r := &rig{hub: hub, url: urls[0]}
			done := make(chan map[string]any, 1)
			go func() { done <- r.client(t, m.python, m.env, "snapshot", "org/model") }()
			for end := time.Now().Add(time.Minute); hub.Sent() < int64(atOnce*held); {
				if time.Now().After(end) {
					t.Fatalf("%d bytes came from the Hub", hub.Sent())
				}
				select {
				case <-done:
					t.Fatal("the client ended while the Hub held the files")
				case <-time.After(10 * time.Millisecond):
				}
			}
			if err := cmds[2].Process.Kill(); err != nil {
				t.Fatal(err)
			}
			hub.Fail(hubtest.Faults{})
			close(hold)
			select {
			case got := <-done:
				equal(t, got, hashes(files))
			case <-time.After(2 * time.Minute):
				t.Fatal("the client does not end")
			}
			// The next one finds a node missing.
			r.url = urls[1]
			equal(t, r.client(t, m.python, m.env, "snapshot", "org/model"), hashes(files))
			resp, err := http.Get(urls[0] + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			metrics, _ := io.ReadAll(resp.Body)
			if !bytes.Contains(metrics, []byte("roundhouse_hub_cache_ring_nodes_ejected 1")) || !bytes.Contains(metrics, []byte(`sent_bytes_total{source="peer"}`)) {
				t.Errorf("%s", metrics)
			}
		})
	}
}
