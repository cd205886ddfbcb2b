package clustercli

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

// answering stands in for a controller that looks at services as soon as they
// are applied, and finds them asleep.
func answering(t *testing.T, api client.Client, ns string) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	origins := []service.Origin{{APIVersion: "roundhouse.dev/v1alpha1", Kind: "ModelService"}, {APIVersion: "serving.kserve.io/v1beta1", Kind: "InferenceService"}}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			for _, o := range origins {
				list := &unstructured.UnstructuredList{}
				list.SetAPIVersion(o.APIVersion)
				list.SetKind(o.Kind + "List")
				if api.List(ctx, list, client.InNamespace(ns)) != nil {
					continue // a kind that is not installed
				}
				for i := range list.Items {
					settle(ctx, api, &list.Items[i], o)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
}

func settle(ctx context.Context, api client.Client, u *unstructured.Unstructured, o service.Origin) {
	if seen, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration"); seen == u.GetGeneration() {
		return
	}
	st := service.Status{Generation: u.GetGeneration(), Conditions: []service.Condition{{Type: service.ConditionReady, Status: "True", Reason: "Asleep", Since: time.Now()}}}
	u.Object["status"] = dialect.Status(o, st)
	_ = api.Status().Update(ctx, u) // a conflict is tried again
}
