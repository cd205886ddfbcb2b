package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

const streamBody = `{"model":"chat","stream":true,"messages":[{"role":"user","content":"hi"}],"max_tokens":3}`

// asleep is a rig whose service chat starts when the test says so.
func asleep(t *testing.T, mutate func(*Config, *dispatch.Config)) *rig {
	r := newRig(t, mutate)
	p := pool("chat")
	p.Startup = 30 * time.Second
	r.d.SetPool(p)
	return r
}

// stream asks and returns the answer with a reader of its lines.
func (r *rig) stream(path, body string, header ...string) (*http.Response, *bufio.Reader) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp, bufio.NewReader(resp.Body)
}

func commentsAfter(d time.Duration) func(*Config, *dispatch.Config) {
	return func(c *Config, _ *dispatch.Config) { c.WaitingComments = d }
}

// TestWaitingComments reads comments and then a replica's events.
func TestWaitingComments(t *testing.T) {
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/openai/v1/chat/completions"} {
		r := asleep(t, commentsAfter(time.Millisecond))
		var encoding string
		address := replicaServer(t, func(w http.ResponseWriter, q *http.Request) {
			encoding = q.Header.Get("Accept-Encoding")
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("X-Own", "late")
			_, _ = io.WriteString(w, "data: 1\n\ndata: [DONE]\n\n")
		})
		resp, in := r.stream(path, streamBody, "Accept-Encoding", "gzip")
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || resp.Header.Get("X-Request-Id") == "" {
			t.Fatalf("%s: %d %v", path, resp.StatusCode, resp.Header)
		}
		for i := range 2 {
			if comment, err := in.ReadString('\n'); err != nil || comment != ": starting, 0 s of about 30 s\n" {
				t.Fatalf("%s: comment %d is %q (%v)", path, i, comment, err)
			}
			if empty, _ := in.ReadString('\n'); empty != "\n" {
				t.Fatalf("%s: after the comment comes %q", path, empty)
			}
		}
		r.d.SetPool(pool("chat", address))
		rest, err := io.ReadAll(in)
		if err != nil || !strings.HasSuffix(string(rest), "\n\ndata: 1\n\ndata: [DONE]\n\n") && string(rest) != "data: 1\n\ndata: [DONE]\n\n" {
			t.Errorf("%s: then %q (%v)", path, rest, err)
		}
		if encoding != "identity" {
			t.Errorf("%s: the replica may answer in %q", path, encoding)
		}
	}
}

// TestWaitingCommentsAreAskedFor lists who gets comments.
func TestWaitingCommentsAreAskedFor(t *testing.T) {
	for _, c := range []struct {
		name, path, body string
		header           []string
		every            time.Duration
		told             bool
	}{
		{"by the header", "/v1/chat/completions", streamBody, []string{HeaderWaiting, "Comments"}, 0, true},
		{"by another value", "/v1/chat/completions", streamBody, []string{HeaderWaiting, "no"}, 0, false},
		{"nobody asks", "/v1/chat/completions", streamBody, nil, 0, false},
		{"no stream", "/v1/chat/completions", `{"model":"chat","messages":[]}`, []string{HeaderWaiting, "comments"}, time.Second, false},
		{"no event stream", "/v1/embeddings", `{"model":"chat","stream":true,"input":"x"}`, []string{HeaderWaiting, "comments"}, time.Second, false},
		{"another protocol", "/v2/models/chat/infer", `{"stream":true}`, []string{HeaderWaiting, "comments"}, time.Second, false},
	} {
		r := newRig(t, commentsAfter(c.every))
		q := httptest.NewRequest(http.MethodPost, c.path, nil)
		for i := 0; i+1 < len(c.header); i += 2 {
			q.Header.Set(c.header[i], c.header[i+1])
		}
		x := newExchange(r.gw, httptest.NewRecorder(), q)
		x.begin(surface.Find(c.path, c.path, false), c.path)
		x.req.body.head = []byte(c.body)
		if x.req.call.Kind == surface.ModelInBody {
			if err := x.req.parse(); err != nil {
				t.Fatal(err)
			}
		}
		if got := x.tellsWaiting(); got != c.told {
			t.Errorf("%s: told is %v", c.name, got)
		}
		x.end()
	}
}

