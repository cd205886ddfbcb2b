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
	over    bool // nothing more comes; err is why, nil when whole
	err     error
	changed chan struct{} // closed, and made anew, when any of the above changes
	readers int           // guarded by downloads.mu
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

// next waits for bytes after from and returns the end of those that are
// written. It withholds the last byte until the content is verified: without it
// no client takes the file for complete.
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

// downloads are the blobs on their way, one flight each.
type downloads struct {
	cfg      Config
	blobs    *blobs.Store
	hub      *hub
	tasks    *tasks
	failures *failures
	metrics  *metrics
	failed   func(target, error) // is told what went wrong
	slots    chan struct{}       // one token per download

	mu     sync.Mutex
	byHash map[string]*flight
}

// count returns how many downloads are under way.
func (d *downloads) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.byHash)
}

// has reports whether a blob is being downloaded.
func (d *downloads) has(etag string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byHash[etag] != nil
}

// join returns the flight of a blob, or begins one from the given source; began
// reports which. leave must be called. join waits for a flight that is being
// torn down: two must not write one file.
func (d *downloads) join(ctx context.Context, rec fileRecord, from source) (f *flight, began bool, err error) {
	for {
		d.mu.Lock()
		f = d.byHash[rec.ETag]
		if f == nil && from.none() {
			d.mu.Unlock()
			return nil, false, errNoSource
		}
		if f == nil {
			f, err = d.begin(rec, from)
			d.mu.Unlock()
			return f, true, err
		}
		if f.size != rec.Size {
			d.mu.Unlock()
			return nil, false, fmt.Errorf("%w: %w", errOdd, blobs.ErrSize)
		}
		if !f.dead {
			f.readers++
			f.linger.Stop()
			d.mu.Unlock()
			return f, false, nil
		}
		d.mu.Unlock()
		select {
		case <-f.ended:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// begin starts a flight with one reader. d.mu is held.
func (d *downloads) begin(rec fileRecord, from source) (*flight, error) {
	ctx, cancel := context.WithCancel(d.tasks.ctx)
	f := &flight{etag: rec.ETag, size: rec.Size, cancel: cancel, changed: make(chan struct{}), ended: make(chan struct{}), readers: 1}
	f.linger = time.AfterFunc(d.cfg.Linger, func() { d.abandon(f) })
	f.linger.Stop()
	started := d.tasks.start(func(context.Context) {
		defer cancel()
		err := d.download(ctx, f, from)
		d.mu.Lock()
		delete(d.byHash, f.etag)
		f.linger.Stop()
		d.mu.Unlock()
		if err != nil {
			d.failed(from.t, err)
		}
		f.set(func() { f.over, f.err = true, err })
		close(f.ended)
	})
	if !started {
		cancel()
		return nil, context.Canceled
	}
	d.byHash[rec.ETag] = f
	return f, nil
}

// leave removes one reader. A flight without readers continues for Linger.
func (d *downloads) leave(f *flight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f.readers--; f.readers == 0 && d.byHash[f.etag] == f {
		f.linger.Reset(d.cfg.Linger)
	}
}

// abandon ends a flight that nobody came back to.
func (d *downloads) abandon(f *flight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f.readers == 0 {
		f.dead = true
		f.cancel()
	}
}

// near is how far ahead of a download a range may begin to wait for it.
const near = 8 << 20

// reachable reports whether a range can wait for the blob's download: for one that
// runs, or would begin now with what an earlier one left.
func (d *downloads) reachable(etag string, from int64) bool {
	at := int64(0)
	if info, err := os.Stat(d.blobs.PartPath(etag)); err == nil {
		at = info.Size()
	}
	d.mu.Lock()
	f := d.byHash[etag]
	d.mu.Unlock()
	if f != nil {
		f.mu.Lock()
		at = max(at, f.at)
		f.mu.Unlock()
	}
	return from < at+near
}

// download brings a blob into the store.
func (d *downloads) download(ctx context.Context, f *flight, from source) (err error) {
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-d.slots }()
	file, err := d.blobs.Part(f.etag)
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
	done, evicted, err := d.blobs.Reserve(f.size-had, d.cfg.MaxBytes, time.Now())
	d.metrics.noteEvicted(evicted)
	if err != nil {
		return d.dropEmpty(path, had, err)
	}
	defer func() { done(p.at - had) }()
	if err := d.fill(ctx, p, from); err != nil {
		return d.dropEmpty(path, p.at, err)
	}
	if hex.EncodeToString(p.hash.Sum(nil)) != f.etag {
		d.blobs.Remove(path, p.at)
		d.failures.wrong(f.etag)
		return fmt.Errorf("%w: %d bytes came, %d of them in an earlier attempt: %w", errOdd, f.size, had, blobs.ErrCorrupt)
	}
	d.failures.right(f.etag)
	f.set(func() { f.whole = true })
	// Readers go on while the disk settles.
	if err := d.blobs.Install(file, f.etag, time.Now()); err != nil {
		return fmt.Errorf("hubcache: %w", err)
	}
	return nil
}

// dropEmpty removes a partial file without bytes, for there is nothing in it
// to resume.
func (d *downloads) dropEmpty(path string, at int64, err error) error {
	if at == 0 {
		d.blobs.Remove(path, 0)
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
func (d *downloads) fill(ctx context.Context, p *part, from source) error {
	wait := d.cfg.RetryWait
	for attempt := 1; p.at < p.size; attempt++ {
		before := p.at
		err := d.attempt(ctx, p, from)
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
			attempt, wait = 0, d.cfg.RetryWait
		}
		if attempt >= d.cfg.Attempts {
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
func (d *downloads) attempt(ctx context.Context, p *part, from source) error {
	ctx, dog := watch(ctx, d.cfg.StallTimeout)
	defer dog.stop()
	body, err := d.hub.get(ctx, from, span{p.at, p.size}, p.size)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	buf := make([]byte, chunk)
	for p.at < p.size {
		n, err := body.Read(buf)
		if n > 0 {
			dog.feed()
			d.metrics.upstream.Add(float64(n))
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

// noRoom turns a failed write into an error after which readers continue
// without the file.
func noRoom(err error) error {
	return fmt.Errorf("%w: %w", blobs.ErrNoRoom, err)
}
