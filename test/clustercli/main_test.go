// Package clustercli drives the real binary against a real API server, by
// kubeconfig, as a person would.
package clustercli

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

// built is where the program is built.
var built string

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "roundhouse-clustercli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	built = dir
	return kubetest.Run(m)
}

// binary builds the program once.
var binary = sync.OnceValues(func() (string, error) {
	out := filepath.Join(built, "roundhouse")
	build := exec.Command("go", "build", "-o", out, "./cmd/roundhouse")
	build.Dir, build.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, text)
	}
	return out, nil
})

// cli runs commands as somebody with a kubeconfig.
type cli struct {
	t          *testing.T
	kubeconfig string
	env        []string
}

// result is what a command did.
type result struct {
	t              *testing.T
	args           []string
	code           int
	stdout, stderr string
}

// run runs a command with a kubeconfig and context "test".
func (c *cli) run(args ...string) *result {
	c.t.Helper()
	bin, err := binary()
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append([]string{"HOME=" + c.t.TempDir(), "PATH=" + os.Getenv("PATH"), "KUBECONFIG=" + c.kubeconfig, "ROUNDHOUSE_CONTEXT=test",
		"HTTPS_PROXY=http://127.0.0.1:1", // where nobody listens: models of the world are not asked for
	}, c.env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		c.t.Fatal(err)
	}
	return &result{c.t, args, cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// want checks the exit code, and that standard output says all of these.
func (r *result) want(code int, says ...string) *result {
	r.t.Helper()
	return r.check(code, "stdout", r.stdout, says)
}

// fails checks that a command failed with these words.
func (r *result) fails(says ...string) *result {
	r.t.Helper()
	return r.check(1, "stderr", r.stderr, says)
}

func (r *result) check(code int, what, text string, says []string) *result {
	r.t.Helper()
	if r.code != code {
		r.t.Errorf("%q: exit code %d, want %d\nstdout: %s\nstderr: %s", r.args, r.code, code, r.stdout, r.stderr)
	}
	for _, s := range says {
		if !strings.Contains(text, s) {
			r.t.Errorf("%q: %s does not say %q:\n%s%s", r.args, what, s, r.stdout, r.stderr)
		}
	}
	return r
}

// kubeconfig writes one for a client, with the context "test" in a namespace.
func kubeconfig(t testing.TB, cfg *rest.Config, namespace string) string {
	t.Helper()
	user := map[string]any{}
	if len(cfg.CertData) > 0 {
		user["client-certificate-data"], user["client-key-data"] = cfg.CertData, cfg.KeyData
	}
	if cfg.BearerToken != "" {
		user["token"] = cfg.BearerToken
	}
	if cfg.Impersonate.UserName != "" {
		user["as"], user["as-groups"] = cfg.Impersonate.UserName, cfg.Impersonate.Groups
	}
	host := cfg.Host
	if !strings.Contains(host, "://") {
		host = "https://" + host
	}
	raw, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": "nothing",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": host, "certificate-authority-data": authority(t, cfg)}}},
		"users":    []any{map[string]any{"name": "u", "user": user}},
		"contexts": []any{map[string]any{"name": "test", "context": map[string]any{"cluster": "c", "user": "u", "namespace": namespace}}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// authority is the certificate that a client trusts.
func authority(t testing.TB, cfg *rest.Config) []byte {
	t.Helper()
	raw := cfg.CAData
	if block, _ := pem.Decode(raw); block == nil {
		t.Fatal("the API server's authority is no certificate")
	} else if _, err := x509.ParseCertificate(block.Bytes); err != nil {
		t.Fatal(err)
	}
	return raw
}

// newCLI is the administrator of the API server, in a namespace of the test's.
func newCLI(t *testing.T, projects ...string) (*cli, client.Client, string) {
	t.Helper()
	api := kubetest.Client(t, projects...)
	ns := kubetest.Namespace(t, api, nil)
	return &cli{t: t, kubeconfig: kubeconfig(t, kubetest.Server(t), ns)}, api, ns
}

// file writes a manifest.
func (c *cli) file(text string) string {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
