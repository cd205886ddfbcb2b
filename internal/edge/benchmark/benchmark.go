// Package benchmark sends a load to a server and measures its answers.
package benchmark

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/load"
	"roundhouse.dev/roundhouse/internal/state/wakeup"
)

// API is which calls of a server are measured.
type API string

// The calls.
const (
	Chat        API = "chat"
	Completions API = "completions"
	Embeddings  API = "embeddings"
)

// paths are those of the calls, below the server's address.
var paths = map[API]string{Chat: "/v1/chat/completions", Completions: "/v1/completions", Embeddings: "/v1/embeddings"}

// APIs lists the calls.
var APIs = []API{Chat, Completions, Embeddings}

// Target is whose answers are measured.
type Target struct {
	// Base is the server's address, without the path of a call.
	Base  string
	Model string
	API   API
	// APIKey is "" for none.
	APIKey string
	// Stream asks for answers as they are made; without it there is no time to the
	// first token.
	Stream bool
	// Parameters are further members of each request.
	Parameters map[string]any
	// Timeout bounds each request.
	Timeout time.Duration
	// Transport is nil for one of its own.
	Transport http.RoundTripper
}

// Validate returns what is out of range.
func (t Target) Validate() error {
	u, err := url.Parse(t.Base)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("%q is not the address of a server: write http://HOST:PORT", service.RedactURI(t.Base))
	case t.Model == "":
		return errors.New("no model is named")
	case paths[t.API] == "":
		return fmt.Errorf("unknown API %q: write one of %s", t.API, strings.Join(names(), ", "))
	case t.Timeout <= 0:
		return fmt.Errorf("the timeout is %v: want more than 0", t.Timeout)
	}
	return nil
}

func names() (out []string) {
	for _, a := range APIs {
		out = append(out, string(a))
	}
	return out
}

// Progress is how far a point is.
type Progress struct {
	WarmingUp        bool
	Requests, Failed int // of those that count
	Of               int
}

// Benchmark is a target and the loads for it.
type Benchmark struct {
	Target Target
	Loads  []load.Load
	// Prompts are sent in their order, again from the first after the last, in place of
	// those that a load makes up. Nil for none.
	Prompts []Prompt
	// Progress is told now and then, where it is not nil.
	Progress func(point int, p Progress)
	// Done is told each point, where it is not nil.
	Done func(load.Report)
	// Keep writes the report somewhere, where it is not nil: before the first request, so
	// that no load is sent whose report cannot be written, and once all is measured.
	Keep func(context.Context, load.Report) error
}

// KeepError is why a report could not be written.
type KeepError struct{ Err error }

func (e *KeepError) Error() string { return "the report cannot be written: " + e.Err.Error() }

// Unwrap returns what the place answered.
func (e *KeepError) Unwrap() error { return e.Err }

const (
	// keepTimeout bounds the writing of a report.
	keepTimeout = 2 * time.Minute
	// cutTimeout bounds it once the benchmark has been ended early.
	cutTimeout = 10 * time.Second
)

// keep writes a report.
func (b *Benchmark) keep(ctx context.Context, r load.Report) error {
	if b.Keep == nil {
		return nil
	}
	limit := keepTimeout
	if ctx.Err() != nil {
		ctx, limit = context.WithoutCancel(ctx), cutTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := b.Keep(ctx, r); err != nil {
		return &KeepError{err}
	}
	return nil
}

// RunWithin is Run of a target that may not answer yet: where the first request is not
// answered it is tried again, for so long. told is told the first error, where it is not nil.
func (b *Benchmark) RunWithin(ctx context.Context, patience time.Duration, told func(error)) (load.Report, error) {
	for until, first := time.Now().Add(patience), true; ; first = false {
		r, err := b.Run(ctx)
		if !Unanswered(r, err) || !time.Now().Add(retryInterval).Before(until) {
			return r, err
		}
		if first && told != nil {
			told(err)
		}
		wakeup.New().Sleep(ctx, time.Now().Add(retryInterval))
		if ctx.Err() != nil {
			return r, err
		}
	}
}

// Unanswered reports whether a benchmark failed by its target, which did not answer its
// first request.
func Unanswered(r load.Report, err error) bool {
	var unkept *KeepError
	return err != nil && len(r.Points) == 0 && !errors.As(err, &unkept) && !errors.Is(err, context.Canceled)
}

// Run measures every load, one after the other. Once ctx ends the report has what was
// measured until then, and the point that was under way is marked. A load whose warm-up
// is not answered ends the benchmark.
func (b *Benchmark) Run(ctx context.Context) (load.Report, error) {
	r := load.Report{Target: service.RedactURI(b.Target.Base), Model: b.Target.Model, API: string(b.Target.API), Started: time.Now().UTC(), Planned: len(b.Loads), Points: []load.Point{}}
	if err := errors.Join(b.Target.Validate(), b.keep(ctx, r)); err != nil {
		return r, err
	}
	for i, l := range b.Loads {
		if err := l.Validate(); err != nil {
			return r, fmt.Errorf("%s: %w", l.Scenario.Name, err)
		}
		c := newClient(b.Target, inFlight(l))
		p := &point{client: c, load: l, prompts: b.Prompts, report: func(p Progress) {
			if b.Progress != nil {
				b.Progress(i, p)
			}
		}}
		measured, err := p.run(ctx)
		c.close()
		if err != nil {
			r.Ended = time.Now().UTC()
			if len(r.Points) > 0 {
				err = errors.Join(err, b.keep(ctx, r))
			}
			return r, err
		}
		if measured.Requests > 0 || ctx.Err() == nil {
			r.Points = append(r.Points, measured)
		}
		if b.Done != nil {
			b.Done(r)
		}
		if ctx.Err() != nil {
			break
		}
	}
	r.Ended = time.Now().UTC()
	return r, errors.Join(ctx.Err(), b.keep(ctx, r))
}

func seeded(seed, stream uint64) load.Random { return rand.New(rand.NewPCG(seed, stream)) }

// maxOpen bounds the requests in flight of an open loop; those beyond count as failed.
const maxOpen = load.MaxConcurrency

func inFlight(l load.Load) int {
	if l.Rate > 0 {
		return maxOpen
	}
	return l.Concurrency
}

// point is the measuring of one load.
type point struct {
	client  *client
	load    load.Load
	prompts []Prompt
	report  func(Progress)

	mu    sync.Mutex
	tally load.Tally
	told  time.Time
}

func (p *point) run(ctx context.Context) (load.Point, error) {
	if err := p.warmUp(ctx); err != nil {
		return load.Point{}, err
	}
	began := time.Now()
	if p.load.Rate > 0 {
		p.open(ctx, began)
	} else {
		p.closed(ctx, began)
	}
	out := p.tally.Point(p.load, time.Since(began))
	out.Interrupted = ctx.Err() != nil
	return out, nil
}

// warmUp sends requests that are not counted. Its error is why none is answered.
func (p *point) warmUp(ctx context.Context) error {
	if p.load.WarmUp == 0 {
		return nil
	}
	var first string
	answered := false
	p.report(Progress{WarmingUp: true, Of: p.load.WarmUp})
	clients := min(max(p.load.Concurrency, 1), p.load.WarmUp)
	p.each(ctx, clients, p.load.WarmUp, time.Time{}, func(ctx context.Context, n int) {
		s := p.client.send(ctx, p.request(-n-1))
		p.mu.Lock()
		defer p.mu.Unlock()
		answered = answered || s.Failed == ""
		first = cmp.Or(first, s.Failed)
	})
	if !answered && ctx.Err() == nil {
		return errors.New(first)
	}
	return nil
}

// each has clients call with 0 to total-1, each the next number after the answer to the
// one before, until ctx ends or, where it is set, the deadline has come.
func (p *point) each(ctx context.Context, clients, total int, deadline time.Time, call func(context.Context, int)) {
	numbers := make(chan int)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for n := range numbers {
				call(ctx, n)
			}
		})
	}
	var ended <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		ended = timer.C
	}
