package modelcaches

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// refusing has the definition of a LocalModelCache take no status as ours is, or any again.
func refusing(t *testing.T, c client.Client, of *unstructured.Unstructured, refuses bool) {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.FromAPIVersionAndKind("apiextensions.k8s.io/v1", "CustomResourceDefinition"))
	if err := c.Get(t.Context(), client.ObjectKey{Name: "localmodelcaches.serving.kserve.io"}, u); err != nil {
		t.Fatal(err)
	}
	versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
	status := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	if refuses {
		status["properties"] = map[string]any{"nodeStatus": map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string", "enum": []any{"Somewhere"}}}}
	}
	for _, v := range versions {
		if err := unstructured.SetNestedField(v.(map[string]any), status, "schema", "openAPIV3Schema", "properties", "status"); err != nil {
			t.Fatal(err)
		}
	}
	if err := unstructured.SetNestedSlice(u.Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	if err := c.Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string { // the API server takes a moment to learn of it
		probe := of.DeepCopy()
		probe.Object["status"] = map[string]any{"nodeStatus": map[string]any{"a": string(service.CacheDownloaded)}}
		if err := c.Status().Update(t.Context(), probe, client.DryRunAll); (err != nil) != refuses {
			return fmt.Sprintf("a refusal %v; it is %v", refuses, err)
		}
		return ""
	})
}

// TestStatusRefused: a status that the definition refuses is told of once an hour, in the log and
// as an event, and tried again after waits that double up to a bound; another status is tried
// at once. One of a version that is not the latest is no refusal.
func TestStatusRefused(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	recorder, log := events.NewFakeRecorder(10), &bytes.Buffer{}
	k, err := New(Config{REST: &rest.Config{}, Mapper: meta.NewDefaultRESTMapper(nil), Client: c, Reader: c, Fleet: (*fleet.Fleet)(nil),
		Manifests: func(context.Context) ([]*unstructured.Unstructured, error) { return nil, nil }, Events: recorder,
		System: "a", Image: "a", Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	u := kubetest.Apply(t, c, "", "apiVersion: serving.kserve.io/v1alpha1\nkind: LocalModelCache\nmetadata: {name: oak}\nspec: {sourceModelUri: 's3://a'}")[0]
	t.Cleanup(func() { _ = c.Delete(context.Background(), u) })
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1e9, 0)
	write := func(nodes ...string) time.Duration {
		t.Helper()
		p := &pass{Keeper: k, now: at}
		st := service.CacheStatus{Nodes: map[string]service.CacheState{}}
		for _, n := range nodes {
			st.Nodes[n] = service.CacheDownloaded
		}
		if err := p.status(t.Context(), u, st); err != nil {
			t.Fatal(err)
		}
		return p.again
	}
	told := func(want int) {
		t.Helper()
		for i := range len(recorder.Events) {
			if e := <-recorder.Events; want == 0 || i > 0 || !strings.Contains(e, "Warning ModelCacheStatusRefused") || !strings.Contains(e, "status.nodeStatus.a: Unsupported value") {
				t.Errorf("event %s", e)
			} else {
				want--
			}
		}
		if want > 0 {
			t.Error("no event")
		}
	}

	old := u.DeepCopy()
	u.SetAnnotations(map[string]string{"a": "b"})
	if err := c.Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	u, old = old, u
	if got := write("a"); got != minRetry || len(k.refused) > 0 || log.Len() > 0 {
		t.Errorf("of an old version: again in %s, %+v, %s", got, k.refused, log)
	}
	told(0)
	u = old

	refusing(t, c, u, true)
	if got := write("a"); got != minRetry {
		t.Errorf("tried again in %s", got)
	}
	told(1)
	if n := strings.Count(log.String(), "is refused"); n != 1 {
		t.Errorf("%d times in the log: %s", n, log)
	}
	want := minRetry
	for range 11 { // which is less than the hour that an event stays
		if got := write("a"); got != want {
			t.Errorf("before it is due: again in %s, want %s", got, want)
		}
		at, want = at.Add(want), min(2*want, maxRetry)
		if got := write("a"); got != want {
			t.Errorf("again in %s, want %s", got, want)
		}
	}
	if got := write("a", "b"); got != minRetry {
		t.Errorf("another status is tried again in %s", got)
	}
	if got := write("a"); got != minRetry {
		t.Errorf("the first one is tried again in %s", got)
	}
	told(0)
	at = at.Add(tellAgain)
	write("a", "b")
	told(1)

	refusing(t, c, u, false)
	at = at.Add(maxRetry)
	if again := write("a"); again != 0 || len(k.refused) > 0 {
		t.Errorf("again in %s, %+v", again, k.refused)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := unstructured.NestedString(u.Object, "status", "nodeStatus", "a"); got != string(service.CacheDownloaded) {
		t.Errorf("%v", u.Object["status"])
	}
}
