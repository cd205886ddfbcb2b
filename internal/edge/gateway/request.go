package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// request is what a client asks for and what replicas are sent of it. One
// goroutine owns it.
type request struct {
	r  *http.Request
	id string

	call  surface.Call
	model string      // as the client names it
	to    routing.Ref // the pool of the listener that took it; zero: the request names one
	body  body
	// parsed is set when the model was found in the body; it points to inBody.
	parsed *openai.Request
	inBody openai.Request
	form   bool     // the body is a form, not JSON
	prompt [][]byte // raw parts of the body, in order; none once the request has its place
	// messages is the raw JSON of a chat's; none once the request has its place.
	messages []byte
	// promptBytes is the length of a prompt that was forgotten.
	promptBytes int
	// picked: an endpoint picker chose the replicas; renamed: it changed the model's
	// name in the body.
	picked, renamed bool
	// passes: an HTTPRoute leads the request to Kubernetes Services; known: its path is
	// one of the gateway's calls.
	passes, known bool
	routed        bool // to was its router's choice (ServeTo), whose PeerHeaders count
	// rewritten is the escaped path that the request's route gives replicas, where call is
	// that path's; "" otherwise.
	rewritten string

	reader   patientReader
	fields   []byte // of the header for replicas, encoded; empty: not yet
	replaced []byte // sent in place of the body; nil: the body is
}

// check returns an error unless the call's path takes the method and, if it names
// a model, sets the name.
func (q *request) check() error {
	c := &q.call
	if len(c.Methods) > 0 && !slices.Contains(c.Methods, q.r.Method) {
		return &failure{status: http.StatusMethodNotAllowed, allow: strings.Join(c.Methods, ", "),
			message: fmt.Sprintf("%s %s: this path takes %s", q.r.Method, q.r.URL.Path, strings.Join(c.Methods, " or "))}
	}
	if !c.Kind.NamesModel() {
		return nil
	}
	name, err := url.PathUnescape(c.Model)
	if err != nil || name == "" {
		return &failure{status: http.StatusBadRequest, message: fmt.Sprintf("%q is not a model name", c.Model)}
	}
	q.model = name
	return nil
}

// checkEncoding returns an error for a body whose model cannot be read.
func (q *request) checkEncoding() error {
	for _, enc := range q.r.Header["Content-Encoding"] {
		if enc != "" && enc != "identity" {
			return &failure{status: http.StatusUnsupportedMediaType, message: fmt.Sprintf("Content-Encoding %q: send the body uncompressed, so that its model can be read", enc)}
		}
	}
	if kinds := q.r.Header["Content-Type"]; len(kinds) > 1 {
		return &failure{status: http.StatusUnsupportedMediaType, message: fmt.Sprintf("Content-Type is given %d times: give it once", len(kinds))}
	}
	return nil
}

// parse finds the model and the prompt in the body.
func (q *request) parse() (err error) {
	if q.inBody, q.form, err = surface.ParseBody(q.r.Header.Get("Content-Type"), q.body.head); err != nil {
		f := &failure{status: http.StatusBadRequest, message: err.Error(), param: "model"}
		var bad *openai.BodyError
		if errors.As(err, &bad) {
			f.param, f.code = bad.Code()
		}
		return f
	}
	q.parsed = &q.inBody
	q.model = string(q.parsed.Model)
	if !q.form {
		q.setJSON()
		q.prompt = q.parsed.AppendPrompt(q.prompt, q.body.head)
		q.messages = q.parsed.Span(openai.Messages).Of(q.body.head)
	}
	return nil
}

// forgetPrompt lets go of the prompt, which nobody reads once the request has its place.
// What stands for pictures in it may take more memory than the body.
func (q *request) forgetPrompt() {
	q.promptBytes = length(q.prompt)
	clear(q.prompt)
	q.prompt, q.messages = q.prompt[:0], nil
}

// promptLength is the prompt's length in bytes, also of one that is forgotten.
func (q *request) promptLength() int { return q.promptBytes + length(q.prompt) }

// setJSON states that the body is JSON where the client states something else, as
// curl does, or nothing: engines go by it.
func (q *request) setJSON() {
	if h := q.r.Header; !openai.IsJSON(h.Get("Content-Type")) {
		h["Content-Type"] = []string{surface.TypeJSON}
	}
}

