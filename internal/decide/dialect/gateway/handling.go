package gateway

import (
	"regexp"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// httpTimeouts are durations as the Gateway API writes them.
type httpTimeouts struct {
	Request        *string `json:"request"`
	BackendRequest *string `json:"backendRequest"`
}

// httpFilter is one step in the handling of a rule's requests. Of the types that are
// not read the fields are kept for their error.
type httpFilter struct {
	Type                   string      `json:"type"`
	RequestMirror          *httpMirror `json:"requestMirror"`
	RequestHeaderModifier  any         `json:"requestHeaderModifier"`
	ResponseHeaderModifier any         `json:"responseHeaderModifier"`
	RequestRedirect        any         `json:"requestRedirect"`
	URLRewrite             any         `json:"urlRewrite"`
	CORS                   any         `json:"cors"`
	ExternalAuth           any         `json:"externalAuth"`
	ExtensionRef           any         `json:"extensionRef"`
}

type httpMirror struct {
	BackendRef *httpMirrorRef `json:"backendRef"`
	Percent    *int32         `json:"percent"`
	Fraction   *struct {
		Numerator   int32  `json:"numerator"`
		Denominator *int32 `json:"denominator"`
	} `json:"fraction"`
}

type httpMirrorRef struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      *int32 `json:"port"`
}

// duration is the Gateway API's form of a duration (GEP-2257).
var duration = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)

// readHandling reads a rule's timeouts and filters.
func readHandling(r *manifest.Reader, path, namespace string, in *httpRule) (out routing.Handling) {
	if t := in.Timeouts; t != nil {
		out.Timeout = readDuration(r, path+".timeouts.request", t.Request)
		out.TryTimeout = readDuration(r, path+".timeouts.backendRequest", t.BackendRequest)
		if out.Timeout > 0 && out.TryTimeout > out.Timeout {
			r.Errorf(path+".timeouts.backendRequest", "%v is more than request, which is %v", out.TryTimeout, out.Timeout)
		}
	}
	for i, f := range in.Filters {
		at := strict.Index(path+".filters", i)
		switch {
		case f.Type == "RequestMirror" && f.RequestMirror != nil && f.RequestMirror.BackendRef != nil:
			out.Mirrors = append(out.Mirrors, readMirror(r, at+".requestMirror", namespace, f.RequestMirror))
		case f.Type == "RequestMirror":
			r.Errorf(at+".requestMirror.backendRef", "is missing: name the pool or service that gets copies of requests")
		default:
			kind := "of an unknown type"
			if f.Type != "" {
				kind = manifest.Clip(f.Type)
			}
			r.Errorf(at, "the filter %s is not supported: remove it; requests are forwarded as they are", kind)
		}
	}
	return out
}

// readDuration reads a timeout; 0s and nothing are no timeout.
func readDuration(r *manifest.Reader, path string, text *string) time.Duration {
	if text == nil {
		return 0
	}
	d, err := time.ParseDuration(*text)
	if err != nil || !duration.MatchString(*text) {
		r.Errorf(path, "%q is not a duration: write 10s or 1m30s", manifest.Clip(*text))
	}
	return d
}

// readMirror reads where copies go, which is in the route's namespace.
func readMirror(r *manifest.Reader, path, namespace string, in *httpMirror) routing.Mirror {
	ref := in.BackendRef
	b := readBackend(r, path+".backendRef", namespace, httpRef{Group: ref.Group, Kind: ref.Kind, Name: ref.Name, Port: ref.Port})
	if ref.Namespace != "" && ref.Namespace != namespace {
		r.Errorf(path+".backendRef.namespace", "copies of requests stay in the route's namespace, %s", namespace)
	}
	out := routing.Mirror{Ref: b.Ref, PerMillion: routing.Whole}
	switch f := in.Fraction; {
	case f != nil && in.Percent != nil:
		r.Errorf(path+".fraction", "and percent both say how many requests are copied: remove one")
	case f != nil:
		of := int32(100)
		if f.Denominator != nil {
			of = *f.Denominator
		}
		if f.Numerator < 0 || of < 1 || f.Numerator > of {
			r.Errorf(path+".fraction", "%d of %d is no part", f.Numerator, of)
			return out
		}
		out.PerMillion = uint32(int64(f.Numerator) * routing.Whole / int64(of))
	case in.Percent != nil:
		if *in.Percent < 0 || *in.Percent > 100 {
			r.Errorf(path+".percent", "%d is not a percentage: 0 to 100", *in.Percent)
			return out
		}
		out.PerMillion = uint32(*in.Percent) * (routing.Whole / 100)
	}
	return out
}
