package reserve

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
)

// Conditions of a Reserve, and their reasons.
const (
	ConditionReady         = "Ready"
	ConditionRoomKept      = "RoomKept"
	ConditionImagesPresent = "ImagesPresent"

	ReasonKept       = "Kept"
	ReasonNothing    = "NothingWanted"
	ReasonStarting   = "Starting"
	ReasonNoRoom     = "NoRoom"
	ReasonNotStarted = "NotStarted"
	ReasonNoPods     = "NoPods"
	ReasonRefused    = "Refused"
	ReasonInvalid    = "Invalid"
	ReasonDisabled   = "Disabled"
	ReasonPresent    = "Present"
	ReasonPulling    = "Pulling"
	ReasonFailed     = "PullFailed"
)

// Placeholder is the state of one placeholder pod.
type Placeholder struct {
	Phase corev1.PodPhase
	// Unscheduled is the scheduler's message, "" where the pod has a node.
	Unscheduled string
	// Scheduled reports that the pod has a node, Ready that it holds it.
	Scheduled, Ready bool
	// Problem is why its container does not start; "" for nothing known.
	Problem string
}

// PlaceholderOf is what a pod tells of itself.
func PlaceholderOf(p *corev1.Pod) Placeholder {
	out := Placeholder{Phase: p.Status.Phase, Scheduled: p.Spec.NodeName != ""}
	for _, c := range p.Status.Conditions {
		switch {
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
			out.Unscheduled, _, _ = strings.Cut(c.Message, " preemption: ") // it preempts nothing
			out.Unscheduled, _, _ = strings.Cut(out.Unscheduled, " no new claims to deallocate")
		case c.Type == corev1.PodReady:
			out.Ready = c.Status == corev1.ConditionTrue
		}
	}
	_, out.Problem = PullProblem(p)
	return out
}

// PullProblem is why an image of a pod cannot be pulled, and whose: the container's
// name. "" for nothing known.
func PullProblem(p *corev1.Pod) (container, problem string) {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && slices.Contains([]string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerError", "CreateContainerConfigError", "RunContainerError"}, w.Reason) {
			return s.Name, strings.TrimSpace(w.Reason + ": " + w.Message)
		}
	}
	return "", ""
}

// Facts are what a status is made of.
type Facts struct {
	Nodes int
	// Wanted placeholders, and why.
	Wanted int
	Why    string
	Pods   []Placeholder
	// Refused is what the API server says of the placeholders' Deployment or of
	// its pods; "" for nothing.
	Refused string
	Images  []string
	Pulls   Plan
	Last    *api.ImageFailure
	// Problem keeps the Reserve from being served at all, Reason is its reason.
	Reason, Problem string
}

// Status is a Reserve's, without times.
func Status(r *api.Reserve, f Facts) api.ReserveStatus {
	out := api.ReserveStatus{ObservedGeneration: r.Metadata.Generation, Nodes: f.Nodes}
	if f.Problem != "" {
		out.Conditions = []metav1.Condition{condition(ConditionReady, false, f.Reason, f.Problem)}
		return out
	}
	var all []metav1.Condition
	if r.Spec.Placeholders != nil {
		s, c := room(f)
		out.Placeholders, all = &s, append(all, c)
	}
	if r.Spec.Images != nil {
		s, c := images(f)
		out.Images, all = &s, append(all, c)
	}
	ready := condition(ConditionReady, true, ReasonKept, "")
	var words []string
	for _, c := range all {
		if c.Status != metav1.ConditionTrue && ready.Status == metav1.ConditionTrue {
			ready.Status, ready.Reason = c.Status, c.Reason
		}
		words = append(words, c.Message)
	}
	ready.Message = strings.Join(words, "; ")
	out.Conditions = append([]metav1.Condition{ready}, all...)
	return out
}

func condition(kind string, ok bool, reason, message string) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if ok {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// room tells of placeholders.
func room(f Facts) (api.PlaceholderStatus, metav1.Condition) {
	s := api.PlaceholderStatus{Wanted: f.Wanted, Why: f.Why}
	scheduled, noRoom, problem := 0, "", ""
	for _, p := range f.Pods {
		switch {
		case p.Phase == corev1.PodFailed || p.Phase == corev1.PodSucceeded:
			continue // evicted; another takes its place
		case p.Ready:
			s.Running++
		case p.Scheduled:
			scheduled++
			problem = max(problem, p.Problem)
		default:
			s.Pending++
			noRoom = max(noRoom, p.Unscheduled)
		}
	}
	told := fmt.Sprintf("%d of %s run (%s)", s.Running, counted(s.Wanted, "placeholder"), f.Why)
	is := func(ok bool, reason, more string) (api.PlaceholderStatus, metav1.Condition) {
		if more != "" {
			told += ": " + more
		}
		return s, condition(ConditionRoomKept, ok, reason, told)
	}
	switch {
	case f.Refused != "":
		return is(false, ReasonRefused, f.Refused)
	case s.Wanted == 0:
		return is(true, ReasonNothing, "")
	case s.Running >= s.Wanted:
		return is(true, ReasonKept, "")
	case s.Pending > 0:
		if noRoom == "" {
			return is(false, ReasonStarting, "")
		}
		return is(false, ReasonNoRoom, waits(s.Pending)+": "+noRoom)
	case problem != "":
		return is(false, ReasonNotStarted, problem)
	case scheduled == 0:
		return is(false, ReasonNoPods, "")
	}
	return is(false, ReasonStarting, "")
}

// waits tells how many placeholders have no room.
func waits(n int) string {
	if n == 1 {
		return "1 has no room and comes back when there is some"
	}
	return fmt.Sprintf("%d have no room and come back when there is some", n)
}

// images tells of images.
func images(f Facts) (api.ReserveImageState, metav1.Condition) {
	p := f.Pulls
	s := api.ReserveImageState{Wanted: p.Wanted, Present: p.Present, Pulling: p.Pulling, Failed: p.Failed, Names: f.Images, LastFailure: f.Last}
	told := fmt.Sprintf("%s on %s: %d of %d present", counted(len(f.Images), "image"), counted(f.Nodes, "node"), p.Present, p.Wanted)
	switch {
	case p.Present >= p.Wanted:
		reason := ReasonPresent
		if p.Wanted == 0 {
			reason = ReasonNothing
		}
		return s, condition(ConditionImagesPresent, true, reason, told)
	case p.Failed > 0 && f.Last != nil:
		return s, condition(ConditionImagesPresent, false, ReasonFailed, fmt.Sprintf("%s; %s on node %s: %s; tried again after a pause", told, f.Last.Image, f.Last.Node, f.Last.Message))
	}
	return s, condition(ConditionImagesPresent, false, ReasonPulling, told)
}
