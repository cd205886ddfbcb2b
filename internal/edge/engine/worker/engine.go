package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

// Settings is what a model needs to be loaded.
type Settings struct {
	Name    string
	Version string
	// Document is model-settings.json as the server resolved it, a JSON object
	// with MLServer's field names. Its implementation is an import path.
	Document json.RawMessage
	// Folder is the absolute path that relative paths start from, and the folder
	// of the model's own modules; "" for none.
	Folder string
	// Workers is the number of workers of the pool that load the model. 0 means
	// the document's parameters.parallel_workers, or all workers without it.
	Workers int
	// RequestTimeout is how long the model may take for one answer; 0: the
	// engine's.
	RequestTimeout time.Duration

	// MLServer's settings of the pool. A tarball wins over a path.
	EnvironmentPath              string
	EnvironmentTarball           string
	InferencePoolGID             string
	AutogenerateInferencePoolGID bool
}

// Engine runs the workers and loads models in them.
type Engine struct {
	config  Config
	report  report
	log     *slog.Logger
	dir     string          // for sockets
	ctx     context.Context // of every worker
	cancel  context.CancelFunc
	started atomic.Int64
	keys    atomic.Int64

	programs Programs
	reaper   func() error  // makes orphans of workers children of this process
	orphans  time.Duration // between two looks for those that have ended

	mu struct {
		sync.Mutex
		pools   map[poolKey]*pool
		number  int
		closed  bool
		keep    bool // pools without models
		closing sync.WaitGroup
	}
}

// New makes an engine. Its workers run the programs that programs finds. No worker is
// started before the first Load. Metrics may be nil.
func New(c Config, programs Programs, metrics Metrics, log *slog.Logger) (*Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	dir, err := socketDir()
	if err != nil {
		return nil, err
	}
	e := &Engine{config: c, programs: programs, report: report{metrics, newCollected(log)}, log: log, dir: dir}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.reaper, e.orphans = sync.OnceValue(e.becomeReaper), orphanInterval
	e.mu.pools = map[poolKey]*pool{}
	return e, nil
}

// maxSocketPath is the longest path of a unix socket on every system.
const maxSocketPath = 100

// socketDir makes a folder for sockets, whose paths have a short limit.
func socketDir() (string, error) {
	parent := os.TempDir()
	if len(parent) > maxSocketPath-60 {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "roundhouse-")
	if err != nil {
		return "", fmt.Errorf("worker: no folder for sockets: %w", err)
	}
	return dir, nil
}

// Load loads a model in as many workers as its settings name. It is ready to
// answer when Load returns, unless its code reports otherwise.
func (e *Engine) Load(ctx context.Context, s Settings) (*Model, error) {
	if s.RequestTimeout < 0 {
		return nil, NewError(KindUnprocessable, fmt.Sprintf("model %q: inference_timeout is %s; it must be above 0", s.Name, s.RequestTimeout))
	}
	if s.RequestTimeout == 0 {
		s.RequestTimeout = e.config.Limits.RequestTimeout
	}
	if err := s.takeWorkers(); err != nil {
		return nil, NewError(KindUnprocessable, fmt.Sprintf("model %q: %v", s.Name, err))
	}
	number := e.keys.Add(1)
	m := &Model{engine: e, settings: s, key: excerpt.Of(s.Name, 400) + "#" + strconv.FormatInt(number, 10)}
	key := s.pool()
	if key.group == "" && s.AutogenerateInferencePoolGID {
		key.group = "\x00" + strconv.FormatInt(number, 10) // shared with none
	}
	p, err := e.acquire(ctx, key, m)
	if err != nil {
		return nil, err
	}
	m.pool = p
	m.chosen = p.choose(s.Workers)
	var answer *message
	if m.placements, answer, err = p.place(ctx, m, m.chosen); err == nil {
		if err = m.describe(answer); err == nil {
			return m, nil
		}
		_ = unloadAll(context.WithoutCancel(ctx), m.placements) // what matters is said already
	}
	p.leave(m.chosen)
	e.release(p, m)
	return nil, err
}

// pool returns the key of the model's pool: its environment and inference_pool_gid.
func (s *Settings) pool() poolKey {
	key := poolKey{group: s.InferencePoolGID}
	switch {
	case s.EnvironmentTarball != "":
		key.Path, key.Tarball = absolute(s.EnvironmentTarball, s.Folder), true
	case s.EnvironmentPath != "":
		key.Path = absolute(s.EnvironmentPath, s.Folder)
	}
	return key
}

