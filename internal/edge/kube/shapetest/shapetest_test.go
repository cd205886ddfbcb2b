package shapetest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// Namespaces of the golden files; caches is the one in which KServe fetches models.
const (
	team   = "team"
	models = "ml"
	caches = "kserve-localmodel-jobs"
)

// strict refuses fields that the server does not know, and stores nothing.
func strict(t *testing.T, namespaces ...*corev1.Namespace) client.Client {
	t.Helper()
	c, err := client.New(kubetest.Server(t), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range namespaces {
		if err := c.Create(t.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	return client.NewDryRunClient(client.WithFieldValidation(c, metav1.FieldValidationStrict))
}

func namespace(name string, labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func apply(t *testing.T, c client.Client, u *unstructured.Unstructured) error {
	t.Helper()
	return c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(shape.FieldManager), client.ForceOwnership)
}

// lws is the published LeaderWorkerSet of this version.
const lws = "sigs.k8s.io/lws@v0.7.0"

// groups installs LeaderWorkerSet, and says what is lacking where it cannot.
func groups(t *testing.T) (lacking string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	if err != nil {
		return fmt.Sprintf("go env GOMODCACHE: %v", err)
	}
	file := filepath.Join(strings.TrimSpace(string(out)), lws, "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml")
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return "no " + file + ": go mod download " + lws
	}
	// Polled by envtest until it is served.
	_, err = envtest.InstallCRDs(kubetest.Server(t), envtest.CRDInstallOptions{Paths: []string{file}, MaxTime: 20 * time.Second, PollInterval: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return ""
}

// TestGoldens: the server takes every object of shape's golden files.
func TestGoldens(t *testing.T) {
	c := strict(t, namespace(team, nil), namespace(models, nil), namespace(caches, nil))
	without := groups(t)
	files, err := filepath.Glob("../../../decide/shape/testdata/*.yaml")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, u := range kubetest.Parse(t, string(raw)) {
				if u.GetKind() == "LeaderWorkerSet" && without != "" {
					t.Skip(without)
				}
				if err := apply(t, c, u); err != nil {
					t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
				}
			}
		})
	}
}

// TestCatalog: the server takes the objects of every runtime of the catalog.
func TestCatalog(t *testing.T) {
	c := strict(t, namespace(team, nil))
	without := groups(t)
	runtimes, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	taken := 0
	for i := range runtimes {
		rt := &runtimes[i]
		if e := rt.Components.Engine; e == nil || len(e.Pod.Containers) == 0 && e.Leader == nil {
			continue // for one machine alone
		}
		if rt.MultiNode && without != "" {
			t.Logf("%s is left out: %s", rt.Name, without)
			continue
		}
		protocol := service.ProtocolV2
		if len(rt.Protocols) > 0 {
			protocol = rt.Protocols[0]
		}
		for _, uri := range []string{"s3://models/m", "pvc://claim/m"} {
			s := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: team, Name: "m"}}}
			rev, err := workload.Render(workload.Input{Service: s, Runtime: rt, Protocol: protocol, URI: uri, Cluster: true, Image: "registry.example/roundhouse:v1",
				Attributes: service.Attributes{Format: service.NamedVersion{Name: "sklearn"}}})
			if err != nil {
				t.Fatal(err)
			}
			objects, err := shape.Render(rev, shape.Options{LeaderWorkerSets: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range all(&objects) {
				u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
				if err != nil {
					t.Fatal(err)
				}
				delete(u, "status")
				if err := apply(t, c, &unstructured.Unstructured{Object: u}); err != nil {
					t.Errorf("%s: %v", rt.Name, err)
				}
				taken++
			}
		}
	}
	t.Logf("%d objects", taken)
	if taken < 200 {
		t.Error("too few to say anything")
	}
}

func all(o *shape.Objects) (out []any) {
	for i := range o.Deployments {
		out = append(out, &o.Deployments[i])
	}
	for i := range o.Groups {
		out = append(out, &o.Groups[i])
	}
	for i := range o.Services {
		out = append(out, &o.Services[i])
	}
	for i := range o.Budgets {
		out = append(out, &o.Budgets[i])
	}
	for i := range o.Scalers {
		out = append(out, &o.Scalers[i])
	}
	return out
}

// TestRestricted: pods of our own runtimes run where the strictest pod security
// standard is enforced.
func TestRestricted(t *testing.T) {
	c := strict(t, namespace("restricted", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}))
	for _, c2 := range []struct {
		file string
		ok   bool
	}{{"own", true}, {"claim", false}} { // what others' images may do is theirs to say
		raw, err := os.ReadFile("../../../decide/shape/testdata/" + c2.file + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range kubetest.Parse(t, string(raw)) {
			if u.GetKind() != "Deployment" {
				continue
			}
			template, _, err := unstructured.NestedMap(u.Object, "spec", "template")
			if err != nil {
				t.Fatal(err)
			}
			pod := &unstructured.Unstructured{Object: template}
			pod.SetAPIVersion("v1")
			pod.SetKind("Pod")
			pod.SetName("p")
			pod.SetNamespace("restricted")
			if err := c.Create(t.Context(), pod); (err == nil) != c2.ok {
				t.Errorf("%s: taken %v, want %v: %v", c2.file, err == nil, c2.ok, err)
			}
		}
	}
}
