package epp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "roundhouse.dev/roundhouse/api/extproc"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Request is what a picker is told of a request.
type Request struct {
	Method, Scheme, Authority string
	Path                      string // with the query
	// Header must not change before Ask returns. Fields of one connection are
	// left out.
	Header http.Header
	// Body is all of it; it is read within Ask alone.
	Body []byte
	// Within reports whether an address is an endpoint of the pool that can take
	// the request; no other is accepted.
	Within func(address string) bool
	// Hold asks for memory for a body that the picker changes; false: there is
	// none. nil is always.
	Hold func(n int64) bool
}

// Conversation is a picker's answer, and the stream it came by, which goes on
// until the request's own answer has ended. It is for one goroutine.
type Conversation struct {
	client *Client
	peer   *peer
	pool   service.Key
	stream grpc.ClientStream
	ctx    context.Context
	end    context.CancelCauseFunc
	heard  bool // something was received
	answer answer
}

// description is the protocol's one call.
var description = grpc.StreamDesc{StreamName: "Process", ServerStreams: true, ClientStreams: true}

const method = "/" + pb.ServiceName + "/Process"

// Ask asks a pool's picker where a request goes. The Conversation is to be
// closed when the request is over. Errors are a *Failure, an *Immediate, or
// ctx's.
func (c *Client) Ask(ctx context.Context, pool service.Key, r Request) (*Conversation, error) {
	begun := time.Now()
	v, err := c.ask(ctx, pool, &r)
	outcome := outcomeAnswered
	var failed *Failure
	var own *Immediate
	switch {
	case err == nil:
	case errors.As(err, &failed):
		outcome = string(failed.Reason)
	case errors.As(err, &own):
		outcome = outcomeRefused
	default:
		outcome = outcomeCancelled
	}
	c.metrics.ended(pool, outcome, begun)
	return v, err
}

func (c *Client) ask(ctx context.Context, pool service.Key, r *Request) (*Conversation, error) {
	p := c.peer(pool)
	if p == nil {
		return nil, &Failure{Missing, "the pool's endpoint picker is not known yet"}
	}
	switch t := p.target.Load(); {
	case t.Problem != "":
		return nil, &Failure{Missing, t.Problem}
	case len(t.Addresses) == 0:
		return nil, p.failure(Missing, "has no pod that is ready")
	}
	if !p.silence.allows(time.Now()) {
		return nil, p.failure(Timeout, "is not asked for a moment: it gave no answer in time %d times in a row", p.silence.times.Load())
	}
	if !c.enter(p.share) {
		return nil, p.failure(Overloaded, "is not asked: its namespace has its share of %d requests in flight", p.share.streams.Load())
	}
	until := time.Now().Add(c.cfg.Timeout)
	for try := 0; ; try++ {
		v, err := c.converse(ctx, p, pool, r, until)
		p.heard(err)
		if err == nil {
			return v, nil
		}
		if try > 0 || !worthAnother(ctx, err, v.heard) {
			c.exit(p.share)
			return nil, err
		}
	}
}

// heard notes whether the picker has said anything.
func (p *peer) heard(err error) {
	var failed *Failure
	switch {
	case errors.As(err, &failed):
		p.silence.note(failed.Reason == Timeout, time.Now())
	case err == nil || errors.As(err, new(*Immediate)):
		p.silence.note(false, time.Now())
	} // else its client has left
}

// worthAnother reports whether a picker is to be asked again, once: if the
// connection was lost before it said anything, as when it is replaced; and, a
// moment later, if it named what is no endpoint, for one of us may have heard
// first of a pod that came or went.
func worthAnother(ctx context.Context, err error, heard bool) bool {
	var failed *Failure
	switch {
	case !errors.As(err, &failed):
		return false
	case failed.Reason == Foreign:
		select {
		case <-time.After(foreignRetry):
			return true
		case <-ctx.Done():
			return false
		}
	}
	return failed.Reason == Unreachable && !heard
}

// converse asks over one stream, which goes on if there is no error.
func (c *Client) converse(ctx context.Context, p *peer, pool service.Key, r *Request, until time.Time) (*Conversation, error) {
	v := &Conversation{client: c, peer: p, pool: pool}
	v.ctx, v.end = context.WithCancelCause(metadata.AppendToOutgoingContext(ctx, pb.PoolMetadata, pool.String()))
	timer := time.AfterFunc(time.Until(until), func() { v.end(errSilent) })
	err := v.ask(r)
	if !timer.Stop() && err == nil { // it has ended the stream, or will
		err = p.failure(Timeout, "gave no answer in time")
	}
	if err != nil {
		v.end(errClosed)
	}
	return v, err
}

