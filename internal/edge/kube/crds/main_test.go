package crds_test

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// dry sends an object as kubectl does: unknown fields are errors. Nothing is
// stored.
func dry(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	return c.Create(ctx, u.DeepCopy(), client.DryRunAll, client.FieldValidation("Strict"))
}
