package rawgrpc

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// idempotent are the methods that only read.
var idempotent = map[string]bool{
	oip.GRPCInferenceService_ModelMetadata_FullMethodName:   true,
	oip.GRPCInferenceService_ModelStatistics_FullMethodName: true,
	oip.GRPCInferenceService_ModelConfig_FullMethodName:     true,
}

// call is one call that is forwarded. One goroutine owns it.
type call struct {
	server  *Server
	ctx     context.Context
	method  string // "/service/method"
	id      string // of the request, passed on and answered
	host    string // that the client called
	secure  bool   // it came over TLS
	address string // of the client
	conn    interface{ Close() error }
	md      metadata.MD // as it came
	out     metadata.MD // for the replica

	// raw: it is forwarded as it stands, since a route takes its method; known: which is
	// one of the gateway's own; plain: that leads to Kubernetes Services.
	raw, known, plain bool
	target            string // the method that the replica is asked for
	options           []grpc.CallOption
	copies            metadata.MD // for mirrors; nil for none

	pass *keys.Pass
	// limitedKey is the id of a key that is over its limits: there is no pass.
	limitedKey string
	model      string      // as the call names it
	service    string      // for metrics: a known service or ""
	key        service.Key // what the route says
	grant      *dispatch.Grant
	asked      dispatch.Request
	trailer    metadata.MD // that goes with the gateway's own errors
	seen       record
}

func (s *Server) newCall(ctx context.Context, method string) *call {
	c := &call{server: s, ctx: ctx, method: method}
	c.seen.begun = time.Now()
	c.md, _ = metadata.FromIncomingContext(ctx)
	c.address, c.conn, c.secure = client(ctx)
	c.host = first(c.md[keyAuthority])
	c.id = observe.RequestID(first(c.md[keyRequestID]))
	c.seen.startSpan(ctx, s.cfg.Tracer, method, c.md)
	return c
}

// enter checks the call's key and removes it from the metadata.
func (c *call) enter() (err error) {
	if c.pass, c.trailer, c.limitedKey, err = c.server.enter(c.md); err != nil {
		return err
	}
	return c.checkLoop()
}

// finish settles what the call held; err is how it ended.
func (c *call) finish(err error) {
	if c.grant != nil {
		c.grant.Done(dispatch.Outcome{})
		c.server.metrics.waited(c.service, c.grant.Waited())
	}
	c.pass.Leave(0)
	c.server.metrics.answered(c.service, c.label(), status.Code(err))
	c.seen.endSpan(err, c.model, c.id)
	if sinks := c.server.cfg.Ended; sinks.Any() {
		e := c.seen.entry(err)
		e.ID, e.Trace, e.Key, e.Client, e.Path, e.Model, e.Service = c.id, traceID(c.out), cmp.Or(c.pass.Key(), c.limitedKey), c.address, c.method, c.model, c.service
		if c.grant != nil {
			e.Replica, e.Queued = c.grant.Replica(), c.grant.Waited()
		} else if err != nil {
			e.Reason, e.OverLimit = status.Convert(err).Message(), c.limitedKey != ""
		}
		sinks.Write(e)
	}
}

// label is the method in metrics. Clients name any method of a call that is forwarded as
// it stands.
func (c *call) label() string {
	if c.raw {
		return "other"
	}
	return c.method[strings.LastIndexByte(c.method, '/')+1:]
}

// query returns what the dispatcher must know of the call.
func (c *call) query(size int) dispatch.Request {
	get := func(name string) string { return first(c.md[keyOf(name)]) }
	q := dispatch.Request{Host: c.host, Path: c.method, Method: http.MethodPost, GRPC: true, Secure: c.secure, Header: get, Model: c.model, Bytes: int64(size),
		Idempotent: idempotent[c.method],
		Objective:  routing.FirstOf(get, routing.HeaderObjective), FairnessID: routing.FirstOf(get, routing.HeaderFairness)}
	if name := c.server.cfg.SessionKey; name != "" {
		q.Session = get(name)
	}
	if c.pass != nil {
		q.Namespaces = c.pass.Namespaces()
		q.FairnessID = c.pass.Key() // a client must not choose whose turn it takes
	}
	q.Deadline, _ = c.ctx.Deadline()
	return q
}

