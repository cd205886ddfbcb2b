package shape

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

var update = flag.Bool("update", false, "write the golden files anew")

const image = "registry.example/roundhouse:v1"

// everything is what a cluster can have installed.
var everything = Options{LeaderWorkerSets: true,
	Accounts: map[string]Account{
		"sa": {Secrets: []string{"sa-token-x7f2p", "s3creds", "hf", "s3creds"},
			Annotations: map[string]string{"serving.kserve.io/s3-endpoint": "minio.team:9000", "serving.kserve.io/s3-usehttps": "0", "serving.kserve.io/s3-region": "us-1"}},
		"google": {Secrets: []string{"gcs", "google-dockercfg-b7kq9"}},
	}, Owner: &metav1.OwnerReference{APIVersion: "serving.kserve.io/v1beta1",
		Kind: "InferenceService", Name: "owner", UID: "11111111-2222-3333-4444-555555555555", Controller: new(true)}}

// revision renders the one service of a manifest, on the runtimes in it and
// those of the catalog.
func revision(t testing.TB, file, manifest string) workload.Revision {
	t.Helper()
	read := dialect.Read(file, []byte(manifest))
	if bad := read.Errors(dialect.Kubernetes); len(bad) > 0 {
		t.Fatal(bad)
	}
	runtimes, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	var svc *service.Service
	for _, o := range read.Objects {
		if o.Runtime != nil {
			o.Runtime.Scope = service.ScopeCluster
			runtimes = append(runtimes, *o.Runtime)
		}
		if o.Service != nil {
			svc = o.Service
		}
	}
	in := workload.Input{Service: svc, Cluster: true, Image: image, Protocol: svc.Protocol, Delivery: workload.Delivery{Beside: true, StoreSize: "80%"}}
	if m := svc.Model; m != nil {
		in.URI, in.Parts, in.Attributes = m.URI, m.Parts, m.Attributes
		if m.Ref != nil {
			in.URI = "hf://org/" + m.Ref.Name
		}
		for _, a := range m.Adapters {
			in.Adapters = append(in.Adapters, workload.Adapter{Name: a.Name, URI: a.URI, Rank: a.Rank})
		}
	}
	for _, o := range read.Objects {
		if o.StorageContainer != nil && o.StorageContainer.Fetches(in.URI) {
			in.Brought = map[string]corev1.Container{in.URI: o.StorageContainer.Container}
		}
	}
	for _, role := range service.Roles {
		if c := svc.Components.Get(role); c != nil && len(c.Parts) > 0 {
			if in.Files == nil {
				in.Files = map[service.Role]workload.Model{}
			}
			in.Files[role] = workload.Model{URI: c.Parts[0].URI, Parts: c.Parts}
		}
	}
	for i := range runtimes {
		runtimes[i] = workload.Adapted(runtimes[i], runtimes)
	}
	if !svc.Custom {
		chosen := selection.Choose(selection.Request{Service: svc, Attributes: in.Attributes}, runtimes, selection.Host{Cluster: true})
		if chosen.Chosen == nil {
			t.Fatalf("%s: %s", file, chosen.Message)
		}
		in.Runtime, in.Protocol = chosen.Chosen.Runtime, chosen.Protocol
		in.Choice = service.RuntimeChoice{Name: in.Runtime.Name, Scope: in.Runtime.Scope}
	}
	rev, err := workload.Render(in)
	if err != nil {
		t.Fatal(err)
	}
	// Stored and read again, as a controller has it.
	raw, err := json.Marshal(rev)
	if err != nil {
		t.Fatal(err)
	}
	var out workload.Revision
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// each calls f for every object.
func (o *Objects) each(f func(any, *metav1.ObjectMeta)) {
	for i := range o.Deployments {
		f(&o.Deployments[i], &o.Deployments[i].ObjectMeta)
	}
	for i := range o.Groups {
		f(&o.Groups[i], &o.Groups[i].ObjectMeta)
	}
	for i := range o.Services {
		f(&o.Services[i], &o.Services[i].ObjectMeta)
	}
	for i := range o.Lists {
		f(&o.Lists[i], &o.Lists[i].ObjectMeta)
	}
	for i := range o.Budgets {
		f(&o.Budgets[i], &o.Budgets[i].ObjectMeta)
	}
	for i := range o.Scalers {
		f(&o.Scalers[i], &o.Scalers[i].ObjectMeta)
	}
	for i := range o.Accounts {
		f(&o.Accounts[i], &o.Accounts[i].ObjectMeta)
	}
	for i := range o.Roles {
		f(&o.Roles[i], &o.Roles[i].ObjectMeta)
	}
	for i := range o.Bindings {
		f(&o.Bindings[i], &o.Bindings[i].ObjectMeta)
	}
}

// TestGolden renders the manifests of testdata.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.in")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := Render(revision(t, file, string(raw)), everything)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		objects.each(func(o any, _ *metav1.ObjectMeta) {
			raw, err := yaml.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			out.WriteString("---\n" + string(raw))
		})
		golden := strings.TrimSuffix(file, ".in") + ".yaml"
		if *update {
			if err := os.WriteFile(golden, []byte(out.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if out.String() != string(want) {
			t.Errorf("%s differs; run with -update and look at the difference:\n%s", golden, out.String())
		}
	}
}

// one is a service over a container and a model.
func one(name, uri, extra string) string {
	return `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: ` + name + `, namespace: team}
spec: {predictor: {model: {modelFormat: {name: xgboost}, protocolVersion: v2, runtime: kserve-xgbserver, storageUri: "` + uri + `"` + extra + `}}}
`
}

func TestRefusals(t *testing.T) {
	rev := func(uri string) workload.Revision {
		r := revision(t, "x.yaml", one("iris", "s3://a/b", ""))
		r.Model.URI = uri
		return r
	}
	bare := rev("s3://a/b")
	bare.Image = ""
	nothing := rev("s3://a/b")
	nothing.Components[0].Pod.Containers = nil
	word := rev("s3://a/b")
	word.Components[0].Pod.Containers[0].Image = OwnImage
	together := rev("s3://a/b")
	together.Model.Parts = service.Parts{{URI: "s3://a/b", Path: "/mnt/models"}, {URI: "pvc://a/c", Path: "/mnt/models/x"}}
	nodes := rev("s3://a/b")
	nodes.Components[0].Worker = &workload.Node{Pod: nodes.Components[0].Pod, Main: nodes.Components[0].Main, Size: 1}
	for _, c := range []struct {
		rev  workload.Revision
		says string
	}{
		{rev("file:///models/iris"), "bucket"},
		{rev("/models/iris"), "bucket"},
		{rev("upload://abc"), "uploaded to one machine"},
		{rev("pvc://"), "pvc://CLAIM/PATH"},
		{rev("pvc://other:claim/x"), "own namespace"},
		{rev("pvc://team:/x"), "pvc://CLAIM/PATH"},
		{rev("pvc://claim/../x"), "leaves the volume"},
		{bare, "--image"},
		{nothing, "no container to run"},
		{word, "--image"},
		{together, "pvc://a/c is mounted, at /mnt/models/x, and s3://a/b cannot lie in one folder with it, at /mnt/models"},
		{nodes, "install sigs.k8s.io/lws"},
	} {
		_, err := Render(c.rev, Options{})
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "team/iris: engine: ") {
			t.Errorf("%q: %v, want %q", c.rev.Model.URI, err, c.says)
		}
	}
}

