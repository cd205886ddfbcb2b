package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// options are those of a controller that leads alone.
func options(t *testing.T, namespaces ...string) controllerOptions {
	t.Helper()
	o := controllerOptions{image: "registry.example/roundhouse:1", gatewayURL: "http://{name}.{namespace}.example.com", gatewayService: "roundhouse-gateway",
		gatewayAccount: "roundhouse-gateway", system: "default", report: "127.0.0.1:0", lease: defaultLease, adopt: []string{"kserve", "ome", "gateway"}, namespaces: namespaces}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	return o
}

// running is a controller in this process.
type running struct {
	*operator
	stop func() error
}

// begin starts a controller and waits until it leads.
func begin(t *testing.T, o controllerOptions, cfg *rest.Config) *running {
	t.Helper()
	r := launch(t, o, cfg)
	select {
	case <-r.led:
	case <-time.After(time.Minute):
		t.Fatal("it does not lead")
	}
	return r
}

func launch(t *testing.T, o controllerOptions, cfg *rest.Config) *running {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	ctx, cancel := context.WithCancel(context.Background())
	op, err := newOperator(ctx, o, cfg, log)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- op.Run(ctx) }()
	stopped := false
	r := &running{operator: op, stop: func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if err := op.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

const iris = `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: iris}
spec:
  model: {uri: s3://models/iris, format: {name: xgboost}}
  scaling: {minReplicas: 1, maxReplicas: 3}
`

// The guides' own, with the indentation that a web page loses.
const (
	kserveSklearn = `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: example-sklearn-isvc}
spec:
  predictor:
    model:
      modelFormat: {name: sklearn}
      storageUri: s3://bucket/sklearn/mnist.joblib
      runtime: kserve-mlserver
`
	omeMistral = `
apiVersion: ome.io/v1beta1
kind: ClusterBaseModel
metadata: {name: mistral-7b-instruct}
spec:
  vendor: mistralai
  modelType: mistral
  modelArchitecture: MistralForCausalLM
  modelParameterSize: 7.25B
  modelFormat: {name: safetensors, version: "1.0.0"}
  modelFramework: {name: transformers, version: 4.36.2}
  storage: {storageUri: hf://mistralai/Mistral-7B-Instruct-v0.3}
---
apiVersion: ome.io/v1beta1
kind: ClusterServingRuntime
metadata: {name: srt-mistral-7b-instruct}
spec:
  supportedModelFormats:
  - modelFramework: {name: transformers, version: 4.36.2}
    modelFormat: {name: safetensors, version: "1.0.0"}
    modelArchitecture: MistralForCausalLM
    autoSelect: true
    priority: 1
  protocolVersions: [openAI]
  modelSizeRange: {max: 9B, min: 5B}
  engineConfig:
    runner:
      name: ome-container
      image: docker.io/lmsysorg/sglang:v0.4.8.post1-cu126
      command: [python3, -m, sglang.launch_server, --port, "8080"]
---
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: mistral-7b-instruct}
spec:
  engine: {minReplicas: 1, maxReplicas: 1}
  model: {name: mistral-7b-instruct}
  runtime: {name: srt-mistral-7b-instruct}
`
)

func get(t *testing.T, c client.Client, u *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	out := &unstructured.Unstructured{}
	out.SetGroupVersionKind(u.GroupVersionKind())
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(u), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func field(u *unstructured.Unstructured, path ...string) string {
	v, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	return fmt.Sprint(v)
}

// lists of what a service is made of, by a word for each.
func made(t *testing.T, c client.Client, ns, name string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for word, l := range map[string]client.ObjectList{"records": &appsv1.ControllerRevisionList{}, "deployments": &appsv1.DeploymentList{},
		"services": &corev1.ServiceList{}, "budgets": &policyv1.PodDisruptionBudgetList{}} {
		if err := c.List(t.Context(), l, client.InNamespace(ns), client.MatchingLabels{shape.LabelService: shape.LabelValue(name)}); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		var items struct {
			Items []metav1.PartialObjectMetadata
		}
		if err := json.Unmarshal(text, &items); err != nil {
			t.Fatal(err)
		}
		for _, i := range items.Items {
			if len(i.OwnerReferences) != 1 || i.OwnerReferences[0].Name != name {
				t.Errorf("%s %s has the owners %v", word, i.Name, i.OwnerReferences)
			}
			out[word]++
		}
	}
	return out
}

// TestEveryDialect takes manifests of three dialects from their application to
// their end.
func TestEveryDialect(t *testing.T) {
	c := kubetest.Client(t, "kserve", "ome", "gie")
	ns := kubetest.Namespace(t, c, nil)
	begin(t, options(t), kubetest.Server(t))
	for _, m := range []struct {
		manifest, runtime string
		status            []string
		want              string
	}{
		{iris, "roundhouse", []string{"status", "model", "state"}, "Pending"},
		{kserveSklearn, "kserve-mlserver", []string{"status", "clusterServingRuntimeName"}, "kserve-mlserver"},
		{omeMistral, "srt-mistral-7b-instruct", []string{"status", "modelStatus", "transitionStatus"}, "InProgress"},
	} {
		applied := kubetest.Apply(t, c, ns, m.manifest)
		u := applied[len(applied)-1]
		kubetest.Eventually(t, func() string {
			if got := field(get(t, c, u), m.status...); got != m.want {
				return fmt.Sprintf("%s is %s, not %s: %v", strings.Join(m.status, "."), got, m.want, get(t, c, u).Object["status"])
			}
			return ""
		})
		now := get(t, c, u)
		if got := field(now, "status", "observedGeneration"); got != fmt.Sprint(u.GetGeneration()) {
			t.Errorf("%s: observedGeneration %s of %d", u.GetKind(), got, u.GetGeneration())
		}
		if got, want := field(now, "status", "url"), "http://"+u.GetName()+"."+ns+".example.com"; got != want {
			t.Errorf("url %s, not %s", got, want)
		}
		if got := made(t, c, ns, u.GetName()); got["records"] != 1 || got["deployments"] != 1 || got["services"] != 1 {
			t.Errorf("%s: made %v", u.GetName(), got)
		}
		kubetest.Eventually(t, func() string { return lacks(events(t, c, u), "RuntimeSelected", "RevisionMade", "Scaled") })
		var d appsv1.Deployment
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: shape.Name(service.Key{Namespace: ns, Name: u.GetName()}, service.RoleEngine)}, &d); err != nil {
			t.Fatal(err)
		}
		if n := *d.Spec.Replicas; n != 1 {
			t.Errorf("%s has %d replicas", d.Name, n)
		}
		if err := c.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		kubetest.Eventually(t, func() string {
			if left := made(t, c, ns, u.GetName()); len(left) > 0 {
				return fmt.Sprintf("nothing left, not %v", left)
			}
			return ""
		})
	}
}

