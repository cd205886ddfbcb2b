//go:build kubernetes && linux

package conformance

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

func TestMain(m *testing.M) { node.Main(m) }

const system = "roundhouse-system"

// values are the chart's: every namespace has its routes served, since the
// suites make theirs without our label, and the hosts of services are not those
// that the suites ask.
const values = `
image: {repository: roundhouse.local/roundhouse, tag: e2e, pullPolicy: Never}
adopt: [gateway]
controller: {resources: {requests: {cpu: 50m}}}
gateway: {url: "http://{name}.{namespace}.models.test", https: {enabled: true}, resources: {requests: {cpu: 50m}}}
gatewayClass: {create: true, anyHost: ["*"]}
`

// install installs the definitions as they are published, and Roundhouse by its
// chart, once for all suites.
func install(t *testing.T) *node.Cluster {
	c := node.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	kubetest.Published(t, c, kubetest.GatewayAPI, kubetest.InferenceExtension)
	manifests, err := node.Chart(ctx, system, values)
	if err == nil {
		err = c.ApplyYAML(ctx, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+system+"}\n---\n"+manifests)
	}
	for _, part := range []string{"controller", "gateway"} {
		if err == nil {
			err = c.AwaitRollout(ctx, system, "roundhouse-"+part)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// suite is a published suite, built as it is.
type suite struct {
	program string // of node.Binaries
	args    []string
	// excluded are not run, and why.
	excluded map[string]string
	// fails are known not to pass, and why. One that passes is an error, too.
	fails map[string]string
}

// bound is the longest that a suite may take.
const bound = 15 * time.Minute

// run runs the suite against the GatewayClass roundhouse. Each of its tests is
// a subtest.
func (s suite) run(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), bound+time.Minute)
	defer cancel()
	for _, name := range slices.Sorted(maps.Keys(s.excluded)) {
		t.Logf("%s is not run: %s", name, s.excluded[name])
	}
	cmd := exec.CommandContext(ctx, filepath.Join(node.Binaries(), s.program), append([]string{
		"-test.v", "-test.timeout=" + bound.String(), "-gateway-class=roundhouse",
		"-skip-tests=" + strings.Join(slices.Sorted(maps.Keys(s.excluded)), ","),
		"-report-output=" + filepath.Join(node.Binaries(), s.program+".yaml"),
		"-organization=roundhouse", "-project=roundhouse", "-url=https://roundhouse.dev", "-version=dev", "-contact=https://roundhouse.dev",
	}, s.args...)...)
	if only := os.Getenv("ROUNDHOUSE_CONFORMANCE_TEST"); only != "" {
		cmd.Args = append(cmd.Args, "-run-test="+only)
	}
	cmd.Env = append(os.Environ(), "KUBECONFIG="+node.Kubeconfig)
	out, w := io.Pipe()
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = w, w, time.Second
	ended := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		err := cmd.Wait()
		_ = w.Close() // of a pipe it cannot fail
		ended <- err
	}()
	s.judge(t, out)
	if err := <-ended; err != nil {
		t.Logf("%s: %v", s.program, err) // its tests have said why
	}
}

// outcome is a line of a test's end, with its time.
var outcome = regexp.MustCompile(`^    --- (PASS|FAIL|SKIP): [^/]+/(\S+) \(([^)]+)\)`)

// judge turns what the suite says into subtests.
func (s suite) judge(t *testing.T, out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	seen := 0
	for lines.Scan() {
		_, _ = fmt.Fprintln(os.Stdout, "|", lines.Text()) // the suite's own words, as they come
		m := outcome.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		seen++
		result, name, took := m[1], m[2], m[3]
		t.Run(name, func(t *testing.T) {
			known := s.fails[name]
			switch {
			case s.excluded[name] != "":
				t.Skipf("not run: %s", s.excluded[name])
			case result == "SKIP":
				t.Skip("the suite skips it: a feature that we do not have")
			case result == "FAIL" && known == "":
				t.Errorf("failed after %s", took)
			case result == "FAIL":
				t.Skipf("failed after %s, as is known: %s", took, known)
			case known != "":
				t.Errorf("passes, though it is known to fail: %s", known)
			default:
				t.Logf("passed after %s", took)
			}
		})
	}
	if seen == 0 {
		t.Error("the suite ran no test")
	}
}

// built skips a test where a suite is not built.
func built(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := os.Stat(filepath.Join(node.Binaries(), p)); err != nil {
			t.Skipf("%v: `make conformance-kubernetes` builds it", err)
		}
	}
}

// TestInferenceExtension runs the suite of the Inference Extension v1.1.0, whose
// pods are the Gateway API's echo server and the extension's own endpoint
// picker, under the names that its manifests ask for.
func TestInferenceExtension(t *testing.T) {
	built(t, "echo-basic", "epp", "conformance-inference")
	c := install(t)
	for program, image := range map[string]string{
		"echo-basic": "gcr.io/k8s-staging-gateway-api/echo-basic:v20240412-v1.0.0-394-g40c666fd",
		"epp":        "registry.k8s.io/gateway-api-inference-extension/epp:v1.1.0",
	} {
		if err := c.ImportProgram(t.Context(), program, image); err != nil {
			t.Fatal(err)
		}
	}
	suite{
		program: "conformance-inference",
		args:    []string{"-allow-crds-mismatch"}, // it was written for v1.4.0 of the Gateway API
		excluded: map[string]string{
			"InferencePoolResolvedRefsCondition": "it asks one Gateway for the host of another and wants a 404: all our Gateways are at one address, and the host decides",
		},
	}.run(t)
}

// TestGatewayAPI runs the suite of the Gateway API v1.5.1, its profiles GATEWAY-HTTP and
// GATEWAY-GRPC with the extended features that we have. Its pods are its own echo server, and a program
// that waits in place of the CoreDNS that only UDPRoutes are tested with.
func TestGatewayAPI(t *testing.T) {
	built(t, "conformance-gateway", "echo-http")
	c := install(t)
	for image, program := range map[string]string{
		"gcr.io/k8s-staging-gateway-api/echo-basic:v20260204-monthly-2026.01-60-g28382302": "echo-http",
		"registry.k8s.io/coredns/coredns:v1.12.2":                                          "pause",
	} {
		if err := c.ImportProgram(t.Context(), program, image); err != nil {
			t.Fatal(err)
		}
	}
	suite{program: "conformance-gateway"}.run(t)
}
