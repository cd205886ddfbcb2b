package admin

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/decide/latency"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// Request is one request to a model, as commands show it. Durations are in
// milliseconds.
type Request struct {
	Number           uint64    `json:"number"`
	Time             time.Time `json:"time"`
	ID               string    `json:"id"`
	Trace            string    `json:"trace,omitempty"`
	Key              string    `json:"key,omitempty"`     // the API key's id
	KeyName          string    `json:"keyName,omitempty"` // whose it is or what for
	Client           string    `json:"client,omitempty"`
	Method           string    `json:"method"`
	Path             string    `json:"path"`
	Model            string    `json:"model,omitempty"`
	Service          string    `json:"service,omitempty"`
	Replica          string    `json:"replica,omitempty"`
	Status           int       `json:"status"`
	QueuedMS         float64   `json:"queuedMs"`
	FirstByteMS      float64   `json:"firstByteMs,omitempty"` // 0: no byte of the answer came
	DurationMS       float64   `json:"durationMs"`
	PromptTokens     int64     `json:"promptTokens,omitempty"`
	CachedTokens     int64     `json:"cachedTokens,omitempty"`
	CompletionTokens int64     `json:"completionTokens,omitempty"`
	TokensPerSecond  float64   `json:"tokensPerSecond,omitempty"` // after the first byte
	BytesIn          int64     `json:"bytesIn"`
	BytesOut         int64     `json:"bytesOut"`
	Tries            int       `json:"tries"`
	Retried          string    `json:"retried,omitempty"` // why the last failed try did
	// Cut is why the replica broke off its answer; "" for a whole one.
	Cut string `json:"cut,omitempty"`
	// Reason is why the gateway itself refused the request.
	Reason string `json:"reason,omitempty"`
	// Failed: the service did not answer as it should have; ClientError: the request was
	// refused for what its client did.
	Failed      bool     `json:"failed,omitempty"`
	ClientError bool     `json:"clientError,omitempty"`
	Latency     *Latency `json:"latency,omitempty"` // nil where nothing was predicted
	// RequestBody and AnswerBody are told to the owner alone, who asks for them, of
	// services that keep them.
	RequestBody *Body `json:"requestBody,omitempty"`
	AnswerBody  *Body `json:"answerBody,omitempty"`
}

// Latency is what was predicted of an answer when its request was sent to the replica,
// and what it took, in milliseconds. The target counts from the request's arrival on, the
// others from when it was sent.
type Latency struct {
	First    Judged  `json:"ttft"`
	Each     Judged  `json:"tpot"`
	WaitedMS float64 `json:"waitedMs"`
}

// Judged is a prediction beside what came. What is 0 is not known, or not asked for.
type Judged struct {
	PredictedMS float64 `json:"predictedMs,omitempty"` // the median
	P90MS       float64 `json:"p90Ms,omitempty"`
	TookMS      float64 `json:"tookMs,omitempty"`
	TargetMS    float64 `json:"targetMs,omitempty"`
}

func latencyOf(o *latency.Outcome) *Latency {
	if o == nil {
		return nil
	}
	judged := func(p latency.Quantiles, took, target float64) Judged {
		return Judged{PredictedMS: 1000 * p.P50, P90MS: 1000 * p.P90, TookMS: 1000 * took, TargetMS: 1000 * target}
	}
	return &Latency{First: judged(o.Predicted.First, o.First, o.Target.First), Each: judged(o.Predicted.Each, o.Each, o.Target.Each), WaitedMS: 1000 * o.Waited}
}

// Body is what is kept of a body.
type Body struct {
	Text string `json:"text"` // what is no text in UTF-8 is replaced
	Cut  bool   `json:"cut,omitempty"`
	// Forgotten: newer ones took its place.
	Forgotten bool `json:"forgotten,omitempty"`
}

func bodyOf(b journal.Body, forgotten bool) *Body {
	return &Body{Text: strings.ToValidUTF8(string(b.Data), "\uFFFD"), Cut: b.Cut, Forgotten: forgotten}
}

// NumberedEvent is an event of a service with its number, by which followers resume.
type NumberedEvent struct {
	Number uint64 `json:"number"`
	history.Event
}

// RequestQuery selects requests.
type RequestQuery struct {
	ID     string // its own, which the answer's header X-Request-Id has; "" for all
	Of     string // a service, NAMESPACE/NAME, or a model as requests name it; "" for all
	Failed bool   // those that failed
	// ClientErrors: those that were refused for what their clients did; with Failed
	// either.
	ClientErrors bool
	Slow         time.Duration // those that took as long, to the first byte where there is one
	Bodies       bool          // with what is kept of their bodies
}

