package live

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestStatusOfOthers: a gateway tells apart what starts, what is wrong and what
// sleeps by the status that the controller wrote.
func TestStatusOfOthers(t *testing.T) {
	for _, c := range []struct {
		status, reason, message string
		failure, starting       string
	}{
		{"True", "Serving", "", "", ""},
		{"True", "Asleep", "starts at the first request", "", ""},
		{"False", "Starting", "engine: 0 of 1 ready", "", "engine: 0 of 1 ready"},
		{"False", "Fetching", "fetching the model: 1 GB of 4 GB", "", "fetching the model: 1 GB of 4 GB"},
		{"False", "Starting", "", "", "starting"},
		{"False", "Stopped", "stopped by its owner", "", ""},
		{"False", "CrashLoopBackOff", "exit code 1", "CrashLoopBackOff", ""},
	} {
		u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{
			map[string]any{"type": "PredictorReady", "status": "False", "reason": "Other"},
			map[string]any{"type": "Ready", "status": c.status, "reason": c.reason, "message": c.message}}}}}
		bad, starting := failureOf(u)
		failure, far := "", ""
		if bad != nil {
			failure = bad.Reason
		}
		if starting != nil {
			far = *starting
		}
		if failure != c.failure || far != c.starting {
			t.Errorf("%s %s: failure %q, starting %q, want %q, %q", c.status, c.reason, failure, far, c.failure, c.starting)
		}
	}
}