// takeWorkers moves parameters.parallel_workers from the document to Workers. It
// is a setting of ours that MLServer does not know.
func (s *Settings) takeWorkers() error {
	var document, parameters map[string]json.RawMessage
	if err := json.Unmarshal(s.Document, &document); err != nil {
		return fmt.Errorf("its settings are not a JSON object: %w", err)
	}
	if raw := document["parameters"]; raw != nil {
		if err := json.Unmarshal(raw, &parameters); err != nil {
			return fmt.Errorf("parameters: %w", err)
		}
	}
	if raw, ok := parameters[workersField]; ok {
		var n *int
		if err := json.Unmarshal(raw, &n); err != nil {
			return fmt.Errorf("parameters.%s: %w", workersField, err)
		}
		if n != nil && s.Workers == 0 {
			s.Workers = *n
		}
		delete(parameters, workersField)
		var err error
		if document["parameters"], err = json.Marshal(parameters); err == nil {
			s.Document, err = json.Marshal(document)
		}
		if err != nil {
			return err
		}
		if n != nil && *n == 0 {
			return fmt.Errorf("parameters.%s is 0; it must be above 0", workersField)
		}
	}
	if s.Workers < 0 {
		return fmt.Errorf("parameters.%s is %d; it must be above 0", workersField, s.Workers)
	}
	return nil
}

const workersField = "parallel_workers"

// absolute returns path as an absolute path; a relative one starts from folder.
func absolute(path, folder string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(folder, path)
}

// acquire finds or makes a pool and adds m to its models.
func (e *Engine) acquire(ctx context.Context, key poolKey, m *Model) (*pool, error) {
	e.mu.Lock()
	if e.mu.closed {
		e.mu.Unlock()
		return nil, errClosed
	}
	p := e.mu.pools[key]
	if p == nil {
		e.mu.number++
		p = &pool{key: key, engine: e, models: map[*Model]struct{}{}, prepared: make(chan struct{}), log: e.log}
		if key.Path != "" {
			p.log = e.log.With("environment", key.Path)
		}
		e.mu.pools[key] = p
		go p.prepare(e.ctx, e.mu.number) // no load's context: others wait for it too
	}
	p.models[m] = struct{}{}
	e.mu.Unlock()
	select {
	case <-p.prepared:
	case <-ctx.Done():
		e.release(p, m)
		return nil, ctx.Err()
	}
	if p.err != nil {
		e.release(p, m)
		return nil, p.err
	}
	return p, nil
}

// release removes a model from a pool. After the last model it stops the pool's
// workers in the background.
func (e *Engine) release(p *pool, m *Model) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if delete(p.models, m); !e.mu.keep {
		e.endLocked(p)
	}
}

// endLocked stops the workers of a pool without models, in the background.
func (e *Engine) endLocked(p *pool) {
	if len(p.models) == 0 && e.mu.pools[p.key] == p {
		delete(e.mu.pools, p.key)
		e.mu.closing.Go(p.close)
	}
}

// Keep has workers stay that have no model left, with the libraries that they have
// imported: the next load takes its own time alone. Without it they end.
func (e *Engine) Keep(keep bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.keep = keep; keep {
		return
	}
	for _, p := range e.mu.pools {
		e.endLocked(p)
	}
}

// Close stops every worker. Workers have at most the worker timeout to finish
// their requests. Models of the engine refuse requests from then on.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.mu.closed = true
	for key, p := range e.mu.pools {
		delete(e.mu.pools, key)
		e.mu.closing.Go(p.close)
	}
	e.mu.Unlock()
	e.cancel()
	done := make(chan struct{})
	go func() { e.mu.closing.Wait(); close(done) }()
	select {
	case <-done:
		return os.RemoveAll(e.dir)
	case <-ctx.Done():
		return fmt.Errorf("worker: workers did not stop in time: %w", ctx.Err())
	}
}

// WorkerStatus is the state of a worker.
type WorkerStatus struct {
	Worker      string
	Environment string // "" is the default one
	PID         int    // 0: it is being replaced
	InFlight    int
	Models      int
	Restarts    int
	RSS         int64 // bytes, as of the last heartbeat
}

// Status lists the workers, by name.
func (e *Engine) Status() []WorkerStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := []WorkerStatus{}
	for _, p := range e.mu.pools {
		select {
		case <-p.prepared:
		default:
			continue
		}
		for _, s := range p.slots {
			list = append(list, s.status())
		}
	}
	slices.SortFunc(list, func(a, b WorkerStatus) int { return compareNames(a.Worker, b.Worker) })
	return list
}

func compareNames(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	if a < b {
		return -1
	}
	return 1
}

func (s *slot) status() WorkerStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := WorkerStatus{Worker: s.name, Environment: s.pool.key.Path, Models: len(s.mu.placements), Restarts: int(s.restarts.Load())}
	if w := s.mu.live; w != nil {
		status.PID, status.InFlight, status.RSS = w.process.PID(), int(w.conn.inFlight.Load()), w.rss.Load()
	}
	return status
}

// describe keeps the metadata that the first worker returned for the model.
func (m *Model) describe(answer *message) error {
	if answer.Metadata == nil {
		answer.Metadata = &wireMetadata{}
	}
	metadata, err := answer.Metadata.metadata()
	if err != nil {
		return err
	}
	if metadata.Name == "" {
		metadata.Name = m.settings.Name
	}
	if metadata.Versions == nil && m.settings.Version != "" {
		metadata.Versions = []string{m.settings.Version}
	}
	m.metadata, m.handlers, m.streams = metadata, answer.Handlers, answer.Streams
	return nil
}
