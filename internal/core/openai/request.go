// Package openai holds the words of OpenAI-style HTTP bodies: it finds the
// model and the prompt in a request, replaces the model's bytes and nothing
// else, reads token usage from answers and from event streams, and writes
// error bodies.
//
// A proxy must not rewrite what it forwards: decoding and encoding a body
// corrupts integers above 2^53, sorts keys and escapes "<", ">" and "&". So
// requests are scanned, not decoded. [Parse] validates the whole body in one
// pass and reports byte spans into it; it accepts exactly what
// encoding/json.Valid accepts, except for nesting beyond [MaxDepth] and the
// rules about the "model" member that [Parse] lists.
package openai

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Span is the half-open byte range [Start, End) of a body. The zero Span means
// that the member is absent.
type Span struct{ Start, End int }

// Of returns the bytes of body that the span covers, aliasing body.
func (p Span) Of(body []byte) []byte { return body[p.Start:p.End] }

// Empty reports whether the span covers nothing: the member was absent.
func (p Span) Empty() bool { return p.Start == p.End }

// Request is what a proxy needs to know of a request body. Spans are of raw
// JSON, quotes and brackets included.
type Request struct {
	// Model is the value of "model", escapes decoded. It aliases the body unless
	// it held escapes: it is valid while the body is, and must not be changed.
	Model []byte
	// ModelSpan is the string token of "model", quotes included.
	ModelSpan Span
	// Stream is true when "stream" is the literal true.
	Stream bool
	// IncludeUsage is true when "stream_options" asks for "include_usage".
	IncludeUsage bool
	// MaxTokens is "max_completion_tokens" or "max_output_tokens", else
	// "max_tokens", else 0. Values that are no non-negative integer are left to
	// the engine to refuse and read as absent.
	MaxTokens int64
	// Transfer is true when the body has where prompts' KV is to be fetched:
	// vLLM's kv_transfer_params, SGLang's bootstrap_host, _port and _room.
	Transfer bool

	spans [memberCount]Span
}

// Member is a member of a body that makes up its prompt.
type Member int

// The members that make up a prompt, in the order in which servers render
// them.
const (
	CacheSalt    Member = iota // keeps apart the caches of those who must not share one
	System                     // Anthropic
	Instructions               // Responses
	Preamble                   // Cohere v1
	Tools
	ChatHistory // Cohere v1
	Messages    // chat of OpenAI, Anthropic and Cohere v2
	Message     // Cohere v1
	Prompt      // completions, images: a string, strings, or token ids
	Input       // embeddings, responses, speech
	Query       // rerank
	Documents   // rerank
	Texts       // Cohere's embed
	Inputs      // Cohere's embed
	memberCount
)

var memberNames = [memberCount]string{"cache_salt", "system", "instructions", "preamble", "tools", "chat_history",
	"messages", "message", "prompt", "input", "query", "documents", "texts", "inputs"}

// String is the member's key.
func (m Member) String() string { return memberNames[m] }

// Span is where the value of a member is; the zero Span when it is absent.
func (r *Request) Span(m Member) Span { return r.spans[m] }

// AppendPrompt appends the raw bytes of the members that make up the prompt of
// body, which r was parsed from, in the order servers render them. They alias
// body, but for files, pictures above all: each is represented by as many bytes as
// text of as many tokens has. Two requests that share a prefix of
// these bytes share a prefix of the prompt, and their length tells what it
// costs.
func (r *Request) AppendPrompt(dst [][]byte, body []byte) [][]byte {
	left := maxPlaceholders
	for _, p := range r.spans {
		if !p.Empty() {
			dst = appendText(dst, p.Of(body), &left)
		}
	}
	return dst
}

// What can be wrong with a body, to be tested with errors.Is.
var (
	ErrSyntax         = errors.New("body is not valid JSON")
	ErrDepth          = fmt.Errorf("body nests deeper than %d levels", MaxDepth)
	ErrNotObject      = errors.New("body is not a JSON object")
	ErrTrailingData   = errors.New("body has data after the JSON object")
	ErrMissingModel   = errors.New(`body has no "model"`)
	ErrModelType      = errors.New(`"model" is not a string`)
	ErrModelEncoding  = errors.New(`"model" is not valid UTF-8`)
	ErrDuplicateModel = errors.New(`"model" appears twice`)
	ErrModelCase      = errors.New(`"model" is written with capital letters, which some servers read as well`)
)

// BodyError is what is wrong with a body and where.
type BodyError struct {
	Cause  error // one of the Err values of this package
	Offset int   // bytes from the start of the body
}

// Error gives the cause and the offset.
func (e *BodyError) Error() string {
	if errors.Is(e.Cause, ErrMissingModel) {
		return e.Cause.Error()
	}
	return fmt.Sprintf("%v (byte %d)", e.Cause, e.Offset)
}

// Unwrap returns the cause.
func (e *BodyError) Unwrap() error { return e.Cause }

// JSON is the body to answer with, under status 400, in OpenAI's error form.
func (e *BodyError) JSON() []byte {
	param, code := e.Code()
	return ErrorJSON(e.Error(), TypeInvalidRequest, param, code)
}