// TestPinned: what Deployments were applied from does not hang on how this
// version renders, nor on counts.
func TestPinned(t *testing.T) {
	applied := func(rev workload.Revision, o Options) string {
		objects, err := Render(rev, o)
		if err != nil {
			t.Fatal(err)
		}
		return objects.Deployments[0].Annotations[AnnotationApplied]
	}
	rev := revision(t, "x.yaml", one("iris", "s3://a/b", ""))
	base := applied(rev, Options{})
	rev.Components[0].Limits.Max = 9
	rev.Components[0].Limits.StartupTimeout = time.Hour
	if applied(rev, Options{}) != base {
		t.Error("limits count")
	}
	if applied(rev, everything) == base {
		t.Error("the owner does not count")
	}
	rev.Hash = "another"
	if applied(rev, Options{}) == base {
		t.Error("the revision does not count")
	}
}

// TestCanaryRouter: a router finds its own revision's engines alone.
func TestCanaryRouter(t *testing.T) {
	raw, err := os.ReadFile("testdata/disaggregated.in")
	if err != nil {
		t.Fatal(err)
	}
	rev := revision(t, "disaggregated.in", string(raw))
	found := map[string]string{}
	for _, k := range []service.Key{rev.Service, rev.Service.Canary()} {
		rev.Service = k
		objects, err := Render(rev, everything)
		if err != nil {
			t.Fatal(err)
		}
		var label, args string
		for _, d := range objects.Deployments {
			if d.Labels[LabelRole] == string(service.RoleEngine) {
				label = d.Spec.Template.Labels[labelOME]
			}
			if d.Labels[LabelRole] == string(service.RoleRouter) {
				args = strings.Join(d.Spec.Template.Spec.Containers[0].Args, " ")
			}
		}
		if strings.Count(args, labelOME+"="+label) != 2 || found[label] != "" {
			t.Errorf("%s: engines are %q, the router looks for %s", k, label, args)
		}
		found[label] = args
	}
}

