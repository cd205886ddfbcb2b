package gateway

import (
	"regexp"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// httpTimeouts are durations as the Gateway API writes them.
type httpTimeouts struct {
	Request        *strict.Duration `json:"request"`
	BackendRequest *strict.Duration `json:"backendRequest"`
}

// httpRetry is which answers are asked for again.
type httpRetry struct {
	Codes    []int            `json:"codes"`
	Attempts *int             `json:"attempts"`
	Backoff  *strict.Duration `json:"backoff"`
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

// readHandling reads a rule's timeouts, retries and filters.
func readHandling(r *manifest.Reader, path, namespace string, in *httpRule, out *routing.HTTPRule) {
	h := &out.Handling
	if t := in.Timeouts; t != nil {
		h.Timeout = readDuration(r, path+".timeouts.request", t.Request)
		h.TryTimeout = readDuration(r, path+".timeouts.backendRequest", t.BackendRequest)
		if h.Timeout > 0 && h.TryTimeout > h.Timeout {
			r.Errorf(path+".timeouts.backendRequest", "%v is more than request, which is %v", h.TryTimeout, h.Timeout)
		}
	}
	if t := in.Retry; t != nil {
		h.Retry = manifest.ReadRetry(r.Report, path+".retry", t.Codes, t.Attempts, readDuration(r, path+".retry.backoff", t.Backoff))
	}
	f := filters{Reader: r, namespace: namespace, out: h}
	if m := out.Matches; len(m) == 1 && m[0].Path.Type == routing.MatchPrefix {
		f.prefix = m[0].Path.Value
	}
	f.read(path+".filters", in.Filters)
	if h.Redirect != nil && len(in.BackendRefs) > 0 {
		r.Errorf(path+".backendRefs", "stand beside a RequestRedirect, so no request would be forwarded: remove one of them")
	}
	out.Fault, out.FaultReason = f.fault, f.reason
	for i := range in.BackendRefs {
		if len(in.BackendRefs[i].Filters) == 0 || i >= len(out.Backends) {
			continue
		}
		b := &out.Backends[i]
		of := *h // whose lists are not appended to in place
		of.Mirrors, of.RequestHeader, of.ResponseHeader = slices.Clip(h.Mirrors), slices.Clip(h.RequestHeader), slices.Clip(h.ResponseHeader)
		own := filters{Reader: r, namespace: namespace, prefix: f.prefix, out: &of}
		own.read(strict.Index(path+".backendRefs", i)+".filters", in.BackendRefs[i].Filters)
		b.Handling = &of
		if own.fault != "" && b.Fault == "" {
			b.Fault, b.FaultReason = own.fault, own.reason
		}
	}
}

// readDuration reads a timeout; 0s and nothing are no timeout.
func readDuration(r *manifest.Reader, path string, text *strict.Duration) time.Duration {
	if text == nil {
		return 0
	}
	written := string(*text)
	d, err := time.ParseDuration(written)
	switch {
	case err == nil && duration.MatchString(written):
	case duration.MatchString(written + "s"):
		r.Errorf(path, "%q has no unit: write %ss for seconds", manifest.Clip(written), manifest.Clip(written))
	default:
		r.Errorf(path, "%q is not a duration: write 10s or 1m30s", manifest.Clip(written))
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
	if routing.KubernetesService(b.Group, b.Kind) {
		out.Port = b.Port
	}
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
