package fleet

import (
	"fmt"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Left is a Platform some of whose counts others set, such as an autoscaler of
// the cluster.
type Left interface {
	// Left says whether a role's count is left to somebody else, and what it is.
	Left(ref workload.Ref) (count int, theirs bool)
}

// leave notes the counts that others set.
func (f *Fleet) leave(w *work) {
	left, ok := f.cfg.Platform.(Left)
	if !ok || w.record == nil {
		return
	}
	for i := range w.record.Revision.Components {
		role := w.record.Revision.Components[i].Role
		rs, known := w.roles[role]
		if !known {
			rs.scaled = -1
		}
		rs.theirs = nil
		if n, theirs := left.Left(ref(w.key, role)); theirs {
			rs.theirs = &n
		}
		w.roles[role] = rs
	}
}

// counters names who counts the replicas of roles that scale by what they use of a
// resource, "" where there are none.
func (w *work) counters() string {
	var out []string
	for i := range w.record.Revision.Components {
		c := &w.record.Revision.Components[i]
		if w.roles[c.Role].theirs != nil && c.Limits.Metric.Resource() {
			out = append(out, string(c.Role)+": "+counter(c.Limits))
		}
	}
	return strings.Join(out, "; ")
}

func counter(l service.Limits) string {
	if !l.Metric.Resource() {
		return "another autoscaler counts its replicas"
	}
	return fmt.Sprintf("a HorizontalPodAutoscaler counts its replicas by %s, %.0f %% each", l.Metric, l.Target)
}

// wanted is how many replicas of a role there are to be.
func (w *work) wanted(role service.Role) int {
	if theirs := w.roles[role].theirs; theirs != nil {
		return *theirs
	}
	return max(w.roles[role].scaled, 0)
}
