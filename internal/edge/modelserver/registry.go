package modelserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// State is where a model stands, in the words of the repository extension.
type State string

// The states.
const (
	StateUnknown     State = "UNKNOWN"
	StateReady       State = "READY"
	StateUnavailable State = "UNAVAILABLE"
	StateLoading     State = "LOADING"
	StateUnloading   State = "UNLOADING"
)

// slot is one version of a model: its state, and the instance that serves it, nil
// if there is none.
type slot struct {
	name, version string
	state         State
	reason        string
	failed        bool // it is to serve, since the start, and its last load failed
	gone          bool // it was unloaded, or its entry went
	live          *instance
	meter         meter
}

// loadTimeout bounds loading one model.
const loadTimeout = 10 * time.Minute

// registry holds the models by name and version. Loads and unloads come one
// after the other; requests only take the read lock.
type registry struct {
	repository   Repository
	engines      []Engine
	drainTimeout time.Duration
	meters       modelMeters
	cache        *responseCache // nil: none
	tracer       trace.Tracer   // nil: no spans
	aliases      map[string]string
	// infer answers a request for a step of an ensemble.
	infer func(ctx context.Context, name, version string, r *tensor.Request) (*tensor.Response, error)
	log   *slog.Logger

	changing chan struct{} // holds a token while a load or unload is under way
	retiring sync.WaitGroup

	mu struct {
		sync.RWMutex
		models  map[string][]*slot // by name; the default version first
		routers []*instance        // those with routes, in that order; never changed in place
	}
}

func newRegistry(repository Repository, engines []Engine, c Config, meters modelMeters, log *slog.Logger) *registry {
	r := &registry{repository: repository, engines: engines, drainTimeout: c.Limits.DrainTimeout,
		meters: meters, cache: newResponseCache(c.Cache), tracer: c.Tracer, aliases: c.Aliases, log: log, changing: make(chan struct{}, 1)}
	r.mu.models = map[string][]*slot{}
	return r
}

// acquire finds the instance for a name and version ("": the default) and
// begins a use of it, which the caller ends with release.
func (r *registry) acquire(name, version string) (*instance, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s, err := r.seek(name, version)
	if err != nil {
		return nil, err
	}
	if s.live == nil || !s.live.acquire() {
		return nil, &notReadyError{name: name, state: s.state, reason: s.reason}
	}
	return s.live, nil
}

// seek is find of what may be asked: what was unloaded is there to be loaded and
// in the index, and to those who ask it is not, as in MLServer.
func (r *registry) seek(name, version string) (*slot, error) {
	s, err := r.find(r.ownName(name), version)
	if err == nil && s.gone {
		return nil, tensor.Errorf(tensor.KindNotFound, "Model %s not found: %s", name, s.reason)
	}
	return s, err
}

// ownName is the name of the model that another name stands for; the lock is held.
func (r *registry) ownName(name string) string {
	if own, ok := r.aliases[name]; ok && len(r.mu.models[name]) == 0 {
		return own
	}
	return name
}

// find finds a slot; the lock is held. Without a version it is the first that
// serves, else the first.
func (r *registry) find(name, version string) (*slot, error) {
	slots := r.mu.models[name]
	if len(slots) == 0 {
		return nil, tensor.Errorf(tensor.KindNotFound, "Model %s not found", name)
	}
	if version == "" {
		for _, s := range slots {
			if s.live != nil {
				return s, nil
			}
		}
		return slots[0], nil
	}
	for _, s := range slots {
		if s.version == version {
			return s, nil
		}
	}
	return nil, tensor.Errorf(tensor.KindNotFound, "Model %s with version %s not found", name, version)
}

// slot finds or makes the slot of a version; the lock is held.
func (r *registry) slot(name, version string) *slot {
	for _, s := range r.mu.models[name] {
		if s.version == version {
			return s
		}
	}
	s := &slot{name: name, version: version, state: StateUnknown, meter: r.meters.of(name, version)}
	slots := append(slices.Clone(r.mu.models[name]), s)
	slices.SortFunc(slots, func(a, b *slot) int { return compareVersions(a.version, b.version) })
	r.mu.models[name] = slots
	return s
}

