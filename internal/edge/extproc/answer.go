package extproc

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	pb "roundhouse.dev/roundhouse/api/extproc"
	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/orca"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// responseHeaders are the first of the answer: from the endpoint, or Envoy's
// own when it could not reach one.
func (c *conversation) responseHeaders(h *pb.HttpHeaders, m *pb.Metadata) error {
	// While the body is collected it is an answer of Envoy's own: a filter or a
	// timeout has ended the request.
	if c.phase != forwarded && c.phase != collecting {
		return misplaced("response_headers")
	}
	c.phase = answering
	c.release()
	var a answer
	a.read(h.GetHeaders())
	c.s.metrics.answered(a.status)
	c.failure = a.failure()
	if c.grant != nil {
		if by := m.GetFilterMetadata()[pb.MetadataNamespace].GetFields()[pb.Served].GetStringValue(); by != "" {
			c.grant.Served(by)
		}
		if c.failure == nil {
			if a.status >= http.StatusBadRequest { // what becomes of it is the gateway's to say
				c.grant.Answered(dispatch.Answer{Status: a.status, Result: breaker.OfStatus(a.status), RetryAfter: breaker.RetryAfter(a.get("retry-after"), time.Now())})
			}
			c.grant.FirstByte()
		}
		if report, ok := orca.Parse(a.get); ok && c.s.cfg.Heard != nil {
			c.s.cfg.Heard(c.grant.Replica(), report)
		}
	}
	c.usage.start(a.contentType)
	if h.GetEndOfStream() {
		c.settle()
	}
	return c.send(&pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseHeaders{ResponseHeaders: &pb.HeadersResponse{}}})
}

func (c *conversation) responseBody(b *pb.HttpBody) error {
	if c.phase != answering {
		return misplaced("response_body")
	}
	if c.usage.write(b.GetBody()) && c.grant != nil && c.failure == nil {
		c.grant.FirstToken()
	}
	if b.GetEndOfStream() {
		c.settle()
	}
	if c.responseMode != pb.BodySendMode_FULL_DUPLEX_STREAMED {
		return c.send(&pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseBody{ResponseBody: &pb.BodyResponse{}}})
	}
	if c.echo == nil {
		c.echo = &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseBody{ResponseBody: &pb.BodyResponse{Response: streamed(&pb.StreamedBodyResponse{})}}}
	}
	stream := c.echo.GetResponseBody().Response.BodyMutation.GetStreamedResponse()
	return pieces(nil, b.GetBody(), func(piece []byte, last bool) error {
		stream.Body, stream.EndOfStream = piece, last && b.GetEndOfStream()
		return c.send(c.echo)
	})
}

func (c *conversation) responseTrailers() error {
	if c.phase != answering {
		return misplaced("response_trailers")
	}
	c.settle()
	return c.send(&pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseTrailers{ResponseTrailers: &pb.TrailersResponse{}}})
}

// answer is what is of interest in an answer's headers.
type answer struct {
	headers     *pb.HeaderMap
	status      int
	contentType string
	reached     bool // the headers are an upstream's
}

func (a *answer) read(m *pb.HeaderMap) {
	a.headers = m
	for _, v := range m.GetHeaders() {
		switch v.Key {
		case ":status":
			if n, err := strconv.Atoi(v.Text()); err == nil && n >= 100 && n <= 599 {
				a.status = n
			}
		case "content-type":
			a.contentType = v.Text()
		case "x-envoy-upstream-service-time":
			a.reached = true
		}
	}
}

func (a *answer) get(name string) string { return find(a.headers, name) }

// failure is the endpoint's: Envoy answers 502, 503 or 504 itself when it
// cannot reach one or gets no answer, without the header of an upstream's.
func (a *answer) failure() error {
	if a.status >= 502 && a.status <= 504 && !a.reached {
		return fmt.Errorf("the gateway answered %d: the endpoint did not answer", a.status)
	}
	return nil
}

// usage reads the tokens of an answer as it passes.
type usage struct {
	stream *openai.StreamReader
	body   []byte
	read   bool // the answer is JSON, not too long so far
	own    bool // body is a copy, and not a message's bytes
	began  bool // a part of a stream has come
}

func (u *usage) start(contentType string) {
	form, _, _ := strings.Cut(contentType, ";")
	switch strings.ToLower(strings.TrimSpace(form)) {
	case "text/event-stream":
		u.stream = &openai.StreamReader{}
	case "application/json":
		u.read = true
	}
}

// write reads a part of an answer. It reports whether that is the beginning of a
// stream.
func (u *usage) write(p []byte) (begins bool) {
	switch {
	case u.stream != nil:
		_, _ = u.stream.Write(p) // it never fails
		begins = !u.began && len(p) > 0
		u.began = u.began || begins
	case u.read && len(u.body)+len(p) > maxUsageBody:
		u.read, u.body = false, nil
	case u.read && len(u.body) == 0:
		u.body = p // most answers are one piece
	case u.read && !u.own:
		u.own, u.body = true, append(append(make([]byte, 0, 2*(len(u.body)+len(p))), u.body...), p...)
	case u.read:
		u.body = append(u.body, p...)
	}
	return begins
}

// finish returns what the answer says it used, and how many events a stream had.
func (u *usage) finish() (used dispatch.Usage, events int64) {
	var sum openai.Usage
	switch {
	case u.stream != nil:
		u.stream.Finish()
		sum, _ = u.stream.Usage()
		events = u.stream.Events()
	case u.read && len(u.body) > 0:
		sum, _ = openai.ReadUsage(u.body)
	}
	u.body = nil
	return dispatch.Usage{Prompt: sum.PromptTokens, Completion: sum.CompletionTokens, Cached: sum.CachedTokens}, events
}
