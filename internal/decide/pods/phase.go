// Package pods reads pods: where a replica is in its life, and why it does not
// come further.
package pods

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// Reasons of Kubernetes that are acted on.
const (
	reasonCrashLoop     = "CrashLoopBackOff"
	reasonImageBackOff  = "ImagePullBackOff"
	reasonImagePull     = "ErrImagePull"
	reasonImageName     = "InvalidImageName"
	reasonImageNever    = "ErrImageNeverPull"
	reasonConfigError   = "CreateContainerConfigError"
	reasonOOM           = "OOMKilled"
	reasonInitializing  = "PodInitializing"
	reasonCreatingState = "ContainerCreating"
)

// Role is what a revision says of a role's replicas.
type Role struct {
	// HTTP and GRPC are the ports that requests go to, 0 for none.
	HTTP, GRPC int32
	// Metrics is where it exports them.
	Metrics service.Metrics
	// Main is the container that answers them; "" means the first.
	Main string
	// Startup is how long one may take until it is ready; 0 is unknown.
	Startup time.Duration
}

// phase reads where a pod is in its life.
func phase(pod *corev1.Pod, role Role) replica.Replica {
	r := replica.Replica{Phase: replica.Starting, Created: pod.CreationTimestamp.Time}
	main := mainOf(pod, role.Main)
	for _, c := range pod.Status.ContainerStatuses {
		r.Restarts += int(c.RestartCount)
	}
	if main != nil {
		if main.State.Running != nil {
			r.Started = main.State.Running.StartedAt.Time
		}
		if t := main.LastTerminationState.Terminated; t != nil {
			r.ExitCode = int(t.ExitCode)
		}
	}
	ready := condition(pod, corev1.PodReady)
	switch {
	case pod.DeletionTimestamp != nil:
		r.Phase = replica.Draining
	case ended(pod):
		r.Phase, r.Reason = replica.Failed, cmp.Or(pod.Status.Reason, string(pod.Status.Phase))
		r.Message = clip(strings.TrimSpace(cmp.Or(pod.Status.Message, "its pod ended and is replaced")))
		if f := faultOf(pod, role); f != nil && pod.Status.Message == "" {
			f.into(&r)
		}
	case ready != nil && ready.Status == corev1.ConditionTrue:
		r.Phase, r.ReadyAt = replica.Ready, ready.LastTransitionTime.Time
		if r.ReadyAt.Before(r.Started) {
			r.ReadyAt = r.Started
		}
	case unplaced(pod, &r):
	default:
		if f := faultOf(pod, role); f != nil {
			f.into(&r)
		} else {
			beginning(pod, main, &r)
		}
	}
	return r
}

// mainOf is the status of the container that answers requests.
func mainOf(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	list := pod.Status.ContainerStatuses
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	if len(list) > 0 && len(pod.Spec.Containers) > 0 {
		for i := range list {
			if list[i].Name == pod.Spec.Containers[0].Name {
				return &list[i]
			}
		}
	}
	return nil
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// unplaced reports whether a pod waits for a node; r's message is then what it
// lacks, in the scheduler's words: "0/1 nodes are available: 1 Insufficient
// nvidia.com/gpu."
func unplaced(pod *corev1.Pod, r *replica.Replica) bool {
	if pod.Spec.NodeName != "" {
		return false
	}
	r.Phase, r.Reason = replica.Pending, "Scheduling"
	if c := condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		words, _, _ := strings.Cut(c.Message, " preemption: ") // what follows is about preemption, which would not help
		words, _, _ = strings.Cut(words, " no new claims to deallocate")
		r.Reason, r.Message = cmp.Or(c.Reason, replica.ReasonUnschedulable), clip("no node takes the pod: "+words)
	}
	return true
}

// beginning is what a placed pod without a fault is at.
func beginning(pod *corev1.Pod, main *corev1.ContainerStatus, r *replica.Replica) {
	for _, c := range pod.Status.InitContainerStatuses {
		if c.State.Running != nil && !sidecar(pod, c.Name) {
			r.Reason, r.Message = reasonInitializing, ""
			if _, adapter := shape.AdapterOf(c.Name); adapter || shape.FetchesModel(c.Name) || c.Name == shape.Waiter || c.Name == shape.Finder {
				r.Phase, r.Reason = replica.Fetching, ""
			}
			return
		}
	}
	switch {
	case main == nil:
		r.Reason = reasonCreatingState
	case main.State.Waiting != nil:
		r.Reason = main.State.Waiting.Reason
	}
}

