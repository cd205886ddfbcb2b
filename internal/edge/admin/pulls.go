package admin

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

// Puller downloads models.
type Puller interface {
	Pull(ctx context.Context, uri string, progress func(done, total int64)) error
}

// Download is the download of a model ahead of its use.
type Download struct {
	URI   string    `json:"uri"`   // without its secrets
	State string    `json:"state"` // "running", "done", "failed" or "stopped"
	Done  int64     `json:"done"`
	Total int64     `json:"total"` // 0 while it is not known
	Error string    `json:"error,omitempty"`
	Began time.Time `json:"began"`
}

const (
	// maxPulls is how many downloads run at a time.
	maxPulls = 4
	// keptPulls is how many are known that have ended; the oldest is forgotten.
	keptPulls = 32
	// pullInterval is the least time between two tellings of one's progress.
	pullInterval = 250 * time.Millisecond
)

// pulls are the downloads that were asked for. It is safe for concurrent use.
type pulls struct {
	puller Puller
	// post tells those who watch; nil is a download that is forgotten.
	post func(uri string, d *Download)
	tell func(reason, message string)
	mu   struct {
		sync.Mutex
		all    []*pull // the oldest first
		closed bool
	}
}

type pull struct {
	Download
	told   time.Time
	cancel context.CancelFunc
}

// begin begins a download, which goes on when the client has gone.
func (p *pulls) begin(w http.ResponseWriter, r *http.Request) {
	in, ok := readCopyRequest(w, r)
	if !ok {
		return
	}
	if artifact.Local(in.URI) {
		fail(w, http.StatusUnprocessableEntity, "uri: %s is on this machine already", artifact.Redact(in.URI))
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	x := &pull{Download: Download{URI: artifact.Redact(in.URI), State: "running", Began: time.Now().UTC()}, cancel: cancel}
	if status, why := p.add(x); why != "" {
		cancel()
		fail(w, status, "%s", why)
		return
	}
	go p.run(ctx, x, in.URI)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(asJSON(Change{Kind: "download", Name: x.URI, Action: "created"})) // an error means that the client is gone
}

// add takes a download in, or refuses it.
func (p *pulls) add(x *pull) (status int, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	running := 0
	for _, o := range p.mu.all {
		if o.State == "running" {
			running++
		}
	}
	at := slices.IndexFunc(p.mu.all, func(o *pull) bool { return o.URI == x.URI })
	switch {
	case p.mu.closed:
		return http.StatusServiceUnavailable, "the server is stopping"
	case at >= 0 && p.mu.all[at].State == "running":
		return http.StatusConflict, x.URI + " is being downloaded"
	case running == maxPulls:
		return http.StatusTooManyRequests, "too many downloads run: wait until one has ended, or stop one"
	case at >= 0:
		p.mu.all = slices.Delete(p.mu.all, at, at+1)
	case len(p.mu.all)-running == keptPulls:
		oldest := slices.IndexFunc(p.mu.all, func(o *pull) bool { return o.State != "running" })
		p.post(p.mu.all[oldest].URI, nil)
		p.mu.all = slices.Delete(p.mu.all, oldest, oldest+1)
	}
	p.mu.all = append(p.mu.all, x)
	p.post(x.URI, &x.Download)
	return 0, ""
}

func (p *pulls) run(ctx context.Context, x *pull, uri string) {
	defer x.cancel()
	err := p.puller.Pull(ctx, uri, func(done, total int64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if x.Done, x.Total = done, max(total, 0); time.Since(x.told) >= pullInterval {
			x.told = time.Now()
			p.post(x.URI, &x.Download)
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		x.State = "done"
		p.tell("ModelPulled", x.URI)
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		x.State = "stopped"
	default:
		x.State, x.Error = "failed", err.Error()
		p.tell("ModelPullFailed", x.URI+": "+err.Error())
	}
	p.post(x.URI, &x.Download)
}

// end stops a download, which a later one resumes, or forgets one that has ended.
func (p *pulls) end(w http.ResponseWriter, r *http.Request) {
	in, ok := readCopyRequest(w, r)
	if !ok {
		return
	}
	name := artifact.Redact(in.URI)
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.IndexFunc(p.mu.all, func(o *pull) bool { return o.URI == name })
	if at < 0 {
		fail(w, http.StatusNotFound, "%s is not being downloaded", name)
		return
	}
	if x := p.mu.all[at]; x.State == "running" {
		x.cancel()
		answer(w, Change{Kind: "download", Name: name, Action: "stopped"})
		return
	}
	p.mu.all = slices.Delete(p.mu.all, at, at+1)
	p.post(name, nil)
	answer(w, Change{Kind: "download", Name: name, Action: "deleted"})
}

// close stops all.
func (p *pulls) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.closed = true
	for _, x := range p.mu.all {
		x.cancel()
	}
}
