package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// TestQueryThatBreaksTheRequestLine: HTTP/2 can carry what HTTP/1.1 cannot. It
// is refused, and no replica is blamed for it.
func TestQueryThatBreaksTheRequestLine(t *testing.T) {
	r := newRig(t, nil)
	var calls atomic.Int32
	r.d.SetPool(pool("iris", replicaServer(t, func(w http.ResponseWriter, req *http.Request) { calls.Add(1); echo(w, req) })))
	for _, query := range []string{"a b", "a HTTP/1.1\r\nX-Smuggled: 1\r\n\r\n", "\x7f"} {
		req := httptest.NewRequest("POST", "/v2/models/iris/infer", strings.NewReader("{}"))
		req.URL.RawQuery = query
		w := httptest.NewRecorder()
		r.gw.Handler().ServeHTTP(w, req)
		if w.Code != 400 || calls.Load() != 0 {
			t.Errorf("%q: %d %s, %d calls", query, w.Code, w.Body, calls.Load())
		}
	}
	r.send("POST", "/v2/models/iris/infer?a=b%20c", "{}").want(t, 200)
}
