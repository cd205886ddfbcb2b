package app

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/process/keeper"
)

// Agent has the model server of a pod load the models of a list, as KServe's agent does:
// it fetches their files and calls the server, while both run.
type Agent struct {
	// List is the file with the models, as KServe's agent reads it. It may not be
	// there yet, and changes.
	List string
	// Repository is the folder in which the server finds models, and Files where their
	// files are put.
	Repository, Files string
	// Server is where the server answers, and Listen where the agent says how far each
	// model is: GET /models.
	Server, Listen string
	PublicOnly     bool // refuse URIs that lead to internal addresses
	Log            command.LogOptions
}

const (
	// agentEvery is how often the list and the server are looked at, and agentRecheck
	// how often the server is asked whether it still has what it was told to load.
	agentEvery   = time.Second
	agentRecheck = 15 * time.Second
	// agentRetryMin and agentRetryMax are how long a model that was not loaded waits
	// for the next try: as a container that does not start.
	agentRetryMin = 2 * time.Second
	agentRetryMax = 5 * time.Minute
	// agentTimeout bounds a question of the server whether it is ready.
	agentTimeout = 5 * time.Second
	// maxModelList bounds the list: a ConfigMap has at most 1 MiB.
	maxModelList = 2 << 20
)

// Run loads and unloads models until ctx ends.
func (c *Agent) Run(ctx context.Context, logs io.Writer) error {
	log, err := c.Log.New(logs)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Files, 0o755); err != nil { //nolint:gosec // the server may be another user's
		return err
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &agent{c: c, log: log, states: map[string]replica.Guest{}}
	k := keeper.New(keeper.Config{Dir: c.Repository, Layout: workload.LayoutRoundhouse, Address: c.Server, Wanted: a.models, Fetch: a.fetch,
		Tell: a.tell, Gone: a.gone, Loaded: a.loaded, LoadTimeout: func() time.Duration { return service.DefaultStartupTimeout },
		RetryMin: agentRetryMin, RetryMax: agentRetryMax, Client: &http.Client{}, Now: time.Now, Logger: log})
	srv := &http.Server{Handler: a.handler(), ReadHeaderTimeout: agentTimeout, ReadTimeout: agentTimeout, WriteTimeout: agentTimeout, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	failed := make(chan error, 1)
	var running sync.WaitGroup
	running.Go(func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
			cancel()
		}
	})
	running.Go(func() { k.Run(ctx) })
	a.watch(ctx, k)
	_ = srv.Close()
	running.Wait()
	select {
	case err := <-failed:
		return fmt.Errorf("answer on %s: %w", c.Listen, err)
	default:
		return nil
	}
}

// agent is a running Agent.
type agent struct {
	c   *Agent
	log *slog.Logger

	mu     sync.Mutex
	list   []byte
	wanted []workload.Guest
	known  bool // the list was read
	ready  bool // the server is
	states map[string]replica.Guest

	refused [sha256.Size]byte // the list that was warned of last, and why; used by watch alone
}

// models are those that the server is to have; false until they are known, and while it is
// not ready.
func (a *agent) models() ([]workload.Guest, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wanted, a.known && a.ready
}

func (a *agent) tell(name string, change func(*replica.Guest)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.states[name]
	change(&g)
	a.states[name] = g
}

// gone forgets a model that was unloaded, and deletes its files.
func (a *agent) gone(name string) {
	a.mu.Lock()
	delete(a.states, name)
	a.mu.Unlock()
	if err := os.RemoveAll(filepath.Join(a.c.Files, name)); err != nil {
		a.log.Warn("the files of a model are left", "model", name, "error", err)
	}
	a.log.Info("a model was unloaded", "model", name)
}

// loaded deletes the files that a model had before.
func (a *agent) loaded(name, path string) {
	dir := filepath.Join(a.c.Files, name)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if at := filepath.Join(dir, e.Name()); at != path {
			err = errors.Join(err, os.RemoveAll(at))
		}
	}
	if err != nil {
		a.log.Warn("files that a model had before are left", "model", name, "error", err)
	}
}

