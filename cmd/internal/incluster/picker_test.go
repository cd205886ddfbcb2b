package incluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
	"roundhouse.dev/roundhouse/test/loopback"
)

// picker runs the endpoint picker and returns connections to it, over TLS, and
// to its health service.
func (r *rig) picker(change func(*PickerOptions)) (main, health *grpc.ClientConn, stop func() error) {
	r.t.Helper()
	var o PickerOptions
	o.Flags(pflag.NewFlagSet("test", pflag.PanicOnError))
	o.Kubeconfig, o.Listen, o.Health, o.Metrics, o.transform = r.path("kubeconfig"), "127.0.0.1:0", "127.0.0.1:0", "", podsToo
	out, in := io.Pipe()
	o.Out, o.Logs = in, &testLog{t: r.t}
	change(&o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		err := RunPicker(ctx, o)
		_ = in.CloseWithError(io.EOF)
		ended <- err
	}()
	lines := bufio.NewScanner(out)
	dial := func(c credentials.TransportCredentials) *grpc.ClientConn {
		if !lines.Scan() {
			cancel()
			r.t.Fatal("it did not start: ", <-ended)
		}
		words := strings.Fields(lines.Text())
		conn, err := grpc.NewClient(words[len(words)-1], grpc.WithTransportCredentials(c))
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	main = dial(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})) // as gateways ask a picker that signed for itself
	health = dial(insecure.NewCredentials())
	go func() { _, _ = io.Copy(io.Discard, out) }() // where the metrics are is said too
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	r.t.Cleanup(func() {
		if err := stop(); err != nil {
			r.t.Error(err)
		}
	})
	return main, health, stop
}

// pick leads one conversation as a gateway does, and returns where the request
// goes and its body, or the status and body of a refusal.
func pick(ctx context.Context, conn *grpc.ClientConn, authority, body string, more ...[2]string) (to, sent string, err error) {
	to, sent, done, err := converse(ctx, conn, authority, body, more...)
	done()
	return to, sent, err
}

// converse is pick of a request that is under way until done is called.
func converse(ctx context.Context, conn *grpc.ClientConn, authority, body string, more ...[2]string) (to, sent string, done func(), err error) {
	set, sent, done, err := process(ctx, conn, body, append([][2]string{{":method", "POST"}, {":path", "/v1/completions"}, {":authority", authority}}, more...)...)
	return set["x-gateway-destination-endpoint"], sent, done, err
}

// process is converse of a request with these headers; set are those that the picker
// sets, the destination among them.
func process(ctx context.Context, conn *grpc.ClientConn, body string, request ...[2]string) (set map[string]string, sent string, done func(), err error) {
	set = map[string]string{}
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		return set, "", func() {}, err
	}
	done = func() { _ = stream.CloseSend() }
	headers := &corev3.HeaderMap{}
	for _, h := range request {
		headers.Headers = append(headers.Headers, &corev3.HeaderValue{Key: h[0], RawValue: []byte(h[1])})
	}
	for _, m := range []*extprocv3.ProcessingRequest{
		{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headers}}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: true}}},
	} {
		if err := stream.Send(m); err != nil {
			return set, "", done, err
		}
	}
	for range 2 {
		m, err := stream.Recv()
		if err != nil {
			return set, "", done, err
		}
		if i := m.GetImmediateResponse(); i != nil {
			set["x-gateway-destination-endpoint"] = fmt.Sprint(int(i.Status.Code))
			return set, string(i.Body), done, nil
		}
		for _, h := range m.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
			set[h.Header.Key] = string(h.Header.RawValue)
		}
		sent += string(m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
	}
	return set, sent, done, nil
}

const pickerPool = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: %s}
spec: {selector: {matchLabels: {app: %[1]s}}, targetPorts: [{number: %d}, {number: %d}], endpointPickerRef: {name: %s, port: {number: 9002}}}
`

// TestEndpointPicker asks the picker of a cluster as a gateway does: pods by
// the labels of the pools that name its Service, each port an endpoint.
func TestEndpointPicker(t *testing.T) {
	r := newRig(t)
	kubetest.Published(t, r.api, kubetest.InferenceExtension)
	kubetest.Client(t, "llm-d")
	one, two := newModel(t), newModel(t)
	all := []string{fmt.Sprintf("127.0.0.1:%d", one.port()), fmt.Sprintf("127.0.0.1:%d", two.port())}
	apply := func(name, picker string) {
		t.Helper()
		kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(pickerPool, name, one.port(), two.port(), picker))
	}
	apply("llama", "ours-epp")
	apply("theirs", "another")
	kubetest.Apply(t, r.api, r.ns, `apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {name: nightly}
