package routing

import (
	"strings"
	"time"
)

// Handling is how requests of a route are treated on their way; the zero value is as
// all are.
type Handling struct {
	// Timeout is how long the whole answer may take, TryTimeout how long each replica
	// that is tried may take to begin it; 0 is no bound of the route's.
	Timeout    time.Duration `json:"timeout,omitempty"`
	TryTimeout time.Duration `json:"tryTimeout,omitempty"`
	// Mirrors get copies of requests, whose answers nobody sees.
	Mirrors []Mirror `json:"mirrors,omitempty"`
	// RequestHeader and ResponseHeader are changes of the header that the replica gets,
	// and of the one that the client gets, in order.
	RequestHeader  []HeaderChange `json:"requestHeader,omitempty"`
	ResponseHeader []HeaderChange `json:"responseHeader,omitempty"`
	// Rewrite changes the URL that the replica is asked for; nil leaves it.
	Rewrite *URLRewrite `json:"rewrite,omitempty"`
	// Redirect is the answer, in place of a replica's; nil for none.
	Redirect *Redirect `json:"redirect,omitempty"`
	// Retry is when an answer that failed is asked for again; nil leaves that to the
	// pool. Hedge is when a second replica is asked; nil is never.
	Retry *Retry `json:"retry,omitempty"`
	Hedge *Hedge `json:"hedge,omitempty"`
}

// OrNil is h, nil where it asks for nothing.
func (h *Handling) OrNil() *Handling {
	if h.Timeout == 0 && h.TryTimeout == 0 && len(h.Mirrors) == 0 && len(h.RequestHeader) == 0 && len(h.ResponseHeader) == 0 &&
		h.Rewrite == nil && h.Redirect == nil && h.Retry == nil && h.Hedge == nil {
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
	// Port is a Kubernetes Service's where the reference may mean one; 0 otherwise.
	Port int32 `json:"port,omitempty"`
}

// Whole is the PerMillion of a Mirror that gets a copy of every request.
const Whole = 1_000_000

// HeaderChange is one change of a header.
type HeaderChange struct {
	Op    HeaderOp `json:"op"`
	Name  string   `json:"name"` // in its canonical form
	Value string   `json:"value,omitempty"`
}

// HeaderOp is what a HeaderChange does with the field's values.
type HeaderOp string

// The operations: the value takes the place of all, comes after them, or all go.
const (
	HeaderSet    HeaderOp = "set"
	HeaderAdd    HeaderOp = "add"
	HeaderRemove HeaderOp = "remove"
)

// URLRewrite is what takes the place of parts of a URL.
type URLRewrite struct {
	Host string       `json:"host,omitempty"` // "" leaves it
	Path *PathRewrite `json:"path,omitempty"` // nil leaves it
}

// PathRewrite is what takes the place of a path, or of the elements it begins with.
type PathRewrite struct {
	// Prefix is what is replaced, a path; "" is the whole.
	Prefix string `json:"prefix,omitempty"`
	Value  string `json:"value"`
}

// Apply is an escaped path with the change: as it is where it does not begin with the
// prefix.
func (c *PathRewrite) Apply(path string) string {
	if c.Prefix == "" {
		return c.Value
	}
	rest, ok := cutEscaped(path, strings.TrimSuffix(c.Prefix, "/"))
	if !ok || rest != "" && rest[0] != '/' {
		return path
	}
	if out := strings.TrimSuffix(c.Value, "/") + rest; out != "" {
		return out
	}
	return "/"
}

// cutEscaped cuts a prefix, without escapes, off an escaped path.
func cutEscaped(path, prefix string) (rest string, ok bool) {
	for i := range len(prefix) {
		switch {
		case path == "":
			return "", false
		case path[0] == '%' && len(path) > 2 && hex(path[1]) >= 0 && hex(path[2]) >= 0:
			if byte(hex(path[1])<<4|hex(path[2])) != prefix[i] {
				return "", false
			}
			path = path[3:]
		case path[0] != prefix[i]:
			return "", false
		default:
			path = path[1:]
		}
	}
	return path, true
}

// hex is the value of a hexadecimal digit, -1 of any other byte.
func hex(c byte) int {
	if 'A' <= c && c <= 'F' {
		c += 'a' - 'A'
	}
	return strings.IndexByte("0123456789abcdef", c)
}

// Redirect is where clients are sent.
type Redirect struct {
	Scheme     string `json:"scheme,omitempty"` // "" is the request's
	Port       int32  `json:"port,omitempty"`   // 0 is that of Scheme, or else the listener's
	Status     int    `json:"status"`
	URLRewrite `json:",inline"`
}

// Retry is which answers are asked for again, and how often.
type Retry struct {
	// Codes are the statuses; none means those that say that the replica failed or is
	// busy.
	Codes []int `json:"codes,omitempty"`
	// Attempts is how many replicas are tried after the first; negative is the
	// gateway's own bound.
	Attempts int           `json:"attempts"`
	Backoff  time.Duration `json:"backoff,omitempty"` // before the first; it doubles
	Budget   RetryBudget   `json:"budget"`
}

// Hedge is when a request is sent to a second replica besides.
type Hedge struct {
	// After is how long the first may take to begin its answer; 0 has the Percentile
	// of the route's latest answers.
	After      time.Duration `json:"after,omitempty"`
	Percentile int           `json:"percentile,omitempty"`
	Budget     RetryBudget   `json:"budget"`
}

// RetryBudget bounds retries and hedges together.
type RetryBudget struct {
	// Percent of a route's recent requests, and so many a second besides.
	Percent   int `json:"percent"`
	PerSecond int `json:"perSecond"`
}

// DefaultRetryBudget is GEP-3388's, which has it from Linkerd's.
var DefaultRetryBudget = RetryBudget{Percent: 20, PerSecond: 10}
