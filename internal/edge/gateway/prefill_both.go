package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// sglangBootstrapPort is where SGLang's prefill servers meet their decode
// servers unless --disaggregation-bootstrap-port says otherwise.
const sglangBootstrapPort = "8998"

// maxRoom leaves room for the rooms that an engine counts up from the first,
// one for each prompt and choice of a request.
const maxRoom = 1<<63 - 1<<32

// pairing is a request that a prefill and a decode replica work on at the same
// time.
type pairing struct {
	// ctx ends with the client's, and with what the prefill replica failed of.
	ctx  context.Context
	stop context.CancelCauseFunc // ends both
	free func() bool             // lets the prefill replica finish although the exchange has
}

// prefillError is what a prefill replica failed of, without which the decode
// replica cannot answer.
type prefillError struct {
	address string
	err     error
}

func (e *prefillError) Error() string { return "prefill replica " + e.address + ": " + e.err.Error() }

// Unwrap returns what went wrong.
func (e *prefillError) Unwrap() error { return e.err }

var errNoPrefill = errors.New("no prefill replica is ready")

// context is the one that asking the granted replica lives by.
func (x *exchange) context() context.Context {
	if x.pair != nil {
		return x.pair.ctx
	}
	return x.r.Context()
}

// blame finds the prefill replica that a try failed of, if one did. The
// request then waits for a pair as if nothing had been sent: neither answered.
func (x *exchange) blame(err error) error {
	if x.pair == nil || x.r.Context().Err() != nil {
		return err
	}
	var failed *prefillError
	if errors.As(context.Cause(x.pair.ctx), &failed) {
		x.grant.Prefilled(lost(failed.err))
		return dispatch.Unsent(failed)
	}
	return err
}

// again finds another prefill replica, if it was one that the try failed of.
func (x *exchange) again(err error) bool {
	var failed *prefillError
	return errors.As(err, &failed) && x.grant.PrefillAgain()
}

// unpair ends what the prefill replica does, unless the decode replica's
// answer was passed on: then it has done it, and may say so.
func (x *exchange) unpair() {
	if x.pair == nil {
		return
	}
	if x.code/100 == 2 && x.r.Context().Err() == nil {
		x.pair.free()
	} else {
		x.pair.stop(nil)
	}
	x.pair = nil
}

// prefillBoth sends the request to the prefill replica as well, both naming
// that one's bootstrap server and one random room, as SGLang's servers expect.
// They tell each other the rest. A list of prompts or several choices take as
// many rooms from that one on.
func (x *exchange) prefillBoth() error {
	if !strings.HasSuffix(x.r.URL.Path, "/completions") {
		return nil
	}
	to := x.grant.Prefill()
	host, _, err := net.SplitHostPort(to)
	if err != nil {
		return dispatch.Unsent(errNoPrefill)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	port := sglangBootstrapPort
	if _, p, err := net.SplitHostPort(x.grant.PrefillGRPC()); err == nil {
		port = p
	}
	body, err := x.changed(
		openai.Change{Key: "bootstrap_host", Value: openai.AppendQuoted(nil, host), Add: true},
		openai.Change{Key: "bootstrap_port", Value: []byte(port), Add: true},
		openai.Change{Key: "bootstrap_room", Value: strconv.AppendInt(nil, rand.Int64N(maxRoom), 10), Add: true})
	if err != nil {
		return err
	}
	x.replace(body)
	up, request := x.gw.upstream, x.requestTo(to, body, x.answerTimeout())
	ctx, fail := context.WithCancelCause(x.r.Context())
	own, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	x.pair = &pairing{ctx: ctx, free: context.AfterFunc(ctx, func() { stop(nil) }), stop: fail}
	counted := x.gw.metrics
	service := x.service
	go func() {
		defer stop(nil)
		err := discarded(up.send(own, request))
		outcome := prefillComputed
		switch {
		case own.Err() != nil:
			return // nobody waits for it
		case errors.Is(err, errPrefillRefused):
			outcome = prefillRefused // the decode replica will say why
		case err != nil:
			outcome = prefillFailed
			fail(&prefillError{to, err})
		}
		counted.Prefilled(service, outcome)
	}()
	return nil
}

// discarded reads a prefill replica's answer to its end.
func discarded(in incoming, err error) error {
	if err != nil {
		return err
	}
	defer func() { _ = in.body.Close() }() // what matters was read
	if n, err := io.Copy(io.Discard, io.LimitReader(in.body, maxPrefillAnswer+1)); err != nil || n > maxPrefillAnswer {
		return fmt.Errorf("reading its answer: %w", errors.Join(err, errUnread))
	}
	return prefillStatus(in.status)
}

var errUnread = errors.New("it has no end")
