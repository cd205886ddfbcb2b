package hubcache

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// flight is one download of a blob and everybody who reads from it: they
// follow the file as it grows.
//
// Invariant: the first at bytes of the file are written. The last of size waits
// for the hash of all.
type flight struct {
	etag   string
	size   int64
	cancel context.CancelFunc

	mu      sync.Mutex
	at      int64
	whole   bool // verified: the last byte may go out
	over    bool // nothing more comes; err says why, nil when whole
	err     error
	changed chan struct{} // closed, and made anew, when any of the above changes
	readers int           // guarded by Cache.mu
	linger  *time.Timer   // likewise: runs while nobody reads
	dead    bool          // likewise: nobody came back, do not join
	ended   chan struct{} // closed when nothing of it is left
}

// set changes the flight and wakes its readers.
func (f *flight) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

// next waits until bytes after from are there and says up to where. The last
// byte is held back until the content is verified: without it no client takes
// the file for whole.
func (f *flight) next(ctx context.Context, from int64) (int64, error) {
	for {
		f.mu.Lock()
		ready, whole, over, err, changed := f.at, f.whole, f.over, f.err, f.changed
		f.mu.Unlock()
		if !whole {
			ready = min(ready, f.size-1)
		}
		switch {
		case ready > from || whole:
			return ready, nil
		case over:
			return 0, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// join finds the flight of a blob, or begins one from where it may be had; began
// says which. leave must be called. A flight that is being torn down is waited
// for: two must not write one file.
func (c *Cache) join(ctx context.Context, rec fileRecord, from source) (f *flight, began bool, err error) {
	for {
		c.mu.Lock()
		f = c.flights[rec.ETag]
		if c.closed {
			c.mu.Unlock()
			return nil, false, context.Canceled
		}
		if f == nil && from.none() {
			c.mu.Unlock()
			return nil, false, errNoSource
		}
		if f == nil {
			f = c.begin(rec, from)
			c.mu.Unlock()
			return f, true, nil
		}
		if f.size != rec.Size {
			c.mu.Unlock()
			return nil, false, fmt.Errorf("%w: %w", errOdd, blobs.ErrSize)
		}
		if !f.dead {
			f.readers++
			f.linger.Stop()
			c.mu.Unlock()
			return f, false, nil
		}
		c.mu.Unlock()
		select {
		case <-f.ended:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// begin starts a flight with one reader. c.mu is held.
func (c *Cache) begin(rec fileRecord, from source) *flight {
	ctx, cancel := context.WithCancel(c.background)
	f := &flight{etag: rec.ETag, size: rec.Size, cancel: cancel, changed: make(chan struct{}), ended: make(chan struct{}), readers: 1}
	f.linger = time.AfterFunc(c.cfg.Linger, func() { c.abandon(f) })
	f.linger.Stop()
	c.flights[rec.ETag] = f
	c.running.Go(func() {
		defer cancel()
		err := c.download(ctx, f, from)
		c.mu.Lock()
		delete(c.flights, f.etag)
		f.linger.Stop()
		c.mu.Unlock()
		if err != nil {
			c.failed(from.t, err)
		}
		f.set(func() { f.over, f.err = true, err })
		close(f.ended)
	})
	return f
}

// leave ends one reader's part. A flight goes on for a while without any.
func (c *Cache) leave(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.readers--; f.readers == 0 && c.flights[f.etag] == f {
		f.linger.Reset(c.cfg.Linger)
	}
}

// abandon ends a flight that nobody came back to.
func (c *Cache) abandon(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.readers == 0 {
		f.dead = true
		f.cancel()
	}
}

// near is how far ahead of a download a range may begin and still wait for it.
const near = 8 << 20

// reachable reports whether a range can wait for the blob's download: for one that
// runs, or would begin now with what an earlier one left.
func (c *Cache) reachable(etag string, from int64) bool {
	at := int64(0)
	if info, err := os.Stat(c.store.blobs.PartPath(etag)); err == nil {
		at = info.Size()
	}
	c.mu.Lock()
	f := c.flights[etag]
	c.mu.Unlock()
	if f != nil {
		f.mu.Lock()
		at = max(at, f.at)
		f.mu.Unlock()
	}
	return from < at+near
}

// download brings a blob into the store.
func (c *Cache) download(ctx context.Context, f *flight, from source) (err error) {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.slots }()
	file, err := c.store.blobs.Part(f.etag)
	if err != nil {
		return noRoom(err)
	}
	defer func() { _ = file.Close() }()
	path := file.Name()
	p := &part{flight: f, file: file, hash: blobs.NewHash(f.etag, f.size)}
	if err := p.resume(ctx); err != nil {
		return err
	}
	had := p.at
	done, evicted, err := c.store.blobs.Reserve(f.size-had, c.cfg.MaxBytes, time.Now())
	c.noteEvicted(evicted)
	if err != nil {
		return c.dropEmpty(path, had, err)
	}
	defer func() { done(p.at - had) }()
	if err := c.fill(ctx, p, from); err != nil {
		return c.dropEmpty(path, p.at, err)
	}
	if hex.EncodeToString(p.hash.Sum(nil)) != f.etag {
		c.store.blobs.Remove(path, p.at)
		c.failures.wrong(f.etag)
		return fmt.Errorf("%w: %d bytes came, %d of them in an earlier attempt: %w", errOdd, f.size, had, blobs.ErrCorrupt)
	}
	c.failures.right(f.etag)
	f.set(func() { f.whole = true })
	// Readers go on while the disk settles.
	if err := c.store.blobs.Install(file, f.etag, time.Now()); err != nil {
		return fmt.Errorf("hubcache: %w", err)
	}
	return nil
}

// dropEmpty removes a partial file without bytes, for there is nothing in it
// to resume.
func (c *Cache) dropEmpty(path string, at int64, err error) error {
	if at == 0 {
		c.store.blobs.Remove(path, 0)
	}
	return err
}

// part is the file of a flight, from the writer's side.
type part struct {
	*flight
	file *os.File
	hash hash.Hash
	at   int64 // what is hashed; the flight's, but while resuming
}

// resume hashes what an earlier attempt left. Readers need not wait for that:
// whoever goes on near its end would wait longer than clients do.
func (p *part) resume(ctx context.Context) error {
	info, err := p.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() > p.size {
		return p.file.Truncate(0)
	}
	p.set(func() { p.flight.at = info.Size() })
	buf := make([]byte, chunk)
	for {
		n, err := p.file.Read(buf)
		_, _ = p.hash.Write(buf[:n]) // never fails
		p.at += int64(n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}
}

// chunk is how much is read from the Hub at a time.
const chunk = 256 << 10

func (p *part) took(b []byte) {
	_, _ = p.hash.Write(b) // never fails
	p.at += int64(len(b))
	p.set(func() { p.flight.at = p.at })
}

// enoughProgress is how many new bytes make an attempt worth not counting.
const enoughProgress = 64 << 10

// maxRetryAfter is the longest pause that the Hub may ask a download for; with
// more, clients are told.
const maxRetryAfter = 5 * time.Second

// fill asks for the rest until it is here.
func (c *Cache) fill(ctx context.Context, p *part, from source) error {
	wait := c.cfg.RetryWait
	for attempt := 1; p.at < p.size; attempt++ {
		before := p.at
		err := c.attempt(ctx, p, from)
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause := wait
		var r *refusal
		if errors.As(err, &r) {
			pause = max(pause, r.after)
		}
		again := errors.Is(err, errUnreachable) || r != nil && r.status == 429
		if !again || pause > maxRetryAfter {
			return err
		}
		if p.at-before >= enoughProgress {
			attempt, wait = 0, c.cfg.RetryWait
		}
		if attempt >= c.cfg.Attempts {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		wait = min(2*wait, maxRetryAfter)
	}
	return nil
}

// attempt asks for the rest once.
func (c *Cache) attempt(ctx context.Context, p *part, from source) error {
	ctx, dog := watch(ctx, c.cfg.StallTimeout)
	defer dog.stop()
	body, err := c.hub.get(ctx, from, span{p.at, p.size}, p.size)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	buf := make([]byte, chunk)
	for p.at < p.size {
		n, err := body.Read(buf)
		if n > 0 {
			dog.feed()
			c.metrics.upstream.Add(float64(n))
			n = int(min(int64(n), p.size-p.at))
			if _, err := p.file.WriteAt(buf[:n], p.at); err != nil {
				return noRoom(err)
			}
			p.took(buf[:n])
		}
		if errors.Is(err, io.EOF) && p.at < p.size {
			return fmt.Errorf("%w: the content ended after %d of %d bytes", errUnreachable, p.at, p.size)
		}
		if err != nil && p.at < p.size {
			return unreachable(ctx, err)
		}
	}
	return nil
}

// noRoom turns a failed write into what its readers can go on from.
func noRoom(err error) error {
	return fmt.Errorf("%w: %w", blobs.ErrNoRoom, err)
}
