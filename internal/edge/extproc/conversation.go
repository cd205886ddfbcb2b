package extproc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "roundhouse.dev/roundhouse/api/extproc"
	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// conversation is the state of one stream. It belongs to the goroutine that
// reads the stream.
type conversation struct {
	s    *Server
	pool service.Key
	full bool // too many streams: refuse
	send func(*pb.ProcessingResponse) error

	phase  phase
	unseen bool // the request has a body that is not sent here
	// How Envoy sends the bodies of requests and of answers.
	requestMode, responseMode pb.BodySendMode
	observed                  bool // nobody listens to what is sent

	head   head
	body   []byte
	pooled int64 // of Server.buffered
	subset subset

	grant   Grant // nil before it is given and after it is settled
	failure error
	usage   usage
	echo    *pb.ProcessingResponse // of a piece of the answer; reused
}

// phase is how far a conversation has come.
type phase int

const (
	beginning  phase = iota // nothing has come
	collecting              // the request's body is on its way
	forwarded               // the request has an endpoint
	answering               // the answer has begun
	over                    // nothing more is answered
)

// take answers one message. An error ends the stream.
func (c *conversation) take(ctx context.Context, r *pb.ProcessingRequest) error {
	c.observed = c.observed || r.ObservabilityMode
	if c.phase == beginning {
		c.requestMode, c.responseMode = pb.BodySendMode_FULL_DUPLEX_STREAMED, pb.BodySendMode_FULL_DUPLEX_STREAMED
		if p := r.ProtocolConfig; p != nil {
			c.requestMode, c.responseMode = p.RequestBodyMode, p.ResponseBodyMode
		}
	}
	if c.observed || c.phase == over {
		return nil
	}
	if c.full {
		return c.refuse(tooMany("requests are under way"))
	}
	if c.phase <= collecting {
		c.subset.read(r.MetadataContext)
	}
	switch m := r.Request.(type) {
	case *pb.ProcessingRequest_RequestHeaders:
		return c.requestHeaders(ctx, m.RequestHeaders)
	case *pb.ProcessingRequest_RequestBody:
		return c.requestBody(ctx, m.RequestBody)
	case *pb.ProcessingRequest_RequestTrailers:
		return c.requestTrailers(ctx)
	case *pb.ProcessingRequest_ResponseHeaders:
		return c.responseHeaders(m.ResponseHeaders, r.MetadataContext)
	case *pb.ProcessingRequest_ResponseBody:
		return c.responseBody(m.ResponseBody)
	case *pb.ProcessingRequest_ResponseTrailers:
		return c.responseTrailers()
	}
	// A message of a kind that is not known, such as of flow control: Envoy
	// waits for no answer.
	return nil
}

// misplaced is the error of a message that cannot come now.
func misplaced(what string) error {
	return status.Errorf(codes.InvalidArgument, "%s came out of order", what)
}

func (c *conversation) requestHeaders(ctx context.Context, h *pb.HttpHeaders) error {
	if c.phase != beginning {
		return misplaced("request_headers")
	}
	c.phase = collecting
	c.head.read(h.GetHeaders())
	if !route.Inference(c.head.path) && !c.s.cfg.allows(c.head.path) {
		return c.refuse(&refusal{404, fmt.Sprintf("%.200q is not an inference call: to forward it, start the endpoint picker with --allow-path", c.head.path), openai.TypeNotFound, "", "not_found", 0})
	}
	switch c.requestMode {
	case pb.BodySendMode_FULL_DUPLEX_STREAMED, pb.BodySendMode_BUFFERED, pb.BodySendMode_NONE:
	default:
		return c.refuse(&refusal{500, "request_body_mode is " + c.requestMode.String() + ": set FULL_DUPLEX_STREAMED or BUFFERED in the filter's processing_mode", openai.TypeServer, "", "", 0})
	}
	if v := c.head.get("content-encoding"); v != "" && !strings.EqualFold(v, "identity") {
		return c.refuse(&refusal{415, fmt.Sprintf("Content-Encoding %.40q: send the body uncompressed, so that its model can be read", v), openai.TypeInvalidRequest, "", "unsupported_encoding", 0})
	}
	if h.GetEndOfStream() || c.requestMode == pb.BodySendMode_NONE {
		c.unseen = !h.GetEndOfStream() && c.head.json()
		p, err := c.admit(ctx, false)
		if err != nil {
			return c.refuse(err)
		}
		return c.sendHeaders(p)
	}
	if c.head.contentLength > c.s.cfg.MaxBodyBytes {
		return c.refuse(tooLarge(c.s.cfg.MaxBodyBytes))
	}
	if c.requestMode == pb.BodySendMode_BUFFERED {
		return c.send(&pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestHeaders{RequestHeaders: &pb.HeadersResponse{}}})
	}
	return nil // the answer is given with the body's end
}

