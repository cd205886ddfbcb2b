package hubcache

import (
	"context"
	"errors"
	"slices"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/peers"
)

// Why a node does not send a blob although it is in order. Whoever asked sees to
// it itself, but for reasonSource: then it says where the content may be had.
const (
	reasonSource   = "source"   // not here, and the source is missing or good no more
	reasonFar      = "far"      // not here, and the range is far ahead of what is
	reasonRoom     = "room"     // nothing can be kept
	reasonUpstream = "upstream" // the storage cannot be used
	reasonOffline  = "offline"
	reasonBad      = "malformed"
)

// errDeclined is a node that is in order and does not send a blob.
var errDeclined = errors.New("the node does not send it")

// throughRing sends what is left of a file from the nodes that should have it.
// Where that cannot be, or not to the end, settled is false, and this node goes
// on by itself from s.at. Waits for a node are bounded (peers.Config), and each
// is asked again only if it got on.
func (s *sending) throughRing() (settled bool, err error) {
	c := s.c
	if c.ring == nil || s.rec.Size < c.cfg.RingMinBytes || s.rec.Size == 0 || c.flying(s.rec.ETag) {
		return false, nil
	}
	where := ""
	var gone []string
	for {
		nodes := slices.DeleteFunc(c.ring.Owners(s.rec.ETag), func(n string) bool { return slices.Contains(gone, n) })
		if len(nodes) == 0 || len(gone) >= maxHops {
			return false, nil
		}
		node, before := nodes[0], s.at
		err := s.hop(node, &where)
		var e *refusal
		switch {
		case err == nil:
			c.ring.Worked(node)
			c.metrics.hops.WithLabelValues("sent").Inc()
			return true, nil
		case s.r.Context().Err() != nil, errors.Is(err, errClient), s.began && errors.Is(err, errCorrupt), errors.As(err, &e):
			return true, err
		case errors.Is(err, errCorrupt): // and nothing of it went out
			s.sum, s.carriers = nil, nil
			gone = append(gone, node)
		case errors.Is(err, errDeclined):
			c.ring.Worked(node)
			c.metrics.hops.WithLabelValues("declined").Inc()
			return false, nil
		case s.at-before >= enoughProgress:
			// It may only be that its download ended: it is asked again.
			c.metrics.hops.WithLabelValues("broken").Inc()
		default:
			c.ring.Failed(node, err)
			c.metrics.hops.WithLabelValues(reasonOf(err)).Inc()
			gone = append(gone, node)
		}
	}
}

// maxHops is how many nodes may fail before this one sees to a file itself.
const maxHops = 2

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

// hop sends what is left of a file from another node. where is the source that
// the node is told, once it has asked for one.
func (s *sending) hop(node string, where *string) error {
	ctx := s.r.Context()
	for asked := 0; ; asked++ {
		answer, err := s.c.ring.Get(ctx, node, peers.Question{Hash: s.rec.ETag, Size: s.rec.Size, From: s.at, To: s.part.to, Source: *where})
		if err != nil {
			return err
		}
		if answer.Reason == "" {
			defer func() { _ = answer.Body.Close() }()
			return s.pour(answer.Body, "peer", func() {
				if !slices.Contains(s.carriers, node) {
					s.carriers = append(s.carriers, node)
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
			return errDeclined // we shall see ourselves
		}
	}
}

// flying reports whether this node downloads a blob itself.
func (c *Cache) flying(etag string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flights[etag] != nil
}

// accuse notes that a node sent wrong content, and tells it.
func (c *Cache) accuse(node string, rec fileRecord) {
	c.metrics.hops.WithLabelValues("wrong").Inc()
	c.log.Error("a node of the ring sent content that does not have its hash", "node", node, "hash", rec.ETag)
	c.ring.Wrong(node)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Go(func() {
			ctx, cancel := context.WithTimeout(c.background, c.cfg.MetadataTimeout)
			defer cancel()
			_ = c.ring.Accuse(ctx, node, rec.ETag) // it is left alone in any case
		})
	}
}