func events(t *testing.T, c client.Client, u *unstructured.Unstructured) (out []string) {
	t.Helper()
	var l eventsv1.EventList
	if err := c.List(t.Context(), &l, client.InNamespace(u.GetNamespace())); err != nil {
		t.Fatal(err)
	}
	for _, e := range l.Items {
		if e.Regarding.Kind == u.GetKind() && e.Regarding.Name == u.GetName() {
			out = append(out, e.Reason+" "+e.Note)
		}
	}
	return out
}

// lacks names the first prefix that no line has.
func lacks(lines []string, prefixes ...string) string {
	for _, p := range prefixes {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, p) }) {
			return fmt.Sprintf("%s among %q", p, lines)
		}
	}
	return ""
}

// TestRestartWritesNothing, nor does a controller of another release, whose
// image is another.
func TestRestartWritesNothing(t *testing.T) {
	const n = 50
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	o := options(t)
	cfg := kubetest.Server(t)
	writes := kubetest.Count(cfg)
	first := begin(t, o, cfg)
	var all []*unstructured.Unstructured
	for i := range n {
		text := iris
		if i%2 == 1 {
			text = kserveSklearn
		}
		all = append(all, kubetest.Apply(t, c, ns, strings.NewReplacer("name: iris", fmt.Sprintf("name: iris-%d", i), "example-sklearn-isvc", fmt.Sprintf("sklearn-%d", i)).Replace(text))...)
	}
	kubetest.Eventually(t, func() string {
		for _, u := range all {
			if field(get(t, c, u), "status", "observedGeneration") != "1" || made(t, c, ns, u.GetName())["deployments"] != 1 {
				return "status of " + u.GetName()
			}
		}
		return ""
	})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f writes a service", float64(len(writes.Take()))/n)
	for _, image := range []string{"", "registry.example/roundhouse:2"} {
		o := o
		if image != "" {
			o.image = image
		}
		cfg := kubetest.Server(t)
		writes := kubetest.Count(cfg)
		again := begin(t, o, cfg)
		// A change that comes after all else has been looked at.
		probe := kubetest.Apply(t, c, ns, strings.Replace(iris, "name: iris", "name: probe", 1))[0]
		kubetest.Eventually(t, func() string {
			if field(get(t, c, probe), "status", "revision") == "<nil>" {
				return "status of the probe"
			}
			return ""
		})
		if err := c.Delete(t.Context(), probe); err != nil {
			t.Fatal(err)
		}
		kubetest.Eventually(t, func() string { return strings.Join(keys(made(t, c, ns, "probe")), " ") })
		if err := again.stop(); err != nil {
			t.Fatal(err)
		}
		var wrote []string
		for _, w := range writes.Take() {
			if !strings.Contains(w, "probe") && !strings.Contains(w, "/events") && !strings.Contains(w, certificateName) && !strings.HasSuffix(w, "/secrets") && !strings.HasSuffix(w, "/configmaps") {
				wrote = append(wrote, w)
			}
		}
		// The record of the probe is created in a collection.
		wrote = slices.DeleteFunc(wrote, func(w string) bool {
			return strings.HasPrefix(w, "POST ") && strings.HasSuffix(w, "/controllerrevisions")
		})
		if len(wrote) > 0 {
			t.Errorf("image %q: a restart wrote %d times: %v", image, len(wrote), wrote)
		}
	}
}