// ask sends the request, and takes the answer to it.
func (v *Conversation) ask(r *Request) (err error) {
	if v.stream, err = v.peer.conn.NewStream(v.ctx, &description, method, grpc.MaxCallRecvMsgSize(longest(len(r.Body)))); err != nil {
		return v.peer.lost(v.ctx, err)
	}
	if len(r.Body) <= maxPiece {
		// One that fails has ended the stream, which says why.
		_ = v.send(r)
		return v.listen(r)
	}
	// A picker may begin to give a long body back before it has read all of it,
	// and wait for us as we would for it.
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_ = v.send(r)
	}()
	if err = v.listen(r); err != nil {
		v.end(errClosed)
	}
	select {
	case <-sent:
	case <-time.After(v.client.cfg.AnswerTimeout):
		// It has answered without reading the body to its end: what is left of
		// that is not sent, and the stream is of no more use.
		v.end(errClosed)
		<-sent
	}
	return err
}

// send sends the header and the body.
func (v *Conversation) send(r *Request) error {
	err := v.stream.SendMsg(&pb.ProcessingRequest{
		Request:        &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: requestHeaders(r), EndOfStream: len(r.Body) == 0}},
		ProtocolConfig: &pb.ProtocolConfiguration{RequestBodyMode: pb.BodySendMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: pb.BodySendMode_NONE},
	})
	for at := 0; at < len(r.Body) && err == nil; {
		n := min(maxPiece, len(r.Body)-at)
		err = v.stream.SendMsg(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestBody{
			RequestBody: &pb.HttpBody{Body: r.Body[at : at+n], EndOfStream: at+n == len(r.Body)}}})
		at += n
	}
	return err
}

// receive takes one message.
func (v *Conversation) receive() (*pb.ProcessingResponse, error) {
	m := &pb.ProcessingResponse{}
	err := v.stream.RecvMsg(m)
	switch {
	case err == nil:
		v.heard = true
		return m, nil
	case errors.Is(err, io.EOF):
		return nil, v.peer.lost(v.ctx, errEnded)
	case status.Code(err) == codes.Canceled && v.ctx.Err() == nil:
		return nil, v.peer.failure(Broken, "has cancelled the request")
	}
	return nil, v.peer.lost(v.ctx, err)
}

// listen takes messages until it is known where the request goes, and with
// which header and body.
func (v *Conversation) listen(r *Request) error {
	a := &v.answer
	a.body.was, a.body.hold, a.body.limit = r.Body, r.Hold, v.client.cfg.MaxBodyBytes
	a.body.over = len(r.Body) == 0
	for n := maxMessages + len(r.Body)/1024; !a.whole(); n-- {
		if n == 0 {
			return v.peer.failure(TooLarge, "needs too many messages for one answer")
		}
		m, err := v.receive()
		if err != nil {
			return err
		}
		if own := m.GetImmediateResponse(); own != nil {
			return immediate(own)
		}
		if err := a.take(m); err != nil {
			err.Message = "endpoint picker " + v.peer.name + " " + err.Message
			return err
		}
	}
	return v.judge(r.Within)
}

// judge leaves the endpoints that the request may go to.
func (v *Conversation) judge(within func(string) bool) error {
	a := &v.answer
	named := a.endpoints()
	if len(named) == 0 {
		return v.peer.failure(NoEndpoint, "named no endpoint")
	}
	for _, address := range named {
		if within == nil || within(address) {
			a.to = append(a.to, address)
		}
	}
	if len(a.to) == 0 {
		return v.peer.failure(Foreign, "named %s: no endpoint of the pool that is ready", clip(a.destination))
	}
	return nil
}

// Endpoints are where the request goes, "ip:port", in the order to try.
func (v *Conversation) Endpoints() []string { return v.answer.to }

// Body is the body to send on; changed is false where it is as it was.
func (v *Conversation) Body() (body []byte, changed bool) {
	return v.answer.body.now, v.answer.body.changed()
}

// Change makes the picker's changes to the request's header.
func (v *Conversation) Change(h http.Header) { v.answer.request.apply(h, ownedRequest) }

// Answered tells the picker of an answer's header and who gave it, and makes the
// picker's changes to the header, which it is waited for a moment. What the
// picker does not say in time is not waited for again.
func (v *Conversation) Answered(statusCode int, h http.Header, by string) {
	timer := time.AfterFunc(v.client.cfg.AnswerTimeout, func() { v.end(errSilent) })
	defer timer.Stop()
	err := v.stream.SendMsg(&pb.ProcessingRequest{
		Request:         &pb.ProcessingRequest_ResponseHeaders{ResponseHeaders: &pb.HttpHeaders{Headers: answerHeaders(statusCode, h)}},
		MetadataContext: servedBy(by),
	})
	for n := 0; err == nil && n < maxMessages; n++ {
		var m *pb.ProcessingResponse
		if m, err = v.receive(); err != nil {
			return // the answer goes on as it is
		}
		if r := m.GetResponseHeaders(); r != nil {
			var c changes
			if c.add(r.GetResponse().GetHeaderMutation()) == nil {
				c.apply(h, ownedAnswer)
			}
			return
		}
	}
}

// Close ends the conversation: the request is over.
func (v *Conversation) Close() {
	_ = v.stream.CloseSend() // it never fails
	v.end(errClosed)
	v.client.exit(v.peer.share)
}
