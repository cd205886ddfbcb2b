package routing

import "time"

// Handling is how requests of a route are treated on their way; the zero value is as
// all are.
type Handling struct {
	// Timeout is how long the whole answer may take, TryTimeout how long each replica
	// that is tried may take to begin it; 0 is no bound of the route's.
	Timeout    time.Duration `json:"timeout,omitempty"`
	TryTimeout time.Duration `json:"tryTimeout,omitempty"`
	// Mirrors get copies of requests, whose answers nobody sees.
	Mirrors []Mirror `json:"mirrors,omitempty"`
}

// OrNil is h, nil where it asks for nothing.
func (h *Handling) OrNil() *Handling {
	if h.Timeout == 0 && h.TryTimeout == 0 && len(h.Mirrors) == 0 {
		return nil
	}
	return h
}

// Mirror is where copies of requests go, and how many of a million requests have one.
type Mirror struct {
	Ref `json:"ref"`
	// Model is what the replica is asked for; "" is the service's own name, or for a
	// pool the name in the request.
	Model      string `json:"model,omitempty"`
	PerMillion uint32 `json:"perMillion"`
}

// Whole is the PerMillion of a Mirror that gets a copy of every request.
const Whole = 1_000_000
