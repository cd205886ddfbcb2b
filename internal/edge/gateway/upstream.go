package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// upstream sends the exchange's request to its granted replica and returns
// when the answer's header is there. A failure before anything was sent is
// marked dispatch.Unsent; errSlow is a replica that did not answer within
// AnswerTimeout. The caller closes the answer's body.
type upstream interface {
	do(x *exchange) (incoming, error)
	// post makes the exchange's request, with another body, to another replica.
	// What it returns sends it, on whatever goroutine, and does not touch the
	// exchange. The body must not be changed any more.
	post(x *exchange, address string, body []byte, limit time.Duration) func(ctx context.Context) (incoming, error)
	closeIdle()
}

// incoming is a replica's answer.
type incoming struct {
	status int
	length int64 // of the body; -1 when it is not known
	fields []http1.Field
	// announced is the value of the field Trailer.
	announced string
	body      incomingBody
}

// incomingBody is the body of an answer. Until SetPause is called the time of
// AnswerTimeout goes on; afterwards each read has d. Close is called once.
type incomingBody interface {
	io.ReadCloser
	SetPause(d time.Duration)
	Trailer() []http1.Field // after io.EOF
}

// errSlow is a replica that kept silent.
var errSlow = errors.New("the replica kept silent for too long")

// newUpstream makes the client that the configuration names.
func newUpstream(c Config) (upstream, error) {
	if c.Upstream == UpstreamNetHTTP {
		return newTransport(c), nil
	}
	cfg := http1.DefaultConfig()
	cfg.DialTimeout, cfg.MaxIdlePerHost = c.DialTimeout, c.MaxIdleConns
	client, err := http1.New(cfg)
	if err != nil {
		return nil, err
	}
	return &direct{client}, nil
}

// direct is an upstream over package http1.
type direct struct{ client *http1.Client }

func (d *direct) closeIdle() { d.client.CloseIdle() }

func (d *direct) do(x *exchange) (incoming, error) {
	address := x.grant.Address()
	q := &x.outgoing
	*q = http1.Request{Address: address, Host: x.hostOf(address), Method: x.r.Method, Target: x.target(),
		Fields: x.requestFields(), Timeout: x.gw.cfg.AnswerTimeout}
	q.Body, q.Length = x.sentBody(x.parts[:0])
	if x.body.tail != nil {
		q.Tail = x.body.tail
	}
	resp, err := d.client.Do(x.context(), q)
	if err != nil {
		if q.TailRead {
			x.body.spent = true
		}
		return incoming{}, unsent(slow(err))
	}
	return answered(resp), nil
}

func (d *direct) post(x *exchange, address string, body []byte, limit time.Duration) func(context.Context) (incoming, error) {
	q := &http1.Request{Address: address, Host: address, Method: x.r.Method, Target: x.target(),
		Fields: bytes.Clone(x.requestFields()), Body: [][]byte{body}, Length: int64(len(body)), Timeout: limit}
	return func(ctx context.Context) (incoming, error) {
		resp, err := d.client.Do(ctx, q)
		if err != nil {
			return incoming{}, unsent(slow(err))
		}
		return answered(resp), nil
	}
}

func answered(resp *http1.Response) incoming {
	return incoming{status: resp.Status, length: resp.Length, fields: resp.Fields, announced: resp.Announced, body: quiet{resp}}
}

// unsent marks a failure before anything was sent.
func unsent(err error) error {
	var failed *http1.Error
	if errors.As(err, &failed) && failed.Unsent {
		return dispatch.Unsent(err)
	}
	return err
}

// slow names a timeout as the gateway does.
func slow(err error) error {
	if errors.Is(err, http1.ErrTimeout) {
		return errSlow
	}
	return err
}

// quiet names its timeouts as the gateway does.
type quiet struct{ *http1.Response }

func (q quiet) Read(p []byte) (int, error) {
	n, err := q.Response.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // io.EOF comes as it is, and often
		err = slow(err)
	}
	return n, err
}

// patience ends a request of net/http that makes no progress.
type patience struct {
	timer *time.Timer
	pause time.Duration // for every read; 0: the first limit goes on
	end   context.CancelCauseFunc
}

// newPatience returns a context that ends after limit unless it is renewed.
func newPatience(ctx context.Context, limit time.Duration) (context.Context, *patience) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &patience{end: cancel, timer: time.AfterFunc(limit, func() { cancel(errSlow) })}
}

func (p *patience) stop() {
	p.timer.Stop()
	p.end(nil)
}
