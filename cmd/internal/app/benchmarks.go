package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/load"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/benchmark"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// benchmarks runs the benchmarks that were applied. Their requests go to the inner
// gateway, which asks for no API key, over connections that nobody else can open.
type benchmarks struct {
	jobs  *benchmark.Jobs
	fleet *fleet.Fleet
	inner *pipes
	log   *slog.Logger
}

func (n *node) newBenchmarks() *benchmarks {
	b := &benchmarks{fleet: n.fleet, inner: newPipes(), log: n.log}
	b.jobs = benchmark.NewJobs(benchmark.JobsConfig{List: b.list, Target: b.target, Keep: b.keep, Store: n.cfg.dir.Benchmarks(), Log: n.log})
	return b
}

// run runs benchmarks until ctx ends.
func (b *benchmarks) run(ctx context.Context, serve func(context.Context, net.Listener) error) {
	var both sync.WaitGroup
	both.Go(func() { _ = serve(ctx, b.inner) }) // which ends with ctx
	both.Go(func() { b.jobs.Run(ctx) })
	both.Wait()
}

func (b *benchmarks) list() []benchmark.Job {
	var out []benchmark.Job
	for _, o := range b.fleet.Objects(fleet.BenchmarkKind) {
		out = append(out, benchmark.Job{Job: *o.Benchmark, Mark: o.Mark()})
	}
	return out
}

// Of is a benchmark as the admin API shows it.
func (b *benchmarks) Of(o fleet.Object) admin.Benchmark {
	is := b.jobs.Outcome(o.Key, o.Mark())
	is.Report.Target = o.Benchmark.Subject()
	return admin.Benchmark{State: string(is.State), Reason: is.Reason, Target: is.Report.Target, Output: service.RedactURI(o.Benchmark.Output.URI), Report: is.Report}
}

// keep writes the report of a job to its output.
func (b *benchmarks) keep(ctx context.Context, j *load.Job, r load.Report) error {
	r.Target = j.Subject()
	return WriteReport(ctx, j.Output, r, b.log)
}

// WriteReport writes a benchmark's report to an output.
func WriteReport(ctx context.Context, to load.Output, r load.Report, log *slog.Logger) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	var store *artifact.Credentials // this process's, but for what the output says of the store
	if to.Region != "" || to.Endpoint != "" {
		store = &artifact.Credentials{Region: to.Region, Endpoint: to.Endpoint}
	}
	return artifact.Put(ctx, artifact.Request{URI: to.URI, Credentials: store}, append(text, '\n'), artifact.Config{}, nil, log)
}

func (b *benchmarks) target(j *load.Job) benchmark.Target {
	t := benchmark.Target{Base: "http://127.0.0.1", Model: j.Model, API: benchmark.Chat, Stream: true, Parameters: j.Parameters, Timeout: benchmark.JobTimeout}
	call := ""
	if j.URL != "" {
		t.Base, call, _ = load.Endpoint(j.URL) // which was checked when it was applied
	} else {
		t.Model = j.Service.Short()
		t.Transport = b.inner.transport
	}
	switch {
	case j.Embeddings:
		t.API = benchmark.Embeddings
	case call != "":
		t.API = benchmark.API(call)
	}
	return t
}

// pipes are connections within this process.
type pipes struct {
	conns     chan net.Conn
	closed    chan struct{}
	close     sync.Once
	transport *http.Transport
}

func newPipes() *pipes {
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	p.transport = &http.Transport{DialContext: p.dial, MaxIdleConnsPerHost: load.MaxConcurrency}
	return p
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), near.Close(), far.Close())
	}
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error {
	p.close.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
