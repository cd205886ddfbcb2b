package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// Explain says what would become of a request if it came now: which route it
// takes, whether it goes on, waits or is shed, and which replica would answer
// it and why. It is read as any other, but nobody is asked or woken, nothing
// is counted, and no key is needed. The error is what its sender would be told.
func (g *Gateway) Explain(r *http.Request) (dispatch.Explanation, error) {
	own := errors.New(r.Method + " " + r.URL.Path + " is answered by the gateway itself")
	if strings.HasPrefix(r.URL.EscapedPath(), "/v2/repository/") {
		return dispatch.Explanation{}, own // it would load and unload
	}
	cfg := g.cfg
	cfg.Keys, cfg.AccessLog, cfg.Tracer, cfg.CORSOrigins = nil, nil, nil, nil
	apart := &Gateway{cfg: cfg, dispatch: g.dispatch, log: g.log, metrics: observe.NewMetrics(g.dispatch, nil)}
	apart.buffered.Limit = cfg.MaxBodyBytes
	w := &explained{header: http.Header{}}
	apart.serve(w, r)
	switch {
	case w.found:
		return w.explanation, nil
	case w.err != nil:
		return dispatch.Explanation{}, w.err
	case w.code < http.StatusBadRequest:
		return dispatch.Explanation{}, own
	}
	var said struct {
		Error string `json:"error"`
	}
	if err := json.Unmarshal(w.body.Bytes(), &said); err != nil || said.Error == "" {
		return dispatch.Explanation{}, errors.New(w.body.String())
	}
	return dispatch.Explanation{}, errors.New(said.Error)
}

// explained is where the answer to a request goes that is only explained. Its
// surface is the Open Inference Protocol's, whose errors are one string.
type explained struct {
	header http.Header
	code   int
	body   bytes.Buffer

	found       bool
	explanation dispatch.Explanation
	err         error
}

func (e *explained) Header() http.Header         { return e.header }
func (e *explained) WriteHeader(code int)        { e.code = code }
func (e *explained) Write(b []byte) (int, error) { return e.body.Write(b) }

// explains says whether the request is only to be explained, and does so.
func (x *exchange) explains() bool {
	w, ok := x.w.(*explained)
	if ok {
		w.explanation, w.err = x.gw.dispatch.Explain(x.query())
		w.found = w.err == nil
	}
	return ok
}
