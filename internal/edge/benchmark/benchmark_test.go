package benchmark

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/load"
)

// engine answers without a network, so that its times are exact in a bubble of synctest.
type engine struct {
	first, each time.Duration
	status      int    // of each answer, 200 if 0
	cut         bool   // streams end before [DONE]
	text        string // in place of a stream

	mu             sync.Mutex
	bodies         []map[string]any
	inFlight, most int
}

func (e *engine) RoundTrip(r *http.Request) (*http.Response, error) {
	var m map[string]any
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.bodies = append(e.bodies, m)
	e.inFlight++
	e.most = max(e.most, e.inFlight)
	e.mu.Unlock()
	answer := func(status int, kind string, body io.ReadCloser) *http.Response {
		return &http.Response{StatusCode: status, Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), Header: http.Header{"Content-Type": {kind}}, Body: body}
	}
	left := func() { e.mu.Lock(); e.inFlight--; e.mu.Unlock() }
	switch {
	case e.status != 0:
		left()
		return answer(e.status, "application/json", io.NopCloser(strings.NewReader(`{"error":{"message":"busy"}}`))), nil
	case m["stream"] != true || e.text != "":
		time.Sleep(e.first)
		left()
		text := e.text
		if text == "" {
			text = `{"usage":{"prompt_tokens":7,"completion_tokens":3}}`
		}
		return answer(200, map[bool]string{true: "text/event-stream", false: "application/json"}[m["stream"] == true], io.NopCloser(strings.NewReader(text))), nil
	}
	in, out := io.Pipe()
	go func() {
		n := int(m["max_tokens"].(float64))
		for i := range n {
			select {
			case <-time.After(map[bool]time.Duration{true: e.first, false: e.each}[i == 0]):
			case <-r.Context().Done():
				left()
				_ = out.CloseWithError(r.Context().Err())
				return
			}
			_, _ = fmt.Fprintf(out, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
		}
		left()
		if !e.cut {
			_, _ = fmt.Fprintf(out, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", n)
		}
		_ = out.Close()
	}()
	return answer(200, "text/event-stream; charset=utf-8", in), nil
}

func target(e *engine) Target {
	return Target{Base: "http://engine", Model: "m", API: Chat, Stream: true, Timeout: time.Minute, Transport: e}
}

func of(requests, concurrency int) load.Load {
	return load.Load{Scenario: load.Scenario{Name: "s", Input: load.Fixed(100), Output: load.Fixed(11)}, Requests: requests, Concurrency: concurrency}
}

func TestClosedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{first: 50 * time.Millisecond, each: 10 * time.Millisecond}
		l := of(20, 4)
		l.WarmUp = 3
		warmed := false
		b := &Benchmark{Target: target(e), Loads: []load.Load{l}, Progress: func(_ int, p Progress) { warmed = warmed || p.WarmingUp }}
		r, err := b.Run(t.Context())
		if err != nil || len(r.Points) != 1 || r.Planned != 1 || !warmed {
			t.Fatalf("%+v, %v", r, err)
		}
		p := r.Points[0]
		if p.Requests != 20 || p.Failed != 0 || p.TTFT.P50 != 50 || p.TTFT.Max != 50 || p.TPOT.P99 != 10 || p.ITL.Mean != 10 || p.Latency.P50 != 150 {
			t.Errorf("%+v", p)
		}
		if p.InputTokens != 2000 || p.OutputTokens != 220 || p.Seconds != .75 || e.most != 4 || len(e.bodies) != 23 || p.Interrupted {
			t.Errorf("%+v; %d at once, %d requests", p, e.most, len(e.bodies))
		}
		if first := e.bodies[0]; first["model"] != "m" || first["max_tokens"] != 11.0 {
			t.Errorf("%v", first)
		}
	})
}

// An open loop sends at its rate although no answer has come yet.
func TestOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{first: 10 * time.Second, each: time.Millisecond}
		l := of(400, 0)
		l.Rate = 100
		r, err := (&Benchmark{Target: target(e), Loads: []load.Load{l}}).Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := r.Points[0]
		if p.Requests != 400 || e.most < 390 || p.Seconds < 13 || p.Seconds > 16 || p.TTFT.P50 != 10_000 {
			t.Errorf("%+v, %d at once", p, e.most)
		}
	})
}

