package rawgrpc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// streamHandler is the handler of ModelStreamInfer.
func streamHandler(service any, stream grpc.ServerStream) error {
	s := service.(*inference).server
	return s.stream(stream, s.newCall(stream.Context(), oip.GRPCInferenceService_ModelStreamInfer_FullMethodName))
}

// stream forwards a call whose messages stream in both directions, or may do so.
func (s *Server) stream(stream grpc.ServerStream, c *call) error {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	c.ctx = ctx
	st := &inbound{call: c, stream: stream, first: make(chan *frame, 1), end: cancel, attached: make(chan struct{})}
	if c.raw {
		st.kept = []*frame{} // nothing yet, all of which can be sent again
	}
	err := (&streamed{c, stream, st}).run()
	if err != nil {
		_ = stream.SetHeader(metadata.Pairs(keyRequestID, c.id)) // fails when a header was sent
		stream.SetTrailer(c.trailer)
	}
	st.release()
	c.finish(err)
	return err
}

// streamed is a call of ModelStreamInfer, or one that is forwarded as it stands.
type streamed struct {
	*call
	stream grpc.ServerStream
	in     *inbound
}

// run finds a replica and passes messages on in both directions.
func (c *streamed) run() (err error) {
	if err = c.enter(); err == nil {
		c.in.held = c.share()
		go c.in.pump()
		err = c.begin()
	}
	if err != nil {
		return err
	}
	for {
		failed, err := c.relay()
		switch {
		case errors.Is(err, errMoved):
			continue
		case failed == nil:
			return err
		}
		if err := c.retry(failed); err != nil {
			return err
		}
	}
}

// begin waits for the first message, which names the stream's model, unless the route alone
// says where the call goes.
func (c *streamed) begin() error {
	in := c.in
	if c.raw {
		if err := c.find(); err != nil {
			return err
		}
		return c.admit(0)
	}
	timer := time.NewTimer(c.server.cfg.StallTimeout)
	defer timer.Stop()
	select {
	case f := <-in.first:
		return in.begin(f)
	case <-timer.C:
		return errorf(codes.DeadlineExceeded, "no request came within %v", c.server.cfg.StallTimeout)
	case <-c.ctx.Done():
		return in.cause()
	}
}

// relay passes messages between the client and the granted replica until one
// ends. failed is not nil if the replica failed before it answered.
func (c *streamed) relay() (failed, err error) {
	stream, in := c.stream, c.in
	up, err := c.replica()
	if err != nil {
		return nil, err
	}
	defer c.server.upstreams.put(up)
	traced := c.seen.startTry(c.ctx, c.server.cfg.Tracer, c.method, c.grant, c.out)
	defer func() { traced(cmp.Or(failed, err)) }()
	ctx, w := c.watched(c.answerTimeout(), errSlow)
	defer w.stop()
	var p peer.Peer
	out, err := up.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, c.target, append(c.options, grpc.Peer(&p))...)
	if err != nil {
		return c.broken(ctx, nil, &p, err)
	}
	in.attach(out, w)
	for answered := c.sendHeaderEarly(out); ; answered = true {
		var reply frame
		if err := out.RecvMsg(&reply); errors.Is(err, io.EOF) {
			if !answered {
				c.answering()
				c.sendHeader(out)
			}
			stream.SetTrailer(passed(out.Trailer()))
			return nil, nil
		} else if err != nil && !answered {
			return c.broken(ctx, out, &p, err)
		} else if err != nil {
			return nil, c.cut(ctx, out, err)
		}
		if !answered {
			c.answering()
			in.settle()
			c.sendHeader(out)
		}
		w.timer.Reset(c.server.cfg.StallTimeout)
		a := newAnswer(&reply, &c.server.buffered, c.server.cfg.ClientTimeout, c.conn)
		if a == nil {
			c.trailer, err = full()
			return nil, err
		}
		c.seen.sent += int64(a.size)
		if err := stream.SendMsg(a); err != nil {
			return nil, err // the client is gone
		}
	}
}

// sendHeader passes on the metadata before the answer.
func (c *streamed) sendHeader(out grpc.ClientStream) {
	md, err := out.Header()
	if err == nil {
		_ = c.stream.SetHeader(c.headerOf(md)) // fails only for a client that is gone
	}
}

