package loadjob

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/decide/reserve"
)

// The states, in OME's words.
const (
	Pending   = "Pending"
	Running   = "Running"
	Completed = "Completed"
	Failed    = "Failed"
)

// Status is what is said of a benchmark, in the fields of OME's status.
type Status struct {
	State              string
	Started, Completed time.Time
	Failure            string
	// Job is the one that the rest is of; "" while there is none.
	Job     string
	Details string
	// Warnings is a line of which fields have no effect.
	Warnings string
	// Denied is set where its Job cannot be made.
	Denied bool
}

const (
	// maxFailure and maxWarnings bound texts of a status.
	maxFailure  = 1 << 10
	maxWarnings = 1 << 10
)

// noEffect begins the line of warnings.
const noEffect = "No effect: "

// Decision is what is to be done for a benchmark.
type Decision struct {
	// Create the Job; Delete these of earlier specs, and wait until their pods have ended.
	Create bool
	Delete []string
	Status Status
}

// Decide decides by the Jobs and pods of a benchmark's namespace. A Job that is there is
// never made again: it is the record of what was measured. Of a spec that has changed the
// former Job ends first, so that no two loads meet.
func Decide(b *Benchmark, jobs []*batchv1.Job, pods []*corev1.Pod) Decision {
	d := Decision{Status: Status{State: Pending}}
	if len(b.Warnings) > 0 {
		d.Status.Warnings = excerpt.Of(noEffect+strings.Join(b.Warnings, "; "), maxWarnings)
	}
	var mine *batchv1.Job
	former := false
	for _, j := range jobs {
		ref := metav1.GetControllerOf(j)
		if ref == nil || ref.UID != b.UID {
			continue
		}
		switch {
		case j.Name == JobName(b) && j.DeletionTimestamp == nil:
			mine = j
		case j.DeletionTimestamp == nil:
			d.Delete = append(d.Delete, j.Name)
			fallthrough
		default:
			former = true
		}
	}
	slices.Sort(d.Delete)
	switch {
	case former && mine == nil:
		d.Status.Details = "waits until the pod of the former Job has ended"
	case mine == nil:
		d.Create = true
	default:
		observe(&d.Status, mine, last(mine, pods))
	}
	return d
}

// last is the latest pod of a Job; nil for none.
func last(j *batchv1.Job, pods []*corev1.Pod) *corev1.Pod {
	var out *corev1.Pod
	for _, p := range pods {
		if metav1.IsControlledBy(p, j) && (out == nil || out.CreationTimestamp.Before(&p.CreationTimestamp)) {
			out = p
		}
	}
	return out
}

// observe returns how far a Job is.
func observe(s *Status, j *batchv1.Job, pod *corev1.Pod) {
	s.Job = j.Name
	if j.Status.StartTime != nil {
		s.Started = j.Status.StartTime.Time
	}
	for _, c := range j.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete:
			s.State, s.Completed, s.Details = Completed, c.LastTransitionTime.Time, words(pod)
			return
		case batchv1.JobFailed:
			s.State, s.Completed = Failed, c.LastTransitionTime.Time
			s.Failure, s.Details = failure(c.Message, pod, j)
			return
		}
	}
	switch {
	case pod == nil:
		s.Details = fmt.Sprintf("it has no pod yet: `kubectl describe job %s -n %s` says why", j.Name, j.Namespace)
	case pod.Status.Phase == corev1.PodRunning:
		s.State = Running
	default:
		s.Details = waits(pod)
	}
}

// waits is why a pod does not run yet; "" for nothing known.
func waits(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return excerpt.Of("no node takes the pod: "+c.Message, maxFailure)
		}
	}
	_, problem := reserve.PullProblem(pod)
	return excerpt.Of(problem, maxFailure)
}

// ended is how a pod's container ended; nil where that is not known.
func ended(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	if pod != nil {
		for _, c := range pod.Status.ContainerStatuses {
			if c.Name == container {
				return c.State.Terminated
			}
		}
	}
	return nil
}

// words are the last of a pod: what was measured.
func words(pod *corev1.Pod) string {
	if t := ended(pod); t != nil {
		return strings.TrimSpace(t.Message)
	}
	return ""
}

