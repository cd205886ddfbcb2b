package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

// fetch brings the model and returns its path.
func (u *unit) fetch() (string, error) { return u.bring(u.model.URI, "") }

// fetchAdapters brings the model's adapters, one after the other.
func (u *unit) fetchAdapters() (map[string]string, error) {
	var paths map[string]string
	for _, a := range u.model.Adapters {
		path, err := u.bring(a.URI, fmt.Sprintf("adapter %q: ", a.Name))
		if err != nil {
			return nil, err
		}
		if paths == nil {
			paths = map[string]string{}
		}
		paths[a.Name] = path
	}
	return paths, nil
}

// bring fetches files and returns their path; what begins the message of a
// failure.
func (u *unit) bring(uri, what string) (string, error) {
	if uri == "" || u.model.Verbatim {
		return uri, nil
	}
	ctx, cancel := context.WithCancel(u.ending)
	defer cancel()
	go func() {
		select {
		case <-u.p.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	u.o.update(u, func(v *replica.Replica) {
		v.Phase, v.Reason, v.Message, v.Progress = replica.Fetching, "", "", nil
	})
	var shown time.Time
	path, err := u.p.fetches.get(ctx, uri, func(pr replica.Progress) {
		if now := time.Now(); now.Sub(shown) >= progressInterval || pr.Done == pr.Total {
			shown = now
			u.o.update(u, func(v *replica.Replica) {
				if v.Phase == replica.Fetching {
					v.Progress = &pr
				}
			})
		}
	})
	if ctx.Err() != nil {
		return "", errEnding
	}
	if err != nil {
		return "", troublef("ModelLoadFailed", "%s", oneLine(what+err.Error()))
	}
	// Now: another copy may take this one's place while an adapter is fetched.
	u.fetched[uri] = u.fingerprint(uri)
	return path, nil
}

// fingerprint tells the files at a URI from later ones.
func (u *unit) fingerprint(uri string) string {
	if u.p.cfg.Fingerprint == nil {
		return ""
	}
	return u.p.cfg.Fingerprint(u.ending, uri)
}

// sameFiles refuses a model whose files, told by of, are not those that the
// replica's revision was made for, or that another replica of it serves.
func (u *unit) sameFiles(of func(uri string) string) error {
	now := u.model.Fingerprints(of)
	if u.ending.Err() != nil {
		return nil
	}
	u.o.mu.Lock()
	defer u.o.mu.Unlock()
	same := workload.SameFiles(u.model.Fingerprint, now)
	for _, v := range u.o.units {
		same = same && (v.revision != u.revision || workload.SameFiles(v.view.Files, now))
	}
	if !same {
		return troublef(replica.ReasonModelChanged, "the files of its model have changed since its revision was made")
	}
	if now != "" {
		u.view.Files = now
	}
	return nil
}

// repository looks at a model that the process is told as its repository.
// Triton names models by their folders: it would be ready, and know no model of
// the service's name.
func (u *unit) repository(r *running, s workload.Process) error {
	told := func(w string) bool {
		return strings.HasPrefix(w, "--model-repository=") || strings.HasPrefix(w, "--model-store=")
	}
	if r.model == "" || u.model.Verbatim || !slices.ContainsFunc(s.Command, told) {
		return nil
	}
	found, self := artifact.Repository(r.model)
	name := u.o.key.Name
	switch {
	case self:
		return troublef("ModelLoadFailed", "%s is the folder of one model, and %s is given a folder of models: name the folder above it, with the model in a folder %q", r.model, s.Command[0], name)
	case len(found) > 0 && !slices.Contains(found, name):
		r.note = fmt.Sprintf("there is no model %q in its repository, only %s: rename the folder and the name in its config.pbtxt, or the service, or ask the service's host for those names", name, quoted(found))
		u.p.cfg.Logger.Warn("a model is not in its repository", "replica", u.id, "model", name, "found", quoted(found))
	}
	return nil
}

// fetches shares one fetch among all who want the same model at once.
type fetches struct {
	fetcher Fetcher

	mu      sync.Mutex
	flights map[string]*flight // by URI
}

// flight is one fetch under way; it ends early when nobody wants it any more.
type flight struct {
	cancel context.CancelFunc
	done   chan struct{}
	path   string // valid after done
	err    error

	mu       sync.Mutex
	users    map[int]func(replica.Progress)
	next     int
	progress replica.Progress
}

// get brings uri here. progress is called with what is known whenever that
// changes, not after get returned.
func (f *fetches) get(ctx context.Context, uri string, progress func(replica.Progress)) (string, error) {
	if f.fetcher == nil {
		return "", fmt.Errorf("model %s: this platform does not download models", service.RedactURI(uri))
	}
	for {
		fl, user := f.join(uri, progress)
		select {
		case <-fl.done:
			f.leave(uri, fl, user)
			// Its last user may have left, and so cancelled it, just before
			// we came: then it says nothing about our own fetch.
			if errors.Is(fl.err, context.Canceled) && ctx.Err() == nil {
				continue
			}
			return fl.path, fl.err
		case <-ctx.Done():
			f.leave(uri, fl, user)
			return "", ctx.Err()
		}
	}
}

func (f *fetches) join(uri string, progress func(replica.Progress)) (*flight, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.flights[uri]
	if fl == nil {
		ctx, cancel := context.WithCancel(context.Background())
		fl = &flight{cancel: cancel, done: make(chan struct{}), users: map[int]func(replica.Progress){}}
		if f.flights == nil {
			f.flights = map[string]*flight{}
		}
		f.flights[uri] = fl
		go f.run(ctx, uri, fl)
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.next++
	fl.users[fl.next] = progress
	if fl.progress != (replica.Progress{}) {
		progress(fl.progress)
	}
	return fl, fl.next
}

func (f *fetches) run(ctx context.Context, uri string, fl *flight) {
	path, err := f.fetcher.Fetch(ctx, uri, fl.report)
	f.mu.Lock()
	if f.flights[uri] == fl {
		delete(f.flights, uri)
	}
	f.mu.Unlock()
	fl.path, fl.err = path, err
	fl.cancel()
	close(fl.done)
}

func (f *fetches) leave(uri string, fl *flight, user int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.mu.Lock()
	defer fl.mu.Unlock()
	delete(fl.users, user)
	if len(fl.users) == 0 {
		fl.cancel()
		if f.flights[uri] == fl {
			delete(f.flights, uri)
		}
	}
}

func (fl *flight) report(done, total int64) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.progress = replica.Progress{Done: done, Total: total}
	for _, u := range fl.users {
		u(fl.progress)
	}
}
