package progress

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// screen is a terminal of 20 columns.
type screen struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.String()
}

func (s *screen) until(t *testing.T, text string) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !strings.Contains(s.String(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%q is not drawn: %q", text, s.String())
		}
	}
}

func TestSpinner(t *testing.T) {
	var to screen
	s := &Spinner{w: &to, width: func() int { return 20 }}
	s.Start()
	to.until(t, "| waiting, 0 s")
	s.Say("starting, 4 s\nof about \x1b[2J30 s")
	to.until(t, " starting, 4 s of ") // cut at the width, in one line
	s.Stop()
	s.Stop()
	drawn := to.String()
	if !strings.HasSuffix(drawn, clearLine) || strings.Contains(drawn, "\n") || strings.Contains(drawn, "[2J") || strings.Contains(drawn, "\x1b[2m") {
		t.Errorf("drawn: %q", drawn)
	}
	s.delay = time.Hour
	s.Start()
	s.Say("soon")
	s.Stop()
	if to.String() != drawn {
		t.Errorf("an answer that came at once was announced: %q", to.String()[len(drawn):])
	}
	none := NewSpinner(&to)
	none.Start()
	none.Say("x")
	none.Hide()
	none.Stop()
	if to.String() != drawn {
		t.Error("something was drawn where there is no terminal")
	}
}
