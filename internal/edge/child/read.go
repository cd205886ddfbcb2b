package child

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"
)

// ReadOptions is what of a log is read.
type ReadOptions struct {
	Tail int // last lines; 0 is all that is kept
	// Follow goes on with what is written later, over truncations and
	// restarts, until Ended is closed, the context ends or the reader is
	// closed.
	Follow bool
	Ended  <-chan struct{} // nil: never
}

// followInterval is how often a followed file is looked at. Output reaches a
// reader within it.
const followInterval = 50 * time.Millisecond

// Open reads the log. A log nothing was written to yet reads as empty.
func (l Log) Open(ctx context.Context, o ReadOptions) (io.ReadCloser, error) {
	f, err := os.Open(l.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	old, oldErr := os.Open(l.Path + oldSuffix)
	if oldErr != nil {
		old = nil
	}
	if o.Tail > 0 {
		old = seekTail(f, old, o.Tail)
	}
	ctx, cancel := context.WithCancel(ctx)
	return &reader{path: l.Path, old: old, file: f, o: o, ctx: ctx, cancel: cancel}, nil
}

// seekTail places f (and old, where f has too few lines) at the start of the
// last n lines and returns old if it is still to be read.
func seekTail(f, old *os.File, n int) *os.File {
	if f != nil {
		if n = seekLines(f, n); n == 0 {
			if old != nil {
				_ = old.Close()
			}
			return nil
		}
	}
	if old != nil {
		seekLines(old, n)
	}
	return old
}

// seekLines moves f back from its end to the start of its last n lines and
// returns how many of the n it does not have.
func seekLines(f *os.File, n int) int {
	st, err := f.Stat()
	if err != nil {
		return n
	}
	buf := make([]byte, 32<<10)
	for end, first := st.Size(), true; end > 0; {
		start := max(0, end-int64(len(buf)))
		b := buf[:end-start]
		if _, err := f.ReadAt(b, start); err != nil && !errors.Is(err, io.EOF) {
			return n
		}
		if first && b[len(b)-1] == '\n' {
			b = b[:len(b)-1] // the last line's end, not a line's start
		}
		first = false
		for i := bytes.LastIndexByte(b, '\n'); i >= 0; i = bytes.LastIndexByte(b[:i], '\n') {
			if n--; n == 0 {
				_, _ = f.Seek(start+int64(i)+1, io.SeekStart)
				return 0
			}
		}
		end = start
	}
	_, _ = f.Seek(0, io.SeekStart)
	if st.Size() > 0 {
		n--
	}
	return n
}

// reader reads the older file, then the present one, then follows.
type reader struct {
	path   string
	o      ReadOptions
	ctx    context.Context
	cancel context.CancelFunc

	mu        sync.Mutex // a Close may come during a Read
	closed    bool
	old, file *os.File
}

func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		// Whether it has ended is asked before the last look, so nothing
		// written before the end is missed.
		ended := isClosed(r.o.Ended)
		n, err := r.step(p)
		if n > 0 || err != nil {
			return n, err
		}
		if !r.o.Follow || ended {
			return 0, io.EOF
		}
		t := time.NewTimer(followInterval)
		select {
		case <-t.C:
		case <-r.o.Ended:
		case <-r.ctx.Done():
			t.Stop()
			return 0, io.EOF
		}
		t.Stop()
	}
}

// step reads what is there now; 0 and no error when there is nothing.
func (r *reader) step(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, os.ErrClosed
	}
	if r.old != nil {
		n, err := r.old.Read(p)
		if n > 0 || err != nil && !errors.Is(err, io.EOF) {
			return n, err
		}
		_ = r.old.Close()
		r.old = nil
	}
	if r.file == nil {
		f, err := os.Open(r.path)
		if err != nil {
			return 0, nil // not written yet, or between two processes
		}
		r.file = f
	}
	n, err := r.file.Read(p)
	if n > 0 || err != nil && !errors.Is(err, io.EOF) {
		return n, err
	}
	if r.o.Follow {
		r.catchUp()
	}
	return 0, nil
}

// catchUp notices that the file was truncated (start over) or that a new
// process has a new file (leave the old one).
func (r *reader) catchUp() {
	st, err := r.file.Stat()
	if err != nil {
		return
	}
	if at, err := r.file.Seek(0, io.SeekCurrent); err == nil && st.Size() < at {
		_, _ = r.file.Seek(0, io.SeekStart)
		return
	}
	if now, err := os.Stat(r.path); err == nil && !os.SameFile(st, now) {
		_ = r.file.Close()
		r.file = nil
	}
}

// Close ends a Read that waits.
func (r *reader) Close() error {
	r.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, f := range []*os.File{r.old, r.file} {
		if f != nil {
			_ = f.Close()
		}
	}
	r.old, r.file = nil, nil
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return c != nil
	default:
		return false
	}
}
