package modelserver

import (
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// crossOrigin answers pages of other origins as CORS settings allow.
type crossOrigin struct {
	settings   CORS
	anyOrigin  bool
	anyHeader  bool
	pattern    *regexp.Regexp // nil: none
	methods    string
	headers    string
	exposed    string
	maxAge     string
	allMethods bool
}

// simpleHeaders need no permission, so are always among those allowed.
var simpleHeaders = []string{"Accept", "Accept-Language", "Content-Language", "Content-Type"}

// newCrossOrigin prepares valid settings.
func newCrossOrigin(c CORS) *crossOrigin {
	o := &crossOrigin{settings: c, anyOrigin: slices.Contains(c.AllowOrigins, "*"), anyHeader: slices.Contains(c.AllowHeaders, "*"),
		allMethods: slices.Contains(c.AllowMethods, "*"), exposed: strings.Join(c.ExposeHeaders, ", "), maxAge: strconv.Itoa(c.MaxAge)}
	if c.AllowOriginRegex != nil {
		o.pattern = regexp.MustCompile(`^(?:` + *c.AllowOriginRegex + `)$`) // validated before
	}
	methods := c.AllowMethods
	if o.allMethods {
		methods = []string{"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}
	}
	o.methods = strings.Join(methods, ", ")
	headers := append(slices.Clone(simpleHeaders), c.AllowHeaders...)
	slices.Sort(headers)
	o.headers = strings.Join(slices.Compact(headers), ", ")
	return o
}

// wrap puts o before a handler.
func (o *crossOrigin) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if origin == "" {
			next.ServeHTTP(w, r)
			return
		}
		allowed := o.originAllowed(origin)
		o.setOrigin(w.Header(), origin, allowed)
		if wanted := r.Header.Get("Access-Control-Request-Method"); r.Method == http.MethodOptions && wanted != "" {
			o.preflight(w, r, wanted, allowed)
			return
		}
		if allowed && o.exposed != "" {
			w.Header().Set("Access-Control-Expose-Headers", o.exposed)
		}
		next.ServeHTTP(w, r)
	})
}

func (o *crossOrigin) originAllowed(origin string) bool {
	return o.anyOrigin || slices.Contains(o.settings.AllowOrigins, origin) || o.pattern != nil && o.pattern.MatchString(origin)
}

// setOrigin writes what both kinds of answers carry. Credentials need the
// origin itself: browsers refuse them with *.
func (o *crossOrigin) setOrigin(h http.Header, origin string, allowed bool) {
	if o.anyOrigin && !o.settings.AllowCredentials {
		h.Set("Access-Control-Allow-Origin", "*")
		return
	}
	h.Add("Vary", "Origin")
	if !allowed {
		return
	}
	h.Set("Access-Control-Allow-Origin", origin)
	if o.settings.AllowCredentials {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
}

// preflight answers a browser that asks what it may.
func (o *crossOrigin) preflight(w http.ResponseWriter, r *http.Request, method string, allowed bool) {
	h := w.Header()
	var refused []string
	if !allowed {
		refused = append(refused, "origin")
	}
	if !o.allMethods && !slices.Contains(o.settings.AllowMethods, method) {
		refused = append(refused, "method")
	}
	wanted := r.Header.Get("Access-Control-Request-Headers")
	if !o.headersAllowed(wanted) {
		refused = append(refused, "headers")
	}
	h.Set("Access-Control-Allow-Methods", o.methods)
	h.Set("Access-Control-Max-Age", o.maxAge)
	if o.anyHeader && wanted != "" {
		h.Set("Access-Control-Allow-Headers", wanted)
	} else {
		h.Set("Access-Control-Allow-Headers", o.headers)
	}
	if len(refused) > 0 {
		writeErrorStatus(w, http.StatusBadRequest, errors.New("Disallowed CORS "+strings.Join(refused, ", ")))
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (o *crossOrigin) headersAllowed(wanted string) bool {
	if o.anyHeader || wanted == "" {
		return true
	}
	for name := range strings.SplitSeq(wanted, ",") {
		name = strings.TrimSpace(name)
		same := func(allowed string) bool { return strings.EqualFold(allowed, name) }
		if !slices.ContainsFunc(simpleHeaders, same) && !slices.ContainsFunc(o.settings.AllowHeaders, same) {
			return false
		}
	}
	return true
}
