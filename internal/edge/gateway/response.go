package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
)

// response is the answer to one request, on its way to the client.
type response struct {
	w       http.ResponseWriter
	rc      http.ResponseController
	surface surface.Surface // whose form errors have
	code    int             // answered; 0 when nothing was
	timeout time.Duration   // for one write
	writeBy time.Time       // what the connection to the client was told
	// waiting: the answer has begun, as an event stream of comments. What follows is
	// its events; an error is one of them.
	waiting bool
	// Of what the gateway answers by itself: the bytes of its body, and of an error
	// why.
	sent   int64
	reason string
	head   bool // the request is a HEAD, whose answer has no body
}

// writeDeadline gives the next writes ClientTimeout, or up to an eighth more:
// the deadline is touched only when the present one comes too early.
func (x *response) writeDeadline(now time.Time) {
	limit := x.timeout
	if x.writeBy.Sub(now) < limit {
		x.writeBy = now.Add(limit + limit/8)
		// Not every ResponseWriter has deadlines (HTTP servers' do).
		_ = x.rc.SetWriteDeadline(x.writeBy)
	}
}

func (x *response) plain(text string) {
	x.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	x.write(http.StatusOK, []byte(text))
}

// reply answers v as JSON.
func (x *response) reply(status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		x.fail(&failure{status: http.StatusInternalServerError, message: err.Error()})
		return
	}
	x.w.Header().Set("Content-Type", "application/json")
	x.write(status, append(b, '\n'))
}

func (x *response) write(status int, body []byte) {
	x.code = status
	x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	x.sent += int64(len(body))
	_, _ = x.w.Write(body) // the client is gone; there is nobody to tell
}

// failure is an error as the client gets it.
type failure struct {
	status               int
	message, param, code string        // OpenAI's errors alone have param and code
	retryAfter           time.Duration // 0: not known
	closes               bool          // the connection: the request was not read to its end
	challenge, allow     string        // WWW-Authenticate, Allow
}

// Error is the message.
func (f *failure) Error() string { return f.message }

// fail answers with an error in the surface's form.
func (x *response) fail(f *failure) {
	x.reason = cmp.Or(x.reason, f.message)
	if x.waiting {
		x.failStream(f)
		return
	}
	h := x.w.Header()
	for name, value := range map[string]string{"WWW-Authenticate": f.challenge, "Allow": f.allow} {
		if value != "" {
			h.Set(name, value)
		}
	}
	if f.closes {
		h.Set("Connection", "close")
	}
	if f.retryAfter > 0 {
		h.Set(ingress.HeaderRetryAfter, ingress.Seconds(f.retryAfter))
	}
	h["Content-Type"] = []string{"application/json"}
	if x.head {
		h["Content-Type"] = nil // clients may read what it announces, and nothing comes
	}
	x.write(f.status, surface.ErrorBody(x.surface, f.status, f.message, f.param, f.code))
}

// failureOf is a refusal as HTTP's clients get it.
func failureOf(r *ingress.Refusal) *failure {
	f := &failure{message: r.Message, retryAfter: r.RetryAfter}
	switch r.Reason {
	case ingress.NoKey:
		f.status, f.code, f.challenge = http.StatusUnauthorized, "missing_api_key", `Bearer realm="roundhouse"`
	case ingress.BadKey:
		f.status, f.code, f.challenge = http.StatusUnauthorized, "invalid_api_key", `Bearer realm="roundhouse", error="invalid_token"`
	case ingress.OverLimit:
		f.status, f.code = http.StatusTooManyRequests, "rate_limit_exceeded"
	case ingress.Forbidden:
		f.status, f.param, f.code = http.StatusForbidden, "model", "model_not_allowed"
	case ingress.Unnamed:
		f.status, f.param = http.StatusBadRequest, "model"
	case ingress.NotFound:
		f.status, f.param, f.code = http.StatusNotFound, "model", "model_not_found"
	case ingress.OtherAPI:
		f.status, f.code = http.StatusNotFound, "protocol_not_spoken"
	case ingress.QueueFull:
		f.status, f.code = http.StatusTooManyRequests, "queue_full"
	case ingress.Unavailable:
		f.status, f.code = http.StatusServiceUnavailable, "model_unavailable"
	case ingress.Internal, ingress.NoBackend:
		f.status = http.StatusInternalServerError
	}
	return f
}

