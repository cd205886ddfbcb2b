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
		if r.code != 1 || !strings.Contains(r.out, "the revision before goes on serving") && !strings.Contains(r.out, "the one before goes on serving") {
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