spec: {priority: -10, poolRef: {group: inference.networking.k8s.io, name: llama}}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: urgent}
spec: {priority: 10, poolRef: {group: inference.networking.k8s.io, name: llama}}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: alias}
spec:
  poolRef: {group: inference.networking.k8s.io, name: llama}
  rules: [{matches: [{model: {type: Exact, value: alias}}], targets: [{modelRewrite: llama}]}]
`)
	pod := r.pod("llama-1", map[string]string{"app": "llama"}, corev1.ConditionFalse)
	r.pod("theirs-1", map[string]string{"app": "theirs"}, corev1.ConditionTrue)
	main, health, stop := r.picker(func(o *PickerOptions) { o.Service, o.Namespaces = "ours-epp", []string{r.ns} })
	ctx := t.Context()
	serving := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			got, err := grpc_health_v1.NewHealthClient(health).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "envoy.service.ext_proc.v3.ExternalProcessor"})
			if err != nil || got.Status != want {
				return fmt.Sprint(got, err)
			}
			return ""
		})
	}
	serving(grpc_health_v1.HealthCheckResponse_NOT_SERVING) // its pod is not ready, and another's picker is not asked
	r.readies(pod, corev1.ConditionTrue)
	serving(grpc_health_v1.HealthCheckResponse_SERVING)

	seen := map[string]bool{}
	for i := 0; i < 64 && len(seen) < 2; i++ { // ties fall at random
		to, sent, err := pick(ctx, main, "ours-epp."+r.ns+".svc:9002", `{"model":"llama","prompt":"x"}`)
		if err != nil || !slices.Contains(all, to) || sent != `{"model":"llama","prompt":"x"}` {
			t.Fatalf("%s %s %v", to, sent, err)
		}
		seen[to] = true
	}
	if len(seen) != 2 {
		t.Errorf("of two ports one was picked always: %v", seen)
	}
	// llm-d's kinds count, as those of the Inference Extension do.
	if _, sent, err := pick(ctx, main, "gw", `{"model":"alias","prompt":"x"}`); err != nil || sent != `{"model":"llama","prompt":"x"}` {
		t.Errorf("a model that llm-d's kind rewrites: %s %v", sent, err)
	}
	named := func(pool string) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "x-gateway-inference-pool", r.ns+"/"+pool)
	}
	if to, _, err := pick(named("llama"), main, "gw", `{"model":"x"}`); err != nil || !slices.Contains(all, to) {
		t.Errorf("%s %v", to, err)
	}
	if to, body, err := pick(named("theirs"), main, "gw", `{"model":"x"}`); err != nil || to != "404" && to != "503" {
		t.Errorf("a pool of another picker: %s %s %v", to, body, err)
	}
	// A pool that names our Service from now on, and one that does no more.
	apply("theirs", "ours-epp")
	kubetest.Eventually(t, func() string {
		to, body, err := pick(named("theirs"), main, "gw", `{"model":"x"}`)
		if err != nil || !slices.Contains(all, to) {
			return fmt.Sprint(to, body, err)
		}
		return ""
	})
	apply("theirs", "another")
	apply("llama", "another")
	serving(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	if err := stop(); err != nil {
		t.Error(err)
	}

	// One pool, whoever is named as its picker.
	main, health, _ = r.picker(func(o *PickerOptions) { o.Pool = r.ns + "/llama" })
	serving(grpc_health_v1.HealthCheckResponse_SERVING)
	if to, _, err := pick(ctx, main, "gw", `{"model":"x"}`); err != nil || !slices.Contains(all, to) {
		t.Errorf("%s %v", to, err)
	}
}

// TestRolesOfPods: pods whose label of llm-d says that they compute prompts or pictures
// are named to the sidecar of the one that answers, whatever the call, while they are
// ready.
func TestRolesOfPods(t *testing.T) {
	r := newRig(t)
	kubetest.Published(t, r.api, kubetest.InferenceExtension)
	kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(strings.Replace(pickerPool, ", {number: %d}", "", 1), "llama", 8000, "epp"))
	pods := map[string]*corev1.Pod{}
	for i, role := range []string{"decode", "prefill", "encode"} {
		pods[role] = r.pod(role, map[string]string{"app": "llama", "llm-d.ai/role": role}, corev1.ConditionFalse)
		r.readiesAt(pods[role], fmt.Sprint("192.0.2.", i+2), corev1.ConditionTrue)
	}
	main, _, _ := r.picker(func(o *PickerOptions) { o.Pool = r.ns + "/llama" })
	asked := 0
	// sets asks for a new prompt of 5,000 bytes, and returns where it goes and who helps.
	sets := func(path, form string) string {
		t.Helper()
		asked++
		body := fmt.Sprintf(form, strings.Repeat(fmt.Sprintf("%04d ", asked), 1000))
		set, _, done, err := process(t.Context(), main, body, [][2]string{{":method", "POST"}, {":path", path}, {":authority", "gw"}, {"x-prefiller-host-port", "10.6.6.6:80"}}...)
		done()
		return fmt.Sprint(set["x-gateway-destination-endpoint"], set["x-prefiller-host-port"], set["x-encoder-hosts-ports"], err)
	}
	const picture = `{"model":"llama","messages":[{"role":"user","content":[{"type":"text","text":%q},{"type":"image_url","image_url":{"url":"data:,x"}}]}]}`
	becomes := func(path, form, want string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			if got := sets(path, form); got != want {
				return fmt.Sprintf("%s: %s, want %s", path, got, want)
			}
			return ""
		})
	}
	becomes("/v1/chat/completions", picture, fmt.Sprint("127.0.0.2:8000", "127.0.0.3:8000", "127.0.0.4:8000", nil))
	for path, form := range map[string]string{
		"/v1/chat/completions": `{"model":"llama","messages":[{"role":"user","content":%q}]}`,
		"/v1/completions":      `{"model":"llama","prompt":%q}`,
		"/v1/responses":        `{"model":"llama","input":%q}`,
		"/v1/messages":         `{"model":"llama","max_tokens":5,"messages":[{"role":"user","content":%q}]}`,
	} {
		if got, want := sets(path, form), fmt.Sprint("127.0.0.2:8000", "127.0.0.3:8000", "", nil); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	r.readiesAt(pods["prefill"], "192.0.2.3", corev1.ConditionFalse)
	becomes("/v1/chat/completions", picture, fmt.Sprint("127.0.0.2:8000", "", "127.0.0.4:8000", nil))
	pods["encode"].Labels["llm-d.ai/role"] = "encode-prefill"
	r.update(pods["encode"])
	becomes("/v1/chat/completions", picture, fmt.Sprint("127.0.0.2:8000", "127.0.0.4:8000", "", nil)) // nobody encodes alone
}

// TestObjectives: the priority of llm-d's InferenceObjective counts in the picker of a
// cluster. While no endpoint has capacity, a request of one below 0 is shed, and of those
// that wait one of a higher priority goes first, whenever it came. A priority that changes
// counts from then on.
func TestObjectives(t *testing.T) {
	r := newRig(t)
	kubetest.Published(t, r.api, kubetest.InferenceExtension)
	kubetest.Client(t, "llm-d")
	m := newModel(t)
	kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(`apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llama}
