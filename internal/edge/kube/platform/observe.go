package platform

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// Reasons of replicas that have no pod yet.
const (
	reasonCreating = "Creating"
	reasonRollout  = "Rollout" // pods of the revision before are replaced one by one
	reasonQuota    = "QuotaExceeded"
	reasonRefused  = "PodRefused"
)

// observe lists the replicas: the pods, and as Pending those of the present
// revision that have no pod yet, so that the wanted count is seen at once and a
// refusal to make pods has a place to show.
func (h *held) observe(k service.Key) []replica.Replica {
	var out []replica.Replica
	alive := map[service.Role]map[string]int{} // by revision
	for _, pod := range h.pods {
		r, shown := h.replica(k, pod.Pod)
		if !shown {
			continue
		}
		out = append(out, r)
		if r.Alive() {
			if alive[r.Role] == nil {
				alive[r.Role] = map[string]int{}
			}
			alive[r.Role][r.Revision]++
		}
	}
	for i, o := range h.objects {
		if !i.kind.counted() || o.deleting || h.removed {
			continue
		}
		out = append(out, h.awaited(k, i, o, alive[o.role])...)
	}
	slices.SortFunc(out, func(a, b replica.Replica) int {
		first, second := h.order(a), h.order(b)
		if first == last || second == last { // it has no pod yet, so is the youngest
			return cmp.Or(cmp.Compare(first, second), cmp.Compare(a.ID, b.ID))
		}
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(first, second))
	})
	return out
}

// last is the place of a replica without a pod.
const last = math.MaxInt

// order is a replica's place among those of the same second.
func (h *held) order(r replica.Replica) int {
	if m, there := h.pods[r.ID]; there {
		return m.order
	}
	return last
}

// awaited are the replicas that have no pod yet. alive counts those that do, by
// revision.
func (h *held) awaited(k service.Key, i id, o object, alive map[string]int) []replica.Replica {
	r := replica.Replica{Service: k, Role: o.role, Revision: o.revision, Phase: replica.Pending, Created: o.since, Reason: reasonCreating}
	switch {
	case o.refused != "":
		r.Reason, r.Message = refusal(o.refused)
	case len(alive) > 1 || len(alive) == 1 && alive[o.revision] == 0:
		r.Reason = reasonRollout
	}
	var out []replica.Replica
	for n := alive[o.revision]; n < o.count; n++ {
		r.ID = i.name + "-awaited-" + strconv.Itoa(n)
		out = append(out, r)
	}
	return out
}

// refusal is why pods are not made, of the API server's words: `pods "x" is
// forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2`.
func refusal(message string) (reason, words string) {
	_, why, found := strings.Cut(message, " is forbidden: ")
	if !found {
		why = message
	}
	if rest, over := strings.CutPrefix(why, "exceeded quota: "); over {
		return reasonQuota, clip("the namespace's quota is used up: " + rest + ": raise it, or end something")
	}
	return reasonRefused, clip("the cluster refuses the pod: " + why)
}

// replica reads one pod. Shown is false for what is no replica of its own: a
// worker of a group, and a pod that ended for good and has been replaced.
func (h *held) replica(k service.Key, pod *corev1.Pod) (r replica.Replica, shown bool) {
	if w, grouped := pod.Labels[shape.LabelWorkerIndex]; grouped && w != "0" {
		return r, false
	}
	role := h.roles[service.Role(pod.Labels[shape.LabelRole])]
	r = phaseOf(pod, role)
	r.ID, r.Service, r.Role, r.Revision = pod.Name, k, service.Role(pod.Labels[shape.LabelRole]), pod.Labels[shape.LabelRevision]
	if ip := pod.Status.PodIP; ip != "" {
		r.HTTP, r.GRPC = address(ip, role.http), address(ip, role.grpc)
	}
	if ended(pod) && r.Phase == replica.Failed && h.replaced(pod) {
		return r, false
	}
	if group, grouped := pod.Labels[labelGroup]; grouped {
		h.withWorkers(&r, pod, group, role)
	}
	return r, true
}

func address(ip string, port int32) string {
	if port == 0 {
		return ""
	}
	return net.JoinHostPort(ip, strconv.Itoa(int(port)))
}

// ended pods never run again: they were evicted, or their node refused them.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// replaced says whether a pod that ended has no say any more: another was made
// after it, or none is wanted.
func (h *held) replaced(pod *corev1.Pod) bool {
	role := pod.Labels[shape.LabelRole]
	wanted := false
	for i, o := range h.objects {
		wanted = wanted || i.kind.counted() && string(o.role) == role && o.count > 0
	}
	for _, other := range h.pods {
		if other.Name != pod.Name && other.Labels[shape.LabelRole] == role && !other.CreationTimestamp.Before(&pod.CreationTimestamp) &&
			(!ended(other.Pod) || other.Name > pod.Name) {
			return true
		}
	}
	return !wanted
}

// withWorkers has a group be what its worst member is: its leader alone says
// when it is ready, but not why it is not.
func (h *held) withWorkers(r *replica.Replica, leader *corev1.Pod, group string, role role) {
	for _, pod := range h.pods {
		if pod.Name == leader.Name || pod.Labels[labelGroup] != group || pod.Labels[shape.LabelRole] != leader.Labels[shape.LabelRole] {
			continue
		}
		w := phaseOf(pod.Pod, role)
		worse := w.Phase == replica.Failed && r.Phase != replica.Failed && r.Phase != replica.Draining ||
			w.Phase == replica.Pending && w.Message != "" && r.Phase != replica.Ready && r.Message == ""
		if worse {
			r.Phase, r.Reason, r.ExitCode, r.Restart = w.Phase, w.Reason, w.ExitCode, w.Restart
			r.Message = clip(fmt.Sprintf("worker %s: %s", pod.Name, w.Message))
		}
		r.Restarts += w.Restarts
	}
}