func sidecar(pod *corev1.Pod, name string) bool {
	for _, c := range pod.Spec.InitContainers {
		if c.Name == name {
			return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		}
	}
	return false
}

// fault is why a container does not run.
type fault struct {
	phase           replica.Phase
	reason, message string
	exit            int
	restart         time.Time
}

func (f *fault) into(r *replica.Replica) {
	r.Phase, r.Reason, r.Message, r.Restart = f.phase, f.reason, clip(f.message), f.restart
	if f.exit != 0 {
		r.ExitCode = f.exit
	}
}

// faultOf finds the first container that does not run although it should.
func faultOf(pod *corev1.Pod, role Role) *fault {
	for _, c := range pod.Status.InitContainerStatuses {
		if f := containerFault(pod, &c, role); f != nil {
			f.message = initName(c.Name) + f.message
			return f
		}
	}
	many := len(pod.Status.ContainerStatuses) > 1
	for _, c := range pod.Status.ContainerStatuses {
		if f := containerFault(pod, &c, role); f != nil {
			if many {
				f.message = "container " + c.Name + ": " + f.message
			}
			return f
		}
	}
	return nil
}

func initName(name string) string {
	if shape.FetchesModel(name) {
		return "the model cannot be fetched: "
	}
	if name == shape.Waiter || name == shape.Finder { // what it fails by is the server's image; it says what is not there
		return ""
	}
	if adapter, ok := shape.AdapterOf(name); ok {
		return "adapter " + adapter + " cannot be fetched: "
	}
	return "init container " + name + ": "
}

func containerFault(pod *corev1.Pod, c *corev1.ContainerStatus, role Role) *fault {
	last := c.LastTerminationState.Terminated
	if t := c.State.Terminated; t != nil {
		regular := t.ExitCode == 0 && isInit(pod, c.Name)
		if regular {
			return nil
		}
		return exitFault(t, role)
	}
	w := c.State.Waiting
	if w == nil {
		return nil
	}
	switch w.Reason {
	case reasonCrashLoop:
		f := &fault{phase: replica.Failed, reason: w.Reason, message: w.Message}
		if last != nil {
			f = exitFault(last, role)
			f.restart = last.FinishedAt.Add(backOff(w.Message))
		}
		return f
	case reasonImagePull, reasonImageBackOff, reasonImageName, reasonImageNever:
		return &fault{phase: replica.Failed, reason: w.Reason, message: imageWords(c.Image, w.Reason, w.Message)}
	case reasonConfigError: // it is made as soon as what it refers to is there
		return &fault{phase: replica.Pending, reason: w.Reason, message: cmp.Or(w.Message, "the container refers to what is not there")}
	case "", reasonInitializing, reasonCreatingState:
		return nil
	}
	return &fault{phase: replica.Failed, reason: w.Reason, message: cmp.Or(w.Message, w.Reason)}
}

func isInit(pod *corev1.Pod, name string) bool {
	for _, c := range pod.Spec.InitContainers {
		if c.Name == name {
			return true
		}
	}
	return false
}

// exitFault returns how a process ended.
func exitFault(t *corev1.ContainerStateTerminated, role Role) *fault {
	f := &fault{phase: replica.Failed, reason: cmp.Or(t.Reason, "Error"), exit: int(t.ExitCode), restart: t.FinishedAt.Time}
	f.message = fmt.Sprintf("exit code %d", t.ExitCode)
	ran := t.FinishedAt.Sub(t.StartedAt.Time)
	killed := t.ExitCode == 128+sigkill || t.ExitCode == 128+sigterm
	otherwise := 1
	if t.ExitCode > 128 {
		otherwise = 0 // the last line that a process wrote before a signal does not explain it
	}
	switch said := strings.Join(replica.Cause(strings.Split(t.Message, "\n"), otherwise), " | "); {
	case t.Reason == reasonOOM:
		f.message += ": out of memory: raise its memory limit"
	case killed && role.Startup > 0 && ran >= role.Startup && ran < role.Startup+startupSlack:
		f.reason = replica.ReasonStartupTimeout
		f.message += fmt.Sprintf(": not ready within %s: see its log, or raise startupTimeout", role.Startup)
	case said != "":
		f.message += ": " + said
	case killed:
		f.message += fmt.Sprintf(": ended after %s: it no longer answered its liveness probe, or its node ended it", ran)
	case t.ExitCode > 128 && t.ExitCode < 160:
		f.message += ": " + signal(t.ExitCode-128)
	case t.ExitCode == 0:
		f.message += ": a server must not end by itself"
	default:
		f.message += ": see its log"
	}
	return f
}

