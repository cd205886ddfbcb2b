package controller

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestNothingDependsOnStatus: while no controller runs somebody writes another
// choice into a status, and a runtime comes that would be chosen now. The next
// controller goes by its record: it leaves what runs alone, and makes the status
// anew.
func TestNothingDependsOnStatus(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	t.Parallel()
	o := options(t, ns)
	first := begin(t, o, kubetest.Server(t))
	u := kubetest.Apply(t, c, ns, strings.Replace(kserveSklearn, "      runtime: kserve-mlserver\n", "", 1))[0]
	k := service.Key{Namespace: ns, Name: u.GetName()}
	chosen := func() string {
		now := get(t, c, u)
		return fmt.Sprint(field(now, "status", "servingRuntimeName"), field(now, "status", "clusterServingRuntimeName"))
	}
	kubetest.Eventually(t, func() string {
		if made(t, c, ns, k.Name)["deployments"] != 1 || chosen() == "<nil><nil>" || field(get(t, c, u), "status", "observedGeneration") != "1" {
			return "a Deployment and its status"
		}
		return ""
	})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	before, said := deployment(t, c, k), chosen()
	forged := `{"status":{"url":"http://forged.example.com","clusterServingRuntimeName":"forged","components":null,"modelStatus":null}}`
	if err := c.Status().Patch(t.Context(), u.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(forged)), client.FieldOwner(shape.FieldManager)); err != nil {
		t.Fatal(err)
	}
	kubetest.Apply(t, c, ns, `{apiVersion: serving.kserve.io/v1alpha1, kind: ServingRuntime, metadata: {name: forged}, spec: {
supportedModelFormats: [{name: sklearn, autoSelect: true, priority: 99}], containers: [{name: kserve-container, image: registry.example/forged:1}]}}`)
	begin(t, o, kubetest.Server(t))
	kubetest.Eventually(t, func() string {
		if now := get(t, c, u); chosen() != said || field(now, "status", "url") == "http://forged.example.com" {
			return fmt.Sprintf("the choice %s, not %v", said, now.Object["status"])
		}
		return ""
	})
	if now := deployment(t, c, k); now.UID != before.UID || now.Generation != before.Generation {
		t.Errorf("the Deployment was written: generation %d, then %d", before.Generation, now.Generation)
	}
	// A manifest that asks anew has the new one.
	kubetest.Apply(t, c, ns, strings.NewReplacer("      runtime: kserve-mlserver\n", "", "storageUri: s3", "protocolVersion: v1\n      storageUri: s3").Replace(kserveSklearn))
	kubetest.Eventually(t, func() string {
		if got := chosen(); got == said {
			return "another choice than " + got
		}
		return ""
	})
}
