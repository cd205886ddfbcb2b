package loadjob

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	env   = Env{Image: "registry.example/roundhouse:1", Gateway: "http://roundhouse-gateway.roundhouse-system.svc"}
)

// read reads a manifest as the controller does.
func read(t *testing.T, text string) *Benchmark {
	t.Helper()
	res := dialect.Read("", []byte(text))
	if errs := res.Errors(dialect.Kubernetes); len(errs) > 0 || len(res.Objects) != 1 {
		t.Fatal(errs)
	}
	b := &Benchmark{Job: *res.Objects[0].Benchmark, UID: "1234", Mark: "5678"}
	for _, w := range res.Warnings(dialect.Kubernetes) {
		b.Warnings = append(b.Warnings, w.Path+": "+w.Message)
	}
	return b
}

// TestRender compares the Jobs of manifests with files.
func TestRender(t *testing.T) {
	files, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b := read(t, string(text))
		job := Render(b, env)
		if again := Render(b, env); !reflect.DeepEqual(job, again) {
			t.Errorf("%s: rendered twice, it differs", file)
		}
		got, err := yaml.Marshal(job)
		if err != nil {
			t.Fatal(err)
		}
		golden := strings.TrimSuffix(file, ".in.yaml") + ".job.yaml"
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || string(want) != string(got) {
			t.Errorf("%s: %v\n%s", golden, err, got)
		}
	}
}

// A Job's name is a label, whatever the benchmark's, and tells specs and objects apart.
func TestJobName(t *testing.T) {
	b := &Benchmark{UID: "a", Mark: "1"}
	seen := map[string]bool{}
	for _, name := range []string{"a", strings.Repeat("a", 253), strings.Repeat("a", 39) + ".b", strings.Repeat("a", 40) + "-b"} {
		for _, uid := range []types.UID{"a", "b"} {
			for _, mark := range []string{"1", "2"} {
				b.Name, b.UID, b.Mark = name, types.UID(name)+uid, mark
				job := JobName(b)
				if len(job) > 63 || strings.Contains(job, ".") || strings.Contains(job, "--") || seen[job] {
					t.Errorf("%s: %s", name, job)
				}
				seen[job] = true
			}
		}
	}
}

// A mark is of the spec alone.
func TestMark(t *testing.T) {
	one := Mark([]byte(`{"metadata":{"name":"a","labels":{"a":"b"}},"spec":{"task":"x","numConcurrency":[1,2]}}`))
	if same := Mark([]byte(`{"spec":{"numConcurrency":[1, 2],"task":"x"},"metadata":{"name":"a"}}`)); same != one {
		t.Error("labels, or the order of fields, change the mark")
	}
	if other := Mark([]byte(`{"spec":{"numConcurrency":[2,1],"task":"x"}}`)); other == one {
		t.Error("another spec has the same mark")
	}
}

const plain = `
apiVersion: ome.io/v1beta1
kind: BenchmarkJob
metadata: {name: chat, namespace: team}
spec:
  task: text-to-text
  endpoint: {inferenceService: {name: chat}}
  trafficScenarios: ["D(10,5)"]
  numConcurrency: [1]
  maxTimePerIteration: 1
  maxRequestsPerIteration: 10
`

// job is the one of a benchmark, in a condition.
func job(b *Benchmark, kind batchv1.JobConditionType, message string) *batchv1.Job {
	j := Render(b, env)
	j.UID, j.Status.StartTime = types.UID(j.Name), &metav1.Time{Time: start}
	if kind != "" {
		j.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: corev1.ConditionTrue, Message: message, LastTransitionTime: metav1.NewTime(start.Add(time.Minute))}}
	}
	return j
}

// pod is one of a Job.
func pod(j *batchv1.Job, edit func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: j.Name + "-x", CreationTimestamp: metav1.NewTime(start), OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "batch/v1", Kind: "Job", Name: j.Name, UID: j.UID, Controller: new(true)}}}}
	edit(p)
	return p
}

func exits(code int32, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}}}}
	}
}

