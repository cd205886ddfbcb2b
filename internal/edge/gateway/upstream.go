package gateway

import (
	"context"
	"errors"
	"io"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// upstream sends requests to replicas over HTTP/1.1.
type upstream interface {
	// send returns when the answer's header has come. A failure before anything
	// was sent is marked dispatch.Unsent; errSlow is a replica that did not answer
	// within the request's Timeout. The caller closes the answer's body.
	send(ctx context.Context, q *http1.Request) (incoming, error)
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

// client is the upstream over package http1.
type client struct{ *http1.Client }

func newClient(c Config) (client, error) {
	cfg := http1.DefaultConfig()
	cfg.DialTimeout, cfg.MaxIdlePerHost = c.DialTimeout, c.MaxIdleConns
	made, err := http1.New(cfg)
	return client{made}, err
}

func (c client) closeIdle() { c.CloseIdle() }

func (c client) send(ctx context.Context, q *http1.Request) (incoming, error) {
	resp, err := c.Do(ctx, q)
	if err != nil {
		return incoming{}, unsent(slow(err))
	}
	return incoming{status: resp.Status, length: resp.Length, fields: resp.Fields, announced: resp.Announced, body: quiet{resp}}, nil
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