// refusedBy is the label of a refusal in metrics; "" where none counts it.
func refusedBy(r ingress.Reason) string {
	switch r { //nolint:exhaustive // the others are not of keys
	case ingress.NoKey:
		return "no_key"
	case ingress.BadKey:
		return "bad_key"
	case ingress.OverLimit:
		return "limit"
	case ingress.Forbidden:
		return "model"
	}
	return ""
}

// bodyFailure is the error of a body that could not be read because of err.
func bodyFailure(ctx context.Context, err error, cfg *Config) error {
	if err == nil {
		return nil // before what follows is allocated
	}
	var large *http.MaxBytesError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &timeout) && timeout.Timeout(): // before the context, which the server ends too
		return &failure{status: http.StatusRequestTimeout, closes: true,
			message: fmt.Sprintf("the body came too slowly: nothing for %v, or less than %d bytes a second", cfg.ClientTimeout, leastRate)}
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &large):
		return &failure{status: http.StatusRequestEntityTooLarge, closes: true,
			message: fmt.Sprintf("the body is larger than %d bytes, the most this gateway takes", large.Limit)}
	case errors.Is(err, errNoMemory), errors.Is(err, errNoShare):
		return &failure{status: http.StatusTooManyRequests, message: err.Error(), retryAfter: time.Second}
	}
	return &failure{status: http.StatusBadRequest, message: "the body could not be read: " + err.Error()}
}

// copyHeader copies the header of a replica's answer to the request id, and
// announces its trailers.
func (x *response) copyHeader(in *incoming, id string) {
	to := x.w.Header()
	var connection []string
	for _, f := range in.fields {
		if f.Name == "Connection" {
			connection = append(connection, f.Value)
		}
	}
	values := make([]string, len(in.fields)) // one array for all
	for i, f := range in.fields {
		if http1.HopByHop(f.Name) || connection != nil && listed(connection, f.Name) {
			continue
		}
		if in.status == http.StatusNoContent && f.Name == "Content-Length" {
			continue // there is no body to have a length, and a client might wait for one
		}
		switch repeated := named(in.fields[:i], f.Name); {
		case !repeated:
			values[i] = f.Value
			to[f.Name] = values[i : i+1 : i+1]
		case f.Name != "Content-Length": // which is the same
			to[f.Name] = append(to[f.Name], f.Value)
		}
	}
	if to.Get(observe.HeaderRequestID) == "" {
		to[observe.HeaderRequestID] = []string{id}
	}
	if in.announced != "" {
		to["Trailer"] = []string{in.announced}
	}
}

// copyTrailer passes on the trailers that followed the body.
func (x *response) copyTrailer(in *incoming) {
	fields := in.body.Trailer()
	if len(fields) == 0 {
		return
	}
	announced := []string{in.announced}
	to := x.w.Header()
	for i, f := range fields {
		name := f.Name
		if !listed(announced, name) {
			name = http.TrailerPrefix + name
		}
		if named(fields[:i], f.Name) {
			to[name] = append(to[name], f.Value)
		} else {
			to[name] = []string{f.Value}
		}
	}
}

// refusedByPicker gives the client the picker's own answer.
func (x *response) refusedByPicker(own *PickerRefusal) {
	if x.waiting {
		x.fail(&failure{status: own.Status, message: "the pool's endpoint picker refused the request", code: "endpoint_picker"})
		return
	}
	to := x.w.Header()
	for name, values := range own.Header {
		to[name] = values
	}
	if len(own.Body) == 0 && to.Get("Content-Type") == "" && own.Status >= http.StatusBadRequest {
		x.fail(&failure{status: own.Status, message: "the pool's endpoint picker refused the request", code: "endpoint_picker"})
		return
	}
	if own.Status >= http.StatusBadRequest {
		x.reason = "the pool's endpoint picker refused the request"
	}
	x.write(own.Status, own.Body)
}
