package journal

import (
	"bytes"
	"maps"
	"slices"
	"sync"
)

// keptGone is how many subjects that are gone are known. Who was away while more
// went reads everything again.
const keptGone = 4096

// Board keeps what is known now of each subject, and the version at which it
// changed last. Who reads it gets what changed since the version read before. It is
// safe for concurrent use.
type Board struct {
	mu struct {
		sync.Mutex
		now     map[string]posted
		gone    []taken // the oldest first
		begun   uint64  // who has read less has to read everything
		version uint64
		changed chan struct{}
	}
}

type posted struct {
	data    []byte
	version uint64
}

type taken struct {
	key     string
	version uint64
}

// Post is what a board has of a subject; Data is nil of one that is gone.
type Post struct {
	Key  string
	Data []byte
}

// NewBoard makes an empty board. Versions follow begin, which must be beyond those
// of every board before it that somebody may come back from.
func NewBoard(begin uint64) *Board {
	b := &Board{}
	b.mu.now = map[string]posted{}
	b.mu.begun, b.mu.version = begin, begin
	return b
}

// Set notes what is known of a subject. The same data again is no change.
func (b *Board) Set(key string, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if was, ok := b.mu.now[key]; ok && bytes.Equal(was.data, data) {
		return
	}
	b.nextLocked()
	b.mu.now[key] = posted{data, b.mu.version}
}

// Delete notes that a subject is gone.
func (b *Board) Delete(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.mu.now[key]; !ok {
		return
	}
	b.nextLocked()
	delete(b.mu.now, key)
	if len(b.mu.gone) == keptGone {
		b.mu.begun = b.mu.gone[0].version
		b.mu.gone = slices.Delete(b.mu.gone, 0, 1)
	}
	b.mu.gone = append(b.mu.gone, taken{key, b.mu.version})
}

func (b *Board) nextLocked() {
	b.mu.version++
	if b.mu.changed != nil {
		close(b.mu.changed)
		b.mu.changed = nil
	}
}

// Since returns what changed after a version, by key, and the version now. whole
// reports that it is all there is, because what was known at that version cannot be
// told any more.
func (b *Board) Since(version uint64) (changes []Post, now uint64, whole bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if version < b.mu.begun || version > b.mu.version {
		version, whole = 0, true
	}
	if version == b.mu.version {
		return nil, version, false
	}
	for _, g := range b.mu.gone {
		if _, back := b.mu.now[g.key]; g.version > version && !whole && !back {
			changes = append(changes, Post{Key: g.key})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b.mu.now)) {
		if p := b.mu.now[key]; p.version > version {
			changes = append(changes, Post{key, p.data})
		}
	}
	return changes, b.mu.version, whole
}

// Changed returns a channel that is closed when there are changes after a version, at
// once if there are.
func (b *Board) Changed(version uint64) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if version != b.mu.version {
		c := make(chan struct{})
		close(c)
		return c
	}
	if b.mu.changed == nil {
		b.mu.changed = make(chan struct{})
	}
	return b.mu.changed
}
