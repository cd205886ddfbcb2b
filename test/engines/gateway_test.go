package engines

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// startGateways runs gateways that start nothing, over the replicas of another
// node: each asks all of them, which stand at one port of several loopback
// addresses, as engines of several machines do. With events the gateways follow
// what the engines publish; those that share tell each other what they sent.
func startGateways(t *testing.T, count int, parts []part, events, share bool) (gateways []*node) {
	t.Helper()
	manifest := "apiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: tiny}\nspec:\n"
	var addresses, kv []string
	for _, p := range parts {
		addresses, kv = append(addresses, p.HTTP), append(kv, p.GRPC)
	}
	var at []string
	for i, port := range relayed(t, addresses) {
		at = append(at, fmt.Sprintf("%q", relayHost(i)+":"+port))
	}
	manifest += "  addresses: [" + strings.Join(at, ", ") + "]\n"
	if events {
		manifest += "  kvEvents: {port: " + relayed(t, kv)[0] + "}\n"
	}
	manifest += `---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: tiny}
spec:
  targets: [{pool: tiny}]
`
	file := filepath.Join(t.TempDir(), "pool.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	var shares []string
	secret := filepath.Join(t.TempDir(), "secret")
	if share {
		if err := os.WriteFile(secret, []byte(strings.Repeat("secret ", 5)), 0o600); err != nil {
			t.Fatal(err)
		}
		for range count {
			shares = append(shares, freeAddress(t))
		}
	}
	for i := range count {
		var more []string
		if share {
			more = []string{"--share-listen", shares[i], "--share-with", strings.Join(shares, ","), "--share-secret-file", secret}
		}
		gateways = append(gateways, startGateway(t, file, more...))
	}
	return gateways
}

// startGateway runs one with a file of manifests. Its admin has nothing but metrics.
func startGateway(t *testing.T, file string, more ...string) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), path: os.Getenv("PATH"), exited: make(chan struct{})}
	n.mark = "ENGINES_DATA_DIR=" + n.dir
	n.cmd = exec.Command(binary, append([]string{"gateway", "-f", file, "--listen", "127.0.0.1:0", "--grpc-listen", "", "--metrics-listen", "127.0.0.1:0"}, more...)...)
	n.launch(func(out string) bool {
		n.gateway = after(out, "Roundhouse answers at  ")
		n.admin = strings.TrimSuffix(after(out, "Metrics                "), "/metrics")
		return n.gateway != "" && n.admin != ""
	})
	return n
}

// freeAddress is one at which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// relayHost is a loopback address of its own for each replica.
func relayHost(i int) string { return fmt.Sprintf("127.0.0.%d", i+2) }

// relayed has each of these addresses stand at one port of a host of its own, the
// same for all.
func relayed(t *testing.T, targets []string) (ports []string) {
	t.Helper()
	port := "0"
	for i, target := range targets {
		l, err := net.Listen("tcp", net.JoinHostPort(relayHost(i), port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		_, port, _ = net.SplitHostPort(l.Addr().String())
		go func() {
			for {
				from, err := l.Accept()
				if err != nil {
					return // the test ends
				}
				go relay(t, from, target)
			}
		}()
	}
	return slices.Repeat([]string{port}, len(targets))
}

// relay copies both ways until one side ends.
func relay(t *testing.T, from net.Conn, target string) {
	to, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", target)
	if err != nil {
		_ = from.Close() // as if it were refused
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{to, from}, {from, to}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // each side sees itself how the other ended
			_ = to.Close()
			_ = from.Close()
		})
	}
	both.Wait()
}
