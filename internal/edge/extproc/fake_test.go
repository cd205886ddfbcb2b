package extproc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// fake is an Admitter that does what it is told and remembers what it was
// asked.
type fake struct {
	mu     sync.Mutex
	answer func(pool service.Key, r dispatch.Request) (*grant, error)
	log    []string
	open   int // grants given and not settled
	done   chan *grant
}

// newFake gives 10.0.0.1:8000 to all.
func newFake() *fake {
	return &fake{done: make(chan *grant, 100), answer: func(service.Key, dispatch.Request) (*grant, error) {
		return &grant{address: "10.0.0.1:8000"}, nil
	}}
}

func (f *fake) Admit(ctx context.Context, pool service.Key, r dispatch.Request) (Grant, error) {
	line := fmt.Sprintf("admit pool=%s %s host=%s path=%s model=%s", pool, r.Method, r.Host, r.Path, r.Model)
	for _, w := range [][2]string{{"query", r.RawQuery}, {"objective", r.Objective}, {"fairness", r.FairnessID}, {"session", r.Session}} {
		if w[1] != "" {
			line += " " + w[0] + "=" + w[1]
		}
	}
	if r.Latency != (routing.LatencyTarget{}) {
		line += fmt.Sprintf(" ttft=%v tpot=%v", r.Latency.First, r.Latency.Each)
	}
	if r.MaxTokens > 0 {
		line += fmt.Sprintf(" max_tokens=%d", r.MaxTokens)
	}
	if len(r.Prompt) > 0 {
		line += fmt.Sprintf(" prompt=%.60q", slices.Concat(r.Prompt...))
	}
	if n := len(openai.AppendEntries(nil, r.Messages, 9)); n > 0 {
		line += fmt.Sprintf(" entries=%d", n)
	}
	if r.Subset != nil {
		line += " subset=" + strings.Join(r.Subset, ",")
	}
	f.note(line)
	g, err := f.answer(pool, r)
	if err != nil {
		f.note("refused: " + err.Error())
		return nil, err
	}
	g.fake = f
	f.mu.Lock()
	f.open++
	f.mu.Unlock()
	return g, nil
}

func (f *fake) note(line string) {
	f.mu.Lock()
	f.log = append(f.log, line)
	f.mu.Unlock()
}

// taken is the log so far, which it empties.
func (f *fake) taken() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.log
	f.log = nil
	return out
}

// settled waits for one grant to be settled.
func (f *fake) settled(t testing.TB) *grant {
	t.Helper()
	select {
	case g := <-f.done:
		return g
	case <-time.After(time.Minute):
		t.Fatal("no grant was settled")
		return nil
	}
}

// grant is a Grant that fails the test when it is used out of order.
type grant struct {
	fake         *fake
	address      string
	alternatives []string
	model        string
	prefill      string
	encoders     []string
	rank         string
	firstBytes   int
	settled      int
	servedBy     string
	outcome      dispatch.Outcome
}

func (g *grant) Address() string        { return g.address }
func (g *grant) Prefill() string        { return g.prefill }
func (g *grant) Encoders() []string     { return g.encoders }
func (g *grant) Rank() string           { return g.rank }
func (g *grant) Alternatives() []string { return g.alternatives }
func (g *grant) Replica() string        { return "replica-" + g.address }
func (g *grant) Model() string          { return g.model }

func (g *grant) Served(address string) {
	g.servedBy = address
	g.fake.note("served by " + address)
}

func (g *grant) Answered(a dispatch.Answer) bool {
	if g.firstBytes > 0 {
		panic("Answered after FirstByte")
	}
	g.fake.note(fmt.Sprintf("%v retry after=%v", a.Result, a.RetryAfter))
	return false
}

func (g *grant) Tokenize(string, ...[]byte) {}

func (g *grant) FirstToken() { g.fake.note("first token") }

func (g *grant) FirstByte() {
	if g.firstBytes++; g.firstBytes > 1 || g.settled > 0 {
		panic("FirstByte twice or after Done")
	}
	g.fake.note("first byte")
}

func (g *grant) Done(o dispatch.Outcome) {
	if g.settled++; g.settled > 1 {
		panic("Done twice")
	}
	g.outcome = o
	g.fake.note(fmt.Sprintf("done failed=%v usage=%+v", o.Failed, o.Usage))
	g.fake.mu.Lock()
	g.fake.open--
	g.fake.mu.Unlock()
	g.fake.done <- g
}

// errors by the names that scripts use.
var named = map[string]error{
	"busy":        &dispatch.Error{Kind: dispatch.ErrBusy, Pool: "default/llama", Message: "1000 requests wait already", RetryAfter: 1500 * time.Millisecond},
	"unavailable": &dispatch.Error{Kind: dispatch.ErrUnavailable, Pool: "default/llama", Message: "no endpoint matches the subset"},
	"not-found":   &route.NotFoundError{Model: "lama", Near: []string{"llama"}, Total: 1},
	"ambiguous":   &route.AmbiguousError{Model: "llama", Candidates: []string{"a/llama", "b/llama"}},
	"missing":     &route.MissingModelError{Pool: service.Key{Namespace: "default", Name: "llama"}, Known: []string{"chat", "sql"}},
	"timeout":     context.DeadlineExceeded,
	"broken":      fmt.Errorf("something else"),
}
