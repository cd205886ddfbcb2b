package controller

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// trained is a model that an InferenceService is to load.
func trained(name, uri, memory string) string {
	return fmt.Sprintf(`apiVersion: serving.kserve.io/v1alpha1
kind: TrainedModel
metadata: {name: %s}
spec: {inferenceService: trees, model: {framework: xgboost, storageUri: %q, memory: %s}}
`, name, uri, memory)
}

const trees = `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: trees}
spec:
  predictor:
    minReplicas: 1
    model:
      modelFormat: {name: xgboost}
      protocolVersion: v2
      resources: {limits: {memory: 256Mi}}
`

// TestTrainedModels: the models that name an InferenceService without files are listed
// for its pods, in a ConfigMap whose changes make no other pods, and have none of their
// own; what cannot be fetched there, or has no room, is not listed and says why.
func TestTrainedModels(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	begin(t, options(t), kubetest.Server(t))
	host := kubetest.Apply(t, c, ns, trees)[0]
	var models []*unstructured.Unstructured
	for _, m := range []string{trained("oak", "s3://b/oak", "64Mi"), trained("wide", "s3://b/wide", "1Gi"), trained("claimed", "pvc://claim/m", "1Mi")} {
		models = append(models, kubetest.Apply(t, c, ns, m)...)
	}
	k := service.Key{Namespace: ns, Name: "trees"}
	lists := func(want ...string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			var m corev1.ConfigMap
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: shape.Name(k, service.RoleEngine)}, &m); err != nil {
				return err.Error()
			}
			if got := strings.Count(m.Data[shape.ModelList], `"modelName"`); got != len(want) {
				return fmt.Sprintf("%d models are listed: %s", got, m.Data[shape.ModelList])
			}
			for _, w := range want {
				if !strings.Contains(m.Data[shape.ModelList], w) {
					return "listed are " + m.Data[shape.ModelList]
				}
			}
			if len(m.OwnerReferences) != 1 || m.OwnerReferences[0].Name != "trees" {
				return fmt.Sprint("owners ", m.OwnerReferences)
			}
			return ""
		})
	}
	lists(`"storageUri": "s3://b/oak"`)
	deployment := func() (d appsv1.Deployment) {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: shape.Name(k, service.RoleEngine)}, &d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := deployment()
	if inits := d.Spec.Template.Spec.InitContainers; len(inits) != 1 || inits[0].Name != shape.Agent || inits[0].Image != "registry.example/roundhouse:1" {
		t.Errorf("init containers %+v", inits)
	}
	for u, conditions := range map[*unstructured.Unstructured]map[string]string{
		models[0]: {"IsMMSPredictor": "status:True", "MemoryResourceAvailable": "status:True", "FrameworkSupported": "status:True", "InferenceServiceReady": "status:False", "Ready": "status:False"},
		models[1]: {"IsMMSPredictor": "status:True", "MemoryResourceAvailable": "declares 1024 MiB", "Ready": "MemoryResourceNotAvailable"},
		models[2]: {"IsMMSPredictor": "status:True", "Ready": "spec.model.storageUri: pvc://claim/m is not fetched into a pod that runs already"},
	} {
		for kind, want := range conditions {
			kubetest.Eventually(t, func() string {
				if got := condition(get(t, c, u), kind); !strings.Contains(got, want) {
					return fmt.Sprintf("%s: %s is %s, not %s", u.GetName(), kind, got, want)
				}
				return ""
			})
		}
		if left := made(t, c, ns, u.GetName()); len(left) > 0 {
			t.Errorf("%s has %v of its own", u.GetName(), left)
		}
	}

	kubetest.Apply(t, c, ns, trained("elm", "s3://b/elm", "1Mi"))
	lists("oak", "elm")
	if err := c.Delete(t.Context(), models[0]); err != nil {
		t.Fatal(err)
	}
	lists("elm")
	if now := deployment(); now.Generation != d.Generation && fmt.Sprint(now.Spec.Template) != fmt.Sprint(d.Spec.Template) {
		t.Error("the pods' template has changed")
	}

	// A parent with a model of its own loads no other, and its list goes.
	if err := c.Patch(t.Context(), host, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"predictor":{"model":{"storageUri":"s3://b/own"}}}}`))); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if got := made(t, c, ns, "elm"); got["deployments"] != 1 {
			return fmt.Sprint("elm has ", got)
		}
		var m corev1.ConfigMap
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: shape.Name(k, service.RoleEngine)}, &m); !apierrors.IsNotFound(err) {
			return fmt.Sprint("the list is left: ", err)
		}
		return ""
	})
}
