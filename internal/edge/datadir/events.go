package datadir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

const (
	eventsFile    = "events.jsonl"
	oldEventsFile = "events.old.jsonl"
	// maxEventsFile is how large a file of events becomes, in bytes, before it takes
	// the place of the old one.
	maxEventsFile = 2 << 20
)

// EventFiles keep the lines of events: those of one file, and of the file before it.
// They implement journal.Store.
type EventFiles struct {
	dir  *Dir
	mu   sync.Mutex
	file *os.File // nil until the first line
	size int64
}

// Events are the data directory's files of events. The caller closes them.
func (d *Dir) Events() *EventFiles { return &EventFiles{dir: d} }

// Lines implements journal.Store.
func (f *EventFiles) Lines() (out [][]byte, err error) {
	for _, name := range []string{oldEventsFile, eventsFile} {
		data, e := os.ReadFile(f.dir.Path(name))
		if e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
		for line := range bytes.Lines(data) {
			out = append(out, bytes.TrimSuffix(line, []byte("\n")))
		}
	}
	return out, err
}

// Append implements journal.Store. The line is not synced: a power failure may lose
// the last events.
func (f *EventFiles) Append(line []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.size > maxEventsFile {
		err := errors.Join(f.closeLocked(), os.Rename(f.dir.Path(eventsFile), f.dir.Path(oldEventsFile)))
		if err != nil {
			return err
		}
	}
	if f.file == nil {
		if err := f.openLocked(); err != nil {
			return err
		}
	}
	n, err := f.file.Write(append(line, '\n'))
	f.size += int64(n)
	if err != nil { // the next line begins anew
		return errors.Join(err, f.closeLocked())
	}
	return nil
}

// openLocked opens the file, and ends a line that a crash left half written.
func (f *EventFiles) openLocked() error {
	path := f.dir.Path(eventsFile)
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	last := []byte("\n")
	if err == nil && info.Size() > 0 {
		_, err = file.ReadAt(last, info.Size()-1)
	}
	if err == nil && last[0] != '\n' {
		_, err = file.Write([]byte("\n"))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	f.file, f.size = file, info.Size()
	return nil
}

func (f *EventFiles) closeLocked() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file, f.size = nil, 0
	return err
}

// Close closes the file.
func (f *EventFiles) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closeLocked()
}
