package objects_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
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
	src, err := objects.New(objects.Config{Cache: c, Mapper: mapper, Records: s, Reporter: s, Adopt: adopt, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
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

// TestConflictEnds: a manifest that was refused for another counts once that
// one is gone, without anybody touching it.
func TestConflictEnds(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	s, _ := start(t)
	other := kubetest.Apply(t, c, ns, strings.ReplaceAll(iris, "iris", "other"))[0]
	is(t, s, "service", ns, "other", ownKind)
	s.mu.Lock()
	s.refuse = fmt.Errorf("it conflicts")
	s.mu.Unlock()
	kubetest.Apply(t, c, ns, iris)
	kubetest.Eventually(t, func() string {
		if r := s.refusal("ModelService " + ns + "/iris"); r.Reason != objects.ReasonConflict {
			return "no conflict"
		}
		return ""
	})
	s.mu.Lock()
	s.refuse = nil
	s.mu.Unlock()
	if err := c.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	is(t, s, "service", ns, "iris", ownKind)
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
		select {
		case k := <-s.demanded:
			if k != (service.Key{Namespace: ns, Name: "iris"}) {
				t.Errorf("%s is looked at", k)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the new status is not looked at")
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

// TestAnotherOfTheName is a new life, however fast the one follows the other.
func TestAnotherOfTheName(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	s, src := start(t)
	k := service.Key{Namespace: ns, Name: "iris"}
	var uids []string
	for range 3 {
		u := kubetest.Apply(t, c, ns, iris)[0]
		uids = append(uids, string(u.GetUID()))
		kubetest.Eventually(t, func() string {
			if owner, _ := src.Owner(k); string(owner.UID) != uids[len(uids)-1] {
				return "the new owner"
			}
			return ""
		})
		is(t, s, "service", ns, "iris", ownKind)
		if err := c.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	is(t, s, "service", ns, "iris", "")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deleted != 3 {
		t.Errorf("told of %d ends of 3", s.deleted)
	}
}

// TestForeignKindsAreAdoptedOnRequest has KServe's kinds read with the flag, or
// where a namespace says so, and installed while the source runs.
func TestForeignKindsAreAdoptedOnRequest(t *testing.T) {
	c := kubetest.Client(t)
	for _, u := range must(crds.Foreign("kserve"))(t) {
		if err := client.IgnoreNotFound(c.Delete(t.Context(), u)); err != nil {
			t.Fatal(err)
		}
	}
	by := map[string]*sink{}
	by["flag"], _ = start(t, service.DialectKServe)
	by["label"], _ = start(t)
	kubetest.Client(t, "kserve") // installed later
	plain, labelled := kubetest.Namespace(t, c, nil), kubetest.Namespace(t, c, map[string]string{objects.LabelAdopt: "ome.kserve"})
	for _, ns := range []string{plain, labelled} {
		kubetest.Apply(t, c, ns, kserveIris)
	}
	is(t, by["flag"], "service", plain, "iris", kserveKind)
	is(t, by["flag"], "service", labelled, "iris", kserveKind)
	is(t, by["label"], "service", labelled, "iris", kserveKind)
	if got := by["label"].origin("service", plain, "iris"); got != "" {
		t.Errorf("a namespace that did not ask has its manifest read as %s", got)
	}

	label := func(ns, value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, objects.LabelAdopt, value)
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: ns}}
		o.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
		if err := c.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	label(plain, "kserve")
	is(t, by["label"], "service", plain, "iris", kserveKind)
	label(plain, "ome")
	is(t, by["label"], "service", plain, "iris", "")

	for _, u := range must(crds.Foreign("kserve"))(t) {
		if err := c.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	is(t, by["flag"], "service", plain, "iris", "")
	is(t, by["label"], "service", labelled, "iris", "")
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestOneNameTwoManifests has the older count until it goes.
func TestOneNameTwoManifests(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	first := kubetest.Apply(t, c, ns, iris)
	s, _ := start(t, service.DialectKServe)
	kubetest.Apply(t, c, ns, kserveIris)
	kubetest.Eventually(t, func() string {
		if r := s.refusal("InferenceService " + ns + "/iris"); r.Reason != objects.ReasonTaken || !strings.Contains(r.Message, "older ModelService") {
			return fmt.Sprintf("a refusal, not %+v", r)
		}
		return ""
	})
	is(t, s, "service", ns, "iris", ownKind)
	if err := c.Delete(t.Context(), first[0]); err != nil {
		t.Fatal(err)
	}
	is(t, s, "service", ns, "iris", kserveKind)
	kubetest.Eventually(t, func() string {
		if r := s.refusal("InferenceService " + ns + "/iris"); r.Reason != "" {
			return fmt.Sprintf("no refusal, not %+v", r)
		}
		return ""
	})
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

// TestOtherManagers keep what they serve, until they are gone or it is handed
// over.
func TestOtherManagers(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	u := kubetest.Apply(t, c, ns, kserveIris)[0]
	patch := []byte(`{"status":{"url":"http://iris.example.com"}}`)
	if err := c.Status().Patch(t.Context(), u.DeepCopy(), client.RawPatch("application/merge-patch+json", patch), client.FieldOwner("kserve-controller-manager")); err != nil {
		t.Fatal(err)
	}
	s, _ := start(t, service.DialectKServe)
	kubetest.Eventually(t, func() string {
		r := s.refusal("InferenceService " + ns + "/iris")
		if r.Reason != objects.ReasonManaged || r.Manager != "kserve-controller-manager" || !strings.Contains(r.Message, "kubectl annotate") {
			return fmt.Sprintf("a refusal that names the manager, not %+v", r)
		}
		return ""
	})
	if got := s.origin("service", ns, "iris"); got != "" {
		t.Errorf("it was read all the same, as %s", got)
	}
	// What a person is told to type.
	hint := s.refusal("InferenceService " + ns + "/iris").Message
	at := hint[strings.LastIndex(hint, "=")+1:]
	note := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, kube.AnnotationTakeOver, at)
	if err := c.Patch(t.Context(), u.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(note))); err != nil {
		t.Fatal(err)
	}
	is(t, s, "service", ns, "iris", kserveKind)

	// One that ran goes on although somebody else writes.
	s.mu.Lock()
	s.records[service.Key{Namespace: ns, Name: "iris"}] = []byte("{}")
	s.mu.Unlock()
	patch = []byte(`{"status":{"url":"http://iris.example.org"}}`)
	kubetest.Eventually(t, func() string { // its time has whole seconds
		if err := c.Status().Patch(t.Context(), u, client.RawPatch("application/merge-patch+json", patch), client.FieldOwner("kserve-controller-manager")); err != nil {
			t.Fatal(err)
		}
		patch = fmt.Appendf(nil, `{"status":{"url":"http://%d.example.org"}}`, time.Now().UnixNano())
		if kube.OtherWriter(u) == nil {
			return "another's later write"
		}
		return ""
	})
	is(t, s, "service", ns, "iris", kserveKind)
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

// TestRevisionsAreThoseOfFiles applies every service among the examples, which
// are the guides' own, and compares the hash with the file's: what the API
// server adds must restart nothing.
func TestRevisionsAreThoseOfFiles(t *testing.T) {
	c := kubetest.Client(t, "kserve", "ome", "seldon")
	files, err := filepath.Glob("../../../../examples/manifests/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		ns := kubetest.Namespace(t, c, nil)
		// What is a schema's default may be stated, and counts as not.
		text = bytes.ReplaceAll(text, []byte("        protocol: TCP\n"), nil)
		for _, want := range dialect.Read(file, text).Objects {
			if want.Service == nil {
				continue
			}
			u := kubetest.Parse(t, string(want.Original))[0]
			u.SetNamespace(ns)
			want.Service.Namespace = ns
			a := u.GetAnnotations()
			if a == nil {
				a = map[string]string{}
			}
			a["kubectl.kubernetes.io/last-applied-configuration"] = string(want.Original)
			u.SetAnnotations(a)
			if err := c.Create(t.Context(), u); err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			got := dialect.Read("", document(t, u))
			if len(got.Objects) != 1 {
				t.Errorf("%s as the API has it: %v", file, got.Problems)
				continue
			}
			compared++
			if a, b := want.Service, got.Objects[0].Service; hash(a) != hash(b) {
				t.Errorf("%s: %s from the file, %s from the API", file, hash(a), hash(b))
			} else if selection.InputsHash(request(a)) != selection.InputsHash(request(b)) {
				t.Errorf("%s: the choice's inputs differ", file)
			}
		}
	}
	if compared < 8 {
		t.Errorf("only %d services compared", compared)
	}
}

func request(s *service.Service) selection.Request {
	r := selection.Request{Service: s}
	if s.Model != nil {
		r.Attributes = s.Model.Attributes
	}
	return r
}

func hash(s *service.Service) string {
	in := workload.Input{Service: s}
	if s.Model != nil {
		in.URI = s.Model.URI
	}
	return in.Hash()
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

// TestKinds holds the table to what dialect reads.
func TestKinds(t *testing.T) {
	for _, k := range objects.Kinds {
		for _, v := range k.Versions {
			res := dialect.Read("", fmt.Appendf(nil, `{"apiVersion":"%s/%s","kind":%q,"metadata":{"name":"x"}}`, k.Group, v, k.Kind))
			for _, p := range res.Problems {
				if p.Path == "apiVersion" || p.Path == "kind" {
					t.Errorf("%s/%s %s is not read: %s", k.Group, v, k.Kind, p)
				}
			}
		}
	}
	var installed []string
	ours := must(crds.Ours())(t)
	for _, p := range crds.Projects() {
		ours = append(ours, must(crds.Foreign(p))(t)...)
	}
	for _, u := range ours {
		installed = append(installed, u.GetName())
		if !slices.ContainsFunc(objects.Kinds, func(k *objects.Kind) bool { return k.CRD() == u.GetName() }) {
			t.Errorf("%s can be installed and is not read", u.GetName())
		}
	}
	for _, k := range objects.Kinds {
		if !slices.Contains(installed, k.CRD()) && k.Group != "gateway.networking.k8s.io" {
			t.Errorf("%s is read and cannot be installed", k.CRD())
		}
	}
	if shape.FieldManager == kube.NoticeManager {
		t.Error("the notice's manager must be another")
	}
}
