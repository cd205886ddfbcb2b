package gateway

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

const (
	// maxMirrored is how many copies of requests are under way at a time; beyond them
	// requests are not copied.
	maxMirrored = 64
	// maxMirrorBytes is the longest body that is copied.
	maxMirrorBytes = 1 << 20
	// mirrorTimeout is how long a copy may take in all.
	mirrorTimeout = 5 * time.Minute
)

// copied is a copy of a request for a mirror. It shares nothing with the exchange, so
// another goroutine may send it.
type copied struct {
	*transport
	dispatch  *dispatch.Dispatcher
	to        routing.Mirror
	call      surface.Call
	path      *routing.Handling // of the request's route, which may change its path
	rewritten bool              // see request
	query     string            // of the URL
	model     string
	parsed    *openai.Request // nil where the body names no model
	request   http1.Request
	body      []byte
}

// mirror sends copies of the request where its route says. The answer to the client
// does not wait for them, and nothing of them reaches it.
func (x *exchange) mirror(g *dispatch.Grant) {
	for _, to := range g.Handling().Mirrors {
		q := &x.req
		if len(q.r.Header[routing.HeaderRank]) > 0 || slices.ContainsFunc(ingress.PeerHeaders, func(name string) bool { return len(q.r.Header[name]) > 0 }) {
			continue // they name servers of another pool than the mirror's
		}
		if !q.body.replayable() || q.body.tail != nil || q.form || len(q.body.head) > maxMirrorBytes ||
			to.PerMillion < routing.Whole && rand.Uint32N(routing.Whole) >= to.PerMillion {
			continue
		}
		t := &x.gw.transport
		if t.mirrored.Add(1) > maxMirrored {
			t.mirrored.Add(-1)
			t.metrics.Mirrored(g.Service(), mirrorSkipped)
			continue
		}
		c := &copied{transport: t, dispatch: x.gw.dispatch, to: to, call: q.call, path: g.Handling(), rewritten: q.rewritten != "", query: q.r.URL.RawQuery, model: q.model, body: bytes.Clone(q.body.head),
			request: http1.Request{Method: q.r.Method, Fields: bytes.Clone(q.header())}}
		if q.parsed != nil {
			parsed := *q.parsed
			c.parsed = &parsed
		}
		t.buffered.Add(int64(len(c.body)))
		service := g.Service()
		go func() {
			defer t.mirrored.Add(-1)
			defer t.buffered.Give(int64(len(c.body)))
			outcome := mirrorAnswered
			if err := c.send(); err != nil {
				outcome = mirrorFailed
				t.log.Debug("a copy of a request failed", "mirror", to.String(), "error", err)
			}
			t.metrics.Mirrored(service, outcome)
		}()
	}
}

// What became of copies, as metrics name it.
const (
	mirrorAnswered = "answered"
	mirrorFailed   = "failed"
	mirrorSkipped  = "skipped" // too many were under way
)

// send has a replica of the mirror answer, and discards what it says. The mirror's
// replicas are not woken for it.
func (c *copied) send() error {
	ctx, cancel := context.WithTimeout(context.Background(), mirrorTimeout)
	defer cancel()
	g, err := c.dispatch.Admit(ctx, dispatch.Request{To: c.to.Ref, Model: c.model, Method: c.request.Method, Protocol: c.call.Protocol,
		Bytes: int64(len(c.body)), Copy: true, Deadline: time.Now().Add(mirrorTimeout)})
	if err != nil {
		return err
	}
	var outcome dispatch.Outcome
	defer func() { g.Done(outcome) }()
	name := c.to.Model
	switch {
	case name != "":
	case c.to.Pool:
		name = g.Model()
	default:
		name = g.Pool().ServedName
	}
	out := &c.request
	prefix := ""
	if p := g.Pool(); p != nil {
		prefix = p.OpenAIPrefix
	}
	out.Address, out.Host, out.Target, out.Timeout = g.Address(), g.Address(), pathFor(&c.call, c.path, c.rewritten, prefix, name), c.answerTimeout(g)
	if c.query != "" {
		out.Target += "?" + c.query
	}
	if rank := g.Rank(); rank != "" {
		out.Fields = http1.AppendField(out.Fields, routing.HeaderRank, rank)
	}
	body := c.body
	if c.parsed != nil && name != "" && name != c.model {
		body = append(c.parsed.RenamedHead(c.body, name), c.body[c.parsed.ModelSpan.End:]...)
	}
	out.Body, out.Length = [][]byte{body}, int64(len(body))
	in, err := c.upstream.send(ctx, out)
	if err == nil {
		if in.status >= http.StatusBadRequest {
			g.Answered(dispatch.Answer{Result: breaker.OfStatus(in.status), RetryAfter: retryAfter(in.fields, time.Now())})
		}
		g.FirstByte()
		err = discardAnswer(in, nil)
	}
	if isLost(err) {
		outcome.Failed = err
	}
	return err
}
