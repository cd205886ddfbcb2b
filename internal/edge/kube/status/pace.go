package status

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// hold says for how long a status is held back: one of the gist that was
// written last waits until that is [Config.Every] ago, so that replicas that
// come and go cost a write each second and not one each. What somebody may be
// waiting for goes out at once.
func (w *Writer) hold(uid types.UID, gist string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, known := w.mu.written[uid]
	if !known || last.gist != gist {
		return 0
	}
	return max(0, w.cfg.Every-w.cfg.Now().Sub(last.at))
}

// gist is what of a status people and programs wait for: that a manifest was
// read, that a service turned ready or did not, what is wrong with it, and
// what of the traffic its canary takes, which gateways read.
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