func keys(m map[string]int) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

// TestRuntimesStayInTheirNamespace: what one tenant brings, another does not see.
func TestRuntimesStayInTheirNamespace(t *testing.T) {
	c := kubetest.Client(t)
	mine, theirs := kubetest.Namespace(t, c, nil), kubetest.Namespace(t, c, nil)
	begin(t, options(t), kubetest.Server(t))
	kubetest.Apply(t, c, theirs, "{apiVersion: roundhouse.dev/v1alpha1, kind: ServingRuntime, metadata: {name: secret}, spec: {supportedModelFormats: [{name: odd, autoSelect: true}], engine: {image: i}}}")
	odd := strings.Replace(iris, "xgboost", "odd", 1)
	u, v := kubetest.Apply(t, c, mine, odd)[0], kubetest.Apply(t, c, theirs, odd)[0]
	kubetest.Eventually(t, func() string {
		if got := field(get(t, c, v), "status", "runtime", "name"); got != "secret" {
			return "its own runtime, not " + got
		}
		return ""
	})
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, u), "Ready"); !strings.Contains(got, "NoSupportingRuntime") || strings.Contains(got, "secret") {
			return "no runtime, and no word of another's, not " + got
		}
		return ""
	})
}

func condition(u *unstructured.Unstructured, kind string) string {
	cs, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range cs {
		if m, ok := c.(map[string]any); ok && m["type"] == kind {
			return fmt.Sprint(m)
		}
	}
	return ""
}

