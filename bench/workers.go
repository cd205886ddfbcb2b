package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed workers.py
var workersScript string

const (
	workerUsers   = 64
	workerTime    = time.Second            // of each server, each round, with that many
	workerAlone   = 500 * time.Millisecond // with one; MLServer answers about every 0.3 s with batching
	pooledModels  = 10
	pooledWorkers = 4
)

// workers measures a scikit-learn model that runs in Python's workers, ours
// against MLServer's: answers a second of many users, a lone request's wait
// where batching is on, and the memory of pools.
func workers(ctx context.Context, b *bench) error {
	python := os.Getenv("ROUNDHOUSE_MLSERVER_PYTHON")
	if python == "" || b.python == "" {
		return errors.New("ROUNDHOUSE_PEERS_PYTHON and ROUNDHOUSE_MLSERVER_PYTHON name no Pythons: `make bench` sets them")
	}
	folder := filepath.Join(b.scratch, "workers")
	if said, err := exec.CommandContext(ctx, b.python, "-c", workersScript, folder).CombinedOutput(); err != nil {
		return fmt.Errorf("python: %w: %s", err, said)
	}
	servers := func(name string, ours ...string) ([]*modelServer, error) {
		theirs := filepath.Join(folder, name)
		s, err := startServer(ctx, "MLServer", theirs, func(int) *exec.Cmd {
			return exec.CommandContext(ctx, filepath.Join(filepath.Dir(python), "mlserver"), "start", theirs)
		})
		all := []*modelServer{s}
		for _, mine := range append([]string{name}, ours...) {
			if err != nil {
				break
			}
			s, err = startServer(ctx, "ours, "+mine, filepath.Join(folder, mine), func(int) *exec.Cmd {
				return exec.CommandContext(ctx, b.binary, "serve", "--python", b.python, filepath.Join(folder, mine))
			})
			all = append(all, s)
		}
		return all, err
	}
	return errors.Join(workerRates(ctx, b, servers), workerPools(ctx, b, servers))
}

type startServers func(name string, ours ...string) ([]*modelServer, error)

// workerRates compares answers a second, and the wait of a lone request.
func workerRates(ctx context.Context, b *bench, start startServers) error {
	plain, err1 := start("plain")
	defer closeAll(plain)
	batched, err2 := start("batched")
	defer closeAll(batched)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	request := post("/v2/models/iris/infer", jsonBody([]float32{5.1, 3.5, 1.4, 0.2}, 1))
	ways := []*modelServer{plain[0], plain[1], batched[0], batched[1]}
	rates, cpus, waits := make([][]float64, len(ways)), make([][]float64, len(ways)), make([][]float64, len(ways))
	for round := range b.rounds + 1 {
		for i, s := range ways {
			before, err1 := treeCPU(s.pid())
			busy, err2 := send(ctx, s.http, request, workerUsers, workerTime)
			after, err3 := treeCPU(s.pid())
			alone, err4 := send(ctx, s.http, request, 1, workerAlone)
			if err := errors.Join(err1, err2, err3, err4); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if round > 0 {
				rates[i] = append(rates[i], float64(busy.answers)/busy.seconds)
				cpus[i] = append(cpus[i], (after-before)*1e6/float64(busy.answers))
				waits[i] = append(waits[i], alone.p50/1000)
			}
		}
	}
	t := table{title: fmt.Sprintf("scikit-learn in one worker, JSON, %d users (%d paired rounds)", workerUsers, b.rounds),
		notes: []string{"Batching: max_batch_size 64, max_batch_time 0.3 s. CPU is the server's and its worker's."}}
	for i, what := range []string{"no batching", "batching"} {
		theirs, ours := 2*i, 2*i+1
		t.rows = append(t.rows,
			row{what: what + ", CPU a request: MLServer", samples: cpus[theirs], unit: "µs"}, row{what: "  ours", samples: cpus[ours], unit: "µs"},
			row{what: "  ours ÷ MLServer's", samples: pairwise(cpus[ours], cpus[theirs], ratio), unit: "×"},
			row{what: what + ", answers a second: MLServer", samples: rates[theirs], unit: "/s"}, row{what: "  ours", samples: rates[ours], unit: "/s"},
			row{what: "  MLServer's ÷ ours", samples: pairwise(rates[theirs], rates[ours], ratio), unit: "×", goal: []float64{1.0 / 2, 1.0 / 5}[i]})
	}
	t.rows = append(t.rows,
		row{what: "a lone request's p50, batching less no batching: MLServer", samples: pairwise(waits[2], waits[0], difference), unit: "ms"},
		row{what: "  ours", samples: pairwise(waits[3], waits[1], difference), unit: "ms", goal: 1})
	t.print(b.out)
	return nil
}

// workerPools compares the memory of four workers with ten models: with every
// model in every worker, and with each in one.
func workerPools(ctx context.Context, b *bench, start startServers) error {
	all, err := start("everywhere", "spread")
	defer closeAll(all)
	if err != nil {
		return err
	}
	t := table{title: fmt.Sprintf("Memory of %d models and %d workers, all processes of a server together, after each model was asked", pooledModels, pooledWorkers)}
	memory := make([][]float64, len(all))
	for i, s := range all {
		for model := range pooledModels {
			request := post(fmt.Sprintf("/v2/models/iris-%d/infer", model), jsonBody([]float32{5.1, 3.5, 1.4, 0.2}, 1))
			if _, err := send(ctx, s.http, request, pooledWorkers, 200*time.Millisecond); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		time.Sleep(settle)
		total, err := treePSS(s.pid())
		if err != nil {
			return err
		}
		memory[i] = []float64{total}
	}
	t.rows = append(t.rows, row{what: "MLServer: PSS", samples: memory[0], unit: "MB"},
		row{what: "ours, every model in every worker: PSS", samples: memory[1], unit: "MB"},
		row{what: "  ours ÷ MLServer's", samples: pairwise(memory[1], memory[0], ratio), unit: "×", goal: 0.8},
		row{what: "ours, each model in one worker: PSS", samples: memory[2], unit: "MB"},
		row{what: "  ours ÷ MLServer's", samples: pairwise(memory[2], memory[0], ratio), unit: "×", goal: 0.4})
	t.print(b.out)
	return nil
}

func closeAll(all []*modelServer) {
	for _, s := range all {
		if s != nil {
			_ = s.close() // what it was started for is measured
		}
	}
}

// tree lists a process and all it has started, and what those have.
func tree(pid int) ([]int, error) {
	children := map[int][]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		var child, parent int
		if _, err := fmt.Sscan(e.Name(), &child); err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		rest := string(raw[strings.LastIndexByte(string(raw), ')')+1:])
		if _, err := fmt.Sscanf(rest, " %1s %d", new(string), &parent); err == nil {
			children[parent] = append(children[parent], child)
		}
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all, nil
}

// treeCPU is the CPU time of a process and those below it, in seconds.
func treeCPU(pid int) (total float64, err error) {
	pids, err := tree(pid)
	for _, p := range pids {
		s, err := readCPU(p)
		if err != nil {
			return 0, err
		}
		total += s
	}
	return total, err
}

// treePSS is the memory of a process and those below it, in MB; pages they
// share count once.
func treePSS(pid int) (total float64, err error) {
	pids, err := tree(pid)
	for _, p := range pids {
		f, err := readFootprint(p)
		if err != nil {
			return 0, err
		}
		total += f.proportional
	}
	return total, err
}
