package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	eventStreams      = 8    // at once, for the time an event takes
	openStreams       = 2000 // for memory
	promptBytes       = 220 << 10
	promptConnections = 20                    // connections that send prompts
	promptEvery       = 60 * time.Millisecond // each of them, on average
	promptTime        = 1500 * time.Millisecond
)

// chosen are the peers a table is about, those that are there.
func chosen(all ...*passage) []*passage {
	return slices.DeleteFunc(all, func(w *passage) bool { return w.peer.skipped != "" })
}

// streams measures what is added to each event's way, what an event costs, and
// what an open stream holds in memory.
func (p *passages) streams(ctx context.Context, b *bench) error {
	ways := chosen(p.direct, p.relay, p.ours, p.nginx, p.reverse)
	took, cpu := map[*passage][]float64{}, map[*passage][]float64{}
	broken := 0
	for round := range b.rounds + 1 {
		for i := range ways {
			w := ways[(i+round)%len(ways)]
			all, used, err := w.events(ctx)
			// ReverseProxy now and then breaks a stream whose answer begins just
			// as the request's last byte is passed on.
			for tries := 0; err != nil && w != p.ours && tries < 3; tries++ {
				broken++
				all, used, err = w.events(ctx)
			}
			if err != nil {
				return fmt.Errorf("streams: %s: %w", w.peer.name, err)
			}
			if round > 0 {
				took[w] = append(took[w], median(all))
				cpu[w] = append(cpu[w], used*1e6/float64(len(all)))
			}
		}
	}
	t := table{title: fmt.Sprintf("Streams: an event every %v on each of %d (%d paired rounds)", eventPause, eventStreams, b.rounds)}
	for _, w := range ways {
		t.rows = append(t.rows, row{what: "an event's way, p50: " + w.peer.name, samples: took[w], unit: "µs"})
	}
	added := func(w *passage) []float64 { return pairwise(took[w], took[p.direct], difference) }
	t.rows = append(t.rows, row{what: "added p50 an event, ours ÷ the relay's", samples: pairwise(added(p.ours), added(p.relay), ratio), unit: "×", goal: 1.25})
	for _, w := range ways[1:] {
		t.rows = append(t.rows, row{what: "CPU an event: " + w.peer.name, samples: cpu[w], unit: "µs"})
	}
	if broken > 0 {
		t.notes = append(t.notes, fmt.Sprintf("%d times another proxy broke a stream; its round was repeated.", broken))
	}
	if err := p.memory(&t); err != nil {
		return err
	}
	t.print(b.out)
	return nil
}

// events is one round of a peer, with the CPU time it used, in seconds.
func (w *passage) events(ctx context.Context) (took []float64, used float64, err error) {
	before, err1 := w.cpu1()
	took, err2 := events(ctx, w.peer)
	after, err3 := w.cpu1()
	return took, after - before, errors.Join(err1, err2, err3)
}

// events opens streams and gives the time each event took from the upstream to
// here, in microseconds.
func events(ctx context.Context, p *proxy) ([]float64, error) {
	took, errs := make([][]float64, eventStreams), make([]error, eventStreams)
	var group sync.WaitGroup
	for i := range eventStreams {
		group.Go(func() {
			// Not in step, as streams are.
			select {
			case <-time.After(time.Duration(rand.Int64N(int64(eventPause)))):
				took[i], errs[i] = readEvents(p)
			case <-ctx.Done():
				errs[i] = ctx.Err()
			}
		})
	}
	group.Wait()
	return slices.Concat(took...), errors.Join(errs...)
}

func readEvents(p *proxy) (took []float64, err error) {
	c, err := dial(p.address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, err
	}
	if _, err := c.Write(p.request(chatBody(2100, wantEvents[1:]+","))); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		_, rest, ok := bytes.Cut(lines.Bytes(), []byte(`"sent":`))
		if !ok {
			continue
		}
		now := time.Now().UnixNano()
		digits, _, _ := bytes.Cut(rest, []byte(","))
		sent, err := strconv.ParseInt(string(digits), 10, 64)
		if err != nil {
			return nil, err
		}
		took = append(took, float64(now-sent)/1e3)
	}
	if len(took) != eventCount {
		return nil, fmt.Errorf("%d events of %d: %w", len(took), eventCount, lines.Err())
	}
	return took, nil
}

