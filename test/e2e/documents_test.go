package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"roundhouse.dev/roundhouse/test/document"
)

// TestDocuments runs the commands of pages as a reader would, in one folder: it saves
// the files that the page says to save, starts `up` where the page does, and every
// other command has to succeed.
func TestDocuments(t *testing.T) {
	t.Parallel()
	for _, path := range document.Run {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			readAlong(t, path)
		})
	}
}

// readAlong does what a page says.
func readAlong(t *testing.T, path string) {
	n := newNode(t)
	n.cwd = t.TempDir()
	if err := os.Symlink(filepath.Join(root, "examples"), filepath.Join(n.cwd, "examples")); err != nil {
		t.Fatal(err)
	}
	write(t, n.cwd, ".curlrc", "fail-with-body\nsilent\nshow-error\n")
	n.env = []string{"CURL_HOME=" + n.cwd, "PATH=" + filepath.Dir(binary) + string(os.PathListSeparator) + os.Getenv("PATH")}
	ran := 0
	for _, b := range document.Blocks(read(t, filepath.Join(root, path))) {
		switch {
		case b.File != "":
			folder := filepath.Join(n.cwd, filepath.Dir(b.File))
			if err := os.MkdirAll(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, folder, filepath.Base(b.File), b.Text)
		case b.Lang == "sh" && b.NotRun == "":
			n.follow(path, b)
			ran++
		}
	}
	if ran == 0 {
		t.Errorf("%s has no command that is run", path)
	}
}

// startsUp is a command that starts up, with the variables before it.
var startsUp = regexp.MustCompile(`^((?:[A-Z_]+=\S+ )*)roundhouse up\b(.*)$`)

// follow runs a block's commands. What builds the program is done already.
func (n *node) follow(path string, b document.Block) {
	n.t.Helper()
	var script []string
	for line := range strings.Lines(b.Text) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "  # ")
		if strings.HasPrefix(line, "make run") {
			line = "roundhouse up -f examples/quickstart"
		}
		switch m := startsUp.FindStringSubmatch(line); {
		case m != nil:
			n.restart(strings.Fields(m[1]), strings.Fields(m[2]))
		case !strings.HasPrefix(line, "make ") && !strings.HasPrefix(line, "export PATH="):
			script = append(script, line)
		}
	}
	if len(script) == 0 {
		return
	}
	text := strings.Join(script, "\n")
	text = strings.ReplaceAll(text, "http://127.0.0.1:8080", n.gateway)
	text = strings.ReplaceAll(text, "http://127.0.0.1:8090", n.admin)
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", text)
	cmd.Dir, cmd.Env = n.cwd, n.environ()
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s:%d: %v:\n%s\n%s", path, b.Line, err, text, out)
	}
	n.t.Logf("%s:%d:\n%s\n%s", path, b.Line, text, out)
}

// restart starts up anew, as who stops it with Ctrl-C.
func (n *node) restart(env, args []string) {
	n.t.Helper()
	if n.running() {
		if code := n.signal(syscall.SIGINT); code != 0 && code != 130 {
			n.t.Errorf("up ended with exit code %d", code)
		}
	}
	n.env = append(n.env, env...)
	n.up(args...)
}
