package e2e

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// slowModels serves the quickstart's models, trickling whole downloads until
// release.
type slowModels struct {
	*httptest.Server
	released chan struct{}
	release  func()
}

func newSlowModels(t *testing.T) *slowModels {
	s := &slowModels{released: make(chan struct{})}
	s.release = sync.OnceFunc(func() { close(s.released) })
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() { s.release(); s.Close() })
	return s
}

func (s *slowModels) serve(w http.ResponseWriter, r *http.Request) {
	f, err := os.Open(filepath.Join(root, "examples", "quickstart", "models", filepath.Base(r.URL.Path)))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer func() { _ = f.Close() }()
	var to http.ResponseWriter = w
	if r.Method == http.MethodGet && r.Header.Get("Range") == "" {
		to = &trickle{w, r.Context(), s.released}
	}
	http.ServeContent(to, r, "model", time.Time{}, f)
}

// trickle writes some 10 kB a second until it is released.
type trickle struct {
	http.ResponseWriter
	ctx      context.Context
	released chan struct{}
}

func (t *trickle) Write(p []byte) (n int, err error) {
	for chunk := range slices.Chunk(p, 256) {
		m, err := t.ResponseWriter.Write(chunk)
		if n += m; err == nil {
			err = http.NewResponseController(t.ResponseWriter).Flush()
		}
		if err != nil {
			return n, err
		}
		select {
		case <-time.After(25 * time.Millisecond):
		case <-t.released:
		case <-t.ctx.Done():
			return n, t.ctx.Err()
		}
	}
	return n, nil
}

// bar is a progress bar that has got somewhere.
var bar = regexp.MustCompile(`[1-9]\d?% \|█`)

// TestDownload applies a model whose download takes long: a terminal shows its
// progress, a pipe does not, and `get` says what is awaited.
func TestDownload(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	models := newSlowModels(t)
	manifest := strings.Replace(irisManifest("far", "{minReplicas: 1, maxReplicas: 1}"), modelURI("iris.ubj"), models.URL+"/iris.ubj", 1)
	cmd := exec.Command(binary, "apply", "--wait", "-f", write(t, t.TempDir(), "far.yaml", manifest))
	cmd.Env = n.environ()
	screen := onTerminal(t, cmd)
	eventually(t, "the bar is drawn", func() (bool, string) {
		s := screen.String()
		return strings.Contains(s, "far") && bar.MatchString(s), s + n.run("get").out
	})
	matches(t, n.status("far"), `Fetching: fetching the model: [1-9]\d* KiB of \d+ KiB`)
	models.release()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("apply --wait: %v\n%s", err, screen)
	}
	eventually(t, "the last line says it is ready", func() (bool, string) {
		s := screen.String()
		return strings.Contains(s, "service default/far created: on roundhouse-xgboost, ready"), s
	})
	n.infer("/v2/models/far/infer", irisTensor)
	r := n.run("apply", "--wait", "-f", write(t, t.TempDir(), "far2.yaml", strings.Replace(manifest, "{name: far}", "{name: far2}", 1)))
	if r.code != 0 || r.err != "" {
		t.Errorf("through a pipe: %s", r)
	}
}

// TestChatOnTerminal holds a conversation.
func TestChatOnTerminal(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	cmd := exec.Command(binary, "chat", "chat", "--max-tokens", "12")
	cmd.Env = n.environ()
	screen := onTerminal(t, cmd)
	for i := 1; i <= 2; i++ {
		eventually(t, "the prompt is there", func() (bool, string) {
			return strings.Count(screen.String(), "> ") == i, screen.String()
		})
		screen.say(t, "Hello\n")
	}
	eventually(t, "both are answered", func() (bool, string) {
		return strings.Count(screen.String(), "simulator") == 2 && strings.Count(screen.String(), "> ") == 3, screen.String()
	})
	screen.say(t, "\x04") // end of input
	if err := cmd.Wait(); err != nil {
		t.Errorf("at the end of input: %v\n%s", err, screen)
	}
}

// screen is a pseudoterminal and what was written to it.
type screen struct {
	capture
	keyboard *os.File
	closed   chan struct{} // after the last of what was written
}

// onTerminal starts a command with a terminal as its standard streams.
func onTerminal(t *testing.T, cmd *exec.Cmd) *screen {
	t.Helper()
	ours, theirs, err := terminal()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("no pseudoterminal is opened on this system")
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	s := &screen{keyboard: ours, closed: make(chan struct{})}
	go func() {
		defer close(s.closed)
		_, _ = io.Copy(s, ours) // until the program's side is closed
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // no harm when it has ended
		<-s.closed
		_ = ours.Close()
	})
	return s
}