// TestQuota shows a refusal of the API server in the status, and heals when
// there is room.
func TestQuota(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	t.Parallel()
	none := corev1.ResourceList{"count/deployments.apps": resource.MustParse("0")}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}
	if err := c.Create(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	q.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none} // there is no controller to count
	if err := c.Status().Update(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	begin(t, options(t, ns), kubetest.Server(t))
	u := kubetest.Apply(t, c, ns, iris)[0]
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, u), "Ready"); !strings.Contains(got, "exceeded quota: none") {
			return "the quota's refusal, not " + got
		}
		return ""
	})
	kubetest.Eventually(t, func() string { return lacks(events(t, c, u), "PlatformFailed") })
	if err := c.Delete(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if made(t, c, ns, "iris")["deployments"] != 1 {
			return "a Deployment"
		}
		return ""
	})
}

// TestBadManifest says on the object what is wrong; what ran goes on, also
// through a restart.
func TestBadManifest(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	first := begin(t, options(t), kubetest.Server(t))
	u := kubetest.Apply(t, c, ns, kserveSklearn)[0]
	uid := func() string {
		var d appsv1.Deployment
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: u.GetName() + "-engine"}, &d); err != nil {
			return ""
		}
		return fmt.Sprint(d.UID, d.Generation)
	}
	kubetest.Eventually(t, func() string {
		if uid() == "" || field(get(t, c, u), "status", "observedGeneration") != "1" {
			return "a Deployment"
		}
		return ""
	})
	before := uid()
	kubetest.Apply(t, c, ns, strings.Replace(kserveSklearn, "storageUri", "storageURI", 1))
	said := func() string {
		if got := field(get(t, c, u), "status", "modelStatus", "lastFailureInfo", "message"); !strings.Contains(got, "spec.predictor.model.storageURI") {
			return "what is wrong, not " + got
		}
		return ""
	}
	kubetest.Eventually(t, said)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	cfg := kubetest.Server(t)
	writes := kubetest.Count(cfg)
	begin(t, options(t), cfg)
	probe := kubetest.Apply(t, c, ns, iris)[0]
	kubetest.Eventually(t, func() string {
		if field(get(t, c, probe), "status", "revision") == "<nil>" {
			return "the status of another service"
		}
		return said()
	})
	if got := uid(); got != before {
		t.Errorf("the Deployment was %s, is %s", before, got)
	}
	posted := 0
	for _, w := range writes.Take() {
		if strings.Contains(w, u.GetName()) {
			t.Errorf("the restart wrote %s", w)
		}
		if strings.HasSuffix(w, "/events") {
			posted++
		}
	}
	if posted > 3 { // the other service's
		t.Errorf("%d events after the restart", posted)
	}
}

// TestRouting follows a pool from no service to one.
func TestRouting(t *testing.T) {
	c := kubetest.Client(t, "gie")
	ns := kubetest.Namespace(t, c, nil)
	o := options(t)
	o.install = []string{ownCRDs, "gie"} // there already: left as they are
	begin(t, o, kubetest.Server(t))
	pools := kubetest.Apply(t, c, ns, `
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: ours}
spec: {selector: {app: iris}}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: theirs}
spec: {selector: {matchLabels: {app: iris}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: e, port: {number: 9002}}}
`)
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, pools[0]), "Ready"); !strings.Contains(got, "NoEndpoints") {
			return "no endpoints, not " + got
		}
		return ""
	})
	kubetest.Apply(t, c, ns, strings.Replace(iris, "metadata: {name: iris}", "metadata: {name: iris, labels: {app: iris}}", 1))
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, pools[0]), "Ready"); !strings.Contains(got, "1 service: iris") {
			return "a service, not " + got
		}
		return ""
	})
	if got := get(t, c, pools[1]).Object["status"]; got != nil {
		t.Errorf("an InferencePool that no HTTPRoute of ours leads to has the status %v", got)
	}
}

