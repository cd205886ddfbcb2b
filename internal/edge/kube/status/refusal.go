package status

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/loadjob"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
)

// reasonInvalidSpec is KServe's reason for an invalid manifest.
const reasonInvalidSpec = "InvalidPredictorSpec"

// refusal returns the status of a manifest that does not count; nil for a kind
// whose status has no field for it.
func refusal(u *unstructured.Unstructured, r objects.Refusal) map[string]any {
	origin := service.Origin{APIVersion: r.GroupVersion().String(), Kind: r.Kind}
	bad := func(kind string) service.Condition {
		return service.Condition{Type: kind, Status: "False", Reason: r.Reason, Message: r.Message, Since: time.Now().UTC().Truncate(time.Second)}
	}
	switch {
	case r.Status == objects.ServiceStatus:
		st := service.Status{Generation: u.GetGeneration(), Conditions: []service.Condition{bad(service.ConditionReady), bad(service.ConditionSelected)}}
		st.Model = service.ModelStatus{Transition: service.InvalidSpec, Active: service.ModelFailedToLoad, Target: service.ModelLoaded,
			LastFailure: &service.Failure{Reason: reasonInvalidSpec, Message: r.Message}}
		return dialect.Status(origin, st)
	case r.Status == objects.BenchmarkStatus:
		return map[string]any{"state": loadjob.Failed, "failureMessage": r.Message}
	case r.Status == objects.RuntimeStatus:
		return map[string]any{"conditions": []any{condition(bad(service.ConditionReady))}}
	case r.Status == objects.RoutingStatus && r.Kind != "InferencePool" && r.Kind != "InferencePoolImport" && r.Kind != "HTTPRoute" && r.Kind != "GRPCRoute":
		kind := routing.ConditionAccepted
		if origin.Dialect() == service.DialectRoundhouse {
			kind = routing.ConditionReady
		}
		return map[string]any{"conditions": []any{condition(bad(kind))}}
	}
	return nil
}

// says reports whether a status contains a text.
func says(u *unstructured.Unstructured, text string) bool {
	return holds(u.Object["status"], text)
}

func holds(v any, text string) bool {
	switch v := v.(type) {
	case string:
		return strings.Contains(v, text)
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return holds(e, text) })
	case map[string]any:
		for _, e := range v {
			if holds(e, text) {
				return true
			}
		}
	}
	return false
}

func condition(c service.Condition) map[string]any {
	return map[string]any{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message,
		"lastTransitionTime": c.Since.UTC().Format(time.RFC3339)}
}

// spoilt is the status of a service that keeps its earlier state because its
// changed manifest is refused.
func spoilt(st service.Status, r objects.Refusal) service.Status {
	st.Conditions = slices.Clone(st.Conditions)
	for i := range st.Conditions {
		if c := &st.Conditions[i]; c.Type == service.ConditionSelected {
			if c.Status != "False" {
				c.Since = time.Now().UTC().Truncate(time.Second)
			}
			c.Status, c.Reason, c.Message = "False", r.Reason, r.Message+"; what was said before goes on being served"
		}
	}
	st.Model.Transition = service.InvalidSpec
	st.Model.LastFailure = &service.Failure{Reason: reasonInvalidSpec, Message: r.Message}
	return st
}

// ConditionManaged is False on an object whose status another manager writes.
const ConditionManaged = "ManagedByRoundhouse"

// notice adds one condition to a status that another manager writes, once: if
// it were written again whenever the other drops it, both would write for ever.
func (w *Writer) notice(ctx context.Context, u *unstructured.Unstructured, manager, message string) error {
	w.mu.Lock()
	noticed := w.mu.noticed[u.GetUID()] == manager
	w.mu.noticed[u.GetUID()] = manager
	w.mu.Unlock()
	have, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	if noticed || slices.ContainsFunc(have, func(c any) bool {
		m, ok := c.(map[string]any)
		return ok && m["type"] == ConditionManaged
	}) {
		return nil
	}
	said := condition(service.Condition{Type: ConditionManaged, Status: string(metav1.ConditionFalse), Reason: objects.ReasonManaged, Message: message, Since: time.Now()})
	// The version keeps a condition that was added meanwhile from being lost.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": u.GetResourceVersion()},
		"status": map[string]any{"conditions": append(have, said)}})
	if err == nil {
		err = w.cfg.Client.Status().Patch(ctx, u.DeepCopy(), client.RawPatch(types.MergePatchType, patch), client.FieldOwner(kube.NoticeManager))
	}
	if err = gone(err); err != nil {
		w.mu.Lock()
		delete(w.mu.noticed, u.GetUID())
		w.mu.Unlock()
		return fmt.Errorf("say that %s keeps the status of %s %s/%s: %w", manager, u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	w.event(u, true, objects.ReasonManaged, message)
	return nil
}