// compareVersions orders versions, the default first: none, then the highest,
// numbers in them compared as numbers.
func compareVersions(a, b string) int {
	if a == "" || b == "" {
		return cmp.Compare(len(a), len(b))
	}
	for a != "" && b != "" {
		x, restA := leading(a)
		y, restB := leading(b)
		if c := compareParts(y, x); c != 0 {
			return c
		}
		a, b = restA, restB
	}
	return cmp.Compare(len(b), len(a))
}

// leading splits off the digits or the other characters a version begins with.
func leading(s string) (part, rest string) {
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	n := 1
	for n < len(s) && digit(s[n]) == digit(s[0]) {
		n++
	}
	return s[:n], s[n:]
}

// compareParts compares numbers by value and others by their bytes.
func compareParts(a, b string) int {
	if a[0] >= '0' && a[0] <= '9' && b[0] >= '0' && b[0] <= '9' {
		x, y := strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
		return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
	}
	return cmp.Compare(a, b)
}

// index lists every version, by name and then the default first.
func (r *registry) index() []ModelStatus {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var list []ModelStatus
	for _, name := range slices.Sorted(maps.Keys(r.mu.models)) {
		for _, s := range r.mu.models[name] {
			list = append(list, s.status())
		}
	}
	return list
}

// status is the version's state; a loaded model may report that it is not ready.
func (s *slot) status() ModelStatus {
	if s.live != nil && !s.live.ready() {
		return ModelStatus{s.name, s.version, StateUnavailable, "the model is loaded, but reports that it is not ready"}
	}
	return ModelStatus{s.name, s.version, s.state, s.reason}
}

// versions lists those of a model that serve.
func (r *registry) versions(name string) []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := []string{}
	for _, s := range r.mu.models[name] {
		if s.live != nil && s.version != "" {
			list = append(list, s.version)
		}
	}
	return list
}

// modelReady reports whether a version serves; an error if it is unknown.
func (r *registry) modelReady(name, version string) (bool, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s, err := r.seek(name, version)
	return err == nil && s.live != nil && s.live.ready(), err
}

