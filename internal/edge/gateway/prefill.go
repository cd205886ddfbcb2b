package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// maxPrefillAnswer bounds what is read of a prefill replica's answer. It lists
// the prompt's blocks: some 60 KB for 128,000 tokens.
const maxPrefillAnswer = 4 << 20

// The results of a request to a prefill replica, as metrics name them.
const (
	prefillComputed = "computed"
	prefillRefused  = "refused" // as the decode replica may do as well
	prefillFailed   = "failed"
)

// memberTransfer is what vLLM's engines read and say of a prompt's KV.
const memberTransfer = "kv_transfer_params"

// prefillParams asks vLLM's connectors to compute a prompt and keep its KV for
// another engine.
const prefillParams = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// sglangBootstrapPort is where SGLang's prefill servers meet their decode
// servers unless --disaggregation-bootstrap-port says otherwise.
const sglangBootstrapPort = "8998"

// maxBootstrapRoom is below the largest bootstrap room: an engine counts on from the first,
// one for each prompt and choice of a request.
const maxBootstrapRoom = 1<<63 - 1<<32

// disaggregation is how the granted pool's prefill and decode replicas work
// together.
func disaggregation(g *dispatch.Grant) service.Disaggregation {
	if p := g.Pool(); p != nil && p.Disaggregation != "" {
		return p.Disaggregation
	}
	return service.DisaggregationHeader
}

// prefill has another replica than the granted one compute the prompt of one
// request, where the pool's engines expect the gateway to ask for that.
type prefill struct {
	*transport
	grant *dispatch.Grant
	req   *request

	// concurrent is for a prefill replica that works at the same time as the
	// decode replica. It ends with the client's request, and with the prefill
	// replica's failure, which is its cause; nil without such a replica.
	concurrent context.Context
	cancel     context.CancelCauseFunc // ends both
	detach     func() bool             // lets the prefill replica finish after the exchange
	begun      *atomic.Bool            // the decode replica has begun to answer, so it has the prompt's KV
}

// prefillError is why a prefill replica failed, without which the decode replica
// cannot answer.
type prefillError struct {
	address string
	err     error
}

func (e *prefillError) Error() string { return "prefill replica " + e.address + ": " + e.err.Error() }

// Unwrap returns what went wrong.
func (e *prefillError) Unwrap() error { return e.err }

var (
	errNoPrefill = errors.New("no prefill replica is ready")
	// errPrefillRefused: the prefill replica does not accept the request.
	errPrefillRefused = errors.New("the prefill replica refuses the request")
)

// start prepares a try: it asks a prefill replica where the granted replica needs
// one. An error fails the try.
func (f *prefill) start() error {
	if f.req.replaced != nil { // for the replica of the try before
		f.req.replace(nil)
		f.end(false)
	}
	if f.req.parsed == nil || f.req.form {
		return nil
	}
	switch disaggregation(f.grant) {
	case service.DisaggregationVLLM:
		f.first()
	case service.DisaggregationSGLang:
		return f.both()
	case service.DisaggregationHeader: // nameTry
	}
	return nil
}

// context returns the context of the request to the granted replica.
func (f *prefill) context() context.Context {
	if f.concurrent != nil {
		return f.concurrent
	}
	return f.req.r.Context()
}

// cause returns the prefill replica's failure if a try failed for that. The
// request is then tried as if nothing had been sent: neither replica answered.
func (f *prefill) cause(err error) error {
	if f.concurrent == nil || f.req.r.Context().Err() != nil {
		return err
	}
	var failed *prefillError
	if errors.As(context.Cause(f.concurrent), &failed) {
		f.grant.Prefilled(lost(failed.err))
		return dispatch.Unsent(failed)
	}
	return err
}

// answers notes that the decode replica has begun to answer: what becomes of the prefill
// replica from here on does not matter to it.
func (f *prefill) answers() {
	if f.concurrent != nil {
		f.begun.Store(true)
	}
}

// retry finds another prefill replica if a try failed for its first one.
func (f *prefill) retry(err error) bool {
	var failed *prefillError
	return errors.As(err, &failed) && f.grant.RetryPrefill()
}

// end stops the prefill replica, unless the client got the decode replica's
// answer: then its work is done, and it may finish its own answer.
func (f *prefill) end(answered bool) {
	if f.concurrent == nil {
		return
	}
	if answered && f.req.r.Context().Err() == nil {
		f.detach()
	} else {
		f.cancel(nil)
	}
	f.concurrent = nil
}

// first has the grant's prefill replica, if there is one, compute the prompt, and
// tells the decode replica where the KV is. If that fails the decode replica
// computes the prompt.
func (f *prefill) first() {
	params := []byte("null") // a client must not choose where KV is fetched
	if to := f.grant.Prefill(); to != "" && f.req.single() {
		found, err := f.compute(to)
		if f.req.r.Context().Err() != nil {
			return
		}
		outcome := prefillComputed
		switch {
		case errors.Is(err, errPrefillRefused):
			outcome = prefillRefused
			f.grant.Prefilled(nil)
		case err != nil:
			outcome = prefillFailed
			f.warnings.Warn(time.Now(), "prefill failed: the decode replica computes the prompt", f.grant.Service()+" "+to,
				"request", f.req.id, "service", f.grant.Service(), "replica", f.grant.Replica(), "prefill", to, "error", err)
			f.grant.Prefilled(lost(err))
		default:
			params = found
			f.grant.Prefilled(nil)
		}
		f.metrics.Prefilled(f.grant.Service(), outcome)
	}
	told := len(params) > len("null")
	if !told && !f.req.parsed.Transfer {
		return
	}
	if b, err := f.req.changed(f.grant.Model(), openai.Change{Key: memberTransfer, Value: params, Add: told}); err == nil { // it was parsed before
		f.req.replace(b)
	}
}