// sendHeaderEarly passes on the metadata before the answer of a call that is forwarded as
// it stands, as soon as it comes: the client may wait for it. It reports whether there is
// any.
func (c *streamed) sendHeaderEarly(out grpc.ClientStream) bool {
	if !c.raw {
		return false
	}
	md, err := out.Header()
	if err != nil || md == nil {
		return false // the call has ended: its status says why
	}
	c.answering()
	c.in.settle()
	_ = c.stream.SendHeader(c.headerOf(md)) // fails only for a client that is gone
	return true
}

// broken returns how a stream without an answer ended: failed is the failure of a
// replica that another can replace, otherwise err is the stream's status. out is
// nil if the stream to the replica never began.
func (c *streamed) broken(ctx context.Context, out grpc.ClientStream, p *peer.Peer, cause error) (failed, err error) {
	in := c.in
	if ended := in.ended(); ended != nil {
		return nil, ended
	}
	if isSlow(ctx) {
		return nil, c.late()
	}
	var header, trailer metadata.MD
	if out != nil {
		header, _ = out.Header() // there is none if this fails
		trailer = out.Trailer()
	}
	if failed := upstreamError(cause, header, trailer, p); failed != nil {
		if in.replayable() {
			return failed, nil
		}
		c.grant.Done(dispatch.Outcome{Failed: failed})
		return nil, errorf(codes.Unavailable, "the replica failed and the stream's requests, over %d bytes, cannot be sent again: %v",
			c.server.cfg.MaxMessageBytes, failed)
	}
	if c.retryStatus(cause, trailer, in.replayable() && !c.raw) {
		return nil, errMoved
	}
	c.answering()
	_ = c.stream.SetHeader(c.headerOf(header)) // fails only for a client that is gone
	c.stream.SetTrailer(passed(trailer))
	return nil, cause
}

// cut returns the status of a stream whose replica broke off its answer with
// cause.
func (c *streamed) cut(ctx context.Context, out grpc.ClientStream, cause error) error {
	stream, in := c.stream, c.in
	if ended := in.ended(); ended != nil {
		return ended
	}
	if isSlow(ctx) {
		return errorf(codes.DeadlineExceeded, "neither a request nor an answer passed for %v", c.server.cfg.StallTimeout)
	}
	// Only a status that comes with trailers is certainly the replica's.
	trailer := out.Trailer()
	if len(trailer) == 0 && status.Code(cause) == codes.Unavailable {
		c.warn("replica failed within its answer", "error", cause)
		c.server.metrics.cut(c.service)
		c.seen.cut = cause.Error()
		c.grant.Done(dispatch.Outcome{Failed: cause})
		return errorf(codes.Unavailable, "the replica failed within its answer: %s", status.Convert(cause).Message())
	}
	stream.SetTrailer(passed(trailer))
	return cause
}

// inbound passes a client's messages to the replica that has the stream. Until the
// first answer it keeps them, so that it can send them to another replica.
type inbound struct {
	call   *call
	stream grpc.ServerStream
	first  chan *frame // the first message; its buffer of one is never blocked on
	end    context.CancelCauseFunc
	// attached is closed once there is a replica; until then no second message
	// is read.
	attached chan struct{}

	mu      sync.Mutex
	to      grpc.ClientStream
	watch   watch
	name    string // of the model, for the replica
	rename  bool
	kept    []*frame // in the order they came; nil once settled
	bytes   int      // that kept counts as
	held    *share   // of the budget, for kept but the first
	settled bool     // the stream belongs to its replica
	half    bool     // the client has sent its last message
	count   int      // of messages
	sole    *frame   // the first, for mirrors, until there is a second
	failure error    // why no more is read from the client
}

// begin takes the first message: it finds a replica.
func (in *inbound) begin(f *frame) error {
	c := in.call
	size := f.size()
	at, err := scan(f)
	if err == nil {
		err = c.hold(f)
	}
	if err != nil {
		f.free()
		return err
	}
	in.bytes, in.kept = size+frameBytes, []*frame{f}
	c.model = at.name
	if err := c.admit(size); err != nil {
		return err
	}
	in.counted(f)
	if in.name, in.rename = c.rename(); in.rename {
		in.kept[0] = f.renamed(at, in.name)
		f.free()
	}
	return nil
}

// pump reads the client's messages until the stream ends. One that is forwarded as it
// stands has its replica before.
func (in *inbound) pump() {
	if in.call.raw && !in.hasReplica() {
		return
	}
	for first := !in.call.raw; ; first = false {
		f := &frame{held: in.call.share()}
		err := in.stream.RecvMsg(f)
		in.call.seen.received.Add(int64(f.size()))
		switch {
		case errors.Is(err, io.EOF) && first:
			f.free()
			in.fail(errorf(codes.InvalidArgument, "the stream has no request"))
			return
		case errors.Is(err, io.EOF):
			f.free()
			in.closeSend()
			return
		case err != nil:
			f.free()
			in.fail(err)
			return
		case first:
			if in.first <- f; !in.hasReplica() {
				return
			}
		default:
			if err := in.deliver(f); err != nil {
				in.fail(err)
				return
			}
		}
	}
}