// TestChange counts what one changed service costs.
func TestChange(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	cfg := kubetest.Server(t)
	writes := kubetest.Count(cfg)
	r := begin(t, options(t, ns), cfg)
	u := kubetest.Apply(t, c, ns, iris)[0]
	observed := func(generation string) func() string {
		return func() string {
			if got := field(get(t, c, u), "status", "observedGeneration"); got != generation {
				return "observedGeneration " + generation + ", not " + got
			}
			return ""
		}
	}
	kubetest.Eventually(t, observed("1"))
	kubetest.Eventually(t, func() string { return lacks(events(t, c, u), "Scaled") })
	writes.Take()
	kubetest.Apply(t, c, ns, strings.Replace(iris, "s3://models/iris", "s3://models/iris2", 1))
	kubetest.Eventually(t, observed("2"))
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	const most = 6
	if got := slices.DeleteFunc(writes.Take(), func(w string) bool { return strings.Contains(w, certificateName) }); len(got) > most {
		t.Errorf("%d writes: %v", len(got), got)
	} else {
		t.Logf("%d writes: %v", len(got), got)
	}
}

// TestAway cuts the controller off from its API server. It goes on as it was,
// and makes up for what it missed; one whose lease runs out ends.
func TestAway(t *testing.T) {
	c := kubetest.Client(t)
	ns, system := kubetest.Namespace(t, c, nil), kubetest.Namespace(t, c, nil)
	t.Parallel()
	p := newProxy(t, kubetest.Server(t))
	r := begin(t, options(t, ns), p.config)
	u := kubetest.Apply(t, c, ns, iris)[0]
	elected := options(t, ns)
	elected.elect, elected.system, elected.lease = true, system, minLease
	leads := func(u *unstructured.Unstructured) func() string {
		return func() string {
			if field(get(t, c, u), "status", "observedGeneration") != fmt.Sprint(u.GetGeneration()) {
				return "status of " + u.GetName()
			}
			return ""
		}
	}
	kubetest.Eventually(t, leads(u))
	p.cut(true)
	u = kubetest.Apply(t, c, ns, strings.Replace(iris, "s3://models/iris", "s3://models/iris2", 1))[0]
	late := kubetest.Apply(t, c, ns, strings.Replace(iris, "name: iris", "name: late", 1))[0]
	p.refusals(t, 5)
	p.cut(false)
	kubetest.Eventually(t, leads(u))
	kubetest.Eventually(t, leads(late))
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	op, err := newOperator(t.Context(), elected, p.config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = op.close() }()
	ended := make(chan error, 1)
	go func() { ended <- op.Run(t.Context()) }()
	<-op.led
	p.cut(true)
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "leader election lost") {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(3 * minLease):
		t.Error("it goes on without its lease")
	}
}

// proxy stands between a controller and its API server.
type proxy struct {
	t      *testing.T
	config *rest.Config
	mu     sync.Mutex
	away   bool
	conns  map[net.Conn]bool
	turned chan struct{} // away at the door
}

func newProxy(t *testing.T, to *rest.Config) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := strings.Trim(strings.TrimPrefix(to.Host, "https:"), "/")
	p := &proxy{t: t, config: rest.CopyConfig(to), conns: map[net.Conn]bool{}, turned: make(chan struct{}, 1000)}
	p.config.Host = "https://" + l.Addr().String()
	t.Cleanup(func() { _ = l.Close(); p.cut(true) })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			p.pass(in, target)
		}
	}()
	return p
}

func (p *proxy) pass(in net.Conn, target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		_ = in.Close()
		select {
		case p.turned <- struct{}{}:
		default:
		}
		return
	}
	out, err := net.Dial("tcp", target)
	if err != nil {
		p.t.Errorf("the API server itself: %v", err)
		_ = in.Close()
		return
	}
	p.conns[in], p.conns[out] = true, true
	for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			_ = pair[0].Close()
		}()
	}
}

