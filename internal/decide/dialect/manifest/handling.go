package manifest

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// Bounds of changes of headers, those of HTTPRoute's published schema.
const (
	MaxHeaderChanges = 16 // of each operation
	MaxHeaderName    = 256
	MaxHeaderValue   = 4096
)

// Token is the form of a header's name.
var Token = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// CanonicalHeader is how a header's name is asked for: "X-Team-Name".
func CanonicalHeader(name string) string {
	b, upper := []byte(name), true
	for i, c := range b {
		if upper && 'a' <= c && c <= 'z' {
			b[i] = c - 'a' + 'A'
		} else if !upper && 'A' <= c && c <= 'Z' {
			b[i] = c - 'A' + 'a'
		}
		upper = c == '-'
	}
	return string(b)
}

// The fields that no route changes: those of one connection and of the body's end, for
// requests also those that the gateway itself writes, and those that name servers which
// a replica would call.
var (
	fixedFields        = []string{"Connection", "Content-Length", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}
	fixedRequestFields = []string{"Host", "Expect", "X-Request-Id", "Traceparent", "X-Forwarded-For",
		"X-Prefiller-Host-Port", "X-Encoder-Hosts-Ports", "X-Data-Parallel-Host-Port"}
)

// HeaderChanges collects the changes of a header, and reports those that cannot be.
type HeaderChanges struct {
	*Report
	Request bool // the header is a request's
	List    []routing.HeaderChange

	seen []string // names
}

// Add reads one change; path is that of its name, and of its value.
func (h *HeaderChanges) Add(path, valuePath string, op routing.HeaderOp, name, value string) {
	canonical := CanonicalHeader(name)
	switch {
	case !Token.MatchString(name) || len(name) > MaxHeaderName:
		h.Errorf(path, "%q is not the name of a header", Clip(name))
		return
	case slices.Contains(fixedFields, canonical), h.Request && slices.Contains(fixedRequestFields, canonical):
		h.Errorf(path, "%s is the gateway's to write: remove it%s", Clip(name), hostHint(canonical))
		return
	case slices.Contains(h.seen, canonical):
		h.Errorf(path, "%s is changed already: write each name once", Clip(name))
		return
	}
	h.seen = append(h.seen, canonical)
	if op != routing.HeaderRemove && !validHeaderValue(value) {
		h.Errorf(valuePath, "must have 1 to %d bytes, none of them a control character, and no blank at its ends", MaxHeaderValue)
		return
	}
	h.List = append(h.List, routing.HeaderChange{Op: op, Name: canonical, Value: value})
}

func hostHint(name string) string {
	if name == "Host" {
		return ", and change the host with a URLRewrite of an HTTPRoute"
	}
	return ""
}

func validHeaderValue(v string) bool {
	return v != "" && len(v) <= MaxHeaderValue && strings.Trim(v, " \t") == v &&
		!strings.ContainsFunc(v, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f })
}

// Bounds of a route's retries.
const (
	MaxRetryAttempts = 10
	MaxRetryCodes    = 16
	MaxRetryBackoff  = time.Minute
)

// ReadRetry reads which answers of a route are asked for again; without attempts it is
// the gateway's own bound.
func ReadRetry(r *Report, path string, codes []int, attempts *int, backoff time.Duration) *routing.Retry {
	out := &routing.Retry{Codes: slices.Clone(codes), Attempts: -1, Backoff: backoff, Budget: routing.DefaultRetryBudget}
	CheckAtMost(r, path+".codes", len(codes), MaxRetryCodes)
	for i, code := range codes {
		if code < 400 || code > 599 {
			r.Errorf(strict.Index(path+".codes", i), "%d is not the status of a failure: 400 to 599", code)
		}
	}
	if attempts != nil {
		if out.Attempts = *attempts; *attempts < 0 || *attempts > MaxRetryAttempts {
			r.Errorf(path+".attempts", "%d is not 0 to %d", *attempts, MaxRetryAttempts)
		}
	}
	if backoff < 0 || backoff > MaxRetryBackoff {
		r.Errorf(path+".backoff", "%v is not 0s to %v", backoff, MaxRetryBackoff)
	}
	return out
}
