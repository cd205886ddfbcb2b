package controller

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestModelsStayInTheirNamespace: a BaseModel serves those of its namespace;
// another learns neither what it is nor where it lies. One who makes his own of
// that name gets his own.
func TestModelsStayInTheirNamespace(t *testing.T) {
	c := kubetest.Client(t, "ome")
	mine, theirs := kubetest.Namespace(t, c, nil), kubetest.Namespace(t, c, nil)
	t.Parallel()
	begin(t, options(t, mine, theirs), kubetest.Server(t))
	model := func(ns, uri string) {
		kubetest.Apply(t, c, ns, `{apiVersion: ome.io/v1beta1, kind: BaseModel, metadata: {name: llama}, spec: {modelFormat: {name: safetensors}, storage: {storageUri: "`+uri+`"}}}`)
	}
	const wants = `
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {name: llama, kind: BaseModel}
  engine: {minReplicas: 1, maxReplicas: 1, runner: {name: ome-container, image: registry.example/sglang:1}}
`
	model(theirs, "pvc://secret/llama")
	u, v := kubetest.Apply(t, c, mine, wants)[0], kubetest.Apply(t, c, theirs, wants)[0]
	runs := func(ns string) string {
		var d appsv1.Deployment
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: shape.Name(service.Key{Namespace: ns, Name: "chat"}, service.RoleEngine)}, &d); err != nil {
			return "nothing"
		}
		return d.Spec.Template.String()
	}
	kubetest.Eventually(t, func() string {
		if got := runs(theirs); !strings.Contains(got, "ClaimName:secret") {
			return fmt.Sprint("its own model, not ", got, get(t, c, v).Object["status"])
		}
		return ""
	})
	kubetest.Eventually(t, func() string {
		if got := fmt.Sprint(get(t, c, u).Object["status"]); !strings.Contains(got, `llama`) || strings.Contains(got, "secret") || runs(mine) != "nothing" {
			return fmt.Sprint("no such model, not ", got, runs(mine))
		}
		return ""
	})
	model(mine, "pvc://mine/llama")
	kubetest.Eventually(t, func() string {
		if got := runs(mine); !strings.Contains(got, "ClaimName:mine") {
			return "one's own model, not " + got
		}
		return ""
	})
	if got := runs(theirs); !strings.Contains(got, "ClaimName:secret") {
		t.Errorf("the other's is now %s", got)
	}
}