// fetch brings a model's files into a folder of their own, which is named by what they
// are: those that are loaded stay until others have been.
func (a *agent) fetch(ctx context.Context, g workload.Guest, progress func(replica.Progress)) (string, error) {
	sum := sha256.Sum256([]byte(g.Model.URI + "\x00" + g.Model.Fingerprint))
	dir := filepath.Join(a.c.Files, g.Name, hex.EncodeToString(sum[:8]))
	err := artifact.Materialize(ctx, dir, artifact.Request{URI: g.Model.URI}, artifact.Config{PublicOnly: a.c.PublicOnly, HubEndpoint: hubDefault()}, nil, a.log,
		func(p artifact.Progress) { progress(replica.Progress{Done: p.Done, Total: max(0, p.Total)}) })
	if from := os.Getenv("ROUNDHOUSE_CREDENTIALS"); from != "" && artifact.Denied(err) {
		err = fmt.Errorf("%w; the credentials are those of %s", err, from)
	}
	return dir, err
}

// watch tells the keeper of changes of the list and of the server until ctx ends.
func (a *agent) watch(ctx context.Context, k *keeper.Keeper) {
	client := &http.Client{Timeout: agentTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t := time.NewTicker(agentEvery)
	defer t.Stop()
	rechecked := time.Now()
	for {
		changed := a.read()
		switch ready := answers(ctx, client, "http://"+a.c.Server+"/v2/health/ready"); {
		case ready != a.setReady(ready) && ready, ready && time.Since(rechecked) > agentRecheck:
			rechecked = time.Now()
			k.Recheck()
		case changed:
			k.Look()
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// setReady notes whether the server is ready, and returns whether it was.
func (a *agent) setReady(now bool) (was bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was, a.ready = a.ready, now
	return was
}

// read reads the list, and reports whether it is another one. One that cannot be read
// leaves the one before.
func (a *agent) read() (changed bool) {
	f, err := os.Open(a.c.List)
	if errors.Is(err, fs.ErrNotExist) {
		return false // it comes, or comes again: nothing is unloaded for that
	}
	var raw []byte
	if err == nil {
		raw, err = io.ReadAll(io.LimitReader(f, maxModelList+1))
		_ = f.Close() // only read from
	}
	if err == nil && len(raw) > maxModelList {
		err = fmt.Errorf("it has over %d bytes", maxModelList)
	}
	a.mu.Lock()
	same := a.known && bytes.Equal(raw, a.list)
	a.mu.Unlock()
	if err == nil && same {
		a.refused = [sha256.Size]byte{}
		return false
	}
	var list []shape.ListedModel
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	for _, m := range list { // a folder is named by each, which is deleted with it
		if strings.HasPrefix(m.Name, ".") || strings.ContainsAny(m.Name, `/\`) || !filepath.IsLocal(m.Name) {
			err = errors.Join(err, fmt.Errorf("%.100q is no name of a model", m.Name))
		}
	}
	if err != nil {
		// It is read each second, and told of when it is another list or another error.
		if now := sha256.Sum256(append([]byte(err.Error()+"\x00"), raw...)); now != a.refused {
			a.refused = now
			a.log.Warn("the list of models cannot be read", "file", a.c.List, "error", err)
		}
		return false
	}
	a.refused = [sha256.Size]byte{}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list, a.wanted, a.known = raw, shape.Guests(list), true
	return true
}

// handler answers how far each model is.
func (a *agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+shape.AgentModels, func(w http.ResponseWriter, _ *http.Request) {
		a.mu.Lock()
		now := maps.Clone(a.states)
		a.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(now) // the reader has gone
	})
	return mux
}

// answers reports whether a URL is answered with 200.
func answers(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