func (s *screen) say(t *testing.T, text string) {
	t.Helper()
	if _, err := s.keyboard.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// TestWaitOnTerminal asks a model whose start takes seconds: a terminal shows the
// phase, a pipe does not, and Ctrl-C leaves an empty line.
func TestWaitOnTerminal(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	slow := strings.Replace(onDemand("slow", "", ", --startup-delay, 4s"), "      - name: engine\n        resources: {limits: {nvidia.com/gpu: 1}}", "      - {name: engine}", 1)
	n.do("apply", "-f", write(t, t.TempDir(), "slow.yaml", slow))
	for _, command := range [][]string{{"chat", "slow", "--max-tokens", "4", "Hello"}, {"infer", "slow", "-d", `{"prompt":"Hello","max_tokens":4}`}} {
		cmd := exec.Command(binary, command...)
		cmd.Env = append(n.environ(), "NO_COLOR=1")
		screen := onTerminal(t, cmd)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, screen)
		}
		<-screen.closed
		drawn := screen.String()
		contains(t, drawn, "\r\x1b[K| ", "starting, ", "This is")
		if strings.Contains(drawn, "\x1b[2m") {
			t.Errorf("%v: drawn in colour: %q", command, drawn)
		}
		n.post("/v2/repository/models/slow/unload", "{}")
		eventually(t, "it sleeps", func() (bool, string) { s := n.status("slow"); return strings.Contains(s, "Asleep"), s })
	}
	if r := n.run("infer", "slow", "-d", `{"prompt":"Hello","max_tokens":4}`); r.code != 0 || r.err != "" {
		t.Errorf("through a pipe: %s", r)
	}
}

// TestFollowing: what goes on until Ctrl-C ends with success; top has a screen of its
// own meanwhile.
func TestFollowing(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	n.infer("/v2/models/iris/infer", irisTensor)
	for _, command := range [][]string{{"top"}, {"get", "--watch"}, {"events", "-f"}, {"requests", "-f"}, {"logs", "iris", "-f"}} {
		cmd := exec.Command(binary, command...)
		cmd.Env = n.environ()
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // Ctrl-C is a signal
		screen := onTerminal(t, cmd)
		eventually(t, command[0]+" has begun", func() (bool, string) { return strings.Contains(screen.String(), "iris"), screen.String() })
		screen.say(t, "\x03")
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v\n%s", command, err, screen)
		}
		<-screen.closed
		if drawn := screen.String(); command[0] == "top" && (!strings.HasPrefix(drawn, "\x1b[?1049h") || !strings.HasSuffix(drawn, "\x1b[?1049l")) {
			t.Errorf("%q", drawn)
		}
	}
}

// TestConversation: Ctrl-C ends an answer and not the conversation, commands change
// it, several lines are one message, an error ends nothing, and /bye ends it.
func TestConversation(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", onPlain(1, "")))
	cmd := exec.Command(binary, "chat", "chat")
	cmd.Env = append(n.environ(), "NO_COLOR=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // Ctrl-C is a signal
	screen := onTerminal(t, cmd)
	shows := func(what, text string, times int) {
		t.Helper()
		eventually(t, what, func() (bool, string) { return strings.Count(screen.String(), text) == times, screen.String() })
	}
	shows("it begins", "/help shows", 1)
	screen.say(t, "/set max_tokens 500\r")
	shows("the parameter is set", "max_tokens is 500.", 1)
	screen.say(t, "/system Be brief.\r")
	shows("the system message is set", "The system message is set.", 1)
	screen.say(t, "How long is this?\r")
	shows("an answer comes", "simulator", 1)
	screen.say(t, "\x03")
	shows("the answer is stopped", "(stopped)", 1)
	screen.say(t, "not sent\x03")
	shows("the line is dropped", "/bye or Ctrl-D ends", 1)
	screen.say(t, "/set max_tokens 2\r")
	shows("the parameter is set", "max_tokens is 2.", 1)
	screen.say(t, "\"\"\"one\rtwo\"\"\"\r")
	shows("several lines are answered", "simulator", 1) // two tokens are less than that word
	eventually(t, "as one request", func() (bool, string) {
		out := n.do("requests", "-o", "json")
		return strings.Count(out, "\n") == 2, out
	})
	screen.say(t, "/set max_tokens none\r")
	shows("nothing is checked here", `max_tokens is "none".`, 1)
	screen.say(t, "Hello\r")
	shows("the server's refusal is printed", "error: ", 1)
	screen.say(t, "/bye\r")
	if err := cmd.Wait(); err != nil {
		t.Errorf("after /bye: %v\n%s", err, screen)
	}
}
