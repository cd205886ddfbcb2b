package objects_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// sink is told of objects of one namespace, and of the cluster's.
type sink struct {
	mu       sync.Mutex
	objects  map[fleet.ID]fleet.Object
	refusals map[string]objects.Refusal // by kind and key
	warnings map[string][]string
	records  map[service.Key][]byte
	refuse   error
	deleted  int
	applied  int
	demanded chan service.Key // nil: nobody listens
}

func (s *sink) Apply(_ context.Context, in []fleet.Object, _ fleet.ApplyOptions) ([]fleet.Change, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applied++; s.refuse != nil {
		return nil, s.refuse
	}
	var out []fleet.Change
	for _, o := range in {
		action := "created"
		if was, ok := s.objects[o.ID()]; ok && string(was.Original) == string(o.Original) {
			action = "unchanged"
		}
		s.objects[o.ID()] = o
		out = append(out, fleet.Change{ID: o.ID(), Action: action})
	}
	return out, nil
}

func (s *sink) Delete(_ context.Context, id fleet.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted++
	delete(s.objects, id)
	return nil
}

func (s *sink) Demanded(k service.Key) {
	if s.demanded != nil {
		s.demanded <- k
	}
}

func (s *sink) Refused(_ context.Context, r objects.Refusal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals[r.Kind+" "+r.Key.String()] = r
	return nil
}

func (s *sink) Accepted(r objects.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.refusals, r.Kind+" "+r.Key.String())
}

func (s *sink) Forget(r objects.Ref) { s.Accepted(r) }

func (s *sink) Warned(r objects.Ref, w []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnings[r.Kind+" "+r.Name] = append(s.warnings[r.Kind+" "+r.Name], w...)
}

func (s *sink) Manifest(k service.Key) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[k]
}

func (s *sink) Services() (out []service.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.records {
		out = append(out, k)
	}
	return out
}

// origin is the kind of manifest that an object goes by, "" for none.
func (s *sink) origin(kind, namespace, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[fleet.ID{Kind: kind, Key: service.Key{Namespace: namespace, Name: name}}]
	if !ok {
		return ""
	}
	return o.Origin.APIVersion + " " + o.Origin.Kind
}

func (s *sink) refusal(id string) objects.Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusals[id]
}

// start runs a source until the test's end, attached to a new sink.
func start(t *testing.T, adopt ...service.Dialect) (*sink, *objects.Source) {
	t.Helper()
	s := &sink{objects: map[fleet.ID]fleet.Object{}, refusals: map[string]objects.Refusal{}, warnings: map[string][]string{}, records: map[service.Key][]byte{}}
	return s, attach(t, s, adopt...)
}