const (
	sigkill = 9
	sigterm = 15
)

// signals are what Linux's say, of those that end a server.
var signals = map[int32]string{1: "hangup", 2: "interrupt", 3: "quit", 4: "illegal instruction", 5: "trace/breakpoint trap", 6: "aborted",
	7: "bus error", 8: "floating point exception", sigkill: "killed", 11: "segmentation fault", 13: "broken pipe", 14: "alarm clock", sigterm: "terminated"}

func signal(n int32) string {
	return cmp.Or(signals[n], fmt.Sprintf("signal %d", n))
}

// startupSlack is how long after its startup timeout a container is still
// thought to have been ended for it: the probe's period, and its grace.
const startupSlack = time.Minute

// imageWords returns why an image is not there, and what to do.
func imageWords(image, reason, message string) string {
	switch reason {
	case reasonImageName:
		return fmt.Sprintf("%q is no name of an image", image)
	case reasonImageNever:
		return fmt.Sprintf("image %q is not on the node, and imagePullPolicy Never forbids to pull it", image)
	}
	why := message
	if _, detail, found := strings.Cut(message, reasonImagePull+": "); found {
		why = detail
	}
	what := fmt.Sprintf("image %q cannot be pulled: ", image)
	lower := strings.ToLower(why)
	switch {
	case strings.Contains(lower, "unauthorized"), strings.Contains(lower, "authentication"), strings.Contains(lower, "denied"), strings.Contains(lower, "forbidden"):
		what += "the registry refuses it: give the pod imagePullSecrets, or check the name: "
	case strings.Contains(lower, "not found"), strings.Contains(lower, "manifest unknown"):
		what += "the registry has none of this name: "
	}
	return what + cmp.Or(why, reason)
}

// backOff is how long the kubelet waits, of its words "back-off 40s restarting
// failed container=main pod=…".
func backOff(message string) time.Duration {
	rest, said := strings.CutPrefix(message, "back-off ")
	wait, _, found := strings.Cut(rest, " restarting")
	if d, err := time.ParseDuration(wait); said && found && err == nil {
		return max(0, d)
	}
	return 0
}

// maxMessage bounds a replica's message, in bytes.
const maxMessage = 512

// clip makes of a message one line of bounded length.
func clip(s string) string {
	return excerpt.Of(strings.Join(strings.Fields(s), " "), maxMessage)
}

// Failure is how a start of a group ended. The controller of LeaderWorkerSets
// makes a group anew as soon as one of its containers ended, so that no pod is
// there for long that could tell.
type Failure struct {
	Revision, Reason, Message string
	ExitCode                  int
	At                        time.Time
}

// GroupFailure reads of a pod of a group how one of its containers ended last;
// ok is false where none did, or where the pod is ended by somebody.
func GroupFailure(pod *corev1.Pod, role Role) (f Failure, ok bool) {
	if pod.DeletionTimestamp != nil {
		return f, false
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			init := isInit(pod, list[i].Name)
			t := ending(&list[i], init)
			if t == nil {
				continue
			}
			found := exitFault(t, role)
			f = Failure{Revision: pod.Labels[shape.LabelRevision], Reason: found.reason, Message: found.message, ExitCode: found.exit, At: t.FinishedAt.Time}
			if init {
				f.Message = initName(list[i].Name) + f.Message
			}
			if pod.Labels[shape.LabelWorkerIndex] != "0" {
				f.Message = fmt.Sprintf("worker %s: %s", pod.Name, f.Message)
			}
			f.Message = clip(f.Message)
			return f, true
		}
	}
	return f, false
}

// ending is the last end of a container that was not to end; nil is none.
func ending(c *corev1.ContainerStatus, init bool) *corev1.ContainerStateTerminated {
	switch t := c.State.Terminated; {
	case t != nil && (t.ExitCode != 0 || !init):
		return t
	case c.RestartCount > 0:
		return c.LastTerminationState.Terminated
	}
	return nil
}

// failed has a replica whose group is made anew tell how the one before ended.
func (f Failure) failed(r *replica.Replica) {
	switch r.Phase {
	case replica.Pending, replica.Fetching, replica.Starting:
	default:
		return
	}
	if f.Revision == r.Revision {
		r.Phase, r.Reason, r.Message, r.ExitCode = replica.Failed, f.Reason, f.Message, f.ExitCode
	}
}
