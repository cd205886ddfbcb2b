package network

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// CORS decides what a server tells browsers about pages of other origins (Fetch,
// "CORS protocol"). In each list "*" stands for any value.
type CORS struct {
	// Origins and OriginPattern are the origins that may read answers. The pattern,
	// nil for none, is anchored at both ends, as ^(?:…)$.
	Origins       []string
	OriginPattern *regexp.Regexp
	// Methods and Headers are what requests of those origins may use. Headers that
	// need no permission are always allowed.
	Methods, Headers []string
	// Exposed are the headers of answers that pages may read.
	Exposed []string
	// Credentials lets pages send cookies and HTTP authentication.
	Credentials bool
	// MaxAge is how many seconds a browser may keep the answer to a preflight.
	MaxAge int
}

// CORSRequest is what CORS reads of a request: its method and header fields.
type CORSRequest struct {
	Method, Origin                string
	RequestMethod, RequestHeaders string // Access-Control-Request-…
}

// Preflight reports whether a browser asks what it may send.
func (r *CORSRequest) Preflight() bool { return r.Method == "OPTIONS" && r.RequestMethod != "" }

// simpleHeaders need no permission.
var simpleHeaders = []string{"Accept", "Accept-Language", "Content-Language", "Content-Type"}

// anyMethod is what "*" stands for among methods: browsers take no "*" from
// servers that allow credentials.
var anyMethod = []string{"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}

// Answer adds to the header of a request's answer what browsers must know. A
// request without an Origin needs nothing. refused names what of a preflight is
// not allowed: "origin", "method", "headers".
func (c *CORS) Answer(h map[string][]string, r CORSRequest) (refused []string) {
	if r.Origin == "" {
		return nil
	}
	allowed := c.Allows(r.Origin)
	c.answerOrigin(h, r.Origin, allowed)
	if !r.Preflight() {
		if allowed && len(c.Exposed) > 0 {
			h["Access-Control-Expose-Headers"] = []string{strings.Join(c.Exposed, ", ")}
		}
		return nil
	}
	if !allowed {
		refused = append(refused, "origin")
	}
	methods := c.Methods
	if slices.Contains(methods, "*") {
		methods = anyMethod
	} else if !slices.Contains(methods, r.RequestMethod) {
		refused = append(refused, "method")
	}
	if !c.allowsHeaders(r.RequestHeaders) {
		refused = append(refused, "headers")
	}
	if allowed {
		h["Access-Control-Allow-Methods"] = []string{strings.Join(methods, ", ")}
		h["Access-Control-Allow-Headers"] = []string{c.allowedHeaders(r.RequestHeaders)}
		h["Access-Control-Max-Age"] = []string{strconv.Itoa(c.MaxAge)}
	}
	return refused
}

// Allows reports whether pages of an origin may read answers.
func (c *CORS) Allows(origin string) bool {
	return slices.Contains(c.Origins, "*") || slices.Contains(c.Origins, origin) || c.OriginPattern != nil && c.OriginPattern.MatchString(origin)
}

// answerOrigin writes what every answer to an origin carries. With credentials
// the answer names the origin: browsers refuse them with *.
func (c *CORS) answerOrigin(h map[string][]string, origin string, allowed bool) {
	if slices.Contains(c.Origins, "*") && !c.Credentials {
		h["Access-Control-Allow-Origin"] = []string{"*"}
		return
	}
	h["Vary"] = append(h["Vary"], "Origin")
	if !allowed {
		return
	}
	h["Access-Control-Allow-Origin"] = []string{origin}
	if c.Credentials {
		h["Access-Control-Allow-Credentials"] = []string{"true"}
	}
}

// allowsHeaders reports whether requests may have the headers of a
// comma-separated list.
func (c *CORS) allowsHeaders(wanted string) bool {
	if wanted == "" || slices.Contains(c.Headers, "*") {
		return true
	}
	for name := range strings.SplitSeq(wanted, ",") {
		same := func(allowed string) bool { return strings.EqualFold(allowed, strings.TrimSpace(name)) }
		if !slices.ContainsFunc(simpleHeaders, same) && !slices.ContainsFunc(c.Headers, same) {
			return false
		}
	}
	return true
}

// allowedHeaders returns the value of Access-Control-Allow-Headers.
func (c *CORS) allowedHeaders(wanted string) string {
	if wanted != "" && slices.Contains(c.Headers, "*") {
		return wanted
	}
	all := append(slices.Clone(simpleHeaders), c.Headers...)
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}
