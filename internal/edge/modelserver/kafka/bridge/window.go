package bridge

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// window is the records of a partition that are under way, or answered before
// one ahead of them, in the order of their offsets.
type window struct {
	of      partition
	entries []*entry
	gone    bool // the partition is another's: nothing is committed any more
	stuck   bool // a record was cut off: nothing behind it is committed
}

type entry struct {
	record   *kgo.Record
	answered bool
}

// begin notes a record that is worked on.
func (b *bridge) begin(r *kgo.Record) (*window, *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := partition{r.Topic, r.Partition}
	w := b.mu.partitions[key]
	if w == nil {
		w = &window{of: key}
		b.mu.partitions[key] = w
	}
	e := &entry{record: r}
	w.entries = append(w.entries, e)
	return w, e
}

// finish notes that a record was answered, and marks all that are now answered
// from the window's beginning to be committed.
func (b *bridge) finish(w *window, e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.answered = true
	var last *kgo.Record
	for len(w.entries) > 0 && w.entries[0].answered {
		last = w.entries[0].record
		w.entries[0] = nil
		w.entries = w.entries[1:]
	}
	if last != nil && !w.gone {
		b.client.MarkCommitRecords(last)
	}
	if len(w.entries) == 0 {
		close(b.mu.changed)
		b.mu.changed = make(chan struct{})
	}
}

// abandon notes that a record was cut off. It keeps its place in the window, so
// that it and what is behind it are read again.
func (b *bridge) abandon(w *window) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.stuck = true
	close(b.mu.changed)
	b.mu.changed = make(chan struct{})
}

// revoked is called when another member takes partitions over: their records
// under way are waited for and committed, as far as there is time.
func (b *bridge) revoked(ctx context.Context, client *kgo.Client, revoked map[string][]int32) {
	timer := time.NewTimer(revokeWait)
	defer timer.Stop()
	for {
		busy, changed := b.busy(revoked)
		if !busy {
			break
		}
		select {
		case <-changed:
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		b.log.Warn("kafka partitions are handed over with requests under way; those are answered twice", "partitions", revoked)
		break
	}
	if err := client.CommitMarkedOffsets(ctx); err != nil {
		b.log.Warn("kafka offsets could not be committed; the last requests are answered again", "error", err)
	}
	b.forget(revoked)
}

// busy reports whether records of partitions are under way, and a channel that
// is closed when that may have changed.
func (b *bridge) busy(of map[string][]int32) (bool, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for topic, numbers := range of {
		for _, n := range numbers {
			if w := b.mu.partitions[partition{topic, n}]; w != nil && len(w.entries) > 0 && !w.stuck {
				return true, b.mu.changed
			}
		}
	}
	return false, b.mu.changed
}

// forget drops the windows of partitions that are another's.
func (b *bridge) forget(of map[string][]int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for topic, numbers := range of {
		for _, n := range numbers {
			key := partition{topic, n}
			if w := b.mu.partitions[key]; w != nil {
				w.gone = true
				delete(b.mu.partitions, key)
			}
		}
	}
}