// admit reserves a replica for the call. size is how many bytes are in memory while
// the call waits.
func (c *call) admit(size int) error {
	c.asked = c.query(size)
	q := &c.asked
	q.May = ingress.Permission(c.server.dispatch, c.pass, q)
	if k, err := c.server.dispatch.Key(*q); err == nil && (q.May == nil || q.May(k) == nil) {
		c.key, c.service = k, k.String()
		if err := c.speaks(*q); err != nil {
			return err
		}
	}
	g, err := c.server.dispatch.Admit(c.ctx, *q)
	if err != nil {
		return c.refused(err)
	}
	c.grant, c.service = g, g.Service()
	c.out = outgoing(c.md, c.id, c.address, c.host)
	return c.forwarding()
}

// speaks returns an error for a service that certainly has no gRPC, so that the
// call does not start it. It does not look up services that have answered over gRPC
// recently, because a look-up costs more than forwarding.
func (c *call) speaks(q dispatch.Request) error {
	if _, known := c.server.speaks.Load(c.key); known || c.plain {
		return nil
	}
	if st, err := c.server.dispatch.Resolve(q); err == nil && !mayAnswer(st.Pool) {
		return httpOnly(c.service)
	}
	return nil
}

// mayAnswer reports whether a pool may have gRPC; false is certain.
func mayAnswer(p *dispatch.PoolConfig) bool {
	if len(p.Protocols) > 0 {
		return service.ProtocolGRPCV2.AnsweredBy(p.Protocols)
	}
	return service.ProtocolGRPCV2.AnsweredBy([]service.Protocol{cmp.Or(p.Protocol, service.ProtocolGRPCV2)})
}

func httpOnly(name string) error {
	return errorf(codes.Unimplemented, "%s is served over HTTP alone, since its runtime has no gRPC port: use the gateway's HTTP port", name)
}

// refused returns the status for an error of routing or admission.
func (c *call) refused(err error) error {
	c.trailer, err = c.server.refuse(c.ctx, c.pass, c.model, err)
	return err
}

// replica returns the connection to the granted replica.
func (c *call) replica() (*upstream, error) {
	address := grpcAddress(c.grant)
	if address == "" {
		return nil, httpOnly(c.service)
	}
	c.seen.tries++
	up, err := c.server.upstreams.get(address)
	if err != nil {
		return nil, errorf(codes.Unavailable, "%v", err)
	}
	return up, nil
}

// grpcAddress is where a granted replica answers over gRPC; "" for one that does not.
func grpcAddress(g *dispatch.Grant) string {
	if g.GRPCAddress() == "" && g.Pool().Protocol == service.ProtocolGRPCV2 {
		return g.Address() // a server that runs already has the one address that its pool states
	}
	return g.GRPCAddress()
}

// answering notes that the replica has answered: the call does not move any more.
func (c *call) answering() {
	c.grant.FirstByte()
	c.seen.firstByte = time.Now()
	if _, known := c.server.speaks.Load(c.key); !known {
		c.server.speaks.Store(c.key, true)
	}
}

// rename returns the replica's name of the model, if it differs from the name in
// the call.
func (c *call) rename() (name string, ok bool) {
	if c.raw {
		return "", false
	}
	name = c.grant.Model()
	return name, name != "" && name != c.model
}

// deadlineSlack allows for the difference of clocks: a replica that ends a call so
// shortly before the call's deadline has not failed.
const deadlineSlack = 50 * time.Millisecond

// retry moves the call to another replica after failed. The error is why it
// cannot.
func (c *call) retry(failed error) error {
	c.warn("replica failed before it answered", "error", failed)
	if d, ok := c.ctx.Deadline(); ok && time.Until(d) < deadlineSlack {
		return errorf(codes.DeadlineExceeded, "the call's deadline is over: %v", failed)
	}
	if c.raw && !dispatch.IsUnsent(failed) { // nobody knows here what it may do twice
		c.grant.Done(dispatch.Outcome{Failed: failed})
		return errorf(codes.Unavailable, "the server failed, and the call is not sent again, since it may have had a part of it: %v", failed)
	}
	c.seen.retried = failed.Error()
	if err := c.grant.Retry(c.ctx, failed); err != nil {
		return c.refused(err)
	}
	return nil
}

