package worker

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxLine  = 4 << 10 // bytes of a line of output that are kept
	lastKept = 20      // lines kept for messages
)

// output reads what a worker's processes write to standard output and error,
// through a named pipe: no file grows, and nothing is polled.
type output struct {
	path  string
	pipe  *os.File
	log   *slog.Logger
	limit int // lines a second that are logged
	done  chan struct{}

	mu   sync.Mutex
	last []string
}

// newOutput makes the pipe at path. Call read once the writer has opened it.
func newOutput(path string, limit int, log *slog.Logger) (*output, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make pipe %s: %w", path, err)
	}
	pipe, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return &output{path: path, pipe: pipe, log: log, limit: limit, done: make(chan struct{})}, nil
}

// read logs lines until every writer has closed the pipe, or until close.
func (o *output) read() {
	defer close(o.done)
	_ = os.Remove(o.path) // both ends are open
	r := bufio.NewReaderSize(o.pipe, maxLine)
	var second int64
	lines, dropped := 0, 0
	for {
		text, prefix, err := r.ReadLine()
		if err != nil {
			break
		}
		line := printable(text)
		for prefix && err == nil { // the rest of a long line is dropped
			_, prefix, err = r.ReadLine()
		}
		if line == "" {
			continue
		}
		o.keep(line)
		if now := time.Now().Unix(); now != second {
			if dropped > 0 {
				o.log.Warn("worker wrote too much: lines left out", "lines", dropped)
			}
			second, lines, dropped = now, 0, 0
		}
		if lines++; lines > o.limit {
			dropped++
			continue
		}
		o.log.Info(line, "from", "output")
	}
	if dropped > 0 {
		o.log.Warn("worker wrote too much: lines left out", "lines", dropped)
	}
}

// printable returns text without control characters and trailing space.
func printable(text []byte) string {
	return strings.TrimRight(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(text), "\uFFFD")), " \t")
}

func (o *output) keep(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.last) == lastKept {
		o.last = append(o.last[:0], o.last[1:]...)
	}
	o.last = append(o.last, line)
}

// tail returns the last lines, oldest first.
func (o *output) tail() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.last...)
}

// discard undoes newOutput when there is nothing to read.
func (o *output) discard() {
	close(o.done)
	o.close()
	_ = os.Remove(o.path)
}

// outputWait is how long output is read after its process has ended: a process
// that left the process group may still hold the pipe.
const outputWait = time.Second

// close ends read after it has read what is in the pipe.
func (o *output) close() {
	select {
	case <-o.done:
	case <-time.After(outputWait):
	}
	_ = o.pipe.Close()
	<-o.done
}
