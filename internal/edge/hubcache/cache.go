// Package hubcache is a cache of the Hugging Face Hub that clients do not
// notice: HF_ENDPOINT points to it, and nothing else changes for them.
//
// A [Cache] is an http.Handler. It answers file requests (HEAD and GET of
// …/resolve/…) and the metadata routes clients use before them; every other
// path is passed on. Redirects are followed here, so clients see 200 and 206
// alone, and what would lead them past the cache (Xet) is taken out.
//
// Content is kept once, under the hash that the Hub gives it as ETag, and
// verified against it: SHA-256 for large files, git's blob SHA-1 for small
// ones. Who may read is asked of the Hub, per caller and revision, and believed
// for a short while; when the Hub cannot be asked, only callers that were
// allowed a short while ago may read, and everybody what is known to be public.
//
// The folder holds
//
//	blobs/<2 hex>/<hash>                  complete, verified files
//	partial/<hash>                        downloads under way, resumable
//	repos/<repository key>/…              what the Hub said: commits, files, answers
//	pins.json                             what is never evicted
//
// and no name in it comes from outside: blobs are named by their hash, the rest
// by a hash of what it is about.
package hubcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/peers"
)

// Cache answers for the Hub. It is safe for concurrent use.
type Cache struct {
	cfg     Config
	base    *url.URL
	public  string // origin for links; "" is each request's own
	store   *Store
	hub     *hub
	grants  *grants
	ring    *peers.Group // nil: this node is alone
	metrics *metrics
	log     *slog.Logger

	unlock    func()
	asking    singleflight.Group // questions to the Hub, by who asks what
	tasks     *tasks
	downloads *downloads
	failures  *failures
}

// tasks run in the background and outlive the requests that began them.
type tasks struct {
	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	closed  bool // nothing new is begun
	running sync.WaitGroup
}

// start runs do, unless close was called. It reports which.
func (t *tasks) start(do func(ctx context.Context)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.running.Go(func() { do(t.ctx) })
	}
	return !t.closed
}

// close ends the tasks and waits for them.
func (t *tasks) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.stop()
	t.running.Wait()
}

// New opens the cache's folder, which it locks, and registers its metrics.
// Close must be called.
func New(cfg Config, reg prometheus.Registerer) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	base, err := origin(cfg.Upstream)
	if err != nil {
		return nil, err
	}
	c := &Cache{cfg: cfg, base: base, log: cfg.Log, hub: newHub(base, cfg.Transport), grants: newGrants(cfg.GrantLife, cfg.MaxGrants),
		tasks: &tasks{}, failures: &failures{byHash: map[string]wrongs{}}}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if cfg.PublicURL != "" {
		u, err := origin(cfg.PublicURL)
		if err != nil {
			return nil, err
		}
		c.public = u.String()
	}
	if c.store, err = OpenStore(cfg.Dir); err != nil {
		return nil, err
	}
	if c.unlock, err = c.store.Lock(); err != nil {
		return nil, err
	}
	c.store.blobs.MinFree = cfg.MinFree
	c.tasks.ctx, c.tasks.stop = context.WithCancel(context.Background())
	c.downloads = &downloads{cfg: cfg, blobs: c.store.blobs, hub: c.hub, tasks: c.tasks, failures: c.failures, failed: c.failed,
		slots: make(chan struct{}, cfg.MaxDownloads), byHash: map[string]*flight{}}
	c.metrics = newMetrics(c, reg)
	c.downloads.metrics = c.metrics
	if err := c.newRing(); err != nil {
		c.tasks.close()
		c.unlock()
		return nil, err
	}
	c.tasks.start(func(ctx context.Context) {
		if err := errors.Join(c.store.blobs.Count(ctx), c.store.records.recount()); err != nil && ctx.Err() == nil {
			c.log.Error("the cache's folder cannot be read", "error", err)
		}
	})
	c.tasks.start(c.collect)
	return c, nil
}

// Close ends the downloads, which the next start resumes, and unlocks the
// folder.
func (c *Cache) Close() {
	c.tasks.close()
	c.unlock()
}

// ServeHTTP implements http.Handler. The writer must be the server's own, for
// files to leave by sendfile.
func (c *Cache) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, peers.Prefix) {
		c.peer(w, r)
		return
	}
	t, err := parseTarget(r.URL.EscapedPath(), r.URL.RawQuery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// Longer answers have a deadline for each piece.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(c.cfg.ClientTimeout)) // a test's writer has none
	get := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case t.route == "resolve" && get:
		c.resolve(w, r, t)
	case t.route == "paths-info" && r.Method == http.MethodPost, t.route != "" && t.route != "resolve" && t.route != "paths-info" && get:
		c.api(w, r, t)
	default:
		c.pass(w, r)
	}
}

// peer answers what only nodes of the ring ask.
func (c *Cache) peer(w http.ResponseWriter, r *http.Request) {
	if c.ring == nil {
		http.Error(w, "this cache is in no ring: start it with --peers or --peers-dns", http.StatusNotFound)
		return
	}
	if !c.ring.Serve(w, r, c.servePeer, c.reportedCorrupt) {
		c.metrics.ringReceived.WithLabelValues("refused").Inc()
	}
}

