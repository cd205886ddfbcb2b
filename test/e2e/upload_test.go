package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestUpload applies a model file that the server may not read: it is sent,
// once, and served from the copy.
func TestUpload(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("a server that cannot read a file here needs root, to run as another user")
	}
	n := newNode(t)
	open, err := os.MkdirTemp("", "roundhouse-e2e-nobody-") // t.TempDir is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(open) })
	n.dir = filepath.Join(open, "data")
	n.mark = "E2E_DATA_DIR=" + n.dir
	n.program = filepath.Join(open, "roundhouse")
	copyFile(t, binary, n.program, 0o755)
	copyFile(t, filepath.Join(filepath.Dir(binary), "roundhouse-server"), filepath.Join(filepath.Dir(n.program), "roundhouse-server"), 0o755)
	n.cwd = open
	const nobody = 65534
	for _, path := range []string{open, n.program} {
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	n.as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	n.up()
	closed := t.TempDir()
	copyFile(t, filepath.Join(root, "examples/quickstart/models/iris.ubj"), filepath.Join(closed, "iris.ubj"), 0o600)
	file := write(t, closed, "iris.yaml", strings.Replace(irisManifest("iris", "{minReplicas: 0}"), modelURI("iris.ubj"), "file://iris.ubj", 1))
	contains(t, n.do("apply", "-f", file), "service default/iris created: on roundhouse-xgboost, asleep")
	if row := n.infer("/v2/models/iris/infer", irisTensor); argmax(t, row) != 0 {
		t.Errorf("want class 0, got %v", row)
	}
	pid := n.pid("iris")
	contains(t, n.do("apply", "-f", file), "service default/iris unchanged")
	if n.pid("iris") != pid {
		t.Error("the same file again restarted the replica")
	}
	if err := os.Truncate(filepath.Join(closed, "iris.ubj"), 100); err != nil {
		t.Fatal(err)
	}
	contains(t, n.do("apply", "-f", file), "service default/iris configured")

	// An adapter is sent as a model is.
	n.do("apply", "--wait", "-f", write(t, closed, "llama.yaml", adapted("minReplicas: 1", "sql file://"+adapterFiles(t, closed, "sql-lora", 32))))
	if a, model := n.completion("sql"); a.status != 200 || model != "sql" {
		t.Errorf("with an adapter that was sent: %s", a)
	}
	contains(t, n.do("describe", "llama"), "Adapter:", "sql at upload://", "rank 32")
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, raw, mode)
	}
	if err != nil {
		t.Fatal(err)
	}
}
