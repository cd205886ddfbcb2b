package pods

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// LabelGroup is which of its LeaderWorkerSet's groups a pod is in.
const LabelGroup = "leaderworkerset.sigs.k8s.io/group-index"

// Set is what has a count of pods: a Deployment, or a LeaderWorkerSet.
type Set struct {
	Name     string
	Role     service.Role
	Revision string
	Count    int
	// Since is when the count became what it is.
	Since time.Time
	// Refused is why pods could not be made, in the API server's words.
	Refused string
	// Failures are how starts of groups ended, by the number of the group, of
	// those that have not been ready since.
	Failures map[string]Failure
}

// Reasons of replicas that have no pod yet.
const (
	reasonCreating = "Creating"
	reasonRollout  = "Rollout" // pods of the revision before are replaced one by one
)

// Observe lists a service's replicas: its pods, and as Pending those of the
// present revision that have no pod yet, so that the wanted count is seen at
// once and a refusal to make pods has a place to show. Pods that are as old as
// each other stay in the order given.
func Observe(k service.Key, pods []*corev1.Pod, sets []Set, roles map[service.Role]Role) []replica.Replica {
	h := seen{pods, sets, roles}
	var out []replica.Replica
	alive := map[service.Role]map[string]int{} // by revision
	for _, pod := range pods {
		r, shown := h.replica(k, pod)
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
	for _, s := range sets {
		out = append(out, awaited(k, s, alive[s.Role])...)
	}
	slices.SortStableFunc(out, func(a, b replica.Replica) int { return a.Created.Compare(b.Created) })
	return out
}

// seen is what Observe is told.
type seen struct {
	pods  []*corev1.Pod
	sets  []Set
	roles map[service.Role]Role
}

// awaited are the replicas that have no pod yet. alive counts those that do, by
// revision.
func awaited(k service.Key, s Set, alive map[string]int) []replica.Replica {
	r := replica.Replica{Service: k, Role: s.Role, Revision: s.Revision, Phase: replica.Pending, Created: s.Since, Reason: reasonCreating}
	switch {
	case s.Refused != "":
		r.Reason, r.Message = refusal(s.Refused)
	case len(alive) > 1 || len(alive) == 1 && alive[s.Revision] == 0:
		r.Reason = reasonRollout
	}
	for _, group := range slices.Sorted(maps.Keys(s.Failures)) {
		s.Failures[group].failed(&r)
	}
	var out []replica.Replica
	for n := alive[s.Revision]; n < s.Count; n++ {
		r.ID = s.Name + "-awaited-" + strconv.Itoa(n)
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
		return replica.ReasonQuotaExceeded, clip("the namespace's quota is used up: " + rest + ": raise it, or end something; Kubernetes tries again by itself, the longer it waits the later, up to 17 minutes")
	}
	return replica.ReasonPodRefused, clip("the cluster refuses the pod: " + why)
}

// replica reads one pod. Shown is false for what is no replica of its own: a
// worker of a group, and a pod that ended for good and has been replaced.
func (h seen) replica(k service.Key, pod *corev1.Pod) (r replica.Replica, shown bool) {
	if w, grouped := pod.Labels[shape.LabelWorkerIndex]; grouped && w != "0" {
		return r, false
	}
	role := h.roles[service.Role(pod.Labels[shape.LabelRole])]
	r = phase(pod, role)
	r.ID, r.Service, r.Role, r.Revision = pod.Name, k, service.Role(pod.Labels[shape.LabelRole]), pod.Labels[shape.LabelRevision]
	if ip := pod.Status.PodIP; ip != "" {
		r.HTTP, r.GRPC = address(ip, role.HTTP), address(ip, role.GRPC)
		r.Metrics = r.MetricsAt(role.Metrics)
	}
	if ended(pod) && r.Phase == replica.Failed && h.replaced(pod) {
		return r, false
	}
	if group, grouped := pod.Labels[LabelGroup]; grouped {
		h.withWorkers(&r, pod, group, role)
		for _, s := range h.sets {
			if f, failed := s.Failures[group]; failed && s.Role == r.Role {
				f.failed(&r)
			}
		}
	}
	return r, true
}

func address(ip string, port int32) string {
	if port == 0 {
		return ""
	}
	return hostPort(ip, port)
}

// hostPort is an address as URLs have it.
func hostPort(ip string, port int32) string {
	if strings.Contains(ip, ":") { // IPv6
		ip = "[" + ip + "]"
	}
	return ip + ":" + strconv.Itoa(int(port))
}

// ended pods never run again: they were evicted, or their node refused them.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// replaced reports whether a pod that ended has no say any more: another was made
// after it, or none is wanted.
func (h seen) replaced(pod *corev1.Pod) bool {
	role := pod.Labels[shape.LabelRole]
	wanted := false
	for _, s := range h.sets {
		wanted = wanted || string(s.Role) == role && s.Count > 0
	}
	for _, other := range h.pods {
		if other.Name != pod.Name && other.Labels[shape.LabelRole] == role && !other.CreationTimestamp.Before(&pod.CreationTimestamp) &&
			(!ended(other) || other.Name > pod.Name) {
			return true
		}
	}
	return !wanted
}

// withWorkers has a group be what its worst member is: its leader alone says
// when it is ready, but not why it is not.
func (h seen) withWorkers(r *replica.Replica, leader *corev1.Pod, group string, role Role) {
	for _, pod := range h.pods {
		if pod.Name == leader.Name || pod.Labels[LabelGroup] != group || pod.Labels[shape.LabelRole] != leader.Labels[shape.LabelRole] {
			continue
		}
		w := phase(pod, role)
		worse := w.Phase == replica.Failed && r.Phase != replica.Failed && r.Phase != replica.Draining ||
			w.Phase == replica.Pending && w.Message != "" && r.Phase != replica.Ready && r.Message == ""
		if worse {
			r.Phase, r.Reason, r.ExitCode, r.Restart = w.Phase, w.Reason, w.ExitCode, w.Restart
			r.Message = clip(fmt.Sprintf("worker %s: %s", pod.Name, w.Message))
		}
		r.Restarts += w.Restarts
	}
}

// LogContainer is the container whose output tells most.
func LogContainer(pod *corev1.Pod, main string) string {
	for _, c := range pod.Status.InitContainerStatuses {
		if c.Name == shape.Waiter && !done(c) && sidecar(pod, shape.Fetcher) {
			return shape.Fetcher
		}
		if sidecar(pod, c.Name) {
			continue
		}
		if t := c.State.Terminated; c.State.Running != nil || t != nil && t.ExitCode != 0 || c.RestartCount > 0 && t == nil {
			return c.Name
		}
	}
	for _, c := range pod.Spec.Containers {
		if c.Name == main {
			return main
		}
	}
	if len(pod.Spec.Containers) > 0 {
		return pod.Spec.Containers[0].Name
	}
	return ""
}

// done reports whether an init container has ended as it should.
func done(c corev1.ContainerStatus) bool {
	return c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
}