// compute has a replica compute the prompt and one token, as vLLM's own proxy
// does, and returns what it says of where the KV is.
func (f *prefill) compute(address string) ([]byte, error) {
	one, no := []byte("1"), []byte("null")
	body, err := f.req.changed(f.grant.Model(),
		openai.Change{Key: "max_tokens", Value: one, Add: true}, openai.Change{Key: "max_completion_tokens", Value: one},
		openai.Change{Key: "min_tokens", Value: []byte("0")},
		openai.Change{Key: "stream", Value: []byte("false")}, openai.Change{Key: "stream_options", Value: no},
		openai.Change{Key: memberTransfer, Value: []byte(prefillParams), Add: true})
	if err != nil {
		return nil, err
	}
	f.buffered.Add(int64(len(body)))
	defer f.buffered.Give(int64(len(body)))
	in, err := f.upstream.send(f.req.r.Context(), f.req.copyTo(address, f.grant, body, f.cfg.PrefillTimeout))
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.body.Close() }() // what matters was read
	answer, err := io.ReadAll(io.LimitReader(in.body, maxPrefillAnswer+1))
	if err != nil {
		return nil, err
	}
	if err := prefillStatus(in.status); err != nil {
		return nil, err
	}
	if len(answer) > maxPrefillAnswer {
		return nil, fmt.Errorf("its answer is over %d bytes", maxPrefillAnswer)
	}
	at, err := openai.Find(answer, memberTransfer)
	if err != nil {
		return nil, fmt.Errorf("its answer: %w", err)
	}
	params := at.Of(answer)
	if len(params) == 0 || params[0] != '{' {
		return nil, fmt.Errorf("its answer has no %s: the engine transfers no KV", memberTransfer)
	}
	return params, nil
}

// both sends the request to the prefill replica as well. Both get the address of
// its bootstrap server and one random room, as SGLang's servers expect, and
// exchange the rest themselves. A list of prompts or several choices take as many
// rooms from that one on.
func (f *prefill) both() error {
	if !strings.HasSuffix(f.req.r.URL.Path, "/completions") {
		return nil
	}
	to := f.grant.Prefill()
	host, _, err := net.SplitHostPort(to)
	if err != nil {
		return dispatch.Unsent(errNoPrefill)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	port := sglangBootstrapPort
	if _, p, err := net.SplitHostPort(f.grant.PrefillGRPC()); err == nil {
		port = p
	}
	body, err := f.req.changed(f.grant.Model(),
		openai.Change{Key: "bootstrap_host", Value: openai.AppendQuoted(nil, host), Add: true},
		openai.Change{Key: "bootstrap_port", Value: []byte(port), Add: true},
		openai.Change{Key: "bootstrap_room", Value: strconv.AppendInt(nil, rand.Int64N(maxBootstrapRoom), 10), Add: true})
	if err != nil {
		return err
	}
	f.req.replace(body)
	ctx, fail := context.WithCancelCause(f.req.r.Context())
	own, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	f.concurrent, f.cancel, f.detach = ctx, fail, context.AfterFunc(ctx, func() { stop(nil) })
	f.begun = &atomic.Bool{}
	// The goroutine may outlast the exchange, so it uses nothing of it.
	begun, t, pool, q := f.begun, f.transport, f.grant.Service(), f.req.copyTo(to, f.grant, body, f.answerTimeout(f.grant))
	go func() {
		defer stop(nil)
		err := discardAnswer(t.upstream.send(own, q))
		outcome := prefillComputed
		switch {
		case own.Err() != nil:
			return // nobody waits for it
		case errors.Is(err, errPrefillRefused):
			outcome = prefillRefused // the decode replica will say why
		case err != nil:
			if outcome = prefillFailed; !begun.Load() {
				fail(&prefillError{to, err})
			}
		}
		t.metrics.Prefilled(pool, outcome)
	}()
	return nil
}

// discardAnswer reads a prefill replica's answer to its end.
func discardAnswer(in incoming, err error) error {
	if err != nil {
		return err
	}
	defer func() { _ = in.body.Close() }() // what matters was read
	n, err := io.Copy(io.Discard, io.LimitReader(in.body, maxPrefillAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("reading its answer: %w", err)
	case n > maxPrefillAnswer:
		return fmt.Errorf("its answer is over %d bytes", maxPrefillAnswer)
	}
	return prefillStatus(in.status)
}

// prefillStatus returns the error that a prefill replica's status stands for.
func prefillStatus(code int) error {
	switch {
	case code/100 == 4:
		return fmt.Errorf("%w: %d", errPrefillRefused, code)
	case code != http.StatusOK:
		return fmt.Errorf("it answers %d", code)
	}
	return nil
}
