package status_test

import (
	"fmt"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/status"
)

// TestPace writes what somebody waits for at once, and what counts up and down
// once a second; the last of it is always written.
func TestPace(t *testing.T) {
	r := newRig(t)
	u := r.apply(own)
	st := r.state(u)
	r.report(st)
	// tell reports once; it is written, or held back for a while.
	tell := func(wait time.Duration) {
		t.Helper()
		again, err := r.Report(t.Context(), st)
		if err != nil || again != wait {
			t.Errorf("again after %s, not %s: %v", again, wait, err)
		}
		if n := len(r.writes.Take()); (n == 1) != (wait == 0) || n > 1 {
			t.Errorf("%d writes, and %s to wait", n, wait)
		}
	}
	count := func(ready int) {
		st.Status.Components[0].Ready = ready
		st.Status.Conditions[0].Message = fmt.Sprintf("%d ready", ready)
	}
	r.now = r.now.Add(200 * time.Millisecond)
	for ready := range 5 {
		count(ready + 10)
		tell(status.DefaultEvery - 200*time.Millisecond - time.Duration(ready)*100*time.Millisecond)
		r.now = r.now.Add(100 * time.Millisecond)
	}
	r.now = r.now.Add(300 * time.Millisecond)
	tell(0)
	if got := r.condition(u, "Ready")["message"]; got != "14 ready" {
		t.Errorf("the last that was said is %v", got)
	}
	for name, change := range map[string]func(){
		"not ready": func() { st.Status.Conditions[0].Status, st.Status.Conditions[0].Reason = "False", "Starting" },
		"why":       func() { st.Status.Conditions[0].Reason = "Failed" },
		"failed": func() {
			st.Status.Model.LastFailure = &service.Failure{Reason: "ModelLoadFailed", Message: "exit code 1"}
		},
		"otherwise": func() {
			st.Status.Model.LastFailure = &service.Failure{Reason: "ModelLoadFailed", Message: "exit code 2"}
		},
		"transition": func() { st.Status.Model.Transition = service.BlockedByFailedLoad },
		"canary":     func() { st.Status.Canary = &service.CanaryStatus{Revision: "iris-2", Wanted: 10, Percent: 10} },
		"url":        func() { st.Status.URL = "http://elsewhere" },
	} {
		t.Run(name, func(t *testing.T) {
			count(st.Status.Components[0].Ready + 1)
			tell(status.DefaultEvery)
			change()
			tell(0)
			if left := r.report(st); len(left) > 0 {
				t.Errorf("nothing is left, and it wrote %v", left)
			}
		})
	}
}

// TestPaceOfAnother has a new process hold nothing back, of what the one before
// it did not write.
func TestPaceOfAnother(t *testing.T) {
	r := newRig(t)
	st := r.state(r.apply(own))
	r.report(st)
	st.Status.Components[0].Ready = 7
	if again, err := r.Report(t.Context(), st); again != status.DefaultEvery || err != nil {
		t.Errorf("again after %s, %v", again, err)
	}
	r.restart()
	if again, err := r.Report(t.Context(), st); again != 0 || err != nil || len(r.writes.Take()) != 1 {
		t.Errorf("a new process: again after %s, %v", again, err)
	}
}
