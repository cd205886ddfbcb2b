package weights

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Reads is a way to read local files.
type Reads int

const (
	// Measured reads from the page cache what it holds. Of the rest, it reads
	// the first four chunks through the page cache and the next four past it,
	// and all others in the way that was faster. If neither is clearly faster,
	// or the system offers no choice, it reads through the page cache.
	Measured Reads = iota
	// PageCache reads through the page cache.
	PageCache
	// Direct reads past the page cache where the file system allows it.
	Direct
)

const (
	// trials is how many chunks are read in each way before one is chosen.
	trials = 4
	// margin is how many times faster direct reads must be to be chosen: the
	// page cache serves whoever reads the file next.
	margin = 1.2
)

// localFile is a file on this machine.
type localFile struct {
	file   *os.File
	direct *os.File // nil: there is no such way
	reads  Reads
	race   race
}

func openLocal(path string, reads Reads) (*localFile, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: name the weights file itself", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	l := &localFile{file: f, reads: reads}
	if reads != PageCache {
		l.direct = openDirect(path)
	}
	return l, nil
}

func (l *localFile) readAt(ctx context.Context, p []byte, from int64) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	switch {
	case l.direct == nil:
		return full(l.file.ReadAt(p, from))
	case l.reads == Direct:
		return l.readDirect(p, from)
	}
	n := readCached(l.file, p, from)
	if n == len(p) {
		return nil
	}
	if l.race.direct() {
		began := time.Now()
		err := l.readDirect(p, from)
		l.race.note(true, len(p), time.Since(began))
		return err
	}
	began := time.Now()
	err := full(l.file.ReadAt(p[n:], from+int64(n)))
	l.race.note(false, len(p)-n, time.Since(began))
	return err
}

// readDirect reads whole pages: the last chunk of a file ends within one, and
// its buffer, which is a whole number of pages, has room for it.
func (l *localFile) readDirect(p []byte, from int64) error {
	whole := (len(p) + pageBytes - 1) / pageBytes * pageBytes
	if cap(p) < whole || from%pageBytes != 0 {
		return full(l.file.ReadAt(p, from))
	}
	n, err := l.direct.ReadAt(p[:whole], from)
	if n >= len(p) {
		return nil
	}
	if err != nil && !errors.Is(err, io.EOF) { // such as a file system that wants larger units
		return full(l.file.ReadAt(p, from))
	}
	return fmt.Errorf("the file is shorter than it was: %w", io.ErrUnexpectedEOF)
}

func full(_ int, err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the file is shorter than it was: %w", io.ErrUnexpectedEOF)
	}
	return err
}

func (l *localFile) Close() error {
	err := l.file.Close()
	if l.direct != nil {
		err = errors.Join(err, l.direct.Close())
	}
	return err
}

// race compares reads through the page cache with direct ones.
type race struct {
	mu    sync.Mutex
	begun int
	runs  [2]int // finished: through the page cache, direct
	bytes [2]float64
	took  [2]float64
}

// direct returns how the next chunk is to be read.
func (r *race) direct() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun < 2*trials {
		r.begun++
		return r.begun > trials // in a row each: reading ahead is part of the page cache's speed
	}
	if r.runs[0] == 0 || r.runs[1] == 0 {
		return false
	}
	return r.bytes[1]*r.took[0] > margin*r.bytes[0]*r.took[1]
}

func (r *race) note(direct bool, n int, took time.Duration) {
	way := 0
	if direct {
		way = 1
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs[way] == trials {
		return
	}
	r.runs[way]++
	r.bytes[way] += float64(n)
	r.took[way] += took.Seconds()
}
