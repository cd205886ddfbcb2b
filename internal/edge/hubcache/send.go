package hubcache

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/peers"
)

// content sends a file that the caller may read.
func (c *Cache) content(w http.ResponseWriter, r *http.Request, t target, rec fileRecord) {
	part, ranged, err := parseRange(r.Header.Get("Range"), rec.Size)
	if cond := r.Header.Get("If-Range"); ranged && cond != "" && normalETag(cond) != rec.ETag || ranged && c.failures.recent(rec.ETag) {
		part, ranged = span{0, rec.Size}, false
	}
	if err != nil {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", rec.Size))
		http.Error(w, "the file has no such bytes", http.StatusRequestedRangeNotSatisfiable)
		return
	}
	s := &sending{c: c, w: w, r: r, rec: rec, at: part.from, part: part, ranged: ranged,
		source: source{t: t, authorization: r.Header.Get("Authorization")}}
	s.finish(t, s.send())
}

// sending is the answer to one client, or to another node.
type sending struct {
	c      *Cache
	w      http.ResponseWriter
	r      *http.Request
	rec    fileRecord
	part   span
	ranged bool
	at     int64 // the next byte to send
	began  bool  // the header is out

	source source         // where the caller's word gets the content from
	peer   *peers.Request // of another node; nil: a client
	sum    hash.Hash      // of the bytes before at that no file of ours holds; nil: not kept
	// senders are the nodes that any of those bytes came from.
	senders []string
}

// send sends the content, from wherever it is.
func (s *sending) send() error {
	file, err := s.c.store.blobs.Open(s.r.Context(), s.rec.ETag, s.rec.Size, time.Now())
	if err == nil {
		defer func() { _ = file.Close() }()
		return s.from(file, "cache", func(context.Context, int64) (int64, error) { return s.rec.Size, nil })
	}
	if errors.Is(err, blobs.ErrCorrupt) {
		s.c.metrics.corrupt.Inc()
		s.c.log.Error("a kept file was changed on the disk; it is fetched again", "hash", s.rec.ETag)
	}
	if s.r.Context().Err() != nil {
		return s.r.Context().Err()
	}
	if errors.Is(err, blobs.ErrSize) {
		return fmt.Errorf("%w: %w", errOdd, err)
	}
	if s.c.failures.hopeless(s.rec.ETag) {
		return errHopeless
	}
	if s.peer == nil {
		if settled, err := s.throughRing(); settled {
			return err
		}
	}
	switch {
	case s.c.cfg.Offline:
		return errNotHere
	case s.c.downloads.reachable(s.rec.ETag, s.at):
		return s.follow()
	case s.peer != nil:
		return errFar
	}
	return s.direct()
}

// begin sends the header.
func (s *sending) begin() {
	if s.began {
		return
	}
	s.began = true
	s.w.Header().Set("Content-Length", strconv.FormatInt(s.part.to-s.part.from, 10))
	status := http.StatusOK
	if s.ranged {
		status = http.StatusPartialContent
		s.w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", s.part.from, s.part.to-1, s.rec.Size))
	}
	if s.peer != nil {
		s.peer.Sign(s.w.Header(), status)
	}
	s.w.WriteHeader(status)
}

// piece is how many bytes a client is given ClientTimeout for.
const piece = 4 << 20