// hasReplica waits for a replica; false if the stream ends before.
func (in *inbound) hasReplica() bool {
	select {
	case <-in.attached:
		return true
	case <-in.call.ctx.Done():
		return false
	}
}

// fail ends the stream because of the client.
func (in *inbound) fail(err error) {
	in.mu.Lock()
	in.failure = err
	in.mu.Unlock()
	in.end(err)
}

// deliver sends one more message to the replica. The error is the client's.
func (in *inbound) deliver(f *frame) error {
	defer func() { f.free() }()
	var at field
	if !in.call.raw {
		var err error
		if at, err = scan(f); err != nil {
			return err
		}
	}
	if at.name != in.call.model && at.name != "" {
		return errorf(codes.InvalidArgument, "the stream is for model %q, and a request in it names %q: open a stream for each", in.call.model, at.name)
	}
	if in.rename {
		renamed := f.renamed(at, in.name)
		f.free()
		f = renamed
	}
	in.counted(f)
	in.mu.Lock()
	to := in.to
	if in.settled {
		in.watch.timer.Reset(in.call.server.cfg.StallTimeout)
	}
	in.keep(f)
	in.mu.Unlock()
	_ = to.SendMsg(f) // fails when the stream has ended: its reader learns why
	return nil
}

// counted counts a message. The first is kept for mirrors, which get copies of calls of one
// message alone.
func (in *inbound) counted(f *frame) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.count++
	switch {
	case in.sole != nil:
		in.sole.free()
		in.sole = nil
	case in.count == 1 && len(in.call.grant.Handling().Mirrors) > 0 && f.size() <= maxMirrorBytes:
		f.parts.Ref()
		in.sole = &frame{parts: f.parts}
	}
}

// frameBytes is what a kept message counts as besides its own bytes: what holds it
// takes so much, so that empty ones are bounded too.
const frameBytes = 256

// keep keeps f for another replica as well while there is room. The mutex is held.
func (in *inbound) keep(f *frame) {
	if in.settled {
		return
	}
	size := f.size() + frameBytes
	if in.kept == nil || in.bytes+size > in.call.server.cfg.MaxMessageBytes || in.held.take(size) != nil {
		in.drop()
		return
	}
	f.parts.Ref()
	in.kept = append(in.kept, &frame{parts: f.parts})
	in.bytes += size
}

// drop frees the kept messages. The mutex is held.
func (in *inbound) drop() {
	for _, f := range in.kept {
		f.free()
	}
	in.held.give()
	in.kept = nil
	in.bytes = 0
}

// attach sends the kept messages, and all that follow, to a replica.
func (in *inbound) attach(to grpc.ClientStream, w watch) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, f := range in.kept {
		if to.SendMsg(f) != nil {
			break // its reader learns why
		}
	}
	if in.half {
		_ = to.CloseSend() // is always nil
	}
	if in.to == nil {
		close(in.attached)
	}
	in.to, in.watch = to, w
}

func (in *inbound) closeSend() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.half = true
	if in.sole != nil {
		in.call.mirror(in.sole)
	}
	if in.to != nil {
		_ = in.to.CloseSend() // is always nil
	}
}

// settle makes the replica final: the stream can no longer move.
func (in *inbound) settle() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.settled = true
	in.drop()
}

// replayable reports whether all messages so far can be sent to another replica.
func (in *inbound) replayable() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.kept != nil
}

// release frees the stream's memory at its end.
func (in *inbound) release() {
	in.settle()
	in.mu.Lock()
	if in.sole != nil {
		in.sole.free()
		in.sole = nil
	}
	in.mu.Unlock()
	select {
	case f := <-in.first:
		f.free()
	default:
	}
}

// ended returns why the client's side ended before the answer did; nil if it has
// not.
func (in *inbound) ended() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.failure != nil {
		return in.failure
	}
	return ended(in.call.ctx)
}

// cause is ended for a context that has ended.
func (in *inbound) cause() error {
	if err := in.ended(); err != nil {
		return err
	}
	return status.FromContextError(context.Cause(in.call.ctx)).Err()
}
