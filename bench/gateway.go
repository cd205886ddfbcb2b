package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

const (
	proxyTime     = time.Second            // of each peer, each round, at busyConnections
	proxyCalmTime = 600 * time.Millisecond // at one connection
)

// upstreamService is the upstream as a replica.
const upstreamService = `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: bench}
spec:
  protocol: openAI
  engine:
    local:
      command: [%q, part, upstream, "127.0.0.1:{{.Port}}"]
      readinessProbe: {httpGet: {path: /health, port: "{{.Port}}"}}
  scaling: {minReplicas: 1, maxReplicas: 1, targetConcurrency: 100000}
`

// passage is one peer's figures, a value a round.
type passage struct {
	peer *proxy
	cpu  []float64 // of its processes, microseconds an answer
	rate []float64 // answers a second
	busy []float64 // p50 of an answer at busyConnections, in microseconds
	calm []float64 // p50 at one connection
}

// passages are all that is between the client and the upstream, nothing first.
type passages struct {
	all                                                                           []*passage
	direct, ours, relay, nginx, lua, haproxy, query, reverse, caddyServer, portal *passage
}

// gateways measures the gateway beside other proxies, all in front of one
// upstream, and then streams, long prompts and the search for the model.
func gateways(ctx context.Context, b *bench) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	manifest := filepath.Join(b.scratch, "upstream.yaml")
	if err := os.WriteFile(manifest, fmt.Appendf(nil, upstreamService, self), 0o644); err != nil {
		return err
	}
	n, err := b.up(ctx, filepath.Join(b.scratch, "gateways"), manifest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	ours := &proxy{process: n.process, name: "Roundhouse", address: n.gateway, alone: true}
	if err := n.until(ctx, 10*time.Millisecond, func() error { return ask(ours.address, ours.request(chatBody(1, ""))) }); err != nil {
		return err
	}
	_, target, err := n.replica(ctx, "bench")
	if err != nil {
		return err
	}
	others, err := proxies(ctx, b, target)
	defer func() {
		for _, p := range others {
			if p.process == nil {
				continue
			}
			_ = p.stop() // how a proxy ends is not what is measured
			if said := p.logs.String(); err != nil && said != "" {
				err = fmt.Errorf("%w\n%s said: %s", err, p.name, said[max(0, len(said)-500):])
			}
		}
	}()
	if err != nil {
		return err
	}
	p := newPassages(target, ours, others)
	for _, o := range others {
		if o.skipped != "" {
			_, _ = fmt.Fprintf(b.out, "\n%s is left out: %s\n", o.name, o.skipped)
		}
	}
	for _, run := range []func(context.Context, *bench) error{p.measure, p.streams, p.prompts} {
		if err := run(ctx, b); err != nil {
			return err
		}
	}
	extraction(b)
	return nil
}

func newPassages(target string, ours *proxy, others []*proxy) *passages {
	p := &passages{direct: &passage{peer: &proxy{name: "no proxy", address: target}}, ours: &passage{peer: ours}}
	p.all = []*passage{p.direct, p.ours}
	places := []**passage{&p.relay, &p.nginx, &p.lua, &p.haproxy, &p.query, &p.reverse, &p.caddyServer, &p.portal}
	for i, o := range others {
		one := &passage{peer: o}
		*places[i] = one
		if o.skipped == "" {
			p.all = append(p.all, one)
		}
	}
	return p
}

// chatBody is a request for a chat of about that many bytes. first is put
// before its other members.
func chatBody(bytes int, first string) []byte {
	return fmt.Appendf(nil, `{%s"model":"bench","temperature":0.7,"messages":[{"role":"system","content":"You are terse."},{"role":"user","content":"%s"}]}`,
		first, strings.Repeat("word and ", bytes/9))
}

// measure runs the rounds, after one that is not counted. Who goes first
// moves on.
func (p *passages) measure(ctx context.Context, b *bench) error {
	body := chatBody(2100, "")
	for round := range b.rounds + 1 {
		for i := range p.all {
			w := p.all[(i+round)%len(p.all)]
			if err := w.measure(ctx, body, round > 0); err != nil {
				return fmt.Errorf("%s: %w", w.peer.name, err)
			}
		}
	}
	p.table(len(body)).print(b.out)
	return nil
}