feeding:
	for n := range total {
		select {
		case numbers <- n:
		case <-ended:
			break feeding
		case <-ctx.Done():
			break feeding
		}
	}
	close(numbers)
	all.Wait()
}

func (p *point) deadline(began time.Time) time.Time {
	if p.load.Time == 0 {
		return time.Time{}
	}
	return began.Add(p.load.Time)
}

// closed sends a request of each client after the answer to the one before.
func (p *point) closed(ctx context.Context, began time.Time) {
	p.each(ctx, min(p.load.Concurrency, p.load.Requests), p.load.Requests, p.deadline(began), p.measure)
}

// open sends requests at their times, whatever became of the others.
func (p *point) open(ctx context.Context, began time.Time) {
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, maxOpen)
	arrivals, deadline := p.load.Arrivals(seeded), p.deadline(began)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := range p.load.Requests {
		at := began.Add(arrivals.Next())
		if !deadline.IsZero() && at.After(deadline) {
			return
		}
		timer.Reset(time.Until(at))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		select {
		case slots <- struct{}{}:
			all.Go(func() {
				p.measure(ctx, n)
				<-slots
			})
		default:
			p.add(&load.Sample{Failed: fmt.Sprintf("not sent: %d requests were in flight", maxOpen)})
		}
	}
}

// measure sends the n-th request and adds what came of it. One that ctx cut off is no
// sample.
func (p *point) measure(ctx context.Context, n int) {
	sample := p.client.send(ctx, p.request(n))
	if ctx.Err() == nil || sample.Failed == "" {
		p.add(&sample)
	}
}

// request is the n-th, of the prompts that were given or made up.
func (p *point) request(n int) request {
	if len(p.prompts) > 0 {
		i := n % len(p.prompts)
		if i < 0 {
			i += len(p.prompts)
		}
		of := p.prompts[i]
		if of.Output == 0 && p.load.Scenario.Output != (load.Length{}) {
			of.Output = p.load.Request(n, seeded).Output
		}
		return request{Prompt: of}
	}
	r := p.load.Request(n, seeded)
	return request{Prompt: Prompt{Text: r.Prompt, Output: r.Output}, input: r.Input}
}

// reportInterval is the least time between two reports of progress.
const reportInterval = 200 * time.Millisecond

func (p *point) add(s *load.Sample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tally.Add(s)
	ended, failed := p.tally.Ended()
	if now := time.Now(); ended == p.load.Requests || now.Sub(p.told) >= reportInterval {
		p.told = now
		p.report(Progress{Requests: ended, Failed: failed, Of: p.load.Requests})
	}
}

// members are those of a request's body besides the target's parameters, which go
// before all but the model and the prompt.
func (t *Target) members(q request) map[string]any {
	m := map[string]any{"model": t.Model}
	switch {
	case t.API == Embeddings:
		m["input"] = q.Text
	case t.API == Completions:
		m["prompt"] = q.Text
	case len(q.Messages) > 0:
		m["messages"] = q.Messages
	default:
		m["messages"] = []map[string]string{{"role": "user", "content": q.Text}}
	}
	if t.API != Embeddings {
		if q.Output > 0 {
			m["max_tokens"] = q.Output
		}
		if t.Stream {
			m["stream"], m["stream_options"] = true, map[string]bool{"include_usage": true}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.Parameters)) {
		if name != "model" && name != "messages" && name != "prompt" && name != "input" && name != "stream" {
			m[name] = t.Parameters[name]
		}
	}
	return m
}
