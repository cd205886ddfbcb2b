package kafka

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type partition struct {
	topic  string
	number int32
}

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
func (c *consumer) begin(r *kgo.Record) (*window, *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := partition{r.Topic, r.Partition}
	w := c.mu.partitions[key]
	if w == nil {
		w = &window{of: key}
		c.mu.partitions[key] = w
	}
	e := &entry{record: r}
	w.entries = append(w.entries, e)
	return w, e
}

// finish notes that a record was answered, and marks all that are now answered
// from the window's beginning to be committed.
func (c *consumer) finish(w *window, e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.answered = true
	var last *kgo.Record
	for len(w.entries) > 0 && w.entries[0].answered {
		last = w.entries[0].record
		w.entries[0] = nil
		w.entries = w.entries[1:]
	}
	if last != nil && !w.gone {
		c.client.MarkCommitRecords(last)
	}
	if len(w.entries) == 0 {
		close(c.mu.changed)
		c.mu.changed = make(chan struct{})
	}
}

// abandon notes that a record was cut off. It keeps its place in the window, so
// that it and what is behind it are read again.
func (c *consumer) abandon(w *window) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.stuck = true
	close(c.mu.changed)
	c.mu.changed = make(chan struct{})
}

// revoked is called when another member takes partitions over: their records
// under way are waited for and committed, for revokeWait at most.
func (c *consumer) revoked(ctx context.Context, client *kgo.Client, revoked map[string][]int32) {
	timer := time.NewTimer(revokeWait)
	defer timer.Stop()
	for {
		busy, changed := c.busy(revoked)
		if !busy {
			break
		}
		select {
		case <-changed:
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		c.log.Warn("kafka partitions are handed over with requests under way; those are answered twice", "partitions", revoked)
		break
	}
	if err := client.CommitMarkedOffsets(ctx); err != nil {
		c.log.Warn("kafka offsets could not be committed; the last requests are answered again", "error", err)
	}
	c.forget(revoked)
}

// busy reports whether records of partitions are under way, and a channel that
// is closed when that may have changed.
func (c *consumer) busy(of map[string][]int32) (bool, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for topic, numbers := range of {
		for _, n := range numbers {
			if w := c.mu.partitions[partition{topic, n}]; w != nil && len(w.entries) > 0 && !w.stuck {
				return true, c.mu.changed
			}
		}
	}
	return false, c.mu.changed
}

// forget drops the windows of partitions that are another's.
func (c *consumer) forget(of map[string][]int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for topic, numbers := range of {
		for _, n := range numbers {
			key := partition{topic, n}
			if w := c.mu.partitions[key]; w != nil {
				w.gone = true
				delete(c.mu.partitions, key)
			}
		}
	}
}