// query is what the dispatcher reads of the request.
func (q *request) query(sessionHeader string, pass *keys.Pass) dispatch.Request {
	h := q.r.Header
	out := dispatch.Request{To: q.to, Host: q.r.Host, Path: q.r.URL.Path, RawPath: q.r.URL.RawPath, Secure: q.r.TLS != nil, RawQuery: q.r.URL.RawQuery, Method: q.r.Method, Header: h.Get, Model: q.model, Protocol: q.call.Protocol, Explain: q.call.Explains(), Prompt: q.prompt, Messages: q.messages, Idempotent: q.idempotent(),
		Objective: routing.FirstOf(h.Get, routing.HeaderObjective), FairnessID: routing.FirstOf(h.Get, routing.HeaderFairness)}
	if q.parsed != nil {
		out.MaxTokens = q.parsed.MaxTokens
	}
	if sessionHeader != "" {
		out.Session = h.Get(sessionHeader)
	}
	if pass != nil {
		out.Namespaces = pass.Namespaces()
		out.FairnessID = pass.Key() // a client must not choose whose turn it takes
	}
	return out
}

// idempotent reports whether the method alone allows the request to be repeated
// (RFC 9110 9.2.2).
func (q *request) idempotent() bool {
	switch q.r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// repeatable reports whether another replica can be sent the request after one has
// answered it.
func (q *request) repeatable() bool {
	return (q.call.Infers || q.idempotent()) && q.body.replayable() && q.r.Context().Err() == nil
}

// target returns the path and query to ask the granted replica for.
func (q *request) target(g *dispatch.Grant) string {
	prefix := ""
	if p := g.Pool(); p != nil {
		prefix = p.OpenAIPrefix
	}
	path := pathFor(&q.call, g.Handling(), q.rewritten != "", prefix, g.Model())
	if path == "" {
		path = "/"
	}
	if query := q.r.URL.RawQuery; query != "" {
		return path + "?" + query
	}
	return path
}

// host returns the host to ask the granted replica for.
func (q *request) host(g *dispatch.Grant) string {
	if w := g.Handling().Rewrite; w != nil && w.Host != "" {
		return w.Host
	}
	if q.call.Kind == surface.AsIs && q.r.Host != "" {
		return q.r.Host
	}
	return g.Address()
}

// appendBody appends to dst the parts of the body to send that are in memory, with
// the model's name as the replica knows it. The whole body's length is -1 when it
// is not known.
func (q *request) appendBody(dst [][]byte, name string) (parts [][]byte, length int64) {
	if q.replaced != nil {
		return append(dst, q.replaced), int64(len(q.replaced))
	}
	if q.parsed == nil || name == "" || q.model == name || q.renamed {
		return q.body.parts(dst, substitution{})
	}
	at := q.parsed.ModelSpan
	if q.form {
		return q.body.parts(dst, substitution{at.Start, at.End, []byte(name)})
	}
	return q.body.parts(dst, substitution{at.Start, at.End, openai.AppendQuoted(nil, name)})
}

// changed returns the body with changes, and with the model's name as the replica
// knows it.
func (q *request) changed(name string, changes ...openai.Change) ([]byte, error) {
	if name != "" && name != q.model {
		changes = append(changes, openai.Change{Key: "model", Value: openai.AppendQuoted(nil, name)})
	}
	return openai.AppendChanged(make([]byte, 0, len(q.body.head)+512), q.body.head, changes...)
}

// replace sends b in place of the body; nil sends the body. Its memory counts
// until the body is released, but an admitted request is not refused for it.
func (q *request) replace(b []byte) {
	more := int64(len(b) - len(q.replaced))
	q.body.budget.Add(more)
	q.body.held += more
	q.replaced = b
}

// copyTo is the request with another body for another replica than the granted
// one. It shares nothing with q, so another goroutine may send it. The body must
// not be changed any more.
func (q *request) copyTo(address string, g *dispatch.Grant, body []byte, limit time.Duration) *http1.Request {
	return &http1.Request{Address: address, Host: address, Method: q.r.Method, Target: q.target(g),
		Fields: bytes.Clone(q.header()), Body: [][]byte{body}, Length: int64(len(body)), Timeout: limit}
}

// single reports whether two replicas can share the request: it is the completion
// of one prompt.
func (q *request) single() bool {
	if !strings.HasSuffix(q.r.URL.Path, "/completions") {
		return false
	}
	body := q.body.head
	if n, err := openai.Find(body, "n"); err != nil || !n.Empty() && string(n.Of(body)) != "1" && string(n.Of(body)) != "null" {
		return false
	}
	// A list is of prompts unless it begins with a number: token ids.
	list, ok := bytes.CutPrefix(q.parsed.Span(openai.Prompt).Of(body), []byte("["))
	first := bytes.TrimLeft(list, " \t\r\n")
	return !ok || len(first) > 0 && first[0] >= '0' && first[0] <= '9'
}

// rewrite puts an endpoint picker's body in the place of the request's. The
// replica gets the name that the picker has put there, and what the picker has
// only formatted differently, such as long integers, as the client wrote it.
func (q *request) rewrite(now []byte) error {
	if !q.form {
		if merged, differs, ok := openai.Merge(q.body.head, now); ok && !differs {
			return nil
		} else if ok {
			now = merged
		}
	}
	before, length := q.body.head, q.body.length
	q.body.head, q.body.length = now, int64(len(now))
	q.body.grown = q.body.grown || q.body.length > http1.InlineBytes
	if q.parsed == nil {
		return nil
	}
	name := string(q.parsed.Model)
	parsed, form, err := surface.ParseBody(q.r.Header.Get("Content-Type"), now)
	if err != nil {
		q.body.head, q.body.length = before, length
		return err
	}
	q.inBody, q.form = parsed, form
	q.renamed = string(parsed.Model) != name
	return nil
}

// setHeader sets a field for replicas; "" removes it.
func (q *request) setHeader(name, value string) {
	q.fields = q.fields[:0] // they are encoded anew
	if delete(q.r.Header, name); value != "" {
		q.r.Header[name] = []string{value}
	}
}

// header returns the header for replicas, encoded.
func (q *request) header() []byte {
	if len(q.fields) == 0 {
		q.fields = appendHeader(q.fields, q.r, q.id, q.call.Kind == surface.AsIs)
	}
	return q.fields
}

// headerTo returns the header for the granted replica: the rank that was picked is the
// rank that serves, whatever the client names.
func (q *request) headerTo(g *dispatch.Grant) []byte {
	rank := g.Rank()
	if rank == "" {
		return q.header()
	}
	if q.r.Header[routing.HeaderRank] != nil {
		q.setHeader(routing.HeaderRank, "")
	}
	return http1.AppendField(slices.Clip(q.header()), routing.HeaderRank, rank)
}

const (
	// What a browser tells of the page that asks. The gateway has judged it, and a
	// replica on loopback would take it for a page that asks the replica.
	headerOrigin    = "Origin"
	headerFetchSite = "Sec-Fetch-Site"
)

// scheme is how the client asked.
func scheme(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// appendHeader appends a request's header as replicas get it, encoded. asIs
// leaves in what a browser tells of the page that asks.
func appendHeader(b []byte, r *http.Request, id string, asIs bool) []byte {
	in := r.Header
	dropped := in["Connection"]
	for name, values := range in {
		if !passedOn(name, asIs) || len(dropped) > 0 && listed(dropped, name) {
			continue
		}
		for _, v := range values {
			b = http1.AppendField(b, name, v)
		}
	}
	b = http1.AppendField(b, observe.HeaderRequestID, id)
	if in.Get(observe.HeaderTraceparent) == "" || listed(dropped, observe.HeaderTraceparent) {
		b = observe.AppendTraceparent(append(b, observe.HeaderTraceparent+": "...))
		b = append(b, "\r\n"...)
	}
	return appendForwarded(b, r, dropped)
}

// appendForwarded appends who asked the gateway, and how. dropped are the values
// of the request's Connection field.
func appendForwarded(b []byte, r *http.Request, dropped []string) []byte {
	before := r.Header["X-Forwarded-For"]
	if listed(dropped, "X-Forwarded-For") {
		before = nil
	}
	if ip, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		if len(before) > 0 {
			ip = strings.Join(before, ", ") + ", " + ip
		}
		b = http1.AppendField(b, "X-Forwarded-For", ip)
	} else {
		for _, v := range before {
			b = http1.AppendField(b, "X-Forwarded-For", v)
		}
	}
	if r.Header.Get("X-Forwarded-Host") == "" || listed(dropped, "X-Forwarded-Host") {
		b = http1.AppendField(b, "X-Forwarded-Host", r.Host)
	}
	if r.Header.Get("X-Forwarded-Proto") == "" || listed(dropped, "X-Forwarded-Proto") {
		b = http1.AppendField(b, "X-Forwarded-Proto", scheme(r))
	}
	return b
}

// passedOn is false for fields of one connection, for those the upstream's
// client writes, and for those that appendHeader makes anew.
func passedOn(name string, asIs bool) bool {
	switch name {
	case headerOrigin, headerFetchSite:
		return asIs
	case "Expect", "Host", "Content-Length", observe.HeaderRequestID, "X-Forwarded-For":
		return false
	}
	return !http1.HopByHop(name)
}

// listed reports whether the values of a Connection field contain the name of a
// field.
func listed(connection []string, name string) bool {
	for _, list := range connection {
		for token := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(textproto.TrimString(token), name) {
				return true
			}
		}
	}
	return false
}

// named reports whether one of the fields has the name.
func named(fields []http1.Field, name string) bool {
	for i := range fields {
		if fields[i].Name == name {
			return true
		}
	}
	return false
}