// TestDecide: what is done and said of what is there.
func TestDecide(t *testing.T) {
	b := read(t, plain)
	changed := read(t, plain)
	changed.Mark = "9"
	running, begun := job(b, "", ""), Status{State: Pending, Started: start, Job: JobName(b)}
	done, failed := job(b, batchv1.JobComplete, ""), job(b, batchv1.JobFailed, "Job was active longer than specified deadline")
	going := job(changed, "", "")
	going.DeletionTimestamp = &metav1.Time{Time: start}
	stranger := job(b, "", "")
	stranger.OwnerReferences = nil
	with := func(s Status, edit func(*Status)) Status { edit(&s); return s }
	ended := start.Add(time.Minute)
	for name, c := range map[string]struct {
		jobs []*batchv1.Job
		pods []*corev1.Pod
		want Decision
	}{
		"nothing":             {nil, nil, Decision{Create: true, Status: Status{State: Pending}}},
		"somebody else's":     {[]*batchv1.Job{stranger}, nil, Decision{Create: true, Status: Status{State: Pending}}},
		"a former spec's":     {[]*batchv1.Job{job(changed, batchv1.JobComplete, "")}, nil, Decision{Delete: []string{JobName(changed)}, Status: Status{State: Pending, Details: "waits until the pod of the former Job has ended"}}},
		"a former spec's end": {[]*batchv1.Job{going}, nil, Decision{Status: Status{State: Pending, Details: "waits until the pod of the former Job has ended"}}},
		"no pod": {[]*batchv1.Job{running}, nil, Decision{Status: with(begun, func(s *Status) {
			s.Details = "it has no pod yet: `kubectl describe job " + running.Name + " -n team` says why"
		})}},
		"no node": {[]*batchv1.Job{running}, []*corev1.Pod{pod(running, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available."}}
		})}, Decision{Status: with(begun, func(s *Status) { s.Details = "no node takes the pod: 0/1 nodes are available." })}},
		"no image": {[]*batchv1.Job{running}, []*corev1.Pod{pod(running, func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}}}
		})}, Decision{Status: with(begun, func(s *Status) { s.Details = "ErrImagePull: not found" })}},
		"it runs": {[]*batchv1.Job{running}, []*corev1.Pod{pod(running, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })}, Decision{Status: with(begun, func(s *Status) { s.State = Running })}},
		"its second pod runs": {[]*batchv1.Job{running}, []*corev1.Pod{
			pod(running, func(p *corev1.Pod) {
				p.CreationTimestamp, p.Status.Phase = metav1.NewTime(start.Add(time.Second)), corev1.PodRunning
			}),
			pod(running, exits(137, "Error", ""))}, Decision{Status: with(begun, func(s *Status) { s.State = Running })}},
		"measured": {[]*batchv1.Job{done}, []*corev1.Pod{pod(done, exits(0, "Completed", "D(10,5), 1 at once: 10 requests\n"))},
			Decision{Status: Status{State: Completed, Job: JobName(b), Started: start, Completed: ended, Details: "D(10,5), 1 at once: 10 requests"}}},
		"measured, pod gone": {[]*batchv1.Job{done}, nil, Decision{Status: Status{State: Completed, Job: JobName(b), Started: start, Completed: ended}}},
		"failed": {[]*batchv1.Job{failed}, []*corev1.Pod{pod(failed, exits(1, "Error", "404 Not Found: no such model\nD(10,5), 1 at once: 10 requests"))},
			Decision{Status: Status{State: Failed, Job: JobName(b), Started: start, Completed: ended, Failure: "404 Not Found: no such model", Details: "D(10,5), 1 at once: 10 requests"}}},
		"failed without a word": {[]*batchv1.Job{failed}, []*corev1.Pod{pod(failed, exits(3, "Error", ""))},
			Decision{Status: Status{State: Failed, Job: JobName(b), Started: start, Completed: ended, Failure: "its pod ended with the exit code 3: `kubectl logs job/" + failed.Name + " -n team` says why"}}},
		"too large": {[]*batchv1.Job{failed}, []*corev1.Pod{pod(failed, exits(137, "OOMKilled", ""))},
			Decision{Status: Status{State: Failed, Job: JobName(b), Started: start, Completed: ended, Failure: "its pod was killed for its memory: write a larger limit into podOverride.resources, or fewer clients"}}},
		"too long": {[]*batchv1.Job{failed}, nil, Decision{Status: Status{State: Failed, Job: JobName(b), Started: start, Completed: ended, Failure: "Job was active longer than specified deadline"}}},
	} {
		if got := Decide(b, c.jobs, c.pods); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, c.want)
		}
	}
}

