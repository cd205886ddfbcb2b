package gateway

import (
	"encoding/json"
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
	id      string          // of the request, passed on and answered
	code    int             // answered; 0 when nothing was
	timeout time.Duration   // for one write
	writeBy time.Time       // what the connection to the client was told
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

// retryAfter tells the client when to ask again, in whole seconds, at least one.
func (x *response) retryAfter(d time.Duration) {
	x.w.Header().Set(ingress.HeaderRetryAfter, ingress.Seconds(d))
}

func (x *response) plain(text string) {
	x.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	x.write(http.StatusOK, []byte(text))
}

// reply answers v as JSON.
func (x *response) reply(status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		x.fail(http.StatusInternalServerError, err.Error())
		return
	}
	x.w.Header().Set("Content-Type", "application/json")
	x.write(status, append(b, '\n'))
}

func (x *response) write(status int, body []byte) {
	x.code = status
	x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	_, _ = x.w.Write(body) // the client is gone; there is nobody to tell
}

// fail answers with an error in the surface's form.
func (x *response) fail(status int, message string) { x.failWith(status, message, "", "") }

func (x *response) failWith(status int, message, param, code string) {
	x.w.Header().Set("Content-Type", "application/json")
	x.write(status, surface.ErrorBody(x.surface, status, message, param, code))
}

// copyHeader copies a replica's answer header, announcing its trailers.
func (x *response) copyHeader(in *incoming) {
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
		switch again := named(in.fields[:i], f.Name); {
		case !again:
			values[i] = f.Value
			to[f.Name] = values[i : i+1 : i+1]
		case f.Name != "Content-Length": // which is the same
			to[f.Name] = append(to[f.Name], f.Value)
		}
	}
	if to.Get(observe.HeaderRequestID) == "" {
		to[observe.HeaderRequestID] = []string{x.id}
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
