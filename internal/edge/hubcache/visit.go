package hubcache

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/peers"
)

// errFar is a range that another node asks for, far ahead of what is here.
var errFar = errors.New("the range is far ahead of what is here")

// visited answers another node. Such a request is never sent on to a third.
func (c *Cache) visited(v *peers.Visit, w http.ResponseWriter, r *http.Request, q peers.Question) {
	from, err := c.parseSource(v.Source)
	part, ranged, rangeErr := parseRange(r.Header.Get("Range"), q.Size)
	if err != nil || rangeErr != nil || !isBlob(q.Hash) {
		c.decline(v, w, http.StatusBadRequest, reasonBad)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(c.cfg.StallTimeout + c.cfg.ClientTimeout)) // the storage may take its time
	h := w.Header()
	h.Set("Etag", `"`+q.Hash+`"`)
	h.Set("Content-Type", "application/octet-stream")
	s := &sending{c: c, w: w, r: r, rec: fileRecord{ETag: q.Hash, Size: q.Size}, at: part.from, part: part, ranged: ranged, source: from, visit: v}
	err = s.send()
	var e *refusal
	switch {
	case err == nil:
		c.metrics.visits.WithLabelValues("sent").Inc()
	case r.Context().Err() != nil: // nobody is there
	case s.began:
		c.metrics.visits.WithLabelValues("broken").Inc()
		panic(http.ErrAbortHandler)
	case errors.Is(err, errNoSource), errors.Is(err, errStale), errors.As(err, &e) && e.status < 500:
		c.decline(v, w, http.StatusNotFound, reasonSource)
	case errors.Is(err, errSize):
		c.decline(v, w, http.StatusBadRequest, reasonBad)
	case errors.Is(err, errFar):
		c.decline(v, w, http.StatusNotFound, reasonFar)
	case errors.Is(err, errNotHere):
		c.decline(v, w, http.StatusNotFound, reasonOffline)
	case errors.Is(err, errNoRoom):
		c.decline(v, w, http.StatusServiceUnavailable, reasonRoom)
	default:
		c.decline(v, w, http.StatusBadGateway, reasonUpstream)
	}
}

func (c *Cache) decline(v *peers.Visit, w http.ResponseWriter, status int, reason string) {
	c.metrics.visits.WithLabelValues(reason).Inc()
	v.Decline(w, status, reason)
}

// accused is told that a blob of ours reached another node wrong: it is hashed
// again before anybody reads it.
func (c *Cache) accused(hash string) {
	if !isBlob(hash) {
		return
	}
	path := c.store.blobPath(hash)
	info, err := os.Stat(path)
	if err != nil || !marked(info) {
		return
	}
	at := time.Unix(info.ModTime().Unix(), 0)
	if err := os.Chtimes(path, at, at); err != nil {
		c.log.Warn("a file that another node found wrong cannot be marked", "hash", hash, "error", err)
	}
}

// ringFile is what the running cache knows of its ring.
const ringFile = "ring.json"

// Ring is what a cache that runs over the store, or ran last, knew of its ring;
// ok is false where it was in none.
func (s *Store) Ring() (st peers.State, ok bool) {
	ok = readRecord(filepath.Join(s.dir, ringFile), &st)
	return st, ok
}

// newRing joins the ring that cfg names, if any.
func (c *Cache) newRing() (err error) {
	if !c.cfg.Ring.Enabled() {
		if err := os.Remove(filepath.Join(c.store.dir, ringFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("hubcache: %w", err)
		}
		return nil
	}
	cfg := c.cfg.Ring
	cfg.Log = c.log
	cfg.Changed = func(st peers.State) {
		if err := writeRecord(filepath.Join(c.store.dir, ringFile), st); err != nil {
			c.log.Warn("the ring cannot be noted for stats", "error", err)
		}
	}
	c.ring, err = peers.New(cfg)
	if err == nil {
		c.running.Go(func() { c.ring.Run(c.background) })
	}
	return err
}
