package epp

import "sync/atomic"

// share is how much of what pickers may use the requests of one namespace do:
// a picker that holds its requests for long must not keep those of others from
// being asked about.
type share struct {
	namespace string
	streams   atomic.Int64
	peers     int // Client.mu guards it
}

// sharing is a namespace's share, for one picker more. c.mu is held.
func (c *Client) sharing(namespace string) *share {
	s := c.shares[namespace]
	if s == nil {
		s = &share{namespace: namespace}
		c.shares[namespace] = s
	}
	s.peers++
	return s
}

// unshare reports that a picker of the namespace is gone. What is under way counts
// on, so that a picker that comes back has no new share. c.mu is held.
func (c *Client) unshare(s *share) {
	s.peers--
	for namespace, s := range c.shares {
		if s.peers == 0 && s.streams.Load() == 0 {
			delete(c.shares, namespace)
		}
	}
}

// enter takes a place for a request; false where there is none. A namespace may
// have as many as are free (Choudhury and Hahne, "Dynamic queue length
// thresholds for shared-memory packet switches", 1998): something is left for
// whoever comes.
func (c *Client) enter(s *share) bool {
	all, own := c.streams.Add(1), s.streams.Add(1)
	if all > int64(c.cfg.MaxStreams) || own-1 > int64(c.cfg.MaxStreams)-all {
		c.exit(s)
		return false
	}
	return true
}

func (c *Client) exit(s *share) {
	s.streams.Add(-1)
	c.streams.Add(-1)
}

// longest is the longest message of a picker about a body of n bytes.
func longest(n int) int { return min(maxMessage, maxMessageExtra+2*n) }
