package status

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// seen is what events have reported of a service.
type seen struct {
	uid      types.UID
	runtime  service.RuntimeChoice
	revision string
	canary   string
	counts   map[service.Role]int
	failure  string
}

// tell records events for what changed since the last report. It records none
// for what an earlier process has reported: a service whose status was already
// the same when this process first saw it.
func (w *Writer) tell(u *unstructured.Unstructured, st fleet.ServiceState, told bool) {
	k := st.Object.Key
	reason, message := failing(st.Status)
	now := seeing(u, st.Status, message)
	w.mu.Lock()
	before, known := w.mu.seen[k]
	if known && before.uid != now.uid {
		before, known = seen{}, false
	}
	w.mu.seen[k] = now
	w.mu.Unlock()
	if !known && told {
		return
	}
	if r, was := now.runtime, before.runtime; r.Name != "" && (r.Name != was.Name || r.Namespace != was.Namespace || r.Scope != was.Scope) {
		w.event(u, false, "RuntimeSelected", fmt.Sprintf("%s (%s): %s", r.Name, r.Scope, r.Why))
	}
	for reason, of := range map[string][2]string{"RevisionMade": {now.revision, before.revision}, "CanaryMade": {now.canary, before.canary}} {
		if of[0] != "" && of[0] != of[1] {
			w.event(u, false, reason, of[0])
		}
	}
	for _, role := range service.Roles {
		if n, was := now.counts[role], before.counts[role]; n != was {
			w.event(u, false, "Scaled", fmt.Sprintf("%s: %d to %d replicas: %s", role, was, n, st.Scaling[role]))
		}
	}
	if message != "" && message != before.failure {
		w.event(u, true, reason, message)
	}
}

// seeing returns what events report of a service.
func seeing(u *unstructured.Unstructured, st service.Status, failure string) seen {
	out := seen{uid: u.GetUID(), runtime: st.Runtime, revision: st.Revision, failure: failure, counts: map[service.Role]int{}}
	for _, c := range st.Components {
		out.counts[c.Role] = c.Desired
	}
	if st.Canary != nil {
		out.canary = st.Canary.Revision
	}
	return out
}

// failing returns what is wrong with a service, beyond its not being ready yet.
func failing(st service.Status) (reason, message string) {
	for _, c := range st.Conditions {
		if c.Type == service.ConditionPredictorReady && c.Status == "False" && c.Reason == "PlatformFailed" {
			return c.Reason, c.Message
		}
	}
	if f := st.Model.LastFailure; f != nil && f.Message != "" {
		return f.Reason, f.Message
	}
	return "", ""
}

// maxNote is the maximum length of an event's note, in bytes; the API server
// refuses more.
const maxNote = 1024

// event records one event. The recorder merges equal ones into one with a
// count.
func (w *Writer) event(u *unstructured.Unstructured, warning bool, reason, text string) {
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	if reason == "" {
		reason = "Failed"
	}
	w.cfg.Events.Eventf(u, nil, kind, reason, "Reconcile", "%s", cut(text, maxNote))
}

// hold returns for how long to delay a status: one of the gist that was written
// last waits until that is [Config.Every] ago, so that replicas that come and
// go cost one write in that time and not one each. Changes that users may wait
// for are written at once.
func (w *Writer) hold(uid types.UID, gist string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, known := w.mu.written[uid]
	if !known || last.gist != gist {
		return 0
	}
	return max(0, w.cfg.Every-w.cfg.Now().Sub(last.at))
}

// gist returns the parts of a status that people and programs wait for: whether
// a manifest was read, whether a service is ready, what is wrong with it, and
// its canary's share of the traffic, which gateways read.
func gist(st service.Status) string {
	var b strings.Builder
	fmt.Fprint(&b, st.Generation, st.URL, st.Model.Transition)
	for _, c := range st.Conditions {
		fmt.Fprint(&b, ";", c.Type, c.Status, c.Reason)
	}
	if c := st.Canary; c != nil {
		fmt.Fprint(&b, ";", c.Revision, c.Wanted, c.Percent)
	}
	reason, message := failing(st)
	return b.String() + ";" + reason + message
}
