package journal

import "sync"

// maxBodies bounds what is kept of all bodies together, in bytes.
const maxBodies = 8 << 20

// Body is the beginning of a request's body, or of an answer's.
type Body struct {
	Data []byte
	Cut  bool // there was more
}

// Add appends b, up to most bytes in all.
func (o *Body) Add(b []byte, most int) {
	if room := most - len(o.Data); len(b) > room {
		b, o.Cut = b[:max(0, room)], true
	}
	o.Data = append(o.Data, b...)
}

// Bodies are those of one request, of a service that asks for it. They are forgotten
// before the request where there is too much of them.
type Bodies struct {
	Request, Answer Body
	Forgotten       bool
}

func (b *Bodies) size() int { return len(b.Request.Data) + len(b.Answer.Data) }

// bodyStore keeps the bodies of the last requests that have some.
type bodyStore struct {
	mu struct {
		sync.Mutex
		of   []*Bodies // the oldest first
		size int
	}
}

// add keeps b, and forgets the oldest beyond maxBodies, and beyond the requests that
// are kept.
func (s *bodyStore) add(b *Bodies) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.of = append(s.mu.of, b)
	s.mu.size += b.size()
	for s.mu.size > maxBodies || len(s.mu.of) > keptRequests {
		oldest := s.mu.of[0]
		s.mu.size -= oldest.size()
		*oldest = Bodies{Forgotten: true}
		s.mu.of[0] = nil
		s.mu.of = s.mu.of[1:]
	}
}

// get returns what is kept of b.
func (s *bodyStore) get(b *Bodies) Bodies {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *b
}
