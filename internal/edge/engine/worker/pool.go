package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
)

// errClosed answers requests after the engine or the pool has been closed.
var errClosed = NewError(kindUnavailable, "the workers are shutting down")

// poolKey identifies a pool.
type poolKey struct {
	Environment
	group string // inference_pool_gid
}

// pool holds the workers of one environment.
type pool struct {
	key      poolKey
	engine   *Engine
	log      *slog.Logger
	models   map[*Model]struct{} // loaded, or being loaded; guarded by the engine's lock
	prepared chan struct{}       // closed once the rest is set
	err      error               // why there are no workers

	program *Program
	forks   *forkServer // nil: none
	slots   []*slot
	cancel  context.CancelFunc

	mu struct {
		sync.Mutex
		placed []int // models in each slot, with those being loaded
	}
}

// prepare finds the environment and starts the workers.
func (p *pool) prepare(ctx context.Context, number int) {
	defer close(p.prepared)
	if p.program, p.err = p.engine.programs(ctx, p.key.Environment); p.err != nil {
		return
	}
	ctx, p.cancel = context.WithCancel(ctx)
	p.forks = p.newForkServer(strconv.Itoa(number))
	n := p.engine.config.workers()
	p.mu.placed = make([]int, n)
	for i := range n {
		s := newSlot(p, strconv.Itoa(number)+"-"+strconv.Itoa(i))
		p.slots = append(p.slots, s)
		go s.run(ctx)
	}
}

// start starts a worker.
func (p *pool) start(ctx context.Context, name string) (*worker, error) {
	l := p.launch(name, p.program.Command)
	l.forks = p.forks
	return l.start(ctx)
}

// launch returns what starts a process of the pool.
func (p *pool) launch(name string, command []string) launch {
	c := &p.engine.config
	name += "-" + strconv.FormatInt(p.engine.started.Add(1), 10)
	return launch{
		name: name, dir: p.engine.dir, command: command, env: p.program.Env, known: p.program.Explain,
		grace: c.WorkerTimeout, limits: c.Limits, report: p.engine.report, log: p.log.With("worker", name),
	}
}

// newForkServer returns the fork server of a pool, nil if its workers cannot be
// forked or if there is only one, which would share memory with nobody.
func (p *pool) newForkServer(number string) *forkServer {
	c := &p.engine.config
	if !c.ForkWorkers || !forks() || c.workers() < 2 || p.program.ForkServer == nil {
		return nil
	}
	return &forkServer{log: p.log, models: p.forkModels, reaper: p.engine.reaper,
		launch: func() launch { return p.launch(number+"-fork", p.program.ForkServer) }}
}

// forkModels describes the pool's models, loaded and expected, for a fork server.
func (p *pool) forkModels() []forkModel {
	seen := map[forkModel]bool{}
	list := []forkModel{}
	add := func(s *Settings) {
		var o forkModel
		if json.Unmarshal(s.Document, &o) != nil {
			return // its load reports it
		}
		if o.Folder = s.Folder; !seen[o] && len(list) < maxForkModels {
			seen[o] = true
			list = append(list, o)
		}
	}
	p.engine.mu.Lock()
	for m := range p.models {
		add(&m.settings)
	}
	p.engine.mu.Unlock()
	for i := range p.engine.config.Expected {
		if s := &p.engine.config.Expected[i]; s.pool() == p.key {
			add(s)
		}
	}
	return list
}

// choose takes the n slots with the fewest models, all for n = 0. The caller
// returns them with leave.
func (p *pool) choose(n int) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]int, len(p.slots))
	for i := range all {
		all[i] = i
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(p.mu.placed[a], p.mu.placed[b]) })
	if n > 0 && n < len(all) {
		all = all[:n]
	}
	for _, i := range all {
		p.mu.placed[i]++
	}
	return all
}

func (p *pool) leave(chosen []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range chosen {
		p.mu.placed[i]--
	}
}

// place loads m in the chosen slots, in all or in none.
func (p *pool) place(ctx context.Context, m *Model, chosen []int) ([]*placement, *message, error) {
	placements := make([]*placement, len(chosen))
	answers := make([]*message, len(chosen))
	errs := make([]error, len(chosen))
	var wg sync.WaitGroup
	for n, i := range chosen {
		wg.Go(func() { placements[n], answers[n], errs[n] = p.slots[i].load(ctx, m) })
	}
	wg.Wait()
	if first := slices.IndexFunc(errs, func(err error) bool { return err != nil }); first >= 0 {
		placements = slices.DeleteFunc(placements, func(o *placement) bool { return o == nil })
		// The load's context may have ended, which is no fault of the workers.
		return nil, nil, errors.Join(errs[first], unloadAll(context.WithoutCancel(ctx), placements))
	}
	return placements, answers[0], nil
}

// unloadAll unloads placements concurrently.
func unloadAll(ctx context.Context, placements []*placement) error {
	errs := make([]error, len(placements))
	var wg sync.WaitGroup
	for n, o := range placements {
		wg.Go(func() { errs[n] = o.slot.unload(ctx, o) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// close stops the workers and releases their program.
func (p *pool) close() {
	<-p.prepared
	if p.cancel != nil {
		p.cancel()
	}
	for _, s := range p.slots {
		<-s.stopped
	}
	if p.forks != nil {
		p.forks.close()
	}
	if p.program != nil && p.program.Release != nil {
		p.program.Release()
	}
}