// A Job that is there counts as a benchmark's only if that owns it, and the watch sees it.
func TestTaken(t *testing.T) {
	b := read(t, plain)
	other := read(t, plain)
	other.UID = "another"
	stranger, unmarked := job(b, "", ""), job(b, "", "")
	stranger.OwnerReferences, unmarked.Labels = nil, nil
	for name, c := range map[string]struct {
		there *batchv1.Job
		want  string
	}{
		"its own":         {job(b, "", ""), ""},
		"nobody's":        {stranger, "the Job " + stranger.Name + " is there already and is not this BenchmarkJob's"},
		"another's":       {job(other, "", ""), "is not this BenchmarkJob's"},
		"without a label": {unmarked, "has lost its label " + LabelBenchmark},
	} {
		if err := Taken(b, c.there); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A status is written once, with the line of what has no effect, and keeps what a pod said
// that is gone.
func TestOver(t *testing.T) {
	s := Status{State: Completed, Started: start, Completed: start.Add(time.Minute), Job: "j", Details: "measured", Warnings: "No effect: spec.a: none"}
	first := s.Over(nil, start)
	want := map[string]any{"state": "Completed", "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:00Z", "lastReconcileTime": "2026-01-01T00:00:00Z", "details": "Job j\nmeasured\nNo effect: spec.a: none"}
	if !reflect.DeepEqual(first, want) {
		t.Errorf("%v", first)
	}
	if again := s.Over(first, start.Add(time.Hour)); !reflect.DeepEqual(again, first) {
		t.Errorf("written again: %v", again)
	}
	s.Details = ""
	if gone := s.Over(first, start.Add(time.Hour)); !reflect.DeepEqual(gone, first) {
		t.Errorf("forgotten: %v", gone)
	}
	s.Job = "k"
	if other := s.Over(first, start); other["details"] != "Job k\nNo effect: spec.a: none" {
		t.Errorf("what another Job measured: %v", other)
	}
	s = Status{State: Failed, Failure: "why"}
	if other := s.Over(first, start.Add(time.Hour)); !reflect.DeepEqual(other, map[string]any{"state": "Failed", "failureMessage": "why", "lastReconcileTime": "2026-01-01T01:00:00Z"}) {
		t.Errorf("%v", other)
	}
	refused := Status{State: Pending, Warnings: "No effect: a"}.Refused("forbidden")
	if got := refused.Over(nil, start)["details"]; got != "its Job is refused, and is tried again: forbidden\nNo effect: a" {
		t.Errorf("%v", got)
	}
}

// No text of a manifest or of a pod makes a status too large, or a variable of an argument.
func TestBounds(t *testing.T) {
	b := read(t, plain)
	b.Warnings = slices.Repeat([]string{strings.Repeat("w", 500)}, 100)
	j := job(b, batchv1.JobFailed, strings.Repeat("m", 1<<20))
	d := Decide(b, []*batchv1.Job{j}, []*corev1.Pod{pod(j, exits(1, "Error", strings.Repeat("e", 4096)))})
	if n := len(d.Status.Failure) + len(d.Status.Warnings); n > 3<<10 {
		t.Errorf("%d bytes", n)
	}
	for _, text := range []string{"$(HOME)", "$$(HOME)", "$$$(HOME)", "$", "$$", "$HOME", "a$"} {
		b.Parameters = map[string]any{"a": text}
		args := arguments(b, env)
		for i := range args {
			args[i] = expanded(args[i])
		}
		if !slices.Contains(args, `--param=a="`+text+`"`) {
			t.Errorf("%s: %q", text, args)
		}
	}
}

// expanded is an argument as Kubernetes gives it to a container.
func expanded(arg string) string {
	var out strings.Builder
	for i := 0; i < len(arg); i++ {
		name, _, closed := strings.Cut(strings.TrimPrefix(arg[i:], "$("), ")")
		switch {
		case strings.HasPrefix(arg[i:], "$$"):
			i++
			out.WriteByte('$')
		case strings.HasPrefix(arg[i:], "$(") && closed:
			i += len("$()") + len(name) - 1
			out.WriteString("the value of " + name)
		default:
			out.WriteByte(arg[i])
		}
	}
	return out.String()
}

// What is written is read again, unless it is of an earlier spec.
func TestRead(t *testing.T) {
	b, changed := read(t, plain), read(t, plain)
	changed.Mark = "9"
	b.Warnings = []string{"spec.a: none"}
	done, failed := job(b, batchv1.JobComplete, ""), job(b, batchv1.JobFailed, "")
	for name, c := range map[string]struct {
		jobs []*batchv1.Job
		pods []*corev1.Pod
		why  string
	}{
		"pending":  {nil, nil, ""},
		"waits":    {[]*batchv1.Job{job(b, "", "")}, nil, "it has no pod yet: `kubectl describe job " + JobName(b) + " -n team` says why"},
		"measured": {[]*batchv1.Job{done}, []*corev1.Pod{pod(done, exits(0, "", "a\nb"))}, ""},
		"failed":   {[]*batchv1.Job{failed}, []*corev1.Pod{pod(failed, exits(1, "", "why\na"))}, "why"},
	} {
		want := Decide(b, c.jobs, c.pods).Status
		got, why := Read(b, want.Over(nil, start))
		want.Failure = ""
		if want.State == Pending {
			want = Status{State: Pending, Warnings: want.Warnings}
		}
		if !reflect.DeepEqual(got, want) || why != c.why {
			t.Errorf("%s: %+v, %q; want %+v, %q", name, got, why, want, c.why)
		}
		if old, _ := Read(changed, want.Over(nil, start)); old.State != Pending {
			t.Errorf("%s: of an earlier spec: %+v", name, old)
		}
	}
	if s, why := Read(b, nil); s.State != Pending || why != "no controller has reported its state" {
		t.Errorf("%+v, %q", s, why)
	}
	if s, why := Read(b, map[string]any{"state": Failed, "failureMessage": "spec.x: is wrong"}); s.State != Pending || why != "spec.x: is wrong" {
		t.Errorf("%+v, %q", s, why)
	}
}
