package main

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// wakeRounds is the least number of rounds for a p90 to mean something.
const wakeRounds = 11

// wake measures the request that finds its model asleep, with no process of it
// alive, against the bare start of that process.
func wake(ctx context.Context, b *bench) error {
	request, err := b.request("iris")
	if err != nil {
		return err
	}
	n, err := b.up(ctx, filepath.Join(b.scratch, "wake"), b.examples)
	if err != nil {
		return err
	}
	woken, bare, err := wakeRoundsOf(ctx, b, n, request)
	if err := errors.Join(err, n.stop()); err != nil {
		return err
	}
	table{
		title: "Waking a slept XGBoost model, no process of it alive (" + strconv.Itoa(len(bare)) + " paired rounds)",
		rows: []row{
			{what: "request to answer, through up", samples: woken, unit: "ms"},
			{what: "bare start of serve to its first answer", samples: bare, unit: "ms"},
			{what: "over the bare start", samples: pairwise(woken, bare, difference), unit: "ms", goal: 150},
			{what: "÷ the bare start", samples: pairwise(woken, bare, ratio), unit: "×"},
		},
	}.print(b.out)
	return nil
}

// wakeRoundsOf runs the rounds, in milliseconds. The first is not counted: it
// pays for files that nobody had read.
func wakeRoundsOf(ctx context.Context, b *bench, n *node, request []byte) (woken, bare []float64, err error) {
	if err := n.settled(ctx, quickstartServices); err != nil {
		return nil, nil, err
	}
	for i := range max(b.rounds, wakeRounds) + 1 {
		cold, err := b.bareStart(ctx, request)
		if err != nil {
			return nil, nil, err
		}
		begin := time.Now()
		if err := ask(n.gateway, request); err != nil {
			return nil, nil, err
		}
		took := time.Since(begin)
		if err := n.sleep(ctx, "iris"); err != nil {
			return nil, nil, err
		}
		if i > 0 {
			woken, bare = append(woken, milliseconds(took)), append(bare, milliseconds(cold))
		}
	}
	return woken, bare, nil
}

// bareStart times the model server alone, as `up` starts it, from before its start to its first
// answer.
func (b *bench) bareStart(ctx context.Context, request []byte) (time.Duration, error) {
	p, address, err := b.serve(ctx)
	if err != nil {
		return 0, err
	}
	err = p.until(ctx, time.Millisecond/2, func() error { return ask(address, request) })
	took := time.Since(p.started)
	return took, errors.Join(err, p.stop())
}

// serve starts the model server alone with the quickstart's iris, and gives
// the address it will listen on.
func (b *bench) serve(ctx context.Context) (*process, string, error) {
	port, err := freePort()
	if err != nil {
		return nil, "", err
	}
	model := filepath.Join(b.examples, "models", "iris.ubj")
	p, err := launch(exec.CommandContext(ctx, filepath.Join(filepath.Dir(b.binary), "roundhouse-server"), model, "--name", "iris", "--host", "127.0.0.1", "--http-port", strconv.Itoa(port)))
	return p, loopback(port), err
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
