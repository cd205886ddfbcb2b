package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
)

// CORS says which web pages may ask from a browser. The zero CORS allows none.
// Keys travel in a header, so no page is let use a browser's cookies.
type CORS struct {
	// Origins are pages' origins ("https://chat.example.com"), or "*" for all.
	Origins []string
	// MaxAge is how long a browser may keep the answer to its question; 0 means
	// 10 minutes.
	MaxAge time.Duration
}

const defaultCORSMaxAge = 10 * time.Minute

func (c CORS) validate() error {
	var errs []error
	for _, o := range c.Origins {
		u, err := url.Parse(o)
		if o != "*" && (err != nil || u.Host == "" || u.Scheme+"://"+u.Host != o) {
			errs = append(errs, fmt.Errorf("gateway: CORS origin %q is none: write scheme://host[:port] or *", o))
		}
	}
	if c.MaxAge < 0 {
		errs = append(errs, fmt.Errorf("gateway: CORS MaxAge must not be negative, is %v", c.MaxAge))
	}
	return errors.Join(errs...)
}

// cors lets an allowed page read the answer; true when the request was a
// browser's question ahead of one, and is answered.
func (x *exchange) cors() bool {
	c := x.gw.cfg.CORS
	if len(c.Origins) == 0 {
		return false
	}
	h, origin := x.w.Header(), x.r.Header.Get("Origin")
	if origin == "" {
		h.Add("Vary", "Origin")
		return false
	}
	all := slices.Contains(c.Origins, "*")
	allowed := all || slices.Contains(c.Origins, origin)
	switch {
	case all:
		h.Set("Access-Control-Allow-Origin", "*")
	case allowed:
		h.Set("Access-Control-Allow-Origin", origin)
	}
	if !all {
		h.Add("Vary", "Origin")
	}
	method := x.r.Header.Get("Access-Control-Request-Method")
	if x.r.Method != http.MethodOptions || method == "" {
		if allowed {
			h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After, Www-Authenticate")
		}
		return false
	}
	if allowed {
		h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS")
		if asked := x.r.Header.Get("Access-Control-Request-Headers"); asked != "" {
			h.Set("Access-Control-Allow-Headers", asked)
		}
		age := c.MaxAge
		if age == 0 {
			age = defaultCORSMaxAge
		}
		h.Set("Access-Control-Max-Age", strconv.Itoa(int(age.Seconds())))
	}
	x.code = http.StatusNoContent
	x.w.WriteHeader(http.StatusNoContent)
	return true
}

// corsPrefix begins the headers that are the gateway's to decide, not a
// replica's.
const corsPrefix = "Access-Control-"

// ownCORS drops what a replica says of web pages: many engines allow all of
// them, which the gateway does only where it is told to. It keeps what their
// answers and the gateway's vary by.
func (x *exchange) ownCORS(in *incoming) {
	in.fields = slices.DeleteFunc(in.fields, func(f http1.Field) bool { return strings.HasPrefix(f.Name, corsPrefix) })
	if named(in.fields, "Vary") {
		for _, v := range x.w.Header()["Vary"] {
			in.fields = append(in.fields, http1.Field{Name: "Vary", Value: v})
		}
	}
}
