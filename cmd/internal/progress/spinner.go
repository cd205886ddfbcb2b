package progress

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// Spinner is a line on a terminal that shows what a request waits for. Elsewhere,
// and on a terminal that cannot clear a line, it draws nothing. A nil Spinner draws
// nothing.
type Spinner struct {
	w     io.Writer
	width func() int
	dim   bool
	delay time.Duration // until it is drawn first

	mu    sync.Mutex
	text  string
	began time.Time
	drawn bool
	stop  chan struct{} // nil while it does not run
	ended chan struct{}
}

const (
	// spinnerDelay keeps answers that come soon from being announced.
	spinnerDelay = 400 * time.Millisecond
	spinnerEvery = 100 * time.Millisecond
	clearLine    = "\r\x1b[K"
)

var spinnerFrames = []string{"|", "/", "-", `\`}

// NewSpinner returns one that is drawn on w if that is a terminal; nil otherwise. It
// is dim unless NO_COLOR is set.
func NewSpinner(w io.Writer) *Spinner {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &Spinner{w: w, dim: os.Getenv("NO_COLOR") == "", delay: spinnerDelay, width: func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil || width <= 0 {
			return 80
		}
		return width
	}}
}

// Start draws the line, from a moment later on until Stop.
func (s *Spinner) Start() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		return
	}
	s.text, s.began, s.stop, s.ended = "", time.Now(), make(chan struct{}), make(chan struct{})
	go s.run(s.stop, s.ended)
}

// Say changes what the line says.
func (s *Spinner) Say(text string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = command.OneLine(text)
}

// Hide clears the line until the next Say.
func (s *Spinner) Hide() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = hidden
	s.clear()
}

// hidden is the text of a line that is not drawn.
const hidden = "\x00"

// Stop clears the line. What is written afterwards begins an empty one.
func (s *Spinner) Stop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	stop, ended := s.stop, s.ended
	s.stop = nil
	s.mu.Unlock()
	if stop != nil {
		close(stop)
		<-ended
	}
}

func (s *Spinner) run(stop, ended chan struct{}) {
	defer close(ended)
	every := time.NewTicker(spinnerEvery)
	defer every.Stop()
	for n := 0; ; n++ {
		select {
		case <-stop:
			s.mu.Lock()
			s.clear()
			s.mu.Unlock()
			return
		case <-every.C:
			s.draw(n)
		}
	}
}

// draw writes the line with the nth frame.
func (s *Spinner) draw(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waited := time.Since(s.began)
	if waited < s.delay || s.text == hidden {
		return
	}
	text := s.text
	if text == "" {
		text = fmt.Sprintf("waiting, %d s", int(waited.Seconds()))
	}
	line := []rune(spinnerFrames[n%len(spinnerFrames)] + " " + text)
	if most := s.width() - 1; len(line) > most { // a line that wraps is not cleared
		line = line[:max(0, most)]
	}
	begin, end := "", ""
	if s.dim {
		begin, end = "\x1b[2m", "\x1b[0m"
	}
	_, _ = io.WriteString(s.w, clearLine+begin)
	_, _ = io.WriteString(command.Visible(s.w), string(line)) // a server's words
	_, _ = io.WriteString(s.w, end)
	s.drawn = true
}

// clear empties the line; mu is held.
func (s *Spinner) clear() {
	if s.drawn {
		_, _ = io.WriteString(s.w, clearLine)
		s.drawn = false
	}
}