func (w *passage) measure(ctx context.Context, body []byte, counts bool) error {
	request := w.peer.request(body)
	before, err1 := w.cpu1()
	busy, err2 := send(ctx, w.peer.address, request, busyConnections, proxyTime)
	after, err3 := w.cpu1()
	calm, err4 := send(ctx, w.peer.address, request, 1, proxyCalmTime)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	if counts {
		w.cpu = append(w.cpu, (after-before)*1e6/float64(busy.answers))
		w.rate = append(w.rate, float64(busy.answers)/busy.seconds)
		w.busy = append(w.busy, busy.p50)
		w.calm = append(w.calm, calm.p50)
	}
	return nil
}

// cpu1 is the CPU time of what is between, none for nothing.
func (w *passage) cpu1() (float64, error) {
	if w.peer.process == nil {
		return 0, nil
	}
	return w.peer.cpu()
}

// there reports whether a peer was measured.
func (w *passage) there() bool { return len(w.rate) > 0 }

func (p *passages) table(bytes int) table {
	t := table{title: fmt.Sprintf("Gateways: %d B asked, %d B answered, %d connections (%d paired rounds)", bytes, len(answerOfOneKB), busyConnections, len(p.ours.rate))}
	for _, w := range p.all[1:] {
		t.rows = append(t.rows, row{what: "CPU a request: " + w.peer.name, samples: w.cpu, unit: "µs"})
	}
	cheapest := p.lua
	if !p.lua.there() || p.query.there() && median(p.query.cpu) < median(p.lua.cpu) {
		cheapest = p.query
	}
	for _, r := range []struct {
		what string
		over *passage
		goal float64
	}{
		{"ours ÷ the cheaper of nginx + lua-cjson and haproxy + JSON query", cheapest, 1.5},
		{"ours ÷ nginx", p.nginx, 3}, {"ours ÷ httputil.ReverseProxy", p.reverse, 0.6},
		{"ours ÷ the relay", p.relay, 0}, {"ours ÷ haproxy", p.haproxy, 0},
		{"ours ÷ Caddy", p.caddyServer, 0}, {"ours ÷ Portkey", p.portal, 0},
	} {
		if r.over.there() {
			t.rows = append(t.rows, row{what: "CPU, " + r.what, samples: pairwise(p.ours.cpu, r.over.cpu, ratio), unit: "×", goal: r.goal})
		}
	}
	for _, w := range p.all {
		t.rows = append(t.rows, row{what: "requests a second: " + w.peer.name, samples: w.rate, unit: "/s"})
	}
	for _, w := range p.all {
		t.rows = append(t.rows, row{what: fmt.Sprintf("p50 at %d connections: %s", busyConnections, w.peer.name), samples: w.busy, unit: "µs"})
	}
	for _, w := range p.all[1:] {
		t.rows = append(t.rows, row{what: "added p50 at one connection: " + w.peer.name, samples: pairwise(w.calm, p.direct.calm, difference), unit: "µs"})
	}
	added := func(w *passage) []float64 { return pairwise(w.calm, p.direct.calm, difference) }
	t.rows = append(t.rows, row{what: "added p50 at one connection, ours ÷ the relay's", samples: pairwise(added(p.ours), added(p.relay), ratio), unit: "×", goal: 4})
	t.notes = []string{"Client, upstream and proxies share the cores: requests a second are for comparison within this run alone."}
	return t
}

// extraction compares the search for the model in a body with encoding/json's.
func extraction(b *bench) {
	t := table{title: "Finding the model in a body: our scan, and encoding/json into a struct of one field"}
	for _, size := range []int{2 << 10, 32 << 10, 512 << 10} {
		body := chatBody(size, "")
		var ours, std []float64
		for range b.rounds {
			ours = append(ours, timed(func() bool { r, err := openai.Parse(body); return err == nil && string(r.Model) == "bench" }))
			std = append(std, timed(func() bool {
				var q struct {
					Model string `json:"model"`
				}
				return json.Unmarshal(body, &q) == nil && q.Model == "bench"
			}))
		}
		goal := 0.0
		if size >= 32<<10 {
			goal = 1.0 / 6
		}
		what := fmt.Sprintf("%d KB: ", size>>10)
		t.rows = append(t.rows, row{what: what + "ours", samples: ours, unit: "µs"}, row{what: what + "encoding/json", samples: std, unit: "µs"},
			row{what: what + "ours ÷ theirs", samples: pairwise(ours, std, ratio), unit: "×", goal: goal})
	}
	t.print(b.out)
}

// timed is the mean time of f in microseconds, over a tenth of a second.
func timed(f func() bool) float64 {
	n, begin := 0, time.Now()
	for time.Since(begin) < 100*time.Millisecond {
		for range 8 {
			if !f() {
				panic("the model was not found")
			}
			n++
		}
	}
	return float64(time.Since(begin)) / float64(time.Microsecond) / float64(n)
}