spec: {selector: {matchLabels: {app: llama}}, targetPorts: [{number: %d}], endpointPickerRef: {name: ours-epp, port: {number: 9002}}}
`, m.port()))
	objective := func(name string, priority int) {
		t.Helper()
		kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(`apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: %s}
spec: {priority: %d, poolRef: {group: inference.networking.k8s.io, name: llama}}
`, name, priority))
	}
	objective("nightly", -10)
	objective("urgent", 10)
	r.pod("llama-1", map[string]string{"app": "llama"}, corev1.ConditionTrue)
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte(`apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: concurrency-detector, parameters: {maxConcurrency: 1}}]
saturationDetector: {pluginRef: concurrency-detector}
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	metrics := loopback.Reserve(t)
	main, _, _ := r.picker(func(o *PickerOptions) {
		o.Service, o.Namespaces, o.ConfigFile, o.Metrics = "ours-epp", []string{r.ns}, config, metrics
	})
	const body = `{"model":"llama","prompt":"x"}`
	var waiting sync.WaitGroup
	defer waiting.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // what waits does not wait forever
	defer cancel()
	of := func(objective string) [2]string { return [2]string{"x-llm-d-inference-objective", objective} }
	free := func() {
		t.Helper()
		kubetest.Eventually(t, func() string {
			if to, body, err := pick(ctx, main, "gw", body, of("nightly")); err != nil || !strings.HasPrefix(to, "127.0.0.1:") {
				return fmt.Sprint(to, body, err)
			}
			return ""
		})
	}
	free()
	_, _, done, err := converse(ctx, main, "gw", body) // the one request that the endpoint takes at a time
	if err != nil {
		t.Fatal(err)
	}
	order := make(chan string, 2)
	wait := func(name string, nth int) {
		waiting.Go(func() {
			to, body, done, err := converse(ctx, main, "gw", body, of(name))
			if err != nil || !strings.HasPrefix(to, "127.0.0.1:") {
				t.Errorf("%s: %s %s %v", name, to, body, err)
			}
			order <- name
			done()
		})
		waits := fmt.Sprintf("\nroundhouse_endpoint_picker_buffered_bytes %d\n", nth*len(body)) // bodies that wait
		kubetest.Eventually(t, func() string {
			resp, err := http.Get("http://" + metrics + "/metrics")
			if err != nil {
				return err.Error()
			}
			defer resp.Body.Close()
			if text, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(text), waits) {
				return fmt.Sprintf("%s does not wait: %v", name, err)
			}
			return ""
		})
	}
	wait("", 1)
	wait("urgent", 2)
	soon, late := context.WithTimeout(ctx, 20*time.Second)
	defer late()
	if to, body, err := pick(soon, main, "gw", body, of("nightly")); err != nil || to != "429" {
		t.Fatalf("of a priority below 0: %s %s %v", to, body, err)
	}
	done()
	waiting.Wait()
	if first := <-order; first != "urgent" {
		t.Errorf("%q was first", first)
	}
	free()

	if _, _, done, err = converse(ctx, main, "gw", body); err != nil {
		t.Fatal(err)
	}
	defer done()
	objective("urgent", -1)
	kubetest.Eventually(t, func() string {
		soon, cancel := context.WithTimeout(ctx, time.Second) // before it is known the request waits
		defer cancel()
		if to, body, err := pick(soon, main, "gw", body, of("urgent")); err != nil || to != "429" {
			return fmt.Sprint(to, body, err)
		}
		return ""
	})
}

