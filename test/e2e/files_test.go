package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// constant is a LightGBM model that answers v to everything.
func constant(v int) string {
	return fmt.Sprintf(`tree
version=v4
num_class=1
num_tree_per_iteration=1
label_index=0
max_feature_idx=0
objective=regression
feature_names=x
feature_infos=[0:1]

Tree=0
num_leaves=2
num_cat=0
split_feature=0
split_gain=1
threshold=0.5
decision_type=2
left_child=-1
right_child=-2
leaf_value=%[1]d %[1]d
leaf_weight=1 1
leaf_count=1 1
internal_value=0
internal_weight=0
internal_count=2
is_linear=0
shrinkage=1


end of trees
`, v)
}

const constantTensor = `{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP64", "data": [0.1]}]}`

func constantManifest(name, model, scaling, rest string) string {
	return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: ` + name + `}
spec:
  model: {uri: "file://` + model + `", format: {name: lightgbm}}
  scaling: ` + scaling + "\n" + rest
}

// revisionOf is the revision a service is at.
func (n *node) revisionOf(name string) string { return n.service("default/" + name).Status.Revision }

// TestOneRevisionServesOneModel: a model whose file is overwritten is another
// revision, rolled out as any other, and no replica starts with files that are
// not its revision's.
func TestOneRevisionServesOneModel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	model := write(t, dir, "model.txt", constant(1))
	n := startNode(t)
	answer := func(name string) float64 { return n.infer("/v2/models/"+name+"/infer", constantTensor)[0] }
	manifests := write(t, dir, "two.yaml", constantManifest("two", model, "{minReplicas: 2, maxReplicas: 2}", "")+"---\n"+
		constantManifest("asleep", model, "{minReplicas: 0}", ""))
	n.do("apply", "--wait", "-f", manifests)
	eventually(t, "two replicas are ready", func() (bool, string) {
		s := n.status("two")
		return strings.Contains(s, "2/2"), s
	})
	if got := answer("asleep"); got != 1 {
		t.Fatalf("asleep answers %v", got)
	}
	first, asleep := n.revisionOf("two"), n.revisionOf("asleep")
	contains(t, n.do("apply", "-f", manifests), "service default/two unchanged")

	// Put to sleep and asked again, a service is at the revision of the files
	// that it then serves.
	n.post("/v2/repository/models/asleep/unload", "{}")
	// Until it is drained, its replica may still be asked.
	eventually(t, "asleep has no replica", func() (bool, string) {
		replicas := n.service("default/asleep").Replicas
		return len(replicas) == 0, fmt.Sprint(replicas)
	})
	write(t, dir, "model.txt", constant(2))
	if got := answer("asleep"); got != 2 || n.revisionOf("asleep") == asleep {
		t.Errorf("asleep answers %v by revision %s, was %s", got, n.revisionOf("asleep"), asleep)
	}
	// A replica that starts again does not take what the other does not serve.
	pid := n.service("default/two").Replicas[0].PID
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both serve the new model, under a new revision", func() (bool, string) {
		replicas := map[string]bool{}
		for _, r := range n.service("default/two").Replicas {
			replicas[r.Phase+" "+r.Revision] = true
		}
		return len(replicas) == 1 && n.revisionOf("two") != first && strings.Contains(n.status("two"), "2/2"), fmt.Sprint(replicas)
	})
	for range 20 {
		if got := answer("two"); got != 2 {
			t.Fatalf("two answers %v after the rollout", got)
		}
	}
	// Nothing has ended: apply is what makes the change seen.
	second := n.revisionOf("two")
	write(t, dir, "model.txt", constant(3))
	if got := answer("two"); got != 2 {
		t.Errorf("before apply it answers %v", got)
	}
	contains(t, n.do("apply", "--wait", "-f", manifests), "service default/two configured")
	eventually(t, "the third model serves", func() (bool, string) {
		got := answer("two")
		return got == 3 && n.revisionOf("two") != second, fmt.Sprint(got)
	})
	// Touched and the same is the same.
	third := n.revisionOf("two")
	if err := os.Chtimes(model, time.Now(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	contains(t, n.do("apply", "-f", manifests), "service default/two unchanged")
	if got := n.revisionOf("two"); got != third {
		t.Errorf("revision %s of files that are the same, was %s", got, third)
	}
}

// TestOneRevisionServesOneFetchedModel: what pull brings in place of a model's
// copy is another revision too, although the first was made before any copy was
// there, and before up came back.
func TestOneRevisionServesOneFetchedModel(t *testing.T) {
	t.Parallel()
	var version atomic.Int32
	version.Store(1)
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "model.txt", time.Time{}, strings.NewReader(constant(int(version.Load()))))
	}))
	defer source.Close()
	uri := source.URL + "/model.txt"
	n := startNode(t)
	manifest := write(t, t.TempDir(), "two.yaml", strings.Replace(constantManifest("two", "x", "{minReplicas: 2, maxReplicas: 2}", ""), "file://x", uri, 1))
	n.do("apply", "--wait", "-f", manifest)
	serve := func(want float64, than string) {
		t.Helper()
		eventually(t, fmt.Sprintf("both replicas serve model %v", want), func() (bool, string) {
			revisions := map[string]bool{}
			for _, r := range n.service("default/two").Replicas {
				revisions[r.Phase+" "+r.Revision] = true
			}
			return len(revisions) == 1 && strings.Contains(n.status("two"), "2/2") && n.revisionOf("two") != than, fmt.Sprint(revisions, n.status("two"))
		})
		for range 20 {
			if got := n.infer("/v2/models/two/infer", constantTensor)[0]; got != want {
				t.Fatalf("it answers %v, want %v", got, want)
			}
		}
	}
	serve(1, "")
	first := n.revisionOf("two")
	contains(t, n.do("apply", "-f", manifest), "service default/two unchanged")

	version.Store(2)
	n.do("pull", uri)
	serve(1, "")
	if err := syscall.Kill(-n.service("default/two").Replicas[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	serve(2, first)
	second := n.revisionOf("two")
	version.Store(3)
	n.do("pull", uri)
	contains(t, n.do("apply", "--wait", "-f", manifest), "service default/two configured")
	serve(3, second)
	third := n.revisionOf("two")
	n.do("pull", uri)
	contains(t, n.do("apply", "-f", manifest), "service default/two unchanged")
	if got := n.revisionOf("two"); got != third {
		t.Errorf("revision %s of the same files, was %s", got, third)
	}
}

// TestChangesOutliveUp: what apply has answered takes effect, whenever up ends.
func TestChangesOutliveUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	model := write(t, dir, "model.txt", constant(1))
	n := startNode(t)
	manifest := func(scaling, rest string) string {
		return write(t, dir, "m.yaml", constantManifest("m", model, scaling, rest))
	}
	n.do("apply", "--wait", "-f", manifest("{minReplicas: 1}", ""))
	n.pid("m")

	// Stored but never resolved, since the model was away.
	before := n.revisionOf("m")
	if err := os.Rename(model, model+".away"); err != nil {
		t.Fatal(err)
	}
	changed := "  engine: {env: [{name: CHANGED, value: \"1\"}]}\n"
	n.do("apply", "-f", manifest("{minReplicas: 1}", changed))
	eventually(t, "the model is missed", func() (bool, string) {
		s := n.run("describe", "m").out
		return strings.Contains(s, "no file or folder"), s
	})
	if code := n.signal(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if err := os.Rename(model+".away", model); err != nil {
		t.Fatal(err)
	}
	n.up()
	eventually(t, "the change is made", func() (bool, string) {
		now := n.revisionOf("m")
		return now != before, now
	})
	n.pid("m")

	// Killed right after the answer.
	for i := range 4 {
		before = n.revisionOf("m")
		n.do("apply", "-f", manifest("{minReplicas: 1}", fmt.Sprintf("  engine: {env: [{name: CHANGED, value: \"%d\"}]}\n", i+2)))
		n.signal(syscall.SIGKILL)
		n.up()
		eventually(t, "a change of what runs outlives up", func() (bool, string) {
			now := n.revisionOf("m")
			return now != before, now
		})
	}
	n.pid("m")
	n.do("apply", "-f", manifest("{minReplicas: 2, maxReplicas: 2}", "  engine: {env: [{name: CHANGED, value: \"5\"}]}\n"))
	n.signal(syscall.SIGKILL)
	n.up()
	eventually(t, "a change of scaling outlives up", func() (bool, string) {
		s := n.status("m")
		return strings.Contains(s, "2/2"), s
	})

	// The model overwritten while there is no up.
	before = n.revisionOf("m")
	n.signal(syscall.SIGKILL)
	write(t, dir, "model.txt", constant(7))
	n.up()
	eventually(t, "the files of now are served", func() (bool, string) {
		a := n.post("/v2/models/m/infer", constantTensor)
		return n.revisionOf("m") != before && strings.Contains(a.body, "[7"), a.String()
	})
}

// TestDamagedRecordLeavesNoProcess: the process whose record a crash left empty
// is ended by the next up, which starts another in its place.
func TestDamagedRecordLeavesNoProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, dir, "m.yaml", constantManifest("m", write(t, dir, "model.txt", constant(1)), "{minReplicas: 1}", "")))
	before := n.pid("m")
	n.signal(syscall.SIGKILL)
	records, err := filepath.Glob(filepath.Join(n.dir, "processes", "replicas", "*.json"))
	if err != nil || len(records) != 1 {
		t.Fatalf("records: %v, %v", records, err)
	}
	if err := os.Truncate(records[0], 0); err != nil {
		t.Fatal(err)
	}
	n.up()
	eventually(t, "the process of before ends, and another serves", func() (bool, string) {
		a := n.post("/v2/models/m/infer", constantTensor)
		return !alive(before) && a.status == 200, a.String()
	})
	if now := n.pid("m"); now == before {
		t.Errorf("process %d still serves", now)
	}
}

// TestPipeIsNoModel: a service of a named pipe says what is wrong with it, and
// up serves on.
func TestPipeIsNoModel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	model := filepath.Join(dir, "model.txt")
	n := startNode(t)
	manifest := write(t, dir, "m.yaml", constantManifest("m", model, "{minReplicas: 1}", ""))
	n.do("apply", "-f", manifest) // the model is not there yet
	if err := syscall.Mkfifo(model, 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "model.txt is neither a file nor a folder"
	if r := n.run("apply", "-f", manifest); r.code == 0 || !strings.Contains(r.err, want) {
		t.Errorf("apply: %+v", r)
	}
	eventually(t, "the status says what is wrong", func() (bool, string) {
		s := n.status("m")
		return strings.Contains(s, want), s
	})
}

// TestOldRecordsRestartNothing: an up over records of a version that noted
// neither inputs nor files adopts what runs and writes nothing.
func TestOldRecordsRestartNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t)
	// As that version did: without the fingerprint among the inputs, which
	// nothing is known of where a folder has more files than may be looked at.
	many := filepath.Join(dir, "many")
	for i := range 10_001 {
		write(t, many, fmt.Sprint(i), "")
	}
	write(t, many, "model.txt", constant(1))
	n.do("apply", "--wait", "-f", write(t, dir, "m.yaml", constantManifest("m", many, "{minReplicas: 1}", "")))
	pid := n.pid("m")
	record := filepath.Join(n.dir, "revisions", "default", "m.yaml")
	n.signal(syscall.SIGKILL)
	text := read(t, record)
	if strings.Contains(text, "fingerprint") {
		t.Fatalf("the folder is known after all:\n%s", text)
	}
	before, rest, _ := strings.Cut(text, "inputs:\n")
	_, rest, _ = strings.Cut(rest, "\n") // its one line
	write(t, filepath.Dir(record), "m.yaml", before+rest)
	for i := range 10_001 { // known from now on
		if err := os.Remove(filepath.Join(many, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	old := n.state()
	n.up()
	n.do("get")
	if now := n.pid("m"); now != pid {
		t.Errorf("the replica was restarted: %d, was %d", now, pid)
	}
	if now := n.state(); now[filepath.Join("revisions", "default", "m.yaml")] != old[filepath.Join("revisions", "default", "m.yaml")] {
		t.Errorf("written: %s", changed(old, now))
	}
	contains(t, n.do("apply", "-f", filepath.Join(dir, "m.yaml")), "service default/m unchanged")
	// From here on its files are watched over as any other's.
	write(t, many, "model.txt", constant(2))
	contains(t, n.do("apply", "-f", filepath.Join(dir, "m.yaml")), "service default/m configured")
	eventually(t, "the new file is served", func() (bool, string) {
		a := n.post("/v2/models/m/infer", constantTensor)
		return strings.Contains(a.body, "[2"), a.String()
	})
}

// TestManifestByStandardInput: its relative file:// URIs start at the current
// folder, and one that leads nowhere is named as it was resolved.
func TestManifestByStandardInput(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.cwd = t.TempDir()
	write(t, n.cwd, "model.txt", constant(1))
	if r := n.runWith(constantManifest("here", "model.txt", "{minReplicas: 1}", ""), "apply", "--wait", "-f", "-"); r.code != 0 {
		t.Fatalf("%s", r)
	}
	if got := n.infer("/v2/models/here/infer", constantTensor)[0]; got != 1 {
		t.Errorf("it answers %v", got)
	}
	r := n.runWith(constantManifest("there", "missing.txt", "{minReplicas: 1}", ""), "apply", "--wait", "-f", "-")
	if r.code == 0 || !strings.Contains(r.out+r.err, filepath.Join(n.cwd, "missing.txt")) {
		t.Errorf("of a file that is not there: %s", r)
	}
}