// The time of a point ends what is sent, and what is under way is waited for.
func TestTimeOfPoint(t *testing.T) {
	for _, rate := range []float64{0, 20} {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{first: 50 * time.Millisecond, each: 10 * time.Millisecond}
			l := of(load.MaxRequests, 2)
			l.Rate, l.Time = rate, 10*time.Second
			r, err := (&Benchmark{Target: target(e), Loads: []load.Load{l}}).Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if p := r.Points[0]; p.Failed != 0 || p.Requests < 100 || p.Requests > 300 || p.Seconds < 9.5 || p.Seconds > 10.2 {
				t.Errorf("%+v", p)
			}
		})
	}
}

// What was measured before an interrupt is reported; what it cut off is no failure.
func TestInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{first: 50 * time.Millisecond, each: 10 * time.Millisecond}
		ctx, cancel := context.WithTimeout(t.Context(), 380*time.Millisecond)
		defer cancel()
		r, err := (&Benchmark{Target: target(e), Loads: []load.Load{of(1000, 3), of(1000, 3)}}).Run(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || len(r.Points) != 1 || r.Planned != 2 {
			t.Fatalf("%+v, %v", r, err)
		}
		if p := r.Points[0]; p.Requests != 6 || p.Failed != 0 || !p.Interrupted {
			t.Errorf("%+v", p)
		}
	})
}

func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		engine *engine
		want   string
	}{
		"status":         {&engine{status: 429}, "429 Too Many Requests: busy"},
		"cut":            {&engine{cut: true}, "the answer ended early"},
		"late":           {&engine{first: time.Hour}, "no answer within 1m0s"},
		"no JSON":        {&engine{text: "data: {\n\n"}, "an event of the answer is not JSON"},
		"error event":    {&engine{text: "data: {\"error\":{\"message\":\"lost\"}}\n\n"}, "lost"},
		"event too long": {&engine{text: "data: " + strings.Repeat("x", maxEventBytes)}, "an event of the answer is over 1048576 bytes"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, err := (&Benchmark{Target: target(c.engine), Loads: []load.Load{of(2, 1)}}).Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			p := r.Points[0]
			if p.Failed != 2 || p.OutputTokens != 0 || p.Failures[c.want] != 2 {
				t.Errorf("%s: %v", name, p.Failures)
			}
		})
	}
}

// Without a stream there is no time to the first token.
func TestWholeAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{first: 30 * time.Millisecond}
		to := target(e)
		to.Stream, to.API, to.Parameters = false, Completions, map[string]any{"temperature": 0.0, "model": "other", "max_tokens": 5}
		r, err := (&Benchmark{Target: to, Loads: []load.Load{of(3, 1)}}).Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := r.Points[0]
		if p.Latency.P50 != 30 || p.TTFT != (load.Quantiles{}) || p.OutputTokens != 9 || p.InputTokens != 21 {
			t.Errorf("%+v", p)
		}
		if got := slices.Sorted(maps.Keys(e.bodies[0])); !slices.Equal(got, []string{"max_tokens", "model", "prompt", "temperature"}) || e.bodies[0]["model"] != "m" || e.bodies[0]["max_tokens"] != 5.0 {
			t.Errorf("%v", e.bodies[0])
		}
	})
}

// Prompts of a file are sent in their order, again from the first after the last.
func TestPrompts(t *testing.T) {
	prompts, err := ReadPrompts("p.jsonl", strings.NewReader(`{"prompt": "one", "output_tokens": 2}

{"messages": [{"role": "user", "content": "two"}]}
`), Chat)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		e := &engine{}
		if _, err := (&Benchmark{Target: target(e), Loads: []load.Load{of(3, 1)}, Prompts: prompts}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		for _, m := range e.bodies {
			fmt.Fprintln(&b, m["messages"], m["max_tokens"])
		}
		if want := "[map[content:one role:user]] 2\n[map[content:two role:user]] 11\n[map[content:one role:user]] 2\n"; b.String() != want {
			t.Errorf("%s", b.String())
		}
	})
	for text, want := range map[string]string{
		"{":                                  "p:1: unexpected end of JSON input",
		"{}":                                 "p:1: has neither prompt nor messages",
		"\n":                                 "p: no prompt is in it",
		`{"prompt": 3}`:                      "p:1: json: cannot unmarshal number into Go struct field .prompt of type string",
		`{"prompt":"a","output_tokens":-1}`:  "p:1: output_tokens is -1: want 0 to 1048576",
		strings.Repeat("x", maxPromptLine+1): "p:1: the line is longer than 4194304 bytes",
	} {
		if _, err := ReadPrompts("p", strings.NewReader(text), Chat); err == nil || err.Error() != want {
			t.Errorf("%.40s: %v", text, err)
		}
	}
	if _, err := ReadPrompts("p", strings.NewReader(`{"messages":[{}]}`), Completions); err == nil {
		t.Error("messages for completions")
	}
}