// errNotHere is the failure of a cache that asks nobody.
var errNotHere = errors.New("the cache is offline and does not have it")

// refuse answers with an error of the Hub's or of ours. Only the Hub's own
// refusals have its error codes, since clients act on those.
func (c *Cache) refuse(w http.ResponseWriter, r *http.Request, route string, err error) {
	var e *refusal
	if errors.As(err, &e) {
		c.metrics.requests.WithLabelValues(route, "refused").Inc()
		for k, v := range e.header {
			w.Header()[k] = v
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(e.body)))
		w.WriteHeader(e.status)
		if r.Method != http.MethodHead {
			_, _ = w.Write(e.body)
		}
		return
	}
	c.metrics.requests.WithLabelValues(route, "failed").Inc()
	status := http.StatusBadGateway
	switch {
	case errors.Is(err, errPath):
		status = http.StatusBadRequest
	case errors.Is(err, errNotHere), errors.Is(err, context.DeadlineExceeded), errors.Is(err, errStalled):
		status = http.StatusGatewayTimeout
	case errors.Is(err, os.ErrPermission):
		status = http.StatusInternalServerError
	}
	http.Error(w, err.Error(), status)
}

// failed logs and counts what went wrong at the Hub.
func (c *Cache) failed(t target, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	reason := "other"
	var e *refusal
	switch {
	case errors.Is(err, blobs.ErrNoRoom):
		reason = "no room"
	case errors.Is(err, errUnreachable):
		reason = "unreachable"
	case errors.Is(err, errOdd):
		reason = "malformed"
	case errors.As(err, &e), errors.Is(err, errStale):
		reason = "refused"
	}
	if reason != "refused" && t.route == "" {
		c.log.Warn("the storage could not be used for another node", "error", err)
	} else if reason != "refused" {
		c.log.Warn("the Hub could not be used", "repository", t.kind+"/"+t.name, "revision", t.revision, "file", t.file, "error", err)
	}
	c.metrics.errors.WithLabelValues(reason).Inc()
}

// badFor is how long range requests for a file get the whole file after its
// content failed verification: the part that the client has may be wrong too.
// Clients retry without end, so after maxWrongs failures requests are refused
// for wrongPause before the next try.
const (
	badFor     = 10 * time.Minute
	maxBad     = 1000
	maxWrongs  = 3
	wrongPause = time.Minute
)

// wrongs counts how often content failed verification since it last passed.
type wrongs struct {
	last  time.Time
	times int
}

// errHopeless refuses a file whose content keeps coming wrong.
var errHopeless = fmt.Errorf("what comes of the file does not have its hash, %d times in a row: it is tried again a minute after the last", maxWrongs)

// failures remembers content that failed verification, by hash.
type failures struct {
	mu     sync.Mutex
	byHash map[string]wrongs
}

// wrong notes that content did not have its hash.
func (f *failures) wrong(etag string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.byHash[etag]; known || len(f.byHash) < maxBad {
		f.byHash[etag] = wrongs{time.Now(), f.byHash[etag].times + 1}
	}
}

// right notes that content passed verification. Clients may still have wrong
// parts.
func (f *failures) right(etag string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w, known := f.byHash[etag]; known {
		f.byHash[etag] = wrongs{w.last, 0}
	}
}

// recent reports whether content failed verification within badFor.
func (f *failures) recent(etag string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, ok := f.byHash[etag]
	if ok && time.Since(w.last) > badFor {
		delete(f.byHash, etag)
		return false
	}
	return ok
}

// hopeless reports whether content keeps failing verification.
func (f *failures) hopeless(etag string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.byHash[etag]
	return w.times >= maxWrongs && time.Since(w.last) < wrongPause
}

// put stores a record; a failure is only logged.
func (c *Cache) put(path string, v any) {
	if err := c.store.records.put(path, v, int64(c.cfg.MaxRecords)); err != nil {
		c.log.Warn("metadata is not kept", "error", err)
	}
}

// once makes one request to the Hub for all callers that need it at the same
// time, with a timeout of its own: it goes on when the first caller gives up.
func once[T any](ctx context.Context, c *Cache, key string, ask func(context.Context) (T, error)) (T, error) {
	ch := c.asking.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(c.tasks.ctx, c.cfg.MetadataTimeout)
		defer cancel()
		return ask(ctx)
	})
	var zero T
	select {
	case got := <-ch:
		if got.Err != nil {
			return zero, got.Err
		}
		v, ok := got.Val.(T)
		if !ok {
			return zero, fmt.Errorf("hubcache: %T where %T was asked for", got.Val, zero)
		}
		return v, nil
	case <-ctx.Done():
		return zero, ctx.Err()
	}
}

// collect runs GC at intervals, for what the size limit does not bound.
func (c *Cache) collect(ctx context.Context) {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if _, _, err := c.store.GC(c.cfg.MaxBytes, time.Now()); err != nil {
				c.log.Error("the cache's folder cannot be swept", "error", err)
			}
			_ = c.store.records.recount() // the next time will do
		case <-ctx.Done():
			return
		}
	}
}

// collectEvery is the time between two sweeps.
const collectEvery = 6 * time.Hour
