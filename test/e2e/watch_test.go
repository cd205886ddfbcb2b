package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWatch edits a watched folder: a file with a problem keeps what runs, one
// that goes takes its services along, one that comes brings them.
func TestWatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good := irisManifest("iris", "{minReplicas: 1, maxReplicas: 1}")
	write(t, dir, "iris.yaml", good)
	write(t, dir, "other.yaml", irisManifest("other", "{minReplicas: 0}"))
	n := startNode(t, "--watch", "-f", dir)
	pid := n.pid("iris")

	write(t, dir, "iris.yaml", strings.Replace(good, "spec:", "spce:", 1))
	eventually(t, "the problem is logged", func() (bool, string) {
		return strings.Contains(n.logs.String(), "spce"), n.logs.String()
	})
	for line := range strings.Lines(n.logs.String()) {
		if strings.Contains(line, "spce") {
			contains(t, line, "level=ERROR", filepath.Join(dir, "iris.yaml")+":4", "their objects stay as they were")
		}
	}
	if c := strings.Count(n.logs.String(), "level=ERROR"); c != 1 {
		t.Errorf("want one line for one problem, got %d:\n%s", c, n.logs)
	}
	if n.pid("iris") != pid {
		t.Error("an invalid file restarted what ran")
	}
	n.infer("/v2/models/iris/infer", irisTensor)

	if err := os.Remove(filepath.Join(dir, "iris.yaml")); err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
	eventually(t, "its service is gone", func() (bool, string) {
		r := n.run("get", "-o", "name")
		return r.out == "default/other\n", r.String()
	})
	write(t, dir, "iris.yaml", good)
	eventually(t, "it is back", func() (bool, string) {
		r := n.run("get", "-o", "name")
		return r.out == "default/iris\ndefault/other\n", r.String()
	})
	n.infer("/v2/models/iris/infer", irisTensor)
	write(t, filepath.Join(dir, "below", "deeper"), "third.yaml", irisManifest("third", "{minReplicas: 0}"))
	eventually(t, "a new folder is watched too", func() (bool, string) {
		r := n.run("get", "-o", "name")
		return strings.Contains(r.out, "default/third\n"), r.String()
	})

	for _, file := range []string{"iris.yaml", "other.yaml", "below/deeper/third.yaml"} {
		if err := os.Remove(filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the last files take their services along", func() (bool, string) {
		r := n.run("get", "-o", "name")
		return r.out == "", r.String()
	})
}
