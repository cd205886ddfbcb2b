package status

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// tell records events for what changed since the last report. It records none
// for what an earlier process has reported: a service whose status was already
// the same when this process first saw it. Pods have events of their own.
func (w *Writer) tell(u *unstructured.Unstructured, st fleet.ServiceState, told bool) {
	k := st.Object.Key
	now := history.See(string(u.GetUID()), 0, st.Status, nil)
	w.mu.Lock()
	before, known := w.mu.seen[k]
	w.mu.seen[k] = now
	w.mu.Unlock()
	if known && before.Identity != now.Identity {
		known = false
	}
	if !known && told {
		return
	}
	for _, e := range history.Changes(before, now, st.Scaling) {
		text := e.Message
		if e.Object != "" {
			text = e.Object + ": " + text
		}
		w.event(u, e.Warning, e.Reason, text)
	}
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
	reason, message := history.Failing(st)
	return b.String() + ";" + reason + message
}
