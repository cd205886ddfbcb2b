package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

const (
	quickstartServices = 3
	memoryRequests     = 1000 // to a replica, before it is measured again
)

// settle is given to a process before its memory is read, for what it does on
// its own after a start.
const settle = time.Second

// memory measures an idle `up` with the quickstart loaded and all of it
// asleep, and one replica of the native model server.
func memory(ctx context.Context, b *bench) error {
	var fresh, asleep, started, worked []footprint
	for i := range (b.rounds + 1) / 2 {
		if err := memoryRound(ctx, b, i, &fresh, &asleep, &started, &worked); err != nil {
			return err
		}
	}
	t := table{title: fmt.Sprintf("Memory (%d rounds)", len(fresh))}
	t.add("up, quickstart loaded, just started", fresh, 60, 0)
	t.add("up, all asleep after each was asked", asleep, 60, 0)
	t.add("one replica (iris), just started", started, 20, 6)
	t.add(fmt.Sprintf("one replica (iris), after %d requests", memoryRequests), worked, 20, 9)
	t.notes = []string{"RSS counts pages of the binary in every process; PSS shares them out among the processes that map them."}
	t.print(b.out)
	return nil
}

// add appends a process's rows; goal is for its RSS and own for its own memory,
// in MB, 0 for none.
func (t *table) add(what string, f []footprint, goal, own float64) {
	var resident, proportional, anonymous []float64
	for _, f := range f {
		resident, proportional = append(resident, f.resident), append(proportional, f.proportional)
		anonymous = append(anonymous, f.anonymous)
	}
	t.rows = append(t.rows, row{what: what + ": RSS", samples: resident, unit: "MB", goal: goal},
		row{what: "  of it not backed by a file", samples: anonymous, unit: "MB", goal: own},
		row{what: "  PSS", samples: proportional, unit: "MB"})
}

// memoryRound starts an `up`, asks it, lets it sleep, and measures on the way.
func memoryRound(ctx context.Context, b *bench, round int, fresh, asleep, started, worked *[]footprint) error {
	n, err := b.up(ctx, filepath.Join(b.scratch, fmt.Sprintf("memory-%d", round)), b.examples)
	if err != nil {
		return err
	}
	measure := func(pid int, into *[]footprint) error {
		time.Sleep(settle)
		f, err := readFootprint(pid)
		*into = append(*into, f)
		return err
	}
	steps := []func() error{
		func() error { return n.settled(ctx, quickstartServices) },
		func() error { return measure(n.pid(), fresh) },
		func() error { return askAll(b, n) },
		func() error {
			pid, _, err := n.replica(ctx, "iris")
			if err != nil {
				return err
			}
			return measure(pid, started)
		},
		func() error { return askMany(ctx, b, n, func(pid int) error { return measure(pid, worked) }) },
		func() error { return n.sleepAll(ctx) },
		func() error { return measure(n.pid(), asleep) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return errors.Join(err, n.stop())
		}
	}
	return n.stop()
}

// askAll wakes every service of the quickstart.
func askAll(b *bench, n *node) error {
	for _, name := range []string{"iris", "digits"} {
		request, err := b.request(name)
		if err == nil {
			err = ask(n.gateway, request)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	chat := []byte(`{"model":"chat","max_tokens":4,"messages":[{"role":"user","content":"Hello"}]}`)
	return ask(n.gateway, post("/v1/chat/completions", chat))
}

// askMany asks iris memoryRequests times and has its process measured.
func askMany(ctx context.Context, b *bench, n *node, measure func(pid int) error) error {
	request, err := b.request("iris")
	if err != nil {
		return err
	}
	c, err := dial(n.gateway)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	for range memoryRequests {
		if err := c.ask(request); err != nil {
			return err
		}
	}
	pid, _, err := n.replica(ctx, "iris")
	if err != nil {
		return err
	}
	return measure(pid)
}

func (n *node) sleepAll(ctx context.Context) error {
	for _, name := range []string{"iris", "digits", "chat"} {
		if err := n.sleep(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