// errMoved means that the call must be sent to another replica, on which it has a
// reservation, although the first one answered.
var errMoved = errors.New("the call was moved to another replica")

// retryStatus tells the dispatcher of a replica's status that did not do the work,
// and reports whether the call has moved to another replica, which makes this
// status void. Only a replayable call moves.
func (c *call) retryStatus(err error, trailer metadata.MD, replayable bool) bool {
	replica := c.grant.Replica()
	moved := c.grant.Answered(dispatch.Answer{Result: resultOf(status.Code(err)), RetryAfter: breaker.RetryAfter(first(trailer[keyRetryAfter]), time.Now()),
		Retryable: replayable})
	if moved {
		c.seen.retried = replica + " answered " + status.Code(err).String()
		c.warn("replica failed: the call is sent to another", "error", c.seen.retried)
	}
	return moved
}

// answerTimeout is how long the granted replica may take to begin its answer.
func (c *call) answerTimeout() time.Duration { return answerTimeout(c.grant, &c.server.cfg) }

func answerTimeout(g *dispatch.Grant, cfg *Config) time.Duration {
	return cmp.Or(g.Pool().Limits.AnswerTimeout, cfg.AnswerTimeout)
}

// late returns the status of a call whose replica did not begin its answer in time.
func (c *call) late() error {
	limit := c.answerTimeout()
	c.warn("replica did not answer in time", "timeout", limit)
	c.grant.Done(dispatch.Outcome{Failed: errSlow})
	return errorf(codes.DeadlineExceeded, "the model did not begin its answer within %v", limit)
}

// scan finds the model that a message names.
func scan(f *frame) (field, error) {
	at, err := scanName(f.parts)
	if err != nil {
		return field{}, errorf(codes.InvalidArgument, "the message is malformed: %v", err)
	}
	return at, nil
}

// warn writes a warning about the granted replica, unless it was just written.
func (c *call) warn(message string, attrs ...any) {
	c.server.warnings.Warn(time.Now(), message, c.service+" "+c.grant.Replica(), c.attrs(attrs...)...)
}

func (c *call) attrs(more ...any) []any {
	return append([]any{"request", c.id, "service", c.service, "replica", c.grant.Replica()}, more...)
}

// headerOf returns the metadata to send before a replica's answer.
func (c *call) headerOf(md metadata.MD) metadata.MD {
	out := passed(md)
	if len(out[keyRequestID]) == 0 {
		out[keyRequestID] = []string{c.id}
	}
	if c.grant != nil {
		change(out, c.grant.Handling().ResponseHeader)
	}
	return out
}

// watch ends an upstream call that makes no progress.
type watch struct {
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// watched returns a context for a call to a replica; it ends with cause after limit.
func (c *call) watched(limit time.Duration, cause error) (context.Context, watch) {
	ctx, cancel := context.WithCancelCause(metadata.NewOutgoingContext(c.ctx, c.out))
	return ctx, watch{cancel: cancel, timer: time.AfterFunc(limit, func() { cancel(cause) })}
}

func (w watch) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// ended returns the status of a call whose context has ended, and nil for others.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}

// share is what a message of the call will take of the budget. Its client is the call's API
// key, or its address.
func (c *call) share() *share {
	client := c.address
	if c.pass != nil {
		client = c.pass.Key()
	}
	return &share{budget: &c.server.buffered, client: client}
}

// hold counts a message's bytes that are not counted yet. It returns an error when the
// budget is full.
func (c *call) hold(f *frame) error {
	err := f.held.take(f.size() - int(f.held.size))
	if err != nil {
		c.trailer = later()
	}
	return err
}

func isSlow(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errSlow) }