// from sends from a file as far as next says it reaches. The kernel copies:
// nothing may stand between the file and the server's writer.
func (s *sending) from(file *os.File, label string, next func(context.Context, int64) (int64, error)) error {
	if err := s.agrees(file); err != nil {
		return err
	}
	s.begin()
	if _, err := file.Seek(s.at, io.SeekStart); err != nil {
		return err
	}
	control := http.NewResponseController(s.w)
	for s.at < s.part.to {
		upto, err := next(s.r.Context(), s.at)
		if err != nil {
			return err
		}
		_ = control.SetWriteDeadline(time.Now().Add(s.c.cfg.ClientTimeout)) // a test's writer has none
		n, err := io.CopyN(s.w, file, min(upto, s.part.to, s.at+piece)-s.at)
		s.at += n
		s.count(label, n)
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *sending) count(label string, n int64) {
	if s.peer != nil {
		s.c.metrics.ringBytes.Add(float64(n))
		return
	}
	s.c.metrics.sent.WithLabelValues(label).Add(float64(n))
}

// agrees checks what was sent from elsewhere against a file of ours that the
// rest comes from.
func (s *sending) agrees(file io.ReaderAt) error {
	if s.sum == nil || s.at == 0 {
		return nil
	}
	h := blobs.NewHash(s.rec.ETag, s.rec.Size)
	if _, err := io.Copy(h, blobs.ContextReader(s.r.Context(), io.NewSectionReader(file, 0, s.at))); err != nil {
		return err
	}
	if string(h.Sum(nil)) != string(s.sum.Sum(nil)) {
		return s.wrong()
	}
	s.sum, s.senders = nil, nil
	return nil
}

// wrong notes that what came does not have its hash.
func (s *sending) wrong() error {
	if s.began {
		s.c.failures.wrong(s.rec.ETag)
	}
	for _, node := range s.senders {
		s.c.reportCorrupt(node, s.rec)
	}
	return fmt.Errorf("%w: %w", errOdd, blobs.ErrCorrupt)
}

// follow sends a file while it is downloaded, by us or by somebody else.
func (s *sending) follow() error {
	for {
		f, began, err := s.c.downloads.join(s.r.Context(), s.rec, s.source)
		if err != nil {
			return err
		}
		err = s.followFlight(f)
		s.c.downloads.leave(f)
		var e *refusal
		switch {
		case err == nil || s.r.Context().Err() != nil:
			return err
		case errors.Is(err, blobs.ErrNoRoom) && s.peer == nil:
			return s.direct()
		case !began && (errors.As(err, &e) || errors.Is(err, errStale) || errors.Is(err, context.Canceled)):
			// What the download began with is not ours.
			continue
		}
		return err
	}
}

// followFlight sends the file of a flight while it grows.
func (s *sending) followFlight(f *flight) error {
	if _, err := f.next(s.r.Context(), s.at); err != nil {
		return err
	}
	file, err := s.c.store.blobs.Follow(f.etag)
	if errors.Is(err, fs.ErrNotExist) {
		// A download whose content is wrong removes its file before it ends, and
		// its error is what the client must know.
		if _, failed := f.next(s.r.Context(), f.size); failed != nil {
			return failed
		}
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return s.from(file, "download", f.next)
}

// direct sends what the Hub sends, and keeps nothing. Like a download it goes on
// where it broke off.
func (s *sending) direct() error {
	wait := s.c.cfg.RetryWait
	for attempt := 1; ; attempt++ {
		before := s.at
		err := s.directOnce()
		if err == nil || s.r.Context().Err() != nil || !errors.Is(err, errUnreachable) {
			return err
		}
		if s.at-before >= enoughProgress {
			attempt, wait = 0, s.c.cfg.RetryWait
		}
		if attempt >= s.c.cfg.Attempts {
			return err
		}
		select {
		case <-time.After(wait):
		case <-s.r.Context().Done():
			return s.r.Context().Err()
		}
		wait = min(2*wait, maxRetryAfter)
	}
}

func (s *sending) directOnce() error {
	ctx, dog := watch(s.r.Context(), s.c.cfg.StallTimeout)
	defer dog.stop()
	body, err := s.c.hub.get(ctx, s.source, span{s.at, s.part.to}, s.rec.Size)
	if err != nil {
		s.c.failed(s.source.t, err)
		return err
	}
	defer func() { _ = body.Close() }()
	err = s.pour(body, "direct", dog.feed)
	if errors.Is(err, errSource) {
		err = unreachable(ctx, err)
	}
	return err
}

var (
	// errSource marks failures of what bytes came from.
	errSource = errors.New("the content broke off")
	// errClient marks failures of whom bytes went to.
	errClient = errors.New("the client does not read")
)

// pour sends a body that no file holds. Of a whole file the last byte waits until
// the hash is known, wherever the bytes before it came from.
func (s *sending) pour(body io.Reader, label string, fed func()) error {
	if s.at == 0 && s.part.to == s.rec.Size {
		s.sum = blobs.NewHash(s.rec.ETag, s.rec.Size)
	}
	control := http.NewResponseController(s.w)
	buf := make([]byte, min(chunk, s.part.to-s.at))
	for s.at < s.part.to {
		n, err := body.Read(buf[:min(chunk, s.part.to-s.at)])
		if n > 0 {
			fed()
			out := buf[:n]
			if s.sum != nil {
				_, _ = s.sum.Write(out) // never fails
				if s.at+int64(n) == s.part.to {
					if hex.EncodeToString(s.sum.Sum(nil)) != s.rec.ETag {
						return s.wrong()
					}
					s.c.failures.right(s.rec.ETag)
				}
			}
			s.begin()
			_ = control.SetWriteDeadline(time.Now().Add(s.c.cfg.ClientTimeout)) // a test's writer has none
			m, err := s.w.Write(out)
			s.at += int64(m)
			s.count(label, int64(m))
			if err != nil {
				return fmt.Errorf("%w: %w", errClient, err)
			}
		}
		if err != nil && s.at < s.part.to {
			return fmt.Errorf("%w: %w", errSource, err)
		}
	}
	s.begin() // of nothing
	return nil
}

// finish ends the answer: one that has begun and cannot go on is broken off, so
// that no client takes it for whole.
func (s *sending) finish(t target, err error) {
	switch {
	case err == nil:
		return
	case s.began:
		panic(http.ErrAbortHandler)
	case s.r.Context().Err() != nil:
		return // nobody is there
	}
	var e *refusal
	if errors.Is(err, errOdd) || errors.As(err, &e) && e.status < 500 && e.status != http.StatusTooManyRequests {
		// What was noted of the file may be what is wrong.
		s.c.store.records.forget(t.repo, s.rec.Commit, s.rec.File)
	}
	if errors.As(err, &e) && e.denied() {
		s.c.denied(t.repo, s.c.grants.caller(s.r.Header.Get("Authorization")))
	}
	for k := range s.w.Header() {
		delete(s.w.Header(), k)
	}
	s.c.refuse(s.w, s.r, "resolve", err)
}