func BenchmarkRender(b *testing.B) {
	rev := revision(b, "x.yaml", one("iris", "s3://a/b", ""))
	for b.Loop() {
		if _, err := Render(rev, everything); err != nil {
			b.Fatal(err)
		}
	}
}

func TestPorts(t *testing.T) {
	for _, c := range []struct {
		ports      string
		protocol   service.Protocol
		http, grpc int32
	}{
		{"", service.ProtocolV1, 8080, 0},
		{"", service.ProtocolGRPCV2, 0, 8081},
		{"[{containerPort: 9000}]", service.ProtocolV2, 9000, 0},
		{"[{containerPort: 9000}]", service.ProtocolGRPCV1, 0, 9000},
		{"[{name: h2c, containerPort: 9000}]", service.ProtocolV2, 0, 9000},
		{"[{name: http1, containerPort: 8080}, {name: grpc-port, containerPort: 9000}]", service.ProtocolGRPCV2, 8080, 9000},
		{"[{name: metrics, containerPort: 8002}, {containerPort: 8000}, {containerPort: 8001}]", service.ProtocolV2, 8000, 0},
		{"[{name: rdma, containerPort: 1, protocol: UDP}]", service.ProtocolV2, 8080, 0},
	} {
		extra := ""
		if c.ports != "" {
			extra = ", ports: " + c.ports
		}
		rev := revision(t, "x.yaml", one("iris", "s3://a/b", extra))
		if http, grpc := Ports(rev.Components[0], c.protocol); http != c.http || grpc != c.grpc {
			t.Errorf("%s over %s: %d, %d, want %d, %d", c.ports, c.protocol, http, grpc, c.http, c.grpc)
		}
	}
}

func TestProbesAndGoodbye(t *testing.T) {
	pod := func(extra string, edit func(*corev1.PodSpec)) (corev1.PodSpec, *corev1.Container) {
		rev := revision(t, "x.yaml", one("iris", "s3://a/b", extra))
		rev.Components[0].Limits.StartupTimeout = 25 * time.Minute
		if edit != nil {
			edit(&rev.Components[0].Pod)
		}
		objects, err := Render(rev, Options{})
		if err != nil {
			t.Fatal(err)
		}
		p := objects.Deployments[0].Spec.Template.Spec
		return p, container(&p, "kserve-container")
	}
	_, c := pod("", nil)
	if s := c.StartupProbe; s.PeriodSeconds*s.FailureThreshold != 1500 || s.HTTPGet.Path != "/v2/health/ready" {
		t.Errorf("a budget of 25 minutes is %+v", s)
	}
	if c.Lifecycle.PreStop.Sleep.Seconds != lingers || c.LivenessProbe != nil {
		t.Errorf("%+v", c)
	}
	_, c = pod(", livenessProbe: {periodSeconds: 30}, readinessProbe: {httpGet: {path: /mine, port: 8080}, periodSeconds: 7}, lifecycle: {preStop: {exec: {command: [x]}}}", nil)
	if c.LivenessProbe.HTTPGet == nil || c.LivenessProbe.PeriodSeconds != 30 || c.ReadinessProbe.PeriodSeconds != 7 ||
		c.StartupProbe.HTTPGet.Path != "/mine" || c.Lifecycle.PreStop.Exec == nil {
		t.Errorf("what the container says is not kept: %+v", c)
	}
	if _, c = pod("", func(p *corev1.PodSpec) { p.TerminationGracePeriodSeconds = new(int64(2)) }); c.Lifecycle != nil {
		t.Error("the pod lingers longer than it may")
	}
	p, _ := pod("", func(p *corev1.PodSpec) { p.ServiceAccountName = "mine"; p.EnableServiceLinks = new(true) })
	if p.AutomountServiceAccountToken != nil || !*p.EnableServiceLinks {
		t.Error("what the pod says is not kept")
	}
}

// TestLastWords checks that the pod's status keeps the end of a failed
// container's log, unless the manifest says otherwise.
func TestLastWords(t *testing.T) {
	pod := &corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: Fetcher}},
		Containers:     []corev1.Container{{Name: "a"}, {Name: "b", TerminationMessagePolicy: corev1.TerminationMessageReadFile}},
	}
	lastWords(pod)
	for c, want := range map[*corev1.Container]corev1.TerminationMessagePolicy{
		&pod.InitContainers[0]: corev1.TerminationMessageFallbackToLogsOnError,
		&pod.Containers[0]:     corev1.TerminationMessageFallbackToLogsOnError,
		&pod.Containers[1]:     corev1.TerminationMessageReadFile,
	} {
		if c.TerminationMessagePolicy != want {
			t.Errorf("%s: %s, want %s", c.Name, c.TerminationMessagePolicy, want)
		}
	}
}
