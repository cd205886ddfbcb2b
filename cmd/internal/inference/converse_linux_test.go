package inference

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// hostile is what a model may say, and shown how a terminal gets it.
const (
	hostile = "one\n\ttwo\x1b[6n\x1b]52;c;eA==\x07\x1b]0;title\x07\u009b2J end"
	shown   = "one\r\n\ttwo\\u001b[6n\\u001b]52;c;eA==\\u0007\\u001b]0;title\\u0007\\u009b2J end"
)

// speaker is a conversation with a model that says hostile.
func speaker(t *testing.T, out io.Writer) *Conversation {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, piece := range strings.SplitAfter(hostile, "\x1b") {
			said, err := json.Marshal(piece)
			if err != nil {
				t.Error(err)
			}
			_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%s}}]}\n\n", said)
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(server.Close)
	return &Conversation{Model: "m", Out: out, Gateway: func(context.Context) (Gateway, error) { return Gateway{Base: server.URL}, nil }}
}

// screen is a pseudoterminal: what is written to theirs is read from ours.
type screen struct {
	ours, theirs *os.File
	said         bytes.Buffer
}

func newScreen(t *testing.T) *screen {
	t.Setenv("TERM", "dumb") // it obeys no less
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = theirs.Close() })
	return &screen{ours: ours, theirs: theirs}
}

// wait reads until text was said n times.
func (s *screen) wait(t *testing.T, text string, n int) {
	t.Helper()
	for b := make([]byte, 4096); strings.Count(s.said.String(), text) < n; {
		got, err := s.ours.Read(b)
		if err != nil {
			t.Fatalf("%v after %q", err, s.said.String())
		}
		s.said.Write(b[:got])
	}
}

// TestModelsCannotSteerTerminals, and what is piped stays as it is.
func TestModelsCannotSteerTerminals(t *testing.T) {
	s := newScreen(t)
	if err := speaker(t, s.theirs).Say(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	s.wait(t, "end\r\n", 1)
	if got := s.said.String(); got != shown+"\r\n" {
		t.Errorf("the terminal got %q, want %q", got, shown)
	}
	var piped bytes.Buffer
	if err := speaker(t, &piped).Say(t.Context(), "hello"); err != nil || piped.String() != hostile+"\n" {
		t.Errorf("the pipe got %q, %v", piped.String(), err)
	}
}

// TestEditorOnTerminals: the line editor steers the terminal, also where what others say
// is written through Visible, as `run` does.
func TestEditorOnTerminals(t *testing.T) {
	s := newScreen(t)
	ended := make(chan error, 1)
	go func() { ended <- speaker(t, command.Visible(s.theirs)).Converse(t.Context(), s.theirs) }()
	for i, line := range []string{"hello\r", "/bye\r"} {
		s.wait(t, prompt, i+1)
		if _, err := s.ours.WriteString(line); err != nil {
			t.Fatal(err)
		}
	}
	s.wait(t, "[?2004l", 2) // with or without its escape
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := s.said.String(); !strings.Contains(got, "\x1b[?2004h"+prompt) || strings.Contains(got, `\u000d`) || !strings.Contains(got, shown) {
		t.Errorf("the terminal got %q", got)
	}
}