// Code is the member that is wrong, "" when it is the body as a whole, and
// OpenAI's code of the error.
func (e *BodyError) Code() (param, code string) {
	param, code = "", "invalid_json"
	switch {
	case errors.Is(e.Cause, ErrMissingModel):
		param, code = "model", "missing_required_parameter"
	case errors.Is(e.Cause, ErrModelType), errors.Is(e.Cause, ErrModelEncoding):
		param, code = "model", "invalid_type"
	case errors.Is(e.Cause, ErrDuplicateModel), errors.Is(e.Cause, ErrModelCase):
		param, code = "model", "duplicate_parameter"
	}
	return param, code
}

// Parse validates body and finds what a proxy needs, in one pass and without
// allocating unless a key or the model's name holds escapes.
//
// The error is a *BodyError. Beside invalid JSON it refuses a body that is not
// an object, or whose "model" is missing, no string, not UTF-8, or given twice
// (parsers disagree on which one wins, so a proxy and an engine could route by
// different names), "Model" included, which servers in Go take for "model". Of
// other members, whose keys are compared exactly, the last wins.
func Parse(body []byte) (Request, error) {
	p := requestParser{s: scanner{data: body}}
	p.run()
	if p.s.err != nil {
		return Request{}, p.s.err
	}
	return p.req, nil
}

// requestParser fills a Request while its scanner passes over the body.
type requestParser struct {
	s   scanner
	req Request
	// max_tokens and its successors may come in either order.
	maxTokens, maxCompletion int64
}

func (p *requestParser) run() {
	s := &p.s
	if s.peek() != '{' {
		if s.value() {
			s.fail(ErrNotObject, 0)
		}
		return
	}
	if !s.object(p.member) {
		return
	}
	if s.peek(); s.pos != len(s.data) {
		s.fail(ErrTrailingData, s.pos)
		return
	}
	if p.req.ModelSpan.Empty() {
		s.fail(ErrMissingModel, 0)
		return
	}
	p.req.MaxTokens = p.maxTokens
	if p.maxCompletion > 0 {
		p.req.MaxTokens = p.maxCompletion
	}
}

// member consumes one member of the outermost object.
func (p *requestParser) member(key []byte, at int) bool {
	s := &p.s
	switch string(key) {
	case "model":
		return p.model(at)
	case "stream":
		return readBool(s, &p.req.Stream)
	case "stream_options":
		p.req.IncludeUsage = false
		if s.peek() != '{' {
			return s.value()
		}
		return s.object(p.streamOption)
	case "kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room":
		p.req.Transfer = true
		return s.value()
	case "max_tokens":
		return readCount(s, &p.maxTokens)
	case "max_completion_tokens", "max_output_tokens":
		return readCount(s, &p.maxCompletion)
	}
	for m, name := range memberNames {
		if string(key) == name {
			return readSpan(s, &p.req.spans[m])
		}
	}
	if len(key) == len("model") && bytes.EqualFold(key, []byte("model")) {
		return s.fail(ErrModelCase, at)
	}
	return s.value()
}

func (p *requestParser) streamOption(key []byte, _ int) bool {
	if string(key) == "include_usage" {
		return readBool(&p.s, &p.req.IncludeUsage)
	}
	return p.s.value()
}

func (p *requestParser) model(keyAt int) bool {
	s := &p.s
	if !p.req.ModelSpan.Empty() {
		return s.fail(ErrDuplicateModel, keyAt)
	}
	at := s.pos
	if s.peek() != '"' {
		if !s.value() {
			return false
		}
		return s.fail(ErrModelType, at)
	}
	raw, escaped, ok := s.str()
	if !ok {
		return false
	}
	if !utf8.Valid(raw) {
		return s.fail(ErrModelEncoding, at)
	}
	p.req.ModelSpan = Span{at, s.pos}
	if escaped {
		raw = unquote(s.data[at:s.pos])
	}
	p.req.Model = raw
	return true
}

// readSpan consumes a value and records where it is.
func readSpan(s *scanner, to *Span) bool {
	at := s.pos
	if !s.value() {
		return false
	}
	*to = Span{at, s.pos}
	return true
}

// readBool consumes a value and records whether it is the literal true.
func readBool(s *scanner, to *bool) bool {
	var p Span
	ok := readSpan(s, &p)
	*to = ok && string(p.Of(s.data)) == "true"
	return ok
}

// readCount consumes a value and records it if it is a non-negative integer of
// at most 18 digits, else 0.
func readCount(s *scanner, to *int64) bool {
	var p Span
	if !readSpan(s, &p) {
		return false
	}
	*to = 0
	digits := p.Of(s.data)
	if len(digits) > 18 {
		return true
	}
	var n int64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return true
		}
		n = n*10 + int64(c-'0')
	}
	*to = n
	return true
}

// RenamedHead returns the bytes that replace body[:r.ModelSpan.End] when the
// model is renamed, so that a proxy can send them followed by
// body[r.ModelSpan.End:] without copying a long prompt.
func (r *Request) RenamedHead(body []byte, name string) []byte {
	return AppendQuoted(bytes.Clone(body[:r.ModelSpan.Start]), name)
}

// IsJSON reports whether a Content-Type says JSON.
func IsJSON(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return kind == "application/json" || strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")
}
