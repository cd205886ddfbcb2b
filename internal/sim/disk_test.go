package sim

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"roundhouse.dev/roundhouse/internal/edge/datadir"
)

// disk is a disk that outlives the processes that write to it. What they have not
// forced to it may be lost by a power failure.
type disk struct {
	root string

	mu      sync.Mutex
	rng     *rand.Rand
	pending []change // of folders that were not synced since, oldest first
	written map[string]*written
}

// change is one of a folder, and how it is undone.
type change struct {
	folder string
	undo   func()
}

// written is a file that was not synced since it was written to.
type written struct{ synced, size int64 }

func newDisk(root string, seed uint64) *disk {
	return &disk{root: root, rng: rand.New(rand.NewPCG(seed, 0x6469736b)), written: map[string]*written{}}
}

// lose is a power failure. Of the changes that were not forced to the disk the
// first few are kept, and of what was written to a file a part.
func (d *disk) lose() {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := 0
	if n := len(d.pending); n > 0 {
		kept = d.rng.IntN(n)
	}
	for _, c := range slices.Backward(d.pending[kept:]) {
		c.undo()
	}
	for path, f := range d.written {
		if f != nil && f.synced < f.size {
			_ = os.Truncate(path, f.synced+d.rng.Int64N(f.size-f.synced+1))
		}
	}
	d.pending = nil
	clear(d.written)
}

// noteLocked notes a change of a folder.
func (d *disk) noteLocked(folder string, undo func()) {
	d.pending = append(d.pending, change{folder, undo})
}

// mount is the disk as one process sees it, which may be killed between any two
// operations, and in the midst of a write. It implements datadir.Disk.
type mount struct {
	*disk
	mu    sync.Mutex
	dead  bool
	die   func() // kills the process; nil for nothing
	point int    // how many operations there are before it
	full  bool   // nothing can be written
}

func (d *disk) opened() *mount { return &mount{disk: d} }

func (m *mount) crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
}

var errFull = syscall.ENOSPC

// step makes one operation, unless the process is dead or dies of it; part is what
// is done of the one in whose midst it dies.
func (m *mount) step(grows bool, do func() error, part func()) error {
	m.mu.Lock()
	var die func()
	if m.die != nil && !m.dead {
		if m.point--; m.point < 0 {
			die, m.die, m.dead = m.die, nil, true
		}
	}
	dead, full := m.dead, m.full && grows
	m.mu.Unlock()
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	switch {
	case die != nil:
		if part != nil {
			part()
		}
		die()
		return errDead
	case dead:
		return errDead
	case full:
		return errFull
	}
	return do()
}

func (m *mount) CreateTemp(folder, pattern string) (out datadir.File, err error) {
	err = m.step(true, func() error {
		f, err := os.CreateTemp(folder, pattern)
		if err == nil {
			out = &file{File: f, mount: m}
			m.written[f.Name()] = &written{}
			m.noteLocked(folder, func() { _ = os.Remove(f.Name()) })
		}
		return err
	}, nil)
	return out, err
}

func (m *mount) MkdirAll(folder string) error {
	return m.step(true, func() error {
		for at := folder; ; at = filepath.Dir(at) {
			if _, err := os.Stat(at); err == nil {
				break
			}
			m.noteLocked(filepath.Dir(at), func() { _ = os.RemoveAll(at) })
		}
		return os.MkdirAll(folder, 0o700)
	}, nil)
}

func (m *mount) Rename(from, to string) error {
	return m.step(false, func() error {
		before, none := os.ReadFile(to)
		if err := os.Rename(from, to); err != nil {
			return err
		}
		was := m.written[to]
		m.written[to] = m.written[from]
		delete(m.written, from)
		m.noteLocked(filepath.Dir(to), func() {
			_ = os.Rename(to, from)
			m.written[from] = m.written[to]
			delete(m.written, to)
			if none == nil {
				_ = os.WriteFile(to, before, 0o600)
				m.written[to] = was
			}
		})
		return nil
	}, nil)
}

func (m *mount) Remove(path string) error {
	return m.step(false, func() error {
		before, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		m.noteLocked(filepath.Dir(path), func() { _ = os.WriteFile(path, before, 0o600) })
		delete(m.written, path)
		return os.Remove(path)
	}, nil)
}

func (m *mount) SyncDir(folder string) error {
	return m.step(false, func() error {
		if _, err := os.Stat(folder); err != nil {
			return err
		}
		m.pending = slices.DeleteFunc(m.pending, func(c change) bool { return c.folder == folder })
		return nil
	}, nil)
}

// file is a file on the disk.
type file struct {
	*os.File
	mount *mount
}

func (f *file) Write(data []byte) (n int, err error) {
	err = f.mount.step(true, func() error {
		n, err = f.File.Write(data)
		f.mount.written[f.Name()].size += int64(n)
		return err
	}, func() { _, _ = f.File.Write(data[:len(data)/2]) })
	return n, err
}

func (f *file) Sync() error {
	return f.mount.step(false, func() error {
		w := f.mount.written[f.Name()]
		w.synced = w.size
		return nil
	}, nil)
}

func (f *file) Close() error {
	err := f.File.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

func (m *mount) setFull(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = on
}

func (m *mount) killAt(point int, die func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.point, m.die = point, die
}
