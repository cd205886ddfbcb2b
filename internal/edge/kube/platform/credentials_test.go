package platform_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// TestSecretsOfAnAccount: a model is fetched with the secrets that its service
// account names. The account is read when pods are written and at no other
// time; no secret ever is.
func TestSecretsOfAnAccount(t *testing.T) {
	f := open(t)
	k := platformtest.Key("guarded")
	a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: "keeper",
		Annotations: map[string]string{"serving.kserve.io/s3-endpoint": "minio:9000"}}, Secrets: []corev1.ObjectReference{{Name: "s3creds"}}}
	if err := f.direct.Create(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.direct.Delete(context.Background(), a) })
	with := func(salt, account string) workload.Revision {
		r := revision(k, platformtest.Server{Salt: salt, ModelURI: "s3://models/iris"})
		r.Image, r.Components[0].Pod.ServiceAccountName = "roundhouse", account
		return r
	}
	fetcher := func() string {
		var d appsv1.Deployment
		if err := f.direct.Get(t.Context(), client.ObjectKey{Namespace: k.Namespace, Name: shape.Name(k, service.RoleEngine)}, &d); err != nil {
			t.Fatal(err)
		}
		c := d.Spec.Template.Spec.InitContainers[0]
		text, err := json.Marshal([]any{c.EnvFrom, c.Env})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	asked := func(f *fixture) (out []string) {
		f.calls.mu.Lock()
		defer f.calls.mu.Unlock()
		for _, c := range f.calls.seen {
			if strings.HasPrefix(c, "GET ") && !strings.Contains(c, "deployments") && !strings.HasPrefix(c, "GET /") {
				out = append(out, c)
			}
		}
		return out
	}
	f.MustApply(with("1", "keeper"))
	const want = `[[{"secretRef":{"name":"s3creds","optional":true}}],[{"name":"ROUNDHOUSE_CREDENTIALS","value":"the service account keeper, which lists s3creds"},{"name":"S3_ENDPOINT","value":"minio:9000"}]]`
	if got := fetcher(); got != want {
		t.Errorf("fetched with %s", got)
	}
	if got := asked(f); !slices.Equal(got, []string{"GET serviceaccounts"}) {
		t.Errorf("read %v", got)
	}
	// A secret more does not restart what runs, nor does a new controller ask.
	a.Secrets = append(a.Secrets, corev1.ObjectReference{Name: "more"})
	if err := f.direct.Update(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	again := open(t)
	again.MustApply(with("1", "keeper"))
	if got := append(asked(again), again.calls.writes()...); len(got) != 0 {
		t.Errorf("a restart did %v", got)
	}
	again.MustApply(with("2", "keeper"))
	if got := fetcher(); !strings.Contains(got, `"more"`) {
		t.Errorf("the next revision fetches with %s", got)
	}
	// One that is not there has none, and its pods will say so.
	again.MustApply(with("3", "nobody"))
	if got := fetcher(); got != `[null,[{"name":"ROUNDHOUSE_CREDENTIALS","value":"the service account nobody, which lists no secret"}]]` {
		t.Errorf("without an account: %s", got)
	}
}
