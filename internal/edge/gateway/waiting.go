package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

const (
	// HeaderWaiting asks, with the value WaitingComments, to be told by comments in
	// the event stream what the request waits for.
	HeaderWaiting   = "X-Roundhouse-Waiting"
	WaitingComments = "comments"
	// headerWaited is how many milliseconds a request has waited for a replica.
	// Answers to requests that did not wait lack it.
	headerWaited = "X-Roundhouse-Waited-Ms"
)

// askedComments is how often clients that ask for comments get one.
const askedComments = 2 * time.Second

// tellsWaiting reports whether the client is told by comments what its request
// waits for.
func (x *exchange) tellsWaiting() bool {
	q := &x.req
	return q.call.Events && q.parsed != nil && q.parsed.Stream && q.r.ProtoAtLeast(1, 1) &&
		(x.gw.cfg.WaitingComments > 0 || strings.EqualFold(q.r.Header.Get(HeaderWaiting), WaitingComments))
}

// tellWaiting implements dispatch.Request.Waiting. The first comment sends the
// header of the answer: whatever comes later must fit in an event stream.
func (x *exchange) tellWaiting(w dispatch.Wait) time.Duration {
	every := x.gw.cfg.WaitingComments
	if every == 0 {
		every = askedComments
	}
	now := time.Now()
	if now.Sub(x.seen.Begun) < every {
		return every - now.Sub(x.seen.Begun)
	}
	if !x.waiting {
		x.waiting, x.code = true, http.StatusOK
		x.req.setHeader("Accept-Encoding", "identity") // events follow comments that are not compressed
		h := x.w.Header()
		h["Content-Type"], h["Cache-Control"], h["X-Accel-Buffering"] = []string{"text/event-stream"}, []string{"no-cache"}, []string{"no"}
		x.w.WriteHeader(http.StatusOK)
	}
	x.stream([]byte(": " + w.String() + "\n\n"))
	// The next write may come later than the deadline of this one, which would end
	// a stream of HTTP/2.
	x.writeBy = time.Time{}
	_ = x.rc.SetWriteDeadline(x.writeBy)
	return every
}

// stream writes b, whole events or comments, to the client at once. If the client
// is gone, its context ends the request.
func (x *response) stream(b []byte) {
	x.writeDeadline(time.Now())
	x.sent += int64(len(b))
	if _, err := x.w.Write(b); err == nil {
		_ = x.rc.Flush()
	}
}

// failStream ends an event stream of comments with an error. The status is what
// metrics and the access log have: the client got 200.
func (x *response) failStream(f *failure) {
	x.code = f.status
	x.stream(appendErrorEvent(nil, surface.ErrorBody(x.surface, f.status, f.message, f.param, f.code)))
}

// maxErrorAnswer bounds what is read of an answer that is no event stream, in
// bytes.
const maxErrorAnswer = 64 << 10

// joinStream prepares to pass on a replica's event stream after comments. It reports
// false where the replica refused the request: the client has got the error, in the
// replica's own words, as an event.
func (x *exchange) joinStream(in *incoming, out *relay) (joined bool, err error) {
	if x.picker.picked != nil {
		x.picker.picked.Answered(in.status, x.w.Header(), x.proxy.grant.Address())
	}
	if in.status == http.StatusOK && isEventStream(in.fields) {
		out.flush, out.events = true, true
		return true, nil
	}
	if in.status/100 == 2 {
		return false, &failure{status: http.StatusBadGateway, code: codeReplicaFailed,
			message: fmt.Sprintf("the replica answered %d without an event stream, although the request has \"stream\": true", in.status)}
	}
	in.body.SetPause(x.gw.cfg.StallTimeout)
	rest, _ := io.ReadAll(io.LimitReader(in.body, maxErrorAnswer)) // what came is all there is to tell
	said := append(bytes.Clone((*out.buf)[:out.n]), rest...)
	var line bytes.Buffer
	if json.Compact(&line, said) == nil {
		if found, err := openai.Find(line.Bytes(), "error"); err == nil && !found.Empty() {
			x.stream(appendErrorEvent(nil, line.Bytes()))
			return false, nil
		}
	}
	x.reason = fmt.Sprintf("the replica answered %d", in.status) // in no words that may repeat a body
	return false, &failure{status: in.status, message: fmt.Sprintf("the replica answered %d: %s", in.status, excerpt.Of(string(bytes.TrimSpace(said)), 1000))}
}
