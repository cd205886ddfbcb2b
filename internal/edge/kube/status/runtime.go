package status

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
)

// Runtimes have a status for one thing: that one is refused, and later that it
// no longer is. One that never was has none.

// mendTimeout bounds taking back what was said of a runtime.
const mendTimeout = 10 * time.Second

// mend takes back what was said of a runtime that counts now.
func (w *Writer) mend(r objects.Ref) {
	if k := objects.KindOf(r.GroupKind()); k == nil || k.Status != objects.RuntimeStatus {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), mendTimeout)
	defer cancel()
	u, err := w.find(ctx, r.GroupVersionKind, r.Key)
	if err == nil && u != nil && denied(u) {
		_, err = w.put(ctx, u, map[string]any{"conditions": []any{condition(service.Condition{Type: service.ConditionReady, Status: "True",
			Reason: "Accepted", Since: time.Now()})}})
	}
	if err != nil {
		w.cfg.Log.Warn("the status of a runtime still says that it is refused", "runtime", r.Key.String(), "error", err)
	}
}

// denied reports whether a status says that its object does not count.
func denied(u *unstructured.Unstructured) bool {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, raw := range list {
		if c, _ := raw.(map[string]any); c["type"] == service.ConditionReady && c["status"] == "False" {
			return true
		}
	}
	return false
}