// lacking lists the models that are to serve and do not, sorted.
func (r *registry) lacking() (names []string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for name, slots := range r.mu.models {
		if slices.ContainsFunc(slots, func(s *slot) bool { return s.live == nil && s.failed || s.live != nil && !s.live.ready() }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// listRouters finds the instances with routes; the lock is held.
func (r *registry) listRouters() {
	var list []*instance
	for _, name := range slices.Sorted(maps.Keys(r.mu.models)) {
		for _, s := range r.mu.models[name] {
			if s.live != nil && s.live.routes != nil {
				list = append(list, s.live)
			}
		}
	}
	r.mu.routers = list
}

// routers are the instances with routes, by name and version.
func (r *registry) routers() []*instance {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mu.routers
}

// named is the name of the model that is asked by a name.
func (r *registry) named(name string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.ownName(name)
}

// change runs f while no other load or unload runs.
func (r *registry) change(ctx context.Context, f func() error) error {
	select {
	case r.changing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.changing }()
	return f()
}

// loadAll loads every model of the repository, a few at once.
func (r *registry) loadAll(ctx context.Context) error {
	return r.change(ctx, func() error {
		entries, err := r.repository.Scan()
		if err != nil {
			return &RepositoryError{err}
		}
		if len(entries) == 0 {
			r.log.Warn("the model repository is empty")
		}
		return r.loadEntries(ctx, entries, true)
	})
}

// loadEntries loads entries, as many at once as there are processors. Those of the
// start have to serve; the server stays ready when one that was added later fails.
func (r *registry) loadEntries(ctx context.Context, entries []Entry, start bool) error {
	r.mu.Lock()
	for _, e := range entries {
		s := r.slot(e.Settings.Name, e.Settings.Parameters.Version)
		s.state, s.failed = StateLoading, s.failed || start
	}
	r.mu.Unlock()
	errs := make([]error, len(entries))
	seen := map[[2]string]string{}
	for _, wave := range waves(entries) {
		r.loadWave(ctx, entries, wave, seen, errs)
	}
	return errors.Join(errs...)
}

// loadWave loads some of the entries at once. seen are the files of those that came
// before.
func (r *registry) loadWave(ctx context.Context, entries []Entry, wave []int, seen map[[2]string]string, errs []error) {
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for _, i := range wave {
		e := entries[i]
		key := [2]string{e.Settings.Name, e.Settings.Parameters.Version}
		if first, twice := seen[key]; twice {
			errs[i] = fmt.Errorf("%s: model %q is also in %s; the first counts", e.Settings.Source, key[0], first)
			r.log.Warn("model is in the repository twice", "model", key[0], "file", e.Settings.Source, "first", first)
			continue
		}
		seen[key] = e.Settings.Source
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			errs[i] = r.loadEntry(ctx, e)
		})
	}
	wg.Wait()
}

// loadEntry loads one entry and puts it in the place of the one before.
func (r *registry) loadEntry(ctx context.Context, e Entry) error {
	name, version := e.Settings.Name, e.Settings.Parameters.Version
	began := time.Now()
	loaded, err := r.open(ctx, e)
	r.mu.Lock()
	s := r.slot(name, version)
	before := s.live
	s.failed, s.gone = s.failed && err != nil, false
	switch {
	case err == nil:
		loaded.meter = s.meter
		s.live = loaded
		s.state, s.reason = StateReady, ""
	case before != nil:
		s.state, s.reason = StateReady, "the last reload failed: "+err.Error()
	default:
		s.state, s.reason = StateUnavailable, err.Error()
	}
	if loaded != nil && loaded.routes != nil || before != nil && before.routes != nil {
		r.listRouters()
	}
	r.mu.Unlock()
	if err != nil {
		r.log.Error("model cannot be loaded", "model", name, "version", version, "error", err)
		return fmt.Errorf("model %q: %w", name, err)
	}
	r.log.Info("model loaded", "model", name, "version", version, "took", time.Since(began))
	if before != nil {
		r.retire(before)
	}
	return nil
}

// open loads an entry and makes it ready to serve.
func (r *registry) open(ctx context.Context, e Entry) (_ *instance, err error) {
	model, err := r.loadModel(ctx, e)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = model.Close(ctx) // what is wrong was found first
		}
	}()
	i := newInstance(model, e.Settings.Name, e.Settings.Parameters.Version)
	i.stated = e.Settings.Versions
	if i.routes, err = newCustomRoutes(model); err != nil {
		return nil, err
	}
	c, err := batchConfig(e.Settings, model)
	if err != nil {
		return nil, err
	}
	if c.Enabled() {
		i.batcher = newBatcher(c, i, r.meters.queueOf(i.name, i.version), r.tracer, r.log)
	}
	i.cached = e.Settings.CacheEnabled && r.cache != nil
	if e.Settings.CacheEnabled && r.cache == nil {
		r.log.Warn("setting has no effect: the server's cache_enabled is off", "file", e.Settings.Source, "field", "cache_enabled")
	}
	return i, nil
}

// loadModel finds the engine and loads; a panicking loader is an error.
func (r *registry) loadModel(ctx context.Context, e Entry) (m Model, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the loader panicked: %v", p)
		}
	}()
	if e.Err != nil {
		return nil, &uriError{e.Err}
	}
	if e.Settings.Ensemble != nil {
		return r.openEnsemble(*e.Settings.Ensemble)
	}
	engine, settings, err := choose(e.Settings, r.engines)
	if err != nil {
		return nil, &uriError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	return engine.Loader.Load(ctx, settings)
}

