package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// told is a Picker that says what it is told to.
type told struct {
	t    *testing.T
	says func(r PickerRequest) (*toldAnswer, error)
	open atomic.Int32 // answers that are not closed
}

func (p *told) Ask(_ context.Context, pool service.Key, r PickerRequest) (Picked, error) {
	if pool != shared {
		p.t.Errorf("asked for pool %s", pool)
	}
	a, err := p.says(r)
	if err != nil {
		return nil, err
	}
	a.told = p
	p.open.Add(1)
	return a, nil
}

// toldAnswer is one answer.
type toldAnswer struct {
	told   *told
	to     []string
	body   []byte
	header string // set to "picker" in the request
}

func (a *toldAnswer) Endpoints() []string  { return a.to }
func (a *toldAnswer) Body() ([]byte, bool) { return a.body, a.body != nil }
func (a *toldAnswer) Change(h http.Header) {
	if a.header != "" {
		h.Set(a.header, "picker")
	}
}
func (a *toldAnswer) Answered(status int, h http.Header, by string) {
	if status == 200 {
		h.Set("X-By", by)
	}
}
func (a *toldAnswer) Close() {
	if a.told.open.Add(-1) < 0 {
		a.told.t.Error("closed twice")
	}
}

var shared = service.ParseKey("shared")

// asking is a gateway before a pool of two endpoints that say what they were
// asked, whose picker says what it is told.
func asking(t *testing.T, open bool, says func(at []string, r PickerRequest) (*toldAnswer, error)) (*rig, *told, []string) {
	p := &told{t: t}
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.Picker = p })
	at := []string{}
	for _, name := range []string{"one", "two"} {
		at = append(at, replicaServer(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body) // a client that leaves is nobody's concern here
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, name+" "+r.Header.Get("X-Prefiller-Host-Port")+r.Header.Get("X-Gateway-Model-Name-Rewrite")+" "+string(body))
		}))
	}
	p.says = func(r PickerRequest) (*toldAnswer, error) { return says(at, r) }
	f := pool("shared", at...)
	f.Shared, f.External = true, dispatch.External{Name: "epp", FailOpen: open}
	r.d.SetPools([]dispatch.PoolConfig{f})
	r.d.SetObjects([]routing.Object{&routing.Pool{Meta: service.Meta{Key: shared}},
		&routing.Model{Meta: service.Meta{Key: service.ParseKey("chat")}, ModelName: "chat", Pool: shared, Targets: []routing.WeightedModel{{Name: "llama-3", Weight: 1}}}})
	t.Cleanup(func() {
		until(t, func() bool { return p.open.Load() == 0 && r.gw.buffered.Used() == 0 })
	})
	return r, p, at
}

const toShared = "shared.default.localhost"

// ask sends a request to the pool.
func (r *rig) ask(path, body string, header ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Host = toShared
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(got), err}
}

// TestPicker: the picker sees the request without what is the gateway's to say,
// decides where it goes, and changes header, body and model.
func TestPicker(t *testing.T) {
	var answers func(at []string, r PickerRequest) (*toldAnswer, error)
	r, _, at := asking(t, false, func(at []string, r PickerRequest) (*toldAnswer, error) { return answers(at, r) })
	const chat = `{"prompt": 12345678901234567890,"model":"chat"}`
	for name, c := range map[string]struct {
		path, body string
		says       toldAnswer
		want       string
	}{
		"as it is":      {"/v1/completions", chat, toldAnswer{to: at[1:]}, `two  {"prompt": 12345678901234567890,"model":"llama-3"}`},
		"the first":     {"/v1/completions", chat, toldAnswer{to: at}, `one  {"prompt": 12345678901234567890,"model":"llama-3"}`},
		"another body":  {"/v1/completions", chat, toldAnswer{to: at, body: []byte(`{"model":"chat","x":1}`)}, `one  {"model":"llama-3","x":1}`},
		"another model": {"/v1/completions", chat, toldAnswer{to: at, body: []byte(`{"model":"adapter"}`)}, `one  {"model":"adapter"}`},
		"encoded anew": {"/v1/completions", chat, toldAnswer{to: at, body: []byte(`{"model":"chat","prompt":12345678901234567000}`)},
			`one  {"prompt": 12345678901234567890,"model":"llama-3"}`},
		"encoded anew, another model": {"/v1/completions", chat, toldAnswer{to: at, body: []byte(`{"model":"adapter","prompt":12345678901234567000,"n":2}`)},
			`one  {"prompt": 12345678901234567890,"model":"adapter","n":2}`},
		"a header": {"/v1/completions", chat, toldAnswer{to: at[1:], header: headerPrefill}, `two picker {"prompt": 12345678901234567890,"model":"llama-3"}`},
		"a long body": {"/v1/completions", chat, toldAnswer{to: at, body: []byte(`{"model":"a","x":"` + strings.Repeat("y", 2*http1.InlineBytes) + `"}`)},
			`one  {"model":"a","x":"` + strings.Repeat("y", 2*http1.InlineBytes) + `"}`},
		"model in path": {"/v2/models/chat/infer", strings.Repeat("z", 3<<20), toldAnswer{to: at[1:]}, "two  " + strings.Repeat("z", 3<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			answers = func(at []string, r PickerRequest) (*toldAnswer, error) {
				if string(r.Body) != c.body || r.Host != toShared || r.Target != c.path || r.Header.Get("X-Prefiller-Host-Port") != "" || r.Header.Get("X-Gateway-Model-Name-Rewrite") != "" ||
					r.Header.Get("X-Mine") != "1" || r.Header.Get("X-Request-Id") == "" || !r.Within(at[0]) || r.Within("10.0.0.1:1") {
					t.Errorf("asked %+v", r)
				}
				says := c.says
				if says.body != nil && !r.Hold(int64(len(says.body))) {
					t.Error("there is no memory")
				}
				return &says, nil
			}
			a := r.ask(c.path, c.body, "Content-Type", "application/json", "X-Prefiller-Host-Port", "evil:1", "X-Gateway-Model-Name-Rewrite", "evil", "X-Mine", "1")
			if a.code != 200 || a.body != c.want || a.err != nil {
				t.Errorf("%d %.200q %v, want %.200q", a.code, a.body, a.err, c.want)
			}
			if by := a.header.Get("X-By"); by != at[slices.Index([]string{"one", "two"}, a.body[:3])] {
				t.Errorf("served by %s", by)
			}
		})
	}
}