// failure is why a Job failed, and what was measured all the same. The first line of the
// pod's last words says why.
func failure(message string, pod *corev1.Pod, j *batchv1.Job) (why, measured string) {
	t := ended(pod)
	switch {
	case t == nil || t.ExitCode == 0:
		why = cmp.Or(message, "its Job failed") // as that it took too long
	case t.Reason == "OOMKilled":
		why = "its pod was killed for its memory: write a larger limit into podOverride.resources, or fewer clients"
	default:
		why, measured, _ = strings.Cut(strings.TrimSpace(t.Message), "\n")
		why = cmp.Or(why, fmt.Sprintf("its pod ended with the exit code %d: `kubectl logs job/%s -n %s` says why", t.ExitCode, j.Name, j.Namespace))
	}
	return excerpt.Of(why, maxFailure), strings.TrimSpace(measured)
}

// Taken is why a benchmark cannot have the Job of its name that is there; nil where that is
// its own, which the watch will tell of.
func Taken(b *Benchmark, there *batchv1.Job) error {
	switch ref := metav1.GetControllerOf(there); {
	case ref == nil || ref.UID != b.UID:
		return fmt.Errorf("the Job %s is there already and is not this BenchmarkJob's: delete it, or give the BenchmarkJob another name", there.Name)
	case there.Labels[LabelBenchmark] == "":
		return fmt.Errorf("the Job %s has lost its label %s, by which it is watched: delete it", there.Name, LabelBenchmark)
	}
	return nil
}

// Refused is the status of a benchmark whose Job cannot be made.
func (s Status) Refused(why string) Status {
	s.State, s.Denied, s.Details = Pending, true, "its Job is refused, and is tried again: "+excerpt.Of(why, maxFailure)
	return s
}

// Over is a status in OME's fields, over the one that stands there: the details of a pod that
// is gone stay, and the time of the last look changes with something else alone.
func (s Status) Over(before map[string]any, now time.Time) map[string]any {
	out := map[string]any{"state": s.State}
	for name, t := range map[string]time.Time{"startTime": s.Started, "completionTime": s.Completed} {
		if !t.IsZero() {
			out[name] = stamp(t)
		}
	}
	if s.Failure != "" {
		out["failureMessage"] = s.Failure
	}
	details, job := s.Details, ""
	if s.Job != "" {
		job = "Job " + s.Job
	}
	if was, _ := before["details"].(string); details == "" && !s.Completed.IsZero() && before["state"] == s.State {
		if rest, same := strings.CutPrefix(was, job+"\n"); same {
			details, _, _ = strings.Cut(rest, noEffect)
		}
	}
	lines := slices.DeleteFunc([]string{job, strings.TrimSpace(details), s.Warnings}, func(line string) bool { return line == "" })
	if len(lines) > 0 {
		out["details"] = strings.Join(lines, "\n")
	}
	have := maps.Clone(before)
	delete(have, "lastReconcileTime")
	if at, ok := before["lastReconcileTime"].(string); ok && maps.EqualFunc(out, have, func(a, b any) bool { return a == b }) {
		out["lastReconcileTime"] = at
	} else {
		out["lastReconcileTime"] = stamp(now)
	}
	return out
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Read reads what stands in a manifest: the state, why it is not another, and what was
// measured. What is said of an earlier spec does not count.
func Read(b *Benchmark, status map[string]any) (s Status, why string) {
	text := func(name string) string {
		t, _ := status[name].(string)
		return t
	}
	at := func(name string) time.Time {
		t, _ := time.Parse(time.RFC3339, text(name)) // none is zero
		return t
	}
	details, warnings, _ := strings.Cut(text("details"), noEffect)
	if warnings != "" {
		warnings = noEffect + warnings
	}
	job, rest, _ := strings.Cut(details, "\n")
	own := job == "Job "+JobName(b)
	switch state := text("state"); {
	case state == "":
		return Status{State: Pending}, "no controller has reported its state"
	case state == Pending && strings.HasPrefix(job, "Job "):
		return Status{State: Pending, Warnings: warnings}, strings.TrimSpace(rest)
	case state == Pending:
		return Status{State: Pending, Warnings: warnings}, strings.TrimSpace(details)
	case !own:
		return Status{State: Pending}, cmp.Or(text("failureMessage"), "the controller has not looked at its latest change yet")
	default:
		return Status{State: state, Started: at("startTime"), Completed: at("completionTime"), Job: JobName(b), Details: strings.TrimSpace(rest), Warnings: warnings}, text("failureMessage")
	}
}
