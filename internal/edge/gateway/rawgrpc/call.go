package rawgrpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// call is one call that is forwarded. One goroutine owns it.
type call struct {
	server  *Server
	ctx     context.Context
	method  string // "/service/method"
	id      string // of the request, passed on and answered
	host    string // that the client called
	address string // of the client
	conn    interface{ Close() error }
	md      metadata.MD // as it came
	out     metadata.MD // for the replica

	model   string // as the call names it
	service string // for metrics: a known service or ""
	grant   *dispatch.Grant
	trailer metadata.MD // that an error of ours brings
}

func (s *Server) newCall(ctx context.Context, method string) *call {
	c := &call{server: s, ctx: ctx, method: method}
	c.md, _ = metadata.FromIncomingContext(ctx)
	c.address, c.conn = client(ctx)
	c.host = first(c.md[keyAuthority])
	if c.id = first(c.md[keyRequestID]); !validID(c.id) {
		c.id = randomHex(16)
	}
	return c
}

// finish settles what the call held; err is how it ended.
func (c *call) finish(err error) {
	if c.grant != nil {
		c.grant.Done(dispatch.Outcome{})
		c.server.metrics.waited(c.service, c.grant.Waited())
	}
	c.server.metrics.answered(c.service, c.method, status.Code(err))
}

// admit finds the model's replica. size is how many bytes wait with the call.
func (c *call) admit(size int) error {
	q := dispatch.Request{Host: c.host, Model: c.model, Bytes: int64(size)}
	if st, err := c.server.dispatch.Resolve(q); err == nil && !mayAnswer(st.Pool.Protocol) {
		c.service = st.Pool.Key.String()
		return httpOnly(c.service) // without waking it
	}
	g, err := c.server.dispatch.Admit(c.ctx, q)
	if err != nil {
		if k, unknown := c.server.dispatch.Key(q); unknown == nil {
			c.service = k.String()
		}
		return c.refused(err)
	}
	c.grant, c.service = g, g.Service()
	c.out = c.outgoing(c.md)
	return nil
}

// mayAnswer is false for services that certainly speak HTTP alone.
func mayAnswer(p service.Protocol) bool {
	return p != service.ProtocolOpenAI && p != service.ProtocolCohere
}

func httpOnly(name string) error {
	return errorf(codes.Unimplemented, "%s is served over HTTP alone: its runtime has no gRPC port; ask it on the gateway's HTTP port", name)
}

// refused is the status for an error of routing or admission.
func (c *call) refused(err error) error {
	err, c.trailer = refusal(c.ctx, err)
	return err
}

// replica is the connection to the granted replica.
func (c *call) replica() (*upstream, error) {
	address := replicaAddress(c.grant)
	if address == "" {
		return nil, httpOnly(c.service)
	}
	up, err := c.server.upstreams.get(address)
	if err != nil {
		return nil, errorf(codes.Unavailable, "%v", err)
	}
	return up, nil
}

// replicaAddress is where the granted replica speaks gRPC; "" if it does not.
func replicaAddress(g *dispatch.Grant) string {
	for i := range g.Pool().Replicas {
		if r := &g.Pool().Replicas[i]; r.ID == g.Replica() {
			return r.GRPC
		}
	}
	return ""
}

// rename says which name the replica is to be given in the place of the call's.
func (c *call) rename() (name string, ok bool) {
	name = c.grant.Model()
	return name, name != "" && name != c.model
}

// elsewhere moves the call to another replica after failed; nil means that it
// holds a place again.
func (c *call) elsewhere(failed error) error {
	c.server.log.Warn("replica failed before it answered", c.attrs("error", failed)...)
	if err := c.grant.Retry(c.ctx, failed); err != nil {
		return c.refused(err)
	}
	return nil
}

// late is the status of a call whose replica did not begin its answer in time.
func (c *call) late() error {
	limit := c.server.cfg.AnswerTimeout
	c.server.log.Warn("replica did not answer in time", c.attrs("timeout", limit)...)
	c.grant.Done(dispatch.Outcome{Failed: errSlow})
	return errorf(codes.DeadlineExceeded, "the model did not begin its answer within %v", limit)
}

// scan finds the model that a message names.
func (c *call) scan(f *frame) (field, error) {
	at, err := scanName(f.parts)
	if err != nil {
		return field{}, errorf(codes.InvalidArgument, "the message is malformed: %v", err)
	}
	return at, nil
}

func (c *call) attrs(more ...any) []any {
	return append([]any{"request", c.id, "service", c.service, "replica", c.grant.Replica()}, more...)
}

// header is the metadata that goes before the answer.
func (c *call) header(md metadata.MD) metadata.MD {
	out := passed(md)
	if len(out[keyRequestID]) == 0 {
		out[keyRequestID] = []string{c.id}
	}
	return out
}

// watch ends an upstream call that makes no progress.
type watch struct {
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// watched is a context for a call to a replica, ended with cause after limit.
func (c *call) watched(limit time.Duration, cause error) (context.Context, watch) {
	ctx, cancel := context.WithCancelCause(metadata.NewOutgoingContext(c.ctx, c.out))
	return ctx, watch{cancel: cancel, timer: time.AfterFunc(limit, func() { cancel(cause) })}
}

func (w watch) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// ended is the status of a call whose own context is over; nil if it is not.
func (c *call) ended() error {
	if err := c.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}

// hold counts bytes in memory; false when there is no room for them.
func (c *call) hold(size int) error {
	if c.server.buffered.take(size) {
		return nil
	}
	var err error
	err, c.trailer = full()
	return err
}

func isSlow(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errSlow) }