func (p *proxy) cut(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
	for c := range p.conns {
		_ = c.Close()
	}
	p.conns = map[net.Conn]bool{}
}

// refusals waits until so many connections have been turned away.
func (p *proxy) refusals(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-p.turned:
		case <-time.After(20 * time.Second):
			t.Fatal("it does not try")
		}
	}
}

// TestLease has a second controller lead when the first one stops.
func TestLease(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	t.Parallel()
	o := options(t, ns)
	o.elect, o.system = true, ns
	first := begin(t, o, kubetest.Server(t))
	second := launch(t, o, kubetest.Server(t))
	kubetest.Eventually(t, func() string {
		if err := second.ready(nil); err != nil {
			return err.Error()
		}
		return ""
	})
	select {
	case <-second.led:
		t.Fatal("both lead")
	default:
	}
	stopped := time.Now()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-second.led:
		t.Logf("the second leads after %v", time.Since(stopped).Round(time.Millisecond))
	case <-time.After(20 * time.Second):
		t.Fatal("nobody leads")
	}
}

// TestUsage refuses in words what cannot be used.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--image is missing"},
		{[]string{"--image", "i", "--adopt", "kserv"}, "not a dialect"},
		{[]string{"--image", "i", "--install-crds", "x"}, "write some of roundhouse"},
		{[]string{"--image", "i", "--gateway-url", "{name}"}, "write a URL"},
		{[]string{"--image", "i", "--lease-duration", "1s"}, "write 6s or more"},
	} {
		var out, logs bytes.Buffer
		if code := run(append([]string{"controller"}, c.args...), &out, &logs); code != 2 || !strings.Contains(logs.String(), c.want) {
			t.Errorf("%v: exit %d, %s", c.args, code, logs.String())
		}
	}
	file := t.TempDir() + "/none"
	var out, logs bytes.Buffer
	if code := run([]string{"controller", "--image", "i", "--kubeconfig", file}, &out, &logs); code != 1 || !strings.Contains(logs.String(), "no API server to speak to") {
		t.Errorf("exit %d, %s", code, logs.String())
	}
}

// TestInternalModels are refused, whichever name leads there.
func TestInternalModels(t *testing.T) {
	for text, internal := range map[string]bool{
		"127.0.0.1": true, "::1": true, "169.254.169.254": true, "10.1.2.3": true, "172.16.0.1": true, "192.168.1.1": true, "100.64.0.1": true,
		"0.0.0.0": true, "::": true, "fe80::1": true, "fd00::1": true, "::ffff:10.0.0.1": true, "64:ff9b::a00:1": true, "2002:a00:1::": true, "224.0.0.1": true, "::7f00:1": true, "2001:0:a00:1::": true, "::ffff:0:a00:1": true, "255.255.255.255": true,
		"8.8.8.8": false, "2001:4860:4860::8888": false, "172.32.0.1": false,
	} {
		if got := network.Internal(netip.MustParseAddr(text)); got != internal {
			t.Errorf("%s: internal %v", text, got)
		}
	}
	i, err := newInspector(t.TempDir(), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for uri, want := range map[string]string{
		"file:///models/iris":         "pods run on any",
		"models/iris":                 "pods run on any",
		"http://localhost:1/m":        "internal address",
		"http://169.254.169.254/m":    "internal address",
		"http://[::ffff:127.0.0.1]/m": "internal address",
	} {
		_, err := i.Inspect(t.Context(), uri)
		var never interface{ NotExist() bool }
		if err == nil || !strings.Contains(err.Error(), want) || !asNotExist(err, &never) {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

func asNotExist(err error, out *interface{ NotExist() bool }) bool {
	e, ok := err.(interface{ NotExist() bool })
	*out = e
	return ok && e.NotExist()
}
