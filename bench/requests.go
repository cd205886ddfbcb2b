package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	busyConnections = 64
	busyTime        = time.Second            // of each side, each round, at busyConnections
	calmTime        = 500 * time.Millisecond // at one connection
)

// oneReplica serves iris and does not scale, so that both ways end in the same
// process.
const oneReplica = `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata:
  name: iris
spec:
  model:
    uri: file://%s
    format: {name: xgboost}
  scaling: {minReplicas: 1, maxReplicas: 1}
`

// ways are the two ways to the same replica, and what each round gave.
type ways struct {
	node            *node
	replica         int    // its process
	address         string // "host:port" of the replica
	request         []byte
	direct, through measured
}

// measured is one way's figures, a value a round.
type measured struct {
	replica []float64 // its CPU time, microseconds an answer
	gateway []float64 // the gateway's
	rate    []float64 // answers a second
	p50     []float64 // of an answer at one connection, in microseconds
}

// requests measures what a request for one iris row costs, straight to the
// replica and through the gateway.
func requests(ctx context.Context, b *bench) error {
	manifest := filepath.Join(b.scratch, "one-replica.yaml")
	text := fmt.Sprintf(oneReplica, filepath.Join(b.examples, "models", "iris.ubj"))
	if err := os.WriteFile(manifest, []byte(text), 0o644); err != nil {
		return err
	}
	n, err := b.up(ctx, filepath.Join(b.scratch, "requests"), manifest)
	if err != nil {
		return err
	}
	w := &ways{node: n}
	if err := errors.Join(w.measure(ctx, b), n.stop()); err != nil {
		return err
	}
	w.table().print(b.out)
	return nil
}

// measure runs the rounds, after one that is not counted. The side that goes
// first changes.
func (w *ways) measure(ctx context.Context, b *bench) (err error) {
	if w.request, err = b.request("iris"); err != nil {
		return err
	}
	if err := w.node.settled(ctx, 1); err != nil {
		return err
	}
	if err := ask(w.node.gateway, w.request); err != nil {
		return err
	}
	if w.replica, w.address, err = w.node.replica(ctx, "iris"); err != nil {
		return err
	}
	for i := range b.rounds + 1 {
		first, second := func() error { return w.send(ctx, w.address, &w.direct) }, func() error { return w.send(ctx, w.node.gateway, &w.through) }
		if i%2 == 1 {
			first, second = second, first
		}
		if err := first(); err != nil {
			return err
		}
		if err := second(); err != nil {
			return err
		}
		if i == 0 {
			w.direct, w.through = measured{}, measured{}
		}
	}
	return nil
}

// send measures one side of one round.
func (w *ways) send(ctx context.Context, address string, s *measured) error {
	replicaBefore, err1 := readCPU(w.replica)
	gatewayBefore, err2 := readCPU(w.node.pid())
	busy, err3 := send(ctx, address, w.request, busyConnections, busyTime)
	replicaAfter, err4 := readCPU(w.replica)
	gatewayAfter, err5 := readCPU(w.node.pid())
	calm, err6 := send(ctx, address, w.request, 1, calmTime)
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		return err
	}
	each := 1e6 / float64(busy.answers)
	s.replica = append(s.replica, (replicaAfter-replicaBefore)*each)
	s.gateway = append(s.gateway, (gatewayAfter-gatewayBefore)*each)
	s.rate = append(s.rate, float64(busy.answers)/busy.seconds)
	s.p50 = append(s.p50, calm.p50)
	return nil
}

func (w *ways) table() table {
	return table{
		title: fmt.Sprintf("One iris row over HTTP, %d connections (%d paired rounds)", busyConnections, len(w.direct.rate)),
		rows: []row{
			{what: "replica's CPU a request, asked directly", samples: w.direct.replica, unit: "µs"},
			{what: "replica's CPU a request, through the gateway", samples: w.through.replica, unit: "µs"},
			{what: "gateway's CPU a request", samples: w.through.gateway, unit: "µs"},
			{what: "gateway's CPU ÷ the replica's, asked directly", samples: pairwise(w.through.gateway, w.direct.replica, ratio), unit: "×"},
			{what: "requests a second, directly", samples: w.direct.rate, unit: "/s"},
			{what: "requests a second, through the gateway", samples: w.through.rate, unit: "/s"},
			{what: "p50 at one connection, directly", samples: w.direct.p50, unit: "µs"},
			{what: "p50 at one connection, through the gateway", samples: w.through.p50, unit: "µs"},
			{what: "added p50 at one connection", samples: pairwise(w.through.p50, w.direct.p50, difference), unit: "µs"},
		},
		notes: []string{"The client runs on the same cores: requests a second are for comparison within this run alone."},
	}
}
