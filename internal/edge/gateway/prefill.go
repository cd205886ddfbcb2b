package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// maxPrefillAnswer bounds what is read of a prefill replica's answer. It lists
// the prompt's blocks: some 60 KB for 128,000 tokens.
const maxPrefillAnswer = 4 << 20

// What came of asking a prefill replica.
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

// disaggregation is how the granted pool's prefill and decode replicas are
// brought together.
func (x *exchange) disaggregation() service.Disaggregation {
	if p := x.grant.Pool(); p != nil && p.Disaggregation != "" {
		return p.Disaggregation
	}
	return service.DisaggregationHeader
}

// sentBody appends to dst the parts of the body to send that are held, and
// returns the whole body's length, -1 when it is not known.
func (x *exchange) sentBody(dst [][]byte) ([][]byte, int64) {
	if x.replaced != nil {
		return append(dst, x.replaced), int64(len(x.replaced))
	}
	return x.body.parts(dst, x.splice())
}

// replace sends b in place of the body; nil sends the body. Its memory counts
// until the body is released, but nobody is refused for it who is here.
func (x *exchange) replace(b []byte) {
	more := int64(len(b) - len(x.replaced))
	x.gw.buffered.Add(more)
	x.body.held += more
	x.replaced = b
}

// prefill prepares what is to be sent to the granted replica where another
// computes the prompt for it and the gateway has to ask that. An error is the
// try's.
func (x *exchange) prefill() error {
	if x.replaced != nil { // it was for another replica
		x.replace(nil)
		x.unpair()
	}
	if x.parsed == nil || x.form {
		return nil
	}
	switch x.disaggregation() {
	case service.DisaggregationVLLM:
		x.prefillFirst()
	case service.DisaggregationSGLang:
		return x.prefillBoth()
	case service.DisaggregationHeader: // namePrefill
	}
	return nil
}

// prefillFirst has the grant's prefill replica compute the prompt, if there is
// one, and tells the decode replica where the KV is. When that fails the
// decode replica computes the prompt.
func (x *exchange) prefillFirst() {
	params := []byte("null") // where KV is fetched is not the client's to say
	to := x.grant.Prefill()
	if to != "" && x.splits() {
		found, err := x.computed(to)
		if x.r.Context().Err() != nil {
			return
		}
		outcome := prefillComputed
		switch {
		case errors.Is(err, errPrefillRefused):
			outcome = prefillRefused
			x.grant.Prefilled(nil)
		case err != nil:
			outcome = prefillFailed
			x.gw.log.Warn("prefill failed: the decode replica computes the prompt", x.attrs("prefill", to, "error", err)...)
			x.grant.Prefilled(lost(err))
		default:
			params = found
			x.grant.Prefilled(nil)
		}
		x.gw.metrics.Prefilled(x.service, outcome)
	}
	told := len(params) > len("null")
	if !told && !x.parsed.Transfer {
		return
	}
	if b, err := x.changed(openai.Change{Key: memberTransfer, Value: params, Add: told}); err == nil { // it was parsed before
		x.replace(b)
	}
}

// splits says whether the request is one that two replicas can share: the
// completion of one prompt.
func (x *exchange) splits() bool {
	if !strings.HasSuffix(x.r.URL.Path, "/completions") {
		return false
	}
	body := x.body.head
	if n, err := openai.Find(body, "n"); err != nil || !n.Empty() && string(n.Of(body)) != "1" && string(n.Of(body)) != "null" {
		return false
	}
	// A list is of prompts unless it begins with a number: token ids.
	list, ok := bytes.CutPrefix(x.parsed.Span(openai.Prompt).Of(body), []byte("["))
	first := bytes.TrimLeft(list, " \t\r\n")
	return !ok || len(first) > 0 && first[0] >= '0' && first[0] <= '9'
}

// changed is the body as the replica is to get it, with changes.
func (x *exchange) changed(changes ...openai.Change) ([]byte, error) {
	if name := x.grant.Model(); name != "" && name != x.model {
		changes = append(changes, openai.Change{Key: "model", Value: openai.AppendQuoted(nil, name)})
	}
	return openai.AppendChanged(make([]byte, 0, len(x.body.head)+512), x.body.head, changes...)
}

// errPrefillRefused: the prefill replica finds fault with the request.
var errPrefillRefused = errors.New("the prefill replica refuses the request")

// computed has a replica compute the prompt and one token, as vLLM's own proxy
// does, and returns what it says of where the KV is.
func (x *exchange) computed(address string) ([]byte, error) {
	one, no := []byte("1"), []byte("null")
	body, err := x.changed(
		openai.Change{Key: "max_tokens", Value: one, Add: true}, openai.Change{Key: "max_completion_tokens", Value: one},
		openai.Change{Key: "min_tokens", Value: []byte("0")},
		openai.Change{Key: "stream", Value: []byte("false")}, openai.Change{Key: "stream_options", Value: no},
		openai.Change{Key: memberTransfer, Value: []byte(prefillParams), Add: true})
	if err != nil {
		return nil, err
	}
	x.gw.buffered.Add(int64(len(body)))
	defer x.gw.buffered.Give(int64(len(body)))
	in, err := x.gw.upstream.send(x.r.Context(), x.requestTo(address, body, x.gw.cfg.PrefillTimeout))
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

// prefillStatus is what a prefill replica's status says.
func prefillStatus(code int) error {
	switch {
	case code/100 == 4:
		return fmt.Errorf("%w: %d", errPrefillRefused, code)
	case code != http.StatusOK:
		return fmt.Errorf("it answers %d", code)
	}
	return nil
}
