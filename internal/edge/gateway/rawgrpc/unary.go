package rawgrpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// unaryHandler handles a method that is forwarded.
func unaryHandler(method string) grpc.MethodHandler {
	return func(service any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		return service.(*inference).server.newCall(ctx, method).answer(decode)
	}
}

// answer forwards a call of one message and returns its *answer.
func (c *call) answer(decode func(any) error) (any, error) {
	ctx := c.ctx
	a, err := c.unary(decode)
	if err != nil {
		c.fail(ctx)
		c.finish(err)
		return nil, err
	}
	c.finish(nil)
	return a, nil
}

// fail sends the metadata of a call that failed.
func (c *call) fail(ctx context.Context) {
	// The client is gone if this fails; there is nobody to tell.
	_ = grpc.SetHeader(ctx, metadata.Pairs(keyRequestID, c.id))
	if len(c.trailer) > 0 {
		_ = grpc.SetTrailer(ctx, c.trailer)
	}
}

// unary reads one request and answers it.
func (c *call) unary(decode func(any) error) (*answer, error) {
	if err := c.enter(); err != nil {
		return nil, err
	}
	in := &frame{held: c.share()}
	defer in.free()
	// A message that never ends cannot be given up by itself.
	guard := time.AfterFunc(c.server.cfg.RequestTimeout, func() { _ = c.conn.Close() })
	err := decode(in)
	guard.Stop()
	if err != nil {
		return nil, err
	}
	size := in.size()
	c.seen.received.Store(int64(size))
	if err := c.hold(in); err != nil {
		return nil, err
	}
	at, err := c.place(in)
	if err != nil {
		return nil, err
	}
	if err := c.admit(size); err != nil {
		return nil, err
	}
	c.mirror(in)
	request := in
	if name, ok := c.rename(); ok {
		request = in.renamed(at, name)
		defer request.free()
	}
	for {
		a, failed, err := c.try(request)
		switch {
		case errors.Is(err, errMoved):
			continue
		case failed == nil:
			return a, err
		}
		if err := c.retry(failed); err != nil {
			return nil, err
		}
	}
}

// place finds the model that a request names, or the route of one that is forwarded as it
// stands.
func (c *call) place(in *frame) (at field, err error) {
	if c.raw {
		return at, c.find()
	}
	if at, err = scan(in); err == nil {
		c.model = at.name
	}
	return at, err
}

// try sends the request to the granted replica once. failed is why the replica
// failed, or errMoved when another replica is to be asked; nil: a and err are
// the answer.
func (c *call) try(request *frame) (a *answer, failed, err error) {
	up, err := c.replica()
	if err != nil {
		return nil, nil, err
	}
	defer c.server.upstreams.put(up)
	traced := c.seen.startTry(c.ctx, c.server.cfg.Tracer, c.method, c.grant, c.out)
	ctx, w := c.watched(c.answerTimeout(), errSlow)
	defer w.stop()
	var reply frame
	var header, trailer metadata.MD
	var p peer.Peer
	err = up.Invoke(ctx, c.target, request, &reply, append(c.options, grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&p))...)
	traced(err)
	if err != nil {
		switch over := ended(c.ctx); {
		case over != nil:
			return nil, nil, over
		case isSlow(ctx):
			return nil, nil, c.late()
		}
		if failed := upstreamError(err, header, trailer, &p); failed != nil {
			return nil, failed, nil
		}
		if c.retryStatus(err, trailer, !c.raw) {
			return nil, nil, errMoved
		}
	}
	c.answering()
	_ = grpc.SetTrailer(c.ctx, passed(trailer)) // fails only after the end
	if err != nil {
		return nil, nil, err
	}
	_ = grpc.SetHeader(c.ctx, c.headerOf(header))
	if a = newAnswer(&reply, &c.server.buffered, c.server.cfg.ClientTimeout, c.conn); a == nil {
		c.trailer, err = full()
		return nil, nil, err
	}
	c.seen.sent = int64(a.size)
	c.grant.Done(dispatch.Outcome{})
	return a, nil, nil
}
