package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestWaitIsForTheFilesOfNow: the verdict of apply --wait is on the files that
// are there when it is called, also where only they have changed.
func TestWaitIsForTheFilesOfNow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "model.txt", constant(1))
	n := startNode(t)
	manifest := write(t, dir, "m.yaml", constantManifest("m", filepath.Join(dir, "model.txt"), "{minReplicas: 1}", ""))
	n.do("apply", "--wait", "-f", manifest)
	for round := 2; round < 5; round++ {
		before := n.revisionOf("m")
		write(t, dir, "model.txt", constant(round))
		contains(t, n.do("apply", "--wait", "-f", manifest), "service default/m configured", "ready")
		if a := n.post("/v2/models/m/infer", constantTensor); n.revisionOf("m") == before || !strings.Contains(a.body, fmt.Sprintf("[%d", round)) {
			t.Errorf("round %d: after --wait revision %s, was %s, answers %s", round, n.revisionOf("m"), before, a)
		}
		write(t, dir, "model.txt", "garbage\n")
		r := n.run("apply", "--wait", "-f", manifest)
		if r.code != 1 || !strings.Contains(r.out, "the previous revision keeps serving") && !strings.Contains(r.out, "the previous one keeps serving") {
			t.Errorf("round %d: of a garbage model: %s", round, r)
		}
	}
	// Once nothing but the garbage has been tried, it is mended by a file as well.
	n.do("delete", "service", "m")
	if r := n.run("apply", "--wait", "-f", manifest); r.code != 1 {
		t.Errorf("of garbage alone: %s", r)
	}
	write(t, dir, "model.txt", constant(9))
	contains(t, n.do("apply", "--wait", "-f", manifest), "ready")
	if a := n.post("/v2/models/m/infer", constantTensor); !strings.Contains(a.body, "[9") {
		t.Errorf("mended, it answers %s", a)
	}
}

// TestWaitIsForTheCanary: of a manifest that asks for a canary, apply --wait
// waits for the canary's revision, and fails with what is wrong with it.
func TestWaitIsForTheCanary(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t)
	canary := func(file string) string {
		return write(t, dir, "m.yaml", constantManifest("m", filepath.Join(dir, file), "{minReplicas: 1}", "  canaryTrafficPercent: 30\n"))
	}
	for i := range 3 {
		write(t, dir, fmt.Sprintf("model%d.txt", i), constant(i))
	}
	write(t, dir, "garbage.txt", "garbage\n")
	n.do("apply", "--wait", "-f", canary("model0.txt"))
	for i, c := range []struct{ file, says string }{
		{"garbage.txt", "no LightGBM text model"}, {"model1.txt", ""}, {"gone.txt", "no file or folder"}, {"model2.txt", ""},
		{"garbage.txt", "no LightGBM text model"}, {"model0.txt", ""},
	} {
		r := n.run("apply", "--wait", "--timeout", "1m", "-f", canary(c.file))
		s := n.run("describe", "m").out
		switch {
		case c.says != "":
			if r.code != 1 || !strings.Contains(r.out, c.says) {
				t.Errorf("%d: %s: %s", i, c.file, r)
			}
		case r.code != 0 || strings.Contains(r.out, "but"):
			t.Errorf("%d: %s: %s", i, c.file, r)
		case c.file != "model0.txt" && !strings.Contains(s, "30 % of the requests"):
			t.Errorf("%d: %s: after --wait:\n%s", i, c.file, s)
		}
	}
}