// TestPickerFailures: a picker that gives no answer, or one that cannot be
// followed, refuses a request or leaves it to the gateway, as the pool says; its
// own refusal is the client's answer.
func TestPickerFailures(t *testing.T) {
	for name, c := range map[string]struct {
		says         func(at []string) (*toldAnswer, error)
		closed, open int
		text         string // of the answer when closed
	}{
		"no answer": {func([]string) (*toldAnswer, error) { return nil, errors.New("picker prod/epp is silent") }, 503, 200, "picker prod/epp is silent; its failureMode is FailClose"},
		"a body that is none": {func(at []string) (*toldAnswer, error) { return &toldAnswer{to: at, body: []byte("{")}, nil }, 503, 200,
			"cannot be read"},
		"a refusal": {func([]string) (*toldAnswer, error) {
			return nil, &PickerRefusal{Status: 429, Header: http.Header{"Retry-After": {"7"}}, Body: []byte("full")}
		}, 429, 429, "full"},
		"a bare refusal": {func([]string) (*toldAnswer, error) { return nil, &PickerRefusal{Status: 503} }, 503, 503, "refused the request"},
	} {
		for _, open := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				r, _, _ := asking(t, open, func(at []string, _ PickerRequest) (*toldAnswer, error) { return c.says(at) })
				want := c.closed
				if open {
					want = c.open
				}
				a := r.ask("/v1/completions", `{"model":"chat"}`)
				if a.code != want || want != 200 && !strings.Contains(a.body, c.text) || want == 200 && a.body[4:] != ` {"model":"llama-3"}` {
					t.Errorf("open %v: %d %s", open, a.code, a.body)
				}
				if a.code == 429 && a.header.Get("Retry-After") != "7" {
					t.Errorf("%v", a.header)
				}
			})
		}
	}
}

// TestPickerBodies: a body that is too long for the gateway, or stops coming,
// is the client's fault and not the picker's.
func TestPickerBodies(t *testing.T) {
	r, _, _ := asking(t, true, func([]string, PickerRequest) (*toldAnswer, error) {
		t.Error("the picker was asked")
		return nil, errors.New("no")
	})
	r.gw.cfg.MaxReplayBytes, r.gw.cfg.MaxBodyBytes = 1000, 2000
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v2/models/chat/infer", io.MultiReader(strings.NewReader(strings.Repeat("x", 3000))))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = toShared
	res, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("%s", res.Status)
	}
}

// TestPickerRetries: the next endpoint that the picker named takes over from one
// that breaks off, and the picker is told which.
func TestPickerRetries(t *testing.T) {
	dead := replicaServer(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	r, _, at := asking(t, false, func(at []string, _ PickerRequest) (*toldAnswer, error) {
		return &toldAnswer{to: []string{dead, at[1]}}, nil
	})
	f := pool("shared", append(at, dead)...)
	f.Shared, f.External = true, dispatch.External{Name: "epp"}
	r.d.SetPool(f)
	if a := r.ask("/v1/completions", `{"model":"chat"}`); a.code != 200 || a.body != `two  {"model":"llama-3"}` || a.header.Get("X-By") != at[1] {
		t.Errorf("%d %s %v", a.code, a.body, a.header)
	}
}