func (c *conversation) requestBody(ctx context.Context, b *pb.HttpBody) error {
	if c.phase != collecting {
		return misplaced("request_body")
	}
	to, err := c.extend(len(b.GetBody()))
	if err != nil {
		return c.refuse(err)
	}
	copy(to, b.GetBody())
	if !b.GetEndOfStream() {
		return nil
	}
	p, err := c.admit(ctx, true)
	if err != nil {
		return c.refuse(err)
	}
	if c.requestMode == pb.BodySendMode_BUFFERED {
		return c.sendBuffered(p)
	}
	return c.sendStreamed(p, true)
}

// requestTrailers end a body that no end_of_stream has ended.
func (c *conversation) requestTrailers(ctx context.Context) error {
	if c.phase == forwarded { // after a buffered body
		return c.send(&pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestTrailers{RequestTrailers: &pb.TrailersResponse{}}})
	}
	if c.phase != collecting || c.requestMode != pb.BodySendMode_FULL_DUPLEX_STREAMED {
		return misplaced("request_trailers")
	}
	p, err := c.admit(ctx, true)
	if err != nil {
		return c.refuse(err)
	}
	if err := c.sendStreamed(p, false); err != nil {
		return err
	}
	return c.send(&pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestTrailers{RequestTrailers: &pb.TrailersResponse{}}})
}

// extend makes the body longer by n bytes and returns where they go.
func (c *conversation) extend(n int) ([]byte, error) {
	if int64(len(c.body))+int64(n) > c.s.cfg.MaxBodyBytes {
		return nil, tooLarge(c.s.cfg.MaxBodyBytes)
	}
	c.pooled += int64(n)
	if c.s.buffered.Add(int64(n)) > c.s.cfg.MaxBufferedBytes {
		return nil, tooMany("bodies are in memory")
	}
	at := len(c.body)
	if at+n > cap(c.body) {
		// The length that was promised saves copies; it is not trusted far.
		size := max(at+n, int(min(c.head.contentLength, maxPromise)))
		if at > 0 {
			size = max(size, 2*at)
		}
		c.body = append(make([]byte, 0, size), c.body...)
	}
	c.body = c.body[:at+n]
	return c.body[at:], nil
}

// release gives back the memory of the body.
func (c *conversation) release() {
	c.body = nil
	c.s.buffered.Add(-c.pooled)
	c.pooled = 0
}

// admitted is a request with its endpoint and the body to send there: two parts,
// so that a model's name is replaced without copying the prompt.
type admitted struct {
	destination string
	// prefill is the server that computes the prompt, encoders those that compute its
	// pictures; forged are headers of the client that would name one, or another that
	// the endpoint's sidecar would call.
	prefill    string
	encoders   string // with commas
	forged     []string
	rank       string // of the endpoint's data-parallel ranks; "" for none
	head, tail []byte
	changed    bool // the body is not what came
	// saysJSON: the body is JSON and the request says otherwise, which engines
	// go by.
	saysJSON bool
}