// memory adds what one of many open streams holds, twice over for each: what
// the first opening made a process keep is not the streams'.
func (p *passages) memory(t *table) error {
	held := map[*passage]float64{}
	ways := chosen(p.ours, p.reverse, p.nginx)
	for _, w := range ways {
		before, err := w.peer.memory()
		if err != nil {
			return err
		}
		all, err := hold(w.peer)
		if err != nil {
			return fmt.Errorf("%d streams: %s: %w", openStreams, w.peer.name, err)
		}
		time.Sleep(2 * time.Second) // until what asking took is swept
		during, err := w.peer.memory()
		for _, c := range all {
			_ = c.Close() // nothing is to be learned
		}
		if err != nil {
			return err
		}
		held[w] = (during - before) * 1e3 / openStreams
		t.rows = append(t.rows, row{what: fmt.Sprintf("memory an open stream, %d of them: %s", openStreams, w.peer.name), samples: []float64{held[w]}, unit: "kB"})
	}
	if p.reverse.peer.skipped == "" {
		t.rows = append(t.rows, row{what: "memory an open stream, ours ÷ httputil.ReverseProxy's", samples: []float64{held[p.ours] / held[p.reverse]}, unit: "×", goal: 0.9})
	}
	return nil
}

// hold opens streams, each with its first event read.
func hold(p *proxy) (all []*connection, err error) {
	request := p.request(chatBody(2100, wantHold[1:]+","))
	for range openStreams {
		c, err := dial(p.address)
		if err != nil {
			return all, err
		}
		all = append(all, c)
		if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
			return all, err
		}
		if _, err := c.Write(request); err != nil {
			return all, err
		}
		for {
			line, err := c.answers.ReadSlice('\n')
			if err != nil {
				return all, err
			}
			if bytes.HasPrefix(line, []byte("data:")) {
				break
			}
		}
	}
	return all, nil
}

// prompts measures what is added to the time until a long prompt's answer
// begins, while others send theirs.
func (p *passages) prompts(ctx context.Context, b *bench) error {
	ways := chosen(p.direct, p.ours, p.relay, p.nginx, p.lua, p.reverse)
	took, cpu := map[*passage][]float64{}, map[*passage][]float64{}
	body := chatBody(promptBytes, "")
	for round := range b.rounds + 1 {
		for i := range ways {
			w := ways[(i+round)%len(ways)]
			before, err1 := w.cpu1()
			all, err2 := paced(ctx, w.peer, body)
			after, err3 := w.cpu1()
			if err := errors.Join(err1, err2, err3); err != nil {
				return fmt.Errorf("prompts: %s: %w", w.peer.name, err)
			}
			if round > 0 {
				took[w] = append(took[w], median(all)/1e3)
				cpu[w] = append(cpu[w], (after-before)*1e6/float64(len(all)))
			}
		}
	}
	t := table{title: fmt.Sprintf("Prompts of %d KB, one every %v on each of %d connections (%d paired rounds)", promptBytes>>10, promptEvery, promptConnections, b.rounds)}
	t.rows = append(t.rows, row{what: "time to the answer, p50: no proxy", samples: took[p.direct], unit: "ms"})
	for _, w := range ways[1:] {
		r := row{what: "added p50: " + w.peer.name, samples: pairwise(took[w], took[p.direct], difference), unit: "ms"}
		if w == p.ours {
			r.goal = 5
		}
		t.rows = append(t.rows, r)
	}
	for _, w := range ways[1:] {
		t.rows = append(t.rows, row{what: "CPU a request: " + w.peer.name, samples: cpu[w], unit: "µs"})
	}
	t.print(b.out)
	return nil
}

// paced sends a body over every connection at random times, and gives the time
// of each answer in microseconds.
func paced(ctx context.Context, p *proxy, body []byte) ([]float64, error) {
	request := p.request(body)
	until := time.Now().Add(promptTime)
	took, errs := make([][]float64, promptConnections), make([]error, promptConnections)
	var group sync.WaitGroup
	for i := range promptConnections {
		group.Go(func() {
			c, err := dial(p.address)
			if err != nil {
				errs[i] = err
				return
			}
			defer func() { _ = c.Close() }()
			for errs[i] == nil && time.Now().Before(until) && ctx.Err() == nil {
				time.Sleep(time.Duration(rand.Int64N(2 * int64(promptEvery))))
				begin := time.Now()
				errs[i] = c.ask(request)
				took[i] = append(took[i], float64(time.Since(begin))/float64(time.Microsecond))
			}
		})
	}
	group.Wait()
	return slices.Concat(took...), errors.Join(errs...)
}