func (q RequestQuery) values() url.Values {
	v := url.Values{}
	if q.ID != "" {
		v.Set("id", q.ID)
	}
	if q.Of != "" {
		v.Set("of", q.Of)
	}
	if q.Failed {
		v.Set("failed", "true")
	}
	if q.ClientErrors {
		v.Set("clientErrors", "true")
	}
	if q.Slow > 0 {
		v.Set("slow", q.Slow.String())
	}
	if q.Bodies {
		v.Set("bodies", "true")
	}
	return v
}

func readRequestQuery(v url.Values) (q RequestQuery, err error) {
	q.ID, q.Of = v.Get("id"), v.Get("of")
	for name, to := range map[string]*bool{"failed": &q.Failed, "clientErrors": &q.ClientErrors, "bodies": &q.Bodies} {
		if *to, err = strconv.ParseBool(cmp.Or(v.Get(name), "false")); err != nil {
			return q, fmt.Errorf("%s: %q is neither true nor false", name, v.Get(name))
		}
	}
	if text := v.Get("slow"); text != "" {
		if q.Slow, err = time.ParseDuration(text); err != nil || q.Slow < 0 {
			return q, fmt.Errorf("slow: %q is not a duration such as 2s", text)
		}
	}
	return q, nil
}

func (q RequestQuery) match(r *journal.Request) bool {
	wait := r.FirstByte
	if wait == 0 {
		wait = r.Duration
	}
	ended := !q.Failed && !q.ClientErrors || q.Failed && r.Failed() || q.ClientErrors && r.ClientError()
	return (q.ID == "" || q.ID == r.ID) && (q.Of == "" || q.Of == r.Service || q.Of == r.Model) && ended && wait >= q.Slow
}

func requestOf(n uint64, r journal.Request) Request {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	out := Request{Number: n, Time: r.Time, ID: r.ID, Trace: r.Trace, Key: r.Key, Client: r.Client, Method: r.Method, Path: r.Path, Model: r.Model, Service: r.Service,
		Replica: r.Replica, Status: r.Status, QueuedMS: ms(r.Queued), FirstByteMS: ms(r.FirstByte), DurationMS: ms(r.Duration), TokensPerSecond: r.Rate(),
		BytesIn: r.Received, BytesOut: r.Sent, Tries: r.Tries, Retried: r.Retried, Cut: r.Cut, Reason: r.Reason, Failed: r.Failed(), ClientError: r.ClientError(), Latency: latencyOf(r.Latency)}
	if u := r.Usage; u != nil {
		out.PromptTokens, out.CachedTokens, out.CompletionTokens = u.PromptTokens, u.CachedTokens, u.CompletionTokens
	}
	return out
}

// requests answers the last requests, or streams those that end.
func (s *Server) requests(w http.ResponseWriter, r *http.Request) {
	q, err := readRequestQuery(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, "%s", err)
		return
	}
	if q.Bodies && !owns(r) {
		fail(w, http.StatusForbidden, "the bodies of requests are shown to the owner alone")
		return
	}
	names := s.keyNames()
	tell(w, r, s.cfg.Requests.Ring, func(n uint64, x journal.Request) (any, bool) {
		out := requestOf(n, x)
		out.KeyName = names(x.Key)
		if q.Bodies {
			if b, kept := s.cfg.Requests.Bodies(&x); kept {
				out.RequestBody, out.AnswerBody = bodyOf(b.Request, b.Forgotten), bodyOf(b.Answer, b.Forgotten)
			}
		}
		return out, q.match(&x)
	})
}

// keyNames finds the names of API keys by their ids; those that are not known are looked
// up again.
func (s *Server) keyNames() func(id string) string {
	known := map[string]string{}
	return func(id string) string {
		if _, ok := known[id]; id == "" || s.cfg.Keys == nil || ok {
			return known[id]
		}
		known[id] = "" // of a key that is gone
		for _, k := range s.cfg.Keys.List() {
			known[k.ID] = k.Name
		}
		return known[id]
	}
}

// events answers the last events, of one service with ?service=NAMESPACE/NAME, or
// streams those that happen.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("service")
	k := service.ParseKey(name)
	tell(w, r, s.cfg.Events.Ring, func(n uint64, e history.Event) (any, bool) {
		return NumberedEvent{n, e}, name == "" || e.Namespace == k.Namespace && e.Service == k.Name
	})
}

// happened adds an event of no service: something was done with keys or copies.
func (s *Server) happened(reason, message string) {
	if s.cfg.Live != nil {
		s.cfg.Live.Changed(Lists)
	}
	if s.cfg.Events != nil {
		s.cfg.Events.Tell(history.Event{Reason: reason, Message: message})
	}
}

const (
	// pageItems is how many items are looked at before the next are awaited.
	pageItems = 500
	// heartbeat is how often a stream on which nothing happens has a comment, which
	// tells a client that is gone from one that waits.
	heartbeat = 15 * time.Second
)