func attach(t *testing.T, s *sink, adopt ...service.Dialect) *objects.Source {
	t.Helper()
	cfg := kubetest.Server(t)
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	opts := kube.CacheOptions(nil)
	opts.Scheme, opts.Mapper = kube.Scheme(), mapper
	c, err := cache.New(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	src, err := objects.New(objects.Config{Cache: c, Mapper: mapper, Records: s, Reporter: s, Adopt: adopt, ConfigMaps: must(client.New(cfg, client.Options{Scheme: kube.Scheme(), Mapper: mapper}))(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := src.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	if err := src.Attach(t.Context(), s, func(context.Context) error {
		for _, o := range src.Objects() {
			s.objects[o.ID()] = o
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return src
}

const iris = `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: iris}
spec:
  model: {uri: s3://models/iris, format: {name: xgboost}}
  scaling: {minReplicas: 1, maxReplicas: 3}
`

const kserveIris = `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    model:
      modelFormat: {name: sklearn}
      storageUri: gs://kfserving-examples/models/sklearn/1.0/model
`

// is waits until an object goes by a kind of manifest.
func is(t *testing.T, s *sink, kind, ns, name, want string) {
	t.Helper()
	kubetest.Eventually(t, func() string {
		if got := s.origin(kind, ns, name); got != want {
			return fmt.Sprintf("%s %s/%s is %q, not %q", kind, ns, name, got, want)
		}
		return ""
	})
}

// TestStatusIsNoManifest: what is written into a status is looked at, and does
// not apply the manifest again. A service that cannot be run is tried again
// whenever it is applied, and would then be tried as fast as that can be said.
func TestStatusIsNoManifest(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	s := &sink{objects: map[fleet.ID]fleet.Object{}, refusals: map[string]objects.Refusal{}, warnings: map[string][]string{}, records: map[service.Key][]byte{},
		demanded: make(chan service.Key, 100)}
	attach(t, s)
	u := kubetest.Apply(t, c, ns, iris)[0]
	is(t, s, "service", ns, "iris", ownKind)
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.applied
	}
	before := count()
	for i := range 5 {
		if err := c.Status().Patch(t.Context(), u, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"url":"http://%d"}}`, i))); err != nil {
			t.Fatal(err)
		}
		for late, seen := time.After(time.Minute), false; !seen; {
			select {
			case k := <-s.demanded: // also those of namespaces that other tests left
				seen = k == service.Key{Namespace: ns, Name: "iris"}
				if !seen && k.Namespace == ns {
					t.Errorf("%s is looked at", k)
				}
			case <-late:
				t.Fatal("the new status is not looked at")
			}
		}
	}
	if n := count() - before; n > 0 {
		t.Errorf("five statuses applied the manifest %d times", n)
	}
	kubetest.Apply(t, c, ns, strings.Replace(iris, "maxReplicas: 3", "maxReplicas: 4", 1))
	kubetest.Eventually(t, func() string {
		if count() != before+1 {
			return "a changed manifest is not applied once"
		}
		return ""
	})
}

const (
	ownKind    = "roundhouse.dev/v1alpha1 ModelService"
	kserveKind = "serving.kserve.io/v1beta1 InferenceService"
)

func TestManifestsComeAndGo(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	kubetest.Apply(t, c, ns, iris)
	s, src := start(t)
	is(t, s, "service", ns, "iris", ownKind) // there before
	owner, ok := src.Owner(service.Key{Namespace: ns, Name: "iris"})
	if !ok || owner.Kind != "ModelService" || owner.Name != "iris" || owner.UID == "" || !*owner.Controller {
		t.Errorf("owner %+v", owner)
	}
	second := kubetest.Apply(t, c, ns, strings.ReplaceAll(iris, "iris", "late"))
	is(t, s, "service", ns, "late", ownKind)
	kubetest.Apply(t, c, ns, "apiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: p}\nspec: {selector: {app: iris}}\n")
	is(t, s, "pool", ns, "p", "roundhouse.dev/v1alpha1 Pool")
	if err := c.Delete(t.Context(), second[0]); err != nil {
		t.Fatal(err)
	}
	is(t, s, "service", ns, "late", "")
	o := s.objects[fleet.ID{Kind: "service", Key: service.Key{Namespace: ns, Name: "iris"}}]
	if age := time.Since(o.Created()); age < 0 || age > time.Minute {
		t.Errorf("created %v ago", age)
	}
}

// TestBadManifests are refused in words and leave what was.
func TestBadManifests(t *testing.T) {
	c := kubetest.Client(t, "kserve", "gie")
	ns := kubetest.Namespace(t, c, nil)
	s, _ := start(t, service.DialectKServe, service.DialectGateway)
	kubetest.Apply(t, c, ns, kserveIris)
	is(t, s, "service", ns, "iris", kserveKind)
	kubetest.Apply(t, c, ns, strings.Replace(kserveIris, "storageUri", "storageURI", 1))
	kubetest.Eventually(t, func() string {
		r := s.refusal("InferenceService " + ns + "/iris")
		if r.Reason != objects.ReasonInvalid || !strings.Contains(r.Message, "spec.predictor.model.storageURI") || !strings.Contains(r.Message, "storageUri") || !r.Running {
			return fmt.Sprintf("a refusal that names the field, not %+v", r)
		}
		return ""
	})
	is(t, s, "service", ns, "iris", kserveKind) // as it was
	kubetest.Apply(t, c, ns, kserveIris)
	kubetest.Eventually(t, func() string { return s.refusal("InferenceService " + ns + "/iris").Reason })
	s.mu.Lock()
	s.refuse = fmt.Errorf("two runtimes are alike")
	s.mu.Unlock()
	kubetest.Apply(t, c, ns, `{apiVersion: roundhouse.dev/v1alpha1, kind: Route, metadata: {name: r}, spec: {models: [m], targets: [{pool: p}]}}`)
	kubetest.Eventually(t, func() string {
		if r := s.refusal("Route " + ns + "/r"); r.Message != "two runtimes are alike" {
			return fmt.Sprintf("the sink's refusal, not %+v", r)
		}
		return ""
	})
}

// TestRestart restores what is there, and of what cannot be read now what its
// record was made from.
func TestRestart(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	good := document(t, kubetest.Apply(t, c, ns, kserveIris)[0])
	kubetest.Apply(t, c, ns, strings.Replace(kserveIris, "storageUri", "storageURI", 1))
	gone, hidden := service.Key{Namespace: ns, Name: "gone"}, service.Key{Namespace: ns, Name: "hidden"}
	s := &sink{objects: map[fleet.ID]fleet.Object{}, refusals: map[string]objects.Refusal{}, warnings: map[string][]string{}, records: map[service.Key][]byte{
		{Namespace: ns, Name: "iris"}: good,
		gone:                          []byte(strings.ReplaceAll(string(good), "iris", "gone")),
		// Of a kind that was adopted and is not now.
		hidden: []byte(`{"apiVersion":"ome.io/v1beta1","kind":"InferenceService","metadata":{"name":"hidden","namespace":"` + ns + `"},"spec":{"model":{"name":"m"}}}`),
	}}
	attach(t, s, service.DialectKServe)
	is(t, s, "service", ns, "iris", kserveKind)
	for _, k := range []service.Key{gone, hidden} {
		if got := s.origin("service", ns, k.Name); got != "" {
			t.Errorf("%s is restored as %s", k, got)
		}
	}
	kubetest.Eventually(t, func() string {
		if r := s.refusal("InferenceService " + ns + "/iris"); !r.Running {
			return fmt.Sprintf("a refusal of what runs, not %+v", r)
		}
		return ""
	})
}

func document(t *testing.T, u *unstructured.Unstructured) []byte {
	t.Helper()
	doc, err := objects.Document(u)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestDocument leaves out what others than the author put in.
func TestDocument(t *testing.T) {
	u := kubetest.Parse(t, `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
  namespace: a
  uid: x
  generation: 3
  creationTimestamp: "2026-01-01T00:00:00Z"
  labels: {team: a}
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}", roundhouse.dev/take-over: "2026-01-01T00:00:00Z", owner: me}
  managedFields: [{manager: kubectl}]
spec:
  predictor:
    containers: [{name: kserve-container, image: i, ports: [{containerPort: 80, protocol: TCP}, {containerPort: 81, protocol: UDP}], livenessProbe: {grpc: {port: 80, service: ""}}}]
status: {url: x}
`)[0]
	want := `{"apiVersion":"serving.kserve.io/v1beta1","kind":"InferenceService","metadata":{"annotations":{"owner":"me"},"labels":{"team":"a"},"name":"iris","namespace":"a"},` +
		`"spec":{"predictor":{"containers":[{"image":"i","livenessProbe":{"grpc":{"port":80}},"name":"kserve-container","ports":[{"containerPort":80},{"containerPort":81,"protocol":"UDP"}]}]}}}`
	before := fmt.Sprint(u.Object)
	if got := string(document(t, u)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if fmt.Sprint(u.Object) != before {
		t.Error("the object was changed")
	}
}