// TestWaitingEndsInAnError refuses requests after comments.
func TestWaitingEndsInAnError(t *testing.T) {
	answering := func(status int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for _, c := range []struct {
		name, path string
		replica    http.HandlerFunc // nil: none comes
		event      string
		status     int
	}{
		{"no replica in time", "/v1/chat/completions", nil, `{"error":{"message":"default/chat: no replica took the request within `, 503},
		{"no replica in time for Anthropic's", "/v1/messages", nil, `{"type":"error","error":{"type":"overloaded_error","message":"default/chat: no replica`, 503},
		{"the replica's own error", "/v1/chat/completions", answering(400, "application/json", "{\"error\": {\n\"message\": \"too long\"}}\n"), `{"error":{"message":"too long"}}`, 400},
		{"an error that is none of the protocol's", "/v1/chat/completions", answering(413, "text/html", "<p>too\nlong"), `{"error":{"message":"the replica answered 413: <p>too\nlong"`, 413},
		{"an answer that is no stream", "/v1/chat/completions", answering(200, "application/json", "{}"), `{"error":{"message":"the replica answered 200 without an event stream`, 502},
	} {
		r := asleep(t, func(g *Config, d *dispatch.Config) {
			g.WaitingComments = time.Millisecond
			if c.replica == nil {
				d.MaxWait = 300 * time.Millisecond
			}
		})
		resp, in := r.stream(c.path, streamBody)
		if comment, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(comment, ": starting") || resp.StatusCode != 200 {
			t.Fatalf("%s: %d %q %v", c.name, resp.StatusCode, comment, err)
		}
		if c.replica != nil {
			r.d.SetPool(pool("chat", replicaServer(t, c.replica)))
		}
		raw, err := io.ReadAll(in)
		rest := string(raw)
		want := "event: error\ndata: " + strings.ReplaceAll(c.event, "\n", `\n`)
		at := strings.Index(rest, "event: error")
		if err != nil || at < 0 || !strings.HasPrefix(rest[at:], want) || !strings.HasSuffix(rest, "}\n\n") || strings.Count(rest[at:], "\n") != 3 {
			t.Errorf("%s: got %q (%v), want %q", c.name, rest, err, want)
		}
		r.waitSettled()
		if want := fmt.Sprintf(`label:{name:"code" value:"%d"}`, c.status); !strings.Contains(r.series(), want) {
			t.Errorf("%s: no request is counted with %s", c.name, want)
		}
	}
}

// TestClientLeavesWhileItIsTold ends the wait of a client that reads comments.
func TestClientLeavesWhileItIsTold(t *testing.T) {
	r := asleep(t, commentsAfter(time.Millisecond))
	resp, in := r.stream("/v1/chat/completions", streamBody)
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	r.client.CloseIdleConnections()
	until(t, func() bool { return r.gw.running.Load() == 0 })
	if s, err := r.d.Resolve(dispatch.Request{Model: "chat"}); err != nil || s.Demand.Queued != 0 {
		t.Errorf("%d requests wait still", s.Demand.Queued)
	}
}

// TestWaitedHeader has answers tell how long their requests waited.
func TestWaitedHeader(t *testing.T) {
	r := asleep(t, nil)
	address := replicaServer(t, echo)
	r.demand.onWake = func(string) {
		go func() {
			time.Sleep(5 * time.Millisecond)
			r.d.SetPool(pool("chat", address))
		}()
	}
	first := r.send("POST", "/v1/completions", `{"model":"chat","prompt":"x"}`)
	if n, err := strconv.Atoi(first.header.Get(headerWaited)); err != nil || n < 1 || first.code != 200 {
		t.Errorf("%d, waited %q", first.code, first.header.Get(headerWaited))
	}
	if second := r.send("POST", "/v1/completions", `{"model":"chat","prompt":"x"}`); second.code != 200 || second.header.Get(headerWaited) != "" {
		t.Errorf("%d, did not wait: %q", second.code, second.header.Get(headerWaited))
	}
}