// Where nothing answers, the warm-up says so, and nothing else is sent.
func TestWarmUpFails(t *testing.T) {
	e := &engine{status: 503}
	l := of(100, 2)
	l.WarmUp = 2
	r, err := (&Benchmark{Target: target(e), Loads: []load.Load{l}}).Run(t.Context())
	if err == nil || err.Error() != "503 Service Unavailable: busy" || len(r.Points) != 0 || len(e.bodies) != 2 {
		t.Errorf("%v, %+v, %d requests", err, r, len(e.bodies))
	}
}

func TestValidate(t *testing.T) {
	good := target(&engine{})
	for name, change := range map[string]func(*Target){
		"address": func(t *Target) { t.Base = "engine:80" },
		"scheme":  func(t *Target) { t.Base = "file:///etc" },
		"model":   func(t *Target) { t.Model = "" },
		"API":     func(t *Target) { t.API = "soap" },
		"timeout": func(t *Target) { t.Timeout = 0 },
	} {
		to := good
		change(&to)
		if _, err := (&Benchmark{Target: to}).Run(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A report is written before the first request and at the end. Where it cannot be, no
// request is sent, or the benchmark fails with what it measured.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept []int // points
		var refuse error
		run := func(ctx context.Context, e *engine) (load.Report, error) {
			kept = nil
			b := &Benchmark{Target: target(e), Loads: []load.Load{of(5, 1), of(5, 2)}, Keep: func(ctx context.Context, r load.Report) error {
				kept = append(kept, len(r.Points))
				if len(kept) == 2 && refuse == nil {
					return ctx.Err()
				}
				return refuse
			}}
			return b.RunWithin(ctx, time.Hour, nil)
		}
		e := &engine{first: time.Second, each: time.Second}
		if r, err := run(t.Context(), e); err != nil || len(r.Points) != 2 || !slices.Equal(kept, []int{0, 2}) {
			t.Errorf("%+v, %v, kept %v", r, err, kept)
		}
		refuse = errors.New("no room")
		e = &engine{first: time.Second, each: time.Second}
		if r, err := run(t.Context(), e); err == nil || err.Error() != "the report cannot be written: no room" || len(r.Points) != 0 || len(e.bodies) != 0 || len(kept) != 1 {
			t.Errorf("%+v, %v, %d requests, kept %v", r, err, len(e.bodies), kept)
		}
		refuse = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+10*time.Second) // within the second point
		defer cancel()
		if r, err := run(ctx, e); !errors.Is(err, context.DeadlineExceeded) || len(r.Points) != 2 || !slices.Equal(kept, []int{0, 2}) || !r.Points[1].Interrupted {
			t.Errorf("%+v, %v, kept %v", r, err, kept)
		}
	})
}

// A target that does not answer is tried again for so long, and measured once it does.
func TestRunWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := of(5, 1)
		l.WarmUp = 1
		down, up := &engine{status: 503}, &engine{first: time.Second, each: time.Second}
		var told []string
		b := &Benchmark{Target: target(down), Loads: []load.Load{l}}
		began := time.Now()
		_, err := b.RunWithin(t.Context(), time.Minute, func(err error) { told = append(told, err.Error()) })
		if took := time.Since(began); err == nil || took < 50*time.Second || took > time.Minute || !slices.Equal(told, []string{"503 Service Unavailable: busy"}) {
			t.Errorf("%v after %v, told %q", err, took, told)
		}
		b.Target.Transport = turning{began: time.Now(), before: down, then: up}
		if r, err := b.RunWithin(t.Context(), time.Minute, nil); err != nil || len(r.Points) != 1 || r.Points[0].Requests != 5 {
			t.Errorf("%+v, %v", r, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b.Target.Transport = down
		began = time.Now()
		if _, err := b.RunWithin(ctx, time.Hour, nil); err == nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// turning is an engine that takes half a minute to answer.
type turning struct {
	began        time.Time
	before, then *engine
}

func (e turning) RoundTrip(r *http.Request) (*http.Response, error) {
	if time.Since(e.began) < 30*time.Second {
		return e.before.RoundTrip(r)
	}
	return e.then.RoundTrip(r)
}
