package hubcache

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/peers"
)

// Why a node does not send a blob although it is in order. The node that asked
// then downloads the blob itself, except for reasonSource: then it asks again
// and names a source.
const (
	reasonSource   = "source"   // not here, and the source is missing or good no more
	reasonFar      = "far"      // not here, and the range is far ahead of what is
	reasonFull     = "full"     // the disk is full
	reasonUpstream = "upstream" // the storage cannot be used
	reasonOffline  = "offline"
	reasonBad      = "malformed"
)

// errDeclined is the error of a healthy node that does not send a blob.
var errDeclined = errors.New("the node does not send it")

// throughRing sends the rest of a file from the nodes that own it. If they
// cannot send all of it, settled is false and this node continues by itself
// from s.at. Waits for a node are bounded (peers.Config), and a node is asked
// again only if it sent enough.
func (s *sending) throughRing() (settled bool, err error) {
	c := s.c
	if c.ring == nil || s.rec.Size < c.cfg.RingMinBytes || s.rec.Size == 0 || c.downloads.has(s.rec.ETag) {
		return false, nil
	}
	where := ""
	var gone []string
	for {
		nodes := slices.DeleteFunc(c.ring.Owners(s.rec.ETag), func(n string) bool { return slices.Contains(gone, n) })
		if len(nodes) == 0 || len(gone) >= maxFailedNodes {
			return false, nil
		}
		node, before := nodes[0], s.at
		err := s.fromNode(node, &where)
		var e *refusal
		switch {
		case err == nil:
			c.ring.Worked(node)
			c.metrics.ringSent.WithLabelValues("sent").Inc()
			return true, nil
		case s.r.Context().Err() != nil, errors.Is(err, errClient), s.began && errors.Is(err, blobs.ErrCorrupt), errors.As(err, &e):
			return true, err
		case errors.Is(err, blobs.ErrCorrupt): // and nothing of it went out
			s.sum, s.senders = nil, nil
			gone = append(gone, node)
		case errors.Is(err, errDeclined):
			c.ring.Worked(node)
			c.metrics.ringSent.WithLabelValues("declined").Inc()
			return false, nil
		case s.at-before >= enoughProgress:
			// Its download may have ended early: ask it again.
			c.metrics.ringSent.WithLabelValues("broken").Inc()
		default:
			c.ring.Failed(node, err)
			c.metrics.ringSent.WithLabelValues(reasonOf(err)).Inc()
			gone = append(gone, node)
		}
	}
}

// maxFailedNodes is how many nodes may fail before this one fetches a file
// itself.
const maxFailedNodes = 2

func reasonOf(err error) string {
	switch {
	case errors.Is(err, peers.ErrSlow):
		return "slow"
	case errors.Is(err, peers.ErrRefused), errors.Is(err, peers.ErrForged):
		return "refused"
	case errors.Is(err, peers.ErrOdd):
		return "malformed"
	}
	return "dead"
}

// fromNode sends the rest of a file from another node. where is the source to
// give the node once it has asked for one.
func (s *sending) fromNode(node string, where *string) error {
	ctx := s.r.Context()
	for asked := 0; ; asked++ {
		answer, err := s.c.ring.Get(ctx, node, peers.Question{Hash: s.rec.ETag, Size: s.rec.Size, From: s.at, To: s.part.to, Source: *where})
		if err != nil {
			return err
		}
		if answer.Reason == "" {
			defer func() { _ = answer.Body.Close() }()
			return s.pour(answer.Body, "peer", func() {
				if !slices.Contains(s.senders, node) {
					s.senders = append(s.senders, node)
				}
			})
		}
		if answer.Reason != reasonSource || asked > 1 || s.c.cfg.Offline {
			return errDeclined
		}
		*where, err = s.c.source(ctx, s.source.t, s.source.authorization)
		var e *refusal
		if errors.As(err, &e) && e.status < 500 && e.status != 429 {
			return err
		}
		if err != nil || *where == "" {
			return errDeclined // this node asks the Hub itself
		}
	}
}

// reportCorrupt notes that a node sent wrong content, and tells it.
func (c *Cache) reportCorrupt(node string, rec fileRecord) {
	c.metrics.ringSent.WithLabelValues("wrong").Inc()
	c.log.Error("a node of the ring sent content that does not have its hash", "node", node, "hash", rec.ETag)
	c.ring.Wrong(node)
	c.tasks.start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.MetadataTimeout)
		defer cancel()
		_ = c.ring.ReportCorrupt(ctx, node, rec.ETag) // it is not asked for a while in any case
	})
}

// errFar is a range that another node asks for, far ahead of what is here.
var errFar = errors.New("the range is far ahead of what is here")

// servePeer answers another node. Such a request is never forwarded to a third.
func (c *Cache) servePeer(v *peers.Request, w http.ResponseWriter, r *http.Request, q peers.Question) {
	from, err := c.parseSource(v.Source)
	part, ranged, rangeErr := parseRange(r.Header.Get("Range"), q.Size)
	if err != nil || rangeErr != nil || !blobs.IsHash(q.Hash) {
		c.decline(v, w, http.StatusBadRequest, reasonBad)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(c.cfg.StallTimeout + c.cfg.ClientTimeout)) // the storage may take its time
	h := w.Header()
	h.Set("Etag", `"`+q.Hash+`"`)
	h.Set("Content-Type", "application/octet-stream")
	s := &sending{c: c, w: w, r: r, rec: fileRecord{ETag: q.Hash, Size: q.Size}, at: part.from, part: part, ranged: ranged, source: from, peer: v}
	err = s.send()
	var e *refusal
	switch {
	case err == nil:
		c.metrics.ringReceived.WithLabelValues("sent").Inc()
	case r.Context().Err() != nil: // nobody is there
	case s.began:
		c.metrics.ringReceived.WithLabelValues("broken").Inc()
		panic(http.ErrAbortHandler)
	case errors.Is(err, errNoSource), errors.Is(err, errStale), errors.As(err, &e) && e.status < 500:
		c.decline(v, w, http.StatusNotFound, reasonSource)
	case errors.Is(err, blobs.ErrSize):
		c.decline(v, w, http.StatusBadRequest, reasonBad)
	case errors.Is(err, errFar):
		c.decline(v, w, http.StatusNotFound, reasonFar)
	case errors.Is(err, errNotHere):
		c.decline(v, w, http.StatusNotFound, reasonOffline)
	case errors.Is(err, blobs.ErrNoRoom):
		c.decline(v, w, http.StatusServiceUnavailable, reasonFull)
	default:
		c.decline(v, w, http.StatusBadGateway, reasonUpstream)
	}
}

func (c *Cache) decline(v *peers.Request, w http.ResponseWriter, status int, reason string) {
	c.metrics.ringReceived.WithLabelValues(reason).Inc()
	v.Decline(w, status, reason)
}

// reportedCorrupt notes that another node received a wrong blob from us: it is hashed
// again before anybody reads it.
func (c *Cache) reportedCorrupt(hash string) {
	if !blobs.IsHash(hash) {
		return
	}
	if err := c.store.blobs.Suspect(hash); err != nil {
		c.log.Warn("a file that another node found wrong cannot be marked", "hash", hash, "error", err)
	}
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
		c.tasks.start(c.ring.Run)
	}
	return err
}