// admit finds a place for the request.
func (c *conversation) admit(ctx context.Context, hasBody bool) (*admitted, error) {
	if c.subset.given && len(c.subset.addresses) == 0 {
		return nil, &refusal{503, "the gateway allows no endpoint for this request: " + subsetNamespace + " lists none", openai.TypeServer, "", "no_endpoints", 0}
	}
	r := c.query()
	var parsed openai.Request
	isJSON := hasBody && c.head.json()
	if isJSON {
		var err error
		if parsed, err = openai.Parse(c.body); err != nil {
			return nil, err
		}
		r.Model, r.MaxTokens, r.Prompt = string(parsed.Model), parsed.MaxTokens, parsed.AppendPrompt(nil, c.body)
		r.Messages = parsed.Span(openai.Messages).Of(c.body)
	}
	if c.head.wished[wishRewrite] != "" {
		r.Model = c.head.wished[wishRewrite]
	}
	g, err := c.ask(ctx, r, isJSON)
	if err != nil {
		return nil, err
	}
	c.grant = g
	p := &admitted{prefill: g.Prefill(), encoders: strings.Join(g.Encoders(), ","), rank: g.Rank(), forged: c.head.forged, destination: strings.Join(append([]string{g.Address()}, g.Alternatives()...), ","), tail: c.body,
		saysJSON: isJSON && c.head.contentType != "" && !openai.IsJSON(c.head.contentType)}
	name := g.Model()
	if name == "" {
		name = c.head.wished[wishRewrite]
	}
	if c.unseen && name != "" {
		return nil, errUnseen // end gives the grant back
	}
	if isJSON && name != "" && name != string(parsed.Model) {
		p.changed, p.head, p.tail = true, parsed.RenamedHead(c.body, name), c.body[parsed.ModelSpan.End:]
	}
	if isJSON {
		g.Tokenize(c.head.path, p.head, p.tail)
	}
	return p, nil
}

// ask has a request admitted. isJSON reports whether its body was read as
// JSON.
func (c *conversation) ask(ctx context.Context, r dispatch.Request, isJSON bool) (Grant, error) {
	begun := time.Now()
	defer func() { c.s.metrics.admitted(begun) }()
	g, err := c.s.admitter.Admit(ctx, c.pool, r)
	var missing *route.MissingModelError
	switch {
	case !errors.As(err, &missing):
		return g, err
	case c.unseen:
		return nil, errUnseen
	case isJSON || len(missing.Known) == 0:
		return nil, err
	}
	// A request that cannot name a model, such as for a list of them: each
	// endpoint of the pool will do, so any of its models names the right ones.
	r.Model = missing.Known[0]
	return c.s.admitter.Admit(ctx, c.pool, r)
}

// query is what admission reads of the header.
func (c *conversation) query() dispatch.Request {
	h := &c.head
	r := dispatch.Request{Host: h.host, Path: h.path, RawQuery: h.query, Method: h.method, Header: h.get,
		Objective: h.wished[wishObjective], FairnessID: h.wished[wishFairness], Latency: h.latency(), Subset: c.subset.addresses, Bytes: c.pooled}
	if name := c.s.cfg.SessionHeader; name != "" {
		r.Session = h.get(name)
	}
	return r
}

// refuse answers the request in the endpoint's place.
func (c *conversation) refuse(err error) error {
	if errors.Is(err, context.Canceled) {
		return status.FromContextError(err).Err() // Envoy has left
	}
	c.phase = over
	c.release()
	r := refusalOf(err)
	c.s.metrics.answered(r.status)
	return c.send(r.response())
}

// end settles what the stream has not.
func (c *conversation) end() {
	c.release()
	c.settle()
}

// settle gives the grant back, once.
func (c *conversation) settle() {
	if g := c.grant; g != nil {
		c.grant = nil
		used, events := c.usage.finish()
		g.Done(dispatch.Outcome{Failed: c.failure, Usage: used, Tokens: events})
		if c.phase == forwarded {
			c.s.metrics.answered(0)
		}
	}
}