func TestPickerUsage(t *testing.T) {
	for want, change := range map[string]func(*PickerOptions){
		"name either the InferencePool":   func(*PickerOptions) {},
		"or the picker's own Service":     func(o *PickerOptions) { o.Pool, o.Service = "a/b", "c" },
		"--namespace goes with --service": func(o *PickerOptions) { o.Pool, o.Namespaces = "a/b", []string{"c"} },
		"want NAMESPACE/NAME":             func(o *PickerOptions) { o.Pool = "/b" },
		"no effect without --secure-serving": func(o *PickerOptions) {
			o.Pool, o.Secure, o.TLSCert, o.TLSKey = "a/b", false, "/nonexistent", "/nonexistent"
		},
	} {
		var o PickerOptions
		o.Flags(pflag.NewFlagSet("test", pflag.PanicOnError))
		o.Out, o.Logs = io.Discard, io.Discard
		change(&o)
		if err := RunPicker(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestPickedKinds: a picker reads the kinds that its role in the chart lists, and none
// besides: it would wait for those for ever.
func TestPickedKinds(t *testing.T) {
	listed := map[string]bool{}
	for _, group := range []string{"inference.networking.k8s.io", "inference.networking.x-k8s.io"} {
		for _, kind := range []string{"InferencePool", "InferenceModel", "InferenceObjective", "InferenceModelRewrite"} {
			listed[group+"/"+kind] = true
		}
	}
	listed["llm-d.ai/InferenceObjective"], listed["llm-d.ai/InferenceModelRewrite"] = true, true
	pools := 0
	for _, k := range objects.Kinds {
		if name := k.Group + "/" + k.Kind; picked(k) && !listed[name] {
			t.Errorf("%s is read, and not listed", name)
		}
		if picked(k) && k.Kind == "InferencePool" {
			pools++
		}
	}
	if pools == 0 {
		t.Error("no InferencePool is read")
	}
}
