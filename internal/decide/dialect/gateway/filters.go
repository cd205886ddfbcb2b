package gateway

import (
	"fmt"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// httpFilter is one step in the handling of a rule's requests. Of the types that are
// not applied the fields are kept as they are. grpc marks that of a GRPCRoute, which has
// fewer types.
type httpFilter struct {
	Type                   string         `json:"type"`
	RequestMirror          *httpMirror    `json:"requestMirror"`
	RequestHeaderModifier  *headerFilter  `json:"requestHeaderModifier"`
	ResponseHeaderModifier *headerFilter  `json:"responseHeaderModifier"`
	RequestRedirect        *redirect      `json:"requestRedirect"`
	URLRewrite             *urlRewrite    `json:"urlRewrite"`
	CORS                   map[string]any `json:"cors"`
	ExternalAuth           map[string]any `json:"externalAuth"`
	ExtensionRef           map[string]any `json:"extensionRef"`

	grpc bool
}

type headerFilter struct {
	Set    []headerValue `json:"set"`
	Add    []headerValue `json:"add"`
	Remove []string      `json:"remove"`
}

type headerValue struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type redirect struct {
	Scheme     string    `json:"scheme"`
	Hostname   string    `json:"hostname"`
	Path       *pathEdit `json:"path"`
	Port       *int32    `json:"port"`
	StatusCode *int      `json:"statusCode"`
}

type urlRewrite struct {
	Hostname string    `json:"hostname"`
	Path     *pathEdit `json:"path"`
}

type pathEdit struct {
	Type               string  `json:"type"`
	ReplaceFullPath    *string `json:"replaceFullPath"`
	ReplacePrefixMatch *string `json:"replacePrefixMatch"`
}

// The types of filters.
const (
	filterMirror   = "RequestMirror"
	filterRequest  = "RequestHeaderModifier"
	filterResponse = "ResponseHeaderModifier"
	filterRedirect = "RequestRedirect"
	filterRewrite  = "URLRewrite"
)

// maxFilters is how many a rule or a backend may have, as published.
const maxFilters = 16

// filters reads those of a rule, or of one of its backends.
type filters struct {
	*manifest.Reader
	namespace string
	// prefix is the path that replacePrefixMatch replaces; "" where the rule has not
	// exactly one match of a prefix.
	prefix string
	out    *routing.Handling
	// fault is why requests are answered with an error, reason the word for it.
	fault, reason string
}

// read adds the filters at path to out.
func (f *filters) read(path string, in []httpFilter) {
	manifest.CheckAtMost(f.Report, path, len(in), maxFilters)
	seen := map[string]bool{}
	for i := range in {
		at := strict.Index(path, i)
		if seen[in[i].Type] && in[i].Type != filterMirror {
			f.Errorf(at, "the filter %s is there already: write it once", manifest.Clip(in[i].Type))
			continue
		}
		seen[in[i].Type] = true
		f.one(at, &in[i])
	}
	if seen[filterRewrite] && seen[filterRedirect] {
		f.Errorf(path, "%s and %s both say where requests go: remove one", filterRewrite, filterRedirect)
	}
}

func (f *filters) one(at string, in *httpFilter) {
	switch {
	case in.grpc && (in.Type == filterRewrite || in.Type == filterRedirect):
		f.unsupported(at, in)
		return
	case f.absent(at, in):
		return
	}
	switch in.Type {
	case filterMirror:
		f.out.Mirrors = append(f.out.Mirrors, readMirror(f.Reader, at+".requestMirror", f.namespace, in.RequestMirror))
	case filterRequest:
		f.out.RequestHeader = append(f.out.RequestHeader, f.headers(at+".requestHeaderModifier", in.RequestHeaderModifier, true)...)
	case filterResponse:
		f.out.ResponseHeader = append(f.out.ResponseHeader, f.headers(at+".responseHeaderModifier", in.ResponseHeaderModifier, false)...)
	case filterRewrite:
		f.out.Rewrite = f.url(at+".urlRewrite", in.URLRewrite.Hostname, in.URLRewrite.Path)
	case filterRedirect:
		f.out.Redirect = f.redirect(at+".requestRedirect", in.RequestRedirect)
	default:
		f.unsupported(at, in)
	}
}

// absent reports a filter whose type has no field.
func (f *filters) absent(at string, in *httpFilter) bool {
	field := ""
	switch {
	case in.Type == filterMirror && (in.RequestMirror == nil || in.RequestMirror.BackendRef == nil):
		f.Errorf(at+".requestMirror.backendRef", "is missing: name the pool or service that gets copies of requests")
		return true
	case in.Type == filterRequest && in.RequestHeaderModifier == nil:
		field = "requestHeaderModifier"
	case in.Type == filterResponse && in.ResponseHeaderModifier == nil:
		field = "responseHeaderModifier"
	case in.Type == filterRewrite && in.URLRewrite == nil:
		field = "urlRewrite"
	case in.Type == filterRedirect && in.RequestRedirect == nil:
		field = "requestRedirect"
	default:
		return false
	}
	f.Errorf(at+"."+field, "is missing: the filter is a %s", in.Type)
	return true
}

// unsupported notes a filter that is not applied. It must not be skipped, as the
// Gateway API has it: its requests are answered with an error.
func (f *filters) unsupported(at string, in *httpFilter) {
	kind, reason := "of an unknown type", routing.ReasonUnsupported
	if in.Type != "" {
		kind = manifest.Clip(in.Type)
	}
	if in.Type == "ExtensionRef" {
		reason = routing.ReasonInvalidKind
	}
	message := fmt.Sprintf("the filter %s is not supported, and requests are not forwarded without it: remove it", kind)
	f.Problem(at, message).Platform = manifest.Process
	if f.fault == "" {
		f.fault, f.reason = at+": "+message, reason
	}
}

func (f *filters) headers(path string, in *headerFilter, request bool) []routing.HeaderChange {
	h := manifest.HeaderChanges{Report: f.Report, Request: request}
	for name, list := range map[routing.HeaderOp][]headerValue{routing.HeaderSet: in.Set, routing.HeaderAdd: in.Add} {
		manifest.CheckAtMost(f.Report, path+"."+string(name), len(list), manifest.MaxHeaderChanges)
	}
	manifest.CheckAtMost(f.Report, path+".remove", len(in.Remove), manifest.MaxHeaderChanges)
	for i, v := range in.Set {
		at := strict.Index(path+".set", i)
		h.Add(at+".name", at+".value", routing.HeaderSet, v.Name, v.Value)
	}
	for i, v := range in.Add {
		at := strict.Index(path+".add", i)
		h.Add(at+".name", at+".value", routing.HeaderAdd, v.Name, v.Value)
	}
	for i, name := range in.Remove {
		at := strict.Index(path+".remove", i)
		h.Add(at, at, routing.HeaderRemove, name, "")
	}
	return h.List
}

func (f *filters) url(path, host string, edit *pathEdit) *routing.URLRewrite {
	out := &routing.URLRewrite{Host: strings.ToLower(host)}
	if host != "" && (!manifest.Hostname.MatchString(out.Host) || strings.HasPrefix(host, "*") || len(host) > 253) {
		f.Errorf(path+".hostname", "%q is not the name of a host", manifest.Clip(host))
	}
	if edit == nil {
		return out
	}
	out.Path = &routing.PathRewrite{}
	at, value := path+".path", (*string)(nil)
	switch edit.Type {
	case "ReplaceFullPath":
		at, value = at+".replaceFullPath", edit.ReplaceFullPath
	case "ReplacePrefixMatch":
		if f.prefix == "" {
			f.Errorf(at+".type", "ReplacePrefixMatch needs a rule of exactly one match, of a PathPrefix")
		}
		at, value, out.Path.Prefix = at+".replacePrefixMatch", edit.ReplacePrefixMatch, f.prefix
	default:
		f.Errorf(at+".type", "unknown type %q: write ReplaceFullPath or ReplacePrefixMatch", manifest.Clip(edit.Type))
		return out
	}
	if value == nil {
		f.Errorf(at, "is missing: write what takes the place of the path")
		return out
	}
	if out.Path.Value = *value; !validPath(out.Path.Value) && (out.Path.Value != "" || out.Path.Prefix == "") {
		f.Errorf(at, "%q is not a path: it begins with /, has no segment . or .., and at most %d bytes, escaped where they are none of a path's", manifest.Clip(*value), maxPath)
	}
	return out
}

// validPath reports whether p is an escaped path as a request may ask for.
func validPath(p string) bool {
	if len(p) > maxPath || !strings.HasPrefix(p, "/") {
		return false
	}
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case c == '%':
			if i+2 >= len(p) || !isHex(p[i+1]) || !isHex(p[i+2]) {
				return false
			}
		case c <= ' ' || c >= 0x7f || strings.IndexByte("?#\"<>\\^`{|}", c) >= 0:
			return false
		}
	}
	for segment := range strings.SplitSeq(strings.ReplaceAll(strings.ToLower(p), "%2e", "."), "/") {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return true
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func (f *filters) redirect(path string, in *redirect) *routing.Redirect {
	out := &routing.Redirect{Scheme: in.Scheme, Status: 302, URLRewrite: *f.url(path, in.Hostname, in.Path)}
	if in.Scheme != "" && in.Scheme != "http" && in.Scheme != "https" {
		f.Errorf(path+".scheme", "%q is not a scheme: write http or https", manifest.Clip(in.Scheme))
	}
	manifest.CheckOptionalPort(f.Report, path+".port", in.Port)
	if in.Port != nil {
		out.Port = *in.Port
	}
	if in.StatusCode != nil {
		out.Status = *in.StatusCode
		switch *in.StatusCode {
		case 301, 302, 303, 307, 308:
		default:
			f.Errorf(path+".statusCode", "%d is not the status of a redirect: write 301, 302, 303, 307 or 308", *in.StatusCode)
		}
	}
	return out
}