// tell answers what a ring keeps after ?after=NUMBER as a list in JSON; with
// ?follow, or to who accepts that, as a stream of server-sent events, which goes on
// until the client leaves and resumes by Last-Event-ID. An event "missed" tells how many items were lost to
// a client that was too slow or away for too long.
func tell[T any](w http.ResponseWriter, r *http.Request, ring *journal.Ring[T], show func(uint64, T) (any, bool)) {
	after := r.URL.Query().Get("after")
	stream := r.URL.Query().Has("follow") || strings.Contains(r.Header.Get("Accept"), "text/event-stream")
	if id := r.Header.Get("Last-Event-ID"); stream && id != "" {
		after = id
	}
	n, err := strconv.ParseUint(orZero(after), 10, 64)
	if err != nil {
		fail(w, http.StatusBadRequest, "after: %q is not a number", after)
		return
	}
	if stream {
		follow(w, r, ring, n, show)
		return
	}
	out := []any{}
	for {
		p := ring.After(n, pageItems)
		for i, x := range p.Items {
			if v, ok := show(p.First+uint64(i), x); ok {
				out = append(out, v)
			}
		}
		if len(p.Items) == 0 {
			break
		}
		n = p.Last
	}
	answer(w, out)
}

func follow[T any](w http.ResponseWriter, r *http.Request, ring *journal.Ring[T], n uint64, show func(uint64, T) (any, bool)) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	rc := http.NewResponseController(w)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		var b bytes.Buffer
		for {
			p := ring.After(n, pageItems)
			if p.Missed > 0 && n > 0 {
				fmt.Fprintf(&b, "event: missed\ndata: %d\n\n", p.Missed)
			}
			for i, x := range p.Items {
				if v, ok := show(p.First+uint64(i), x); ok {
					data, _ := json.Marshal(v) // structs of ours, which always have a form in JSON
					fmt.Fprintf(&b, "id: %d\ndata: %s\n\n", p.First+uint64(i), data)
				}
			}
			n = p.Last
			if len(p.Items) < pageItems {
				break
			}
		}
		if b.Len() == 0 {
			b.WriteString(": nothing new\n\n")
		}
		if _, err := w.Write(b.Bytes()); err != nil || rc.Flush() != nil {
			return
		}
		select {
		case <-ring.Changed(n):
		case <-beat.C:
		case <-r.Context().Done():
			return
		}
	}
}

// maxTold bounds one item of a stream, in bytes: two bodies of service.MaxKeptBody, of
// which JSON may write each byte in six.
const maxTold = 1 << 20

// ErrMissed is returned where items of a stream were lost, because this client was
// too slow.
var ErrMissed = errors.New("some were missed: more happened than was read in time")

// Requests lists the last requests, the oldest first.
func (c *Client) Requests(ctx context.Context, q RequestQuery) (out []Request, err error) {
	return out, c.call(ctx, http.MethodGet, "/api/v1/requests?"+q.values().Encode(), nil, &out)
}

// FollowRequests calls each with the last requests and then with those that end,
// until ctx ends or the server stops.
func (c *Client) FollowRequests(ctx context.Context, q RequestQuery, each func(Request) error) error {
	return followed(ctx, c, "/api/v1/requests?"+q.values().Encode(), each)
}

func eventPath(k *service.Key) string {
	if k == nil {
		return "/api/v1/events"
	}
	return "/api/v1/events?service=" + url.QueryEscape(k.String())
}

// Events lists the last events, with a key those of one service, the oldest first.
func (c *Client) Events(ctx context.Context, k *service.Key) (out []NumberedEvent, err error) {
	return out, c.call(ctx, http.MethodGet, eventPath(k), nil, &out)
}

// FollowEvents calls each with the last events and then with those that happen,
// until ctx ends or the server stops.
func (c *Client) FollowEvents(ctx context.Context, k *service.Key, each func(NumberedEvent) error) error {
	return followed(ctx, c, eventPath(k), each)
}

func followed[T any](ctx context.Context, c *Client, path string, each func(T) error) error {
	separator := "?"
	if strings.Contains(path, "?") {
		separator = "&"
	}
	resp, err := c.do(ctx, http.MethodGet, path+separator+"follow", nil, -1)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxTold)
	for lines.Scan() {
		line := lines.Text()
		if line == "event: missed" {
			return ErrMissed
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var v T
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := each(v); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", c.Base, err)
	}
	return ctx.Err() // the server has stopped unless ctx has
}

// describedEvents is how many events the description of a service has.
const describedEvents = 10

// EventsOf are the last of a service's events, for its description.
func EventsOf(list []NumberedEvent) (out []Event) {
	for _, e := range list[max(0, len(list)-describedEvents):] {
		kind, text := "Normal", e.Message
		if e.Warning {
			kind = "Warning"
		}
		if e.Object != "" {
			text = e.Object + ": " + text
		}
		out = append(out, Event{Time: e.Time, Type: kind, Reason: e.Reason, Message: text})
	}
	return out
}
