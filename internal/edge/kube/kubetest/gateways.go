package kubetest

import (
	"context"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// GatewayClasses are one of ours, NS, and one of somebody else's, NS-other.
const GatewayClasses = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: NS}
spec: {controllerName: roundhouse.dev/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: NS-other}
spec: {controllerName: example.com/gateway}
---`

// Place is Apply for manifests in which NS is the namespace's name, so that
// what belongs to none may have a name of the test's own. A GatewayClass goes
// with the test.
func Place(t testing.TB, c client.Client, namespace, text string) {
	t.Helper()
	for _, u := range Parse(t, strings.ReplaceAll(text, "NS", namespace)) {
		class := u.GetKind() == "GatewayClass"
		if u.GetNamespace() == "" && !class {
			u.SetNamespace(namespace)
		}
		if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("kubectl"), client.ForceOwnership); err != nil {
			t.Fatalf("apply %s %s: %v", u.GetKind(), u.GetName(), err)
		}
		if class {
			t.Cleanup(func() { _ = c.Delete(context.Background(), u) }) // also of tests that failed
		}
	}
}
