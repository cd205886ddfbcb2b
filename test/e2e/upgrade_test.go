package e2e

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// state is every file of the data directory with its content's hash and time
// of change, but for the lock (which names its holder), logs, and what the
// replicas' processes are.
func (n *node) state() map[string]string {
	n.t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(n.dir, func(path string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(n.dir, path)
		if err != nil || e.IsDir() || rel == "lock" || rel == "events.jsonl" || strings.HasPrefix(rel, filepath.Join("processes", "logs")) {
			return err
		}
		info, err := e.Info()
		if err == nil {
			out[rel] = fmt.Sprintf("%x %s", sha256.Sum256([]byte(read(n.t, path))), info.ModTime())
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// TestReturnWritesNothing: an up over an old data directory writes nothing but that
// it is up, and restarts nothing.
func TestReturnWritesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "watched.yaml", irisManifest("watched", "{minReplicas: 1, maxReplicas: 1}"))
	n := startNode(t, "-f", dir)
	n.do("apply", "--wait", "-f", "examples/quickstart")
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "hand.yaml", irisManifest("hand", "{minReplicas: 1, maxReplicas: 1}")))
	watched, hand := n.pid("watched"), n.pid("hand")
	n.do("get") // every service has been looked at
	for _, name := range []string{"watched", "hand"} {
		eventually(t, "the memory of "+name+" is measured, and kept", func() (bool, string) {
			record := read(t, filepath.Join(n.dir, "revisions", "default", name+".yaml"))
			return strings.Contains(record, "measured:") || runtime.GOOS != "linux", record
		})
	}
	before, told := n.state(), strings.Count(n.do("events", "-o", "json"), "\n")
	if len(before) < 8 {
		t.Fatalf("the data directory holds only %v", before)
	}
	for _, args := range [][]string{{"-f", dir}, nil} {
		n.signal(9)
		n.up(args...)
		for _, name := range []string{"chat", "digits"} {
			eventually(t, name+" is looked at", func() (bool, string) {
				s := n.status(name)
				return strings.Contains(s, "Asleep"), s
			})
		}
		if n.pid("watched") != watched || n.pid("hand") != hand {
			t.Error("a replica was restarted")
		}
		n.infer("/v2/models/hand/infer", irisTensor)
		after := n.state()
		if !maps.Equal(before, after) {
			t.Errorf("written were:%s", changed(before, after))
		}
		told++ // that it is up
		if now := n.do("events", "-o", "json"); strings.Count(now, "\n") != told {
			t.Errorf("want %d events, all but the last of before:\n%s", told, now)
		}
	}
}

func changed(before, after map[string]string) string {
	var out strings.Builder
	for path := range before {
		if before[path] != after[path] {
			fmt.Fprintf(&out, "\n%s: %s, was %s", path, after[path], before[path])
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			fmt.Fprintf(&out, "\n%s is new", path)
		}
	}
	return out.String()
}
