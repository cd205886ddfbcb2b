package child

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
)

// Log is the bounded output of one replica's processes, in up to four files:
// Path and Path.old for the present process, Path.previous and
// Path.previous.old for the one before it.
//
// The process itself holds Path open for appending, so that its output
// outlives whoever started it; the bound is therefore kept from outside, by
// Trim: it copies the file to Path.old and truncates it. An appending writer
// goes on at the new end, so no byte lands in a hole. Bytes written between
// the last copied one and the truncation are lost; the copy runs until it has
// caught up, which makes that window a few microseconds. The bound is
// 2 × Limit bytes for each process plus what is written between two Trims.
type Log struct {
	Path  string
	Limit int64 // bytes; at most this much in each file after Trim
}

const (
	oldSuffix      = ".old"
	previousSuffix = ".previous"
)

// Previous is the log of the process before the present one.
func (l Log) Previous() Log { return Log{l.Path + previousSuffix, l.Limit} }

// Trim brings the log back under its bound. Call it every second or so while
// the process runs. A log that does not exist is no error.
func (l Log) Trim() error {
	st, err := os.Stat(l.Path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Size() <= l.Limit {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(l.Path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	out, err := os.OpenFile(l.Path+oldSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		// No room for a copy: the bound matters more than the text.
		return errors.Join(err, f.Truncate(0))
	}
	if _, err = f.Seek(st.Size()-l.Limit, io.SeekStart); err == nil {
		// A writer faster than the copy would keep it going for ever.
		_, err = io.Copy(out, io.LimitReader(f, 2*l.Limit))
	}
	return errors.Join(err, f.Truncate(0), out.Close())
}

// Retire makes the present process's output that of the previous one, before
// a new process starts. What was the previous one's is gone.
func (l Log) Retire() error {
	p := l.Previous()
	return errors.Join(move(l.Path, p.Path), move(l.Path+oldSuffix, p.Path+oldSuffix))
}

func move(from, to string) error {
	err := os.Rename(from, to)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err = os.Remove(to); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Remove deletes all the log's files.
func (l Log) Remove() error {
	var errs []error
	for _, p := range []string{l.Path, l.Path + oldSuffix, l.Previous().Path, l.Previous().Path + oldSuffix} {
		if err := os.Remove(p); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// lastLinesWindow is how much of the end of a file LastLines reads.
const lastLinesWindow = 64 << 10

// LastLines returns up to n last lines of the present process's output that
// are not blank, oldest first, without control characters, each at most 400
// bytes. It is for messages; read the log itself with Open.
func (l Log) LastLines(n int) []string {
	b := tailBytes(l.Path, lastLinesWindow)
	if len(b) == 0 {
		b = tailBytes(l.Path+oldSuffix, lastLinesWindow)
	}
	var out []string
	for line := range bytes.Lines(b) {
		if s := printable(string(line)); s != "" {
			out = append(out, s)
		}
	}
	return out[max(0, len(out)-n):]
}

func tailBytes(path string, n int64) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err == nil && st.Size() > n {
		_, _ = f.Seek(-n, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, n))
	return b
}

// printable strips terminal escapes and control characters and cuts the line
// to a length fit for a status.
func printable(s string) string {
	var out strings.Builder
	escape := false
	for _, r := range s {
		switch {
		case escape:
			escape = !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
		case r == 0x1b:
			escape = true
		case r == '\t':
			out.WriteByte(' ')
		case r >= ' ' && r != 0x7f:
			out.WriteRune(r)
		}
		if out.Len() > 400 {
			out.WriteString("…")
			break
		}
	}
	return strings.TrimSpace(out.String())
}