// retire lets an instance finish in the background.
func (r *registry) retire(i *instance) {
	r.retiring.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), r.drainTimeout)
		defer cancel()
		err := i.retire(ctx)
		r.cache.forget(i.number)
		if err != nil {
			r.log.Warn("model did not close cleanly", "model", i.name, "version", i.version, "error", err)
		}
	})
}

// load loads all versions of a model that the repository now has, and unloads
// those it no longer has.
func (r *registry) load(ctx context.Context, name string) error {
	return r.change(ctx, func() error {
		entries, err := r.repository.Scan()
		if err != nil {
			return err
		}
		all := r.withSteps(entries, name)
		entries = slices.DeleteFunc(entries, func(e Entry) bool { return e.Settings.Name != name })
		if len(entries) == 0 {
			return tensor.Errorf(tensor.KindNotFound, "Model %s not found", name)
		}
		err = r.loadEntries(ctx, all, false)
		r.stop(name, "no longer in the repository", func(version string) bool {
			return !slices.ContainsFunc(entries, func(e Entry) bool { return e.Settings.Parameters.Version == version })
		})
		return err
	})
}

// unload ends all versions of a model.
func (r *registry) unload(ctx context.Context, name string) error {
	return r.change(ctx, func() error {
		r.mu.RLock()
		_, err := r.find(name, "")
		r.mu.RUnlock()
		if err != nil {
			return err
		}
		r.stop(name, "unloaded", func(string) bool { return true })
		return nil
	})
}

// stop ends the versions of a model for which gone is true.
func (r *registry) stop(name, reason string, gone func(version string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.mu.models[name] {
		if !gone(s.version) || reason == sleeping && s.live == nil {
			continue
		}
		if s.live != nil {
			r.retire(s.live)
			r.log.Info("model unloaded", "model", name, "version", s.version, "reason", reason)
		}
		s.live, s.state, s.reason, s.failed, s.gone = nil, StateUnavailable, reason, reason == sleeping, reason != shuttingDown && reason != sleeping
	}
	if len(r.mu.routers) > 0 {
		r.listRouters()
	}
}

// shuttingDown is why a model ends with the server; it is not gone, but not
// ready, so that balancers ask another server.
const shuttingDown = "the server is shutting down"

// sleeping is why a model is not there that wake loads.
const sleeping = "the server is asleep"

// sleep ends every model that serves, and returns once they have. before is called
// before the first of them ends.
func (r *registry) sleep(ctx context.Context, before func()) error {
	return r.change(ctx, func() error {
		before()
		return r.stopAll(ctx, sleeping)
	})
}

// wake loads what sleep ended; after is called once it has.
func (r *registry) wake(ctx context.Context, after func()) error {
	return r.change(ctx, func() error {
		defer after()
		entries, err := r.repository.Scan()
		if err != nil {
			return &RepositoryError{err}
		}
		r.mu.RLock()
		entries = slices.DeleteFunc(entries, func(e Entry) bool {
			s, err := r.find(e.Settings.Name, e.Settings.Parameters.Version)
			return err != nil || s.reason != sleeping
		})
		r.mu.RUnlock()
		return r.loadEntries(ctx, entries, true)
	})
}

// close ends every model and waits for them.
func (r *registry) close(ctx context.Context) error {
	return r.change(ctx, func() error { return r.stopAll(ctx, shuttingDown) })
}

// stopAll ends all models, and waits for them.
func (r *registry) stopAll(ctx context.Context, reason string) error {
	r.mu.RLock()
	list := slices.Collect(maps.Keys(r.mu.models))
	r.mu.RUnlock()
	for _, name := range list {
		r.stop(name, reason, func(string) bool { return true })
	}
	done := make(chan struct{})
	go func() { r.retiring.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("models did not close in time: %w", ctx.Err())
	}
}
