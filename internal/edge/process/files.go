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

// fetch brings the model and its adapters and returns their paths.
func (u *unit) fetch() (model string, adapters map[string]string, err error) {
	ctx, cancel := u.untilEnding()
	defer cancel()
	return u.files.get(ctx, u.model, func(pr *replica.Progress) {
		u.o.update(u, func(v *replica.Replica) {
			if pr == nil {
				v.Phase, v.Reason, v.Message = replica.Fetching, "", ""
			}
			if v.Phase == replica.Fetching {
				v.Progress = pr
			}
		})
	})
}

// modelFiles fetches the files of one replica and knows which it fetched.
type modelFiles struct {
	fetches *fetches
	stamp   func(ctx context.Context, uri string) string // Config.Fingerprint
	fetched map[string]string                            // fingerprints by URI
}

// get brings a model and its adapters, one after the other. report is called
// with nil when a fetch begins, then with its progress.
func (f *modelFiles) get(ctx context.Context, m workload.Model, report func(*replica.Progress)) (model string, adapters map[string]string, err error) {
	if model, err = f.bring(ctx, m.URI, "", m.Verbatim, report); err != nil {
		return "", nil, err
	}
	for _, a := range m.Adapters {
		path, err := f.bring(ctx, a.URI, fmt.Sprintf("adapter %q: ", a.Name), m.Verbatim, report)
		if err != nil {
			return "", nil, err
		}
		if adapters == nil {
			adapters = map[string]string{}
		}
		adapters[a.Name] = path
	}
	return model, adapters, nil
}

// bring fetches files and returns their path; what begins the message of a
// failure.
func (f *modelFiles) bring(ctx context.Context, uri, what string, verbatim bool, report func(*replica.Progress)) (string, error) {
	if uri == "" || verbatim {
		return uri, nil
	}
	report(nil)
	var shown time.Time
	path, err := f.fetches.get(ctx, uri, func(pr replica.Progress) {
		if now := time.Now(); now.Sub(shown) >= progressInterval || pr.Done == pr.Total {
			shown = now
			report(&pr)
		}
	})
	if ctx.Err() != nil {
		return "", errEnding
	}
	if err != nil {
		return "", failf("ModelLoadFailed", "%s", oneLine(what+err.Error()))
	}
	// Now: another copy may take this one's place while an adapter is fetched.
	f.fetched[uri] = f.fingerprint(ctx, uri)
	return path, nil
}

// fingerprint tells the files at a URI from later ones.
func (f *modelFiles) fingerprint(ctx context.Context, uri string) string {
	if f.stamp == nil {
		return ""
	}
	return f.stamp(ctx, uri)
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
		return failf(replica.ReasonModelChanged, "the files of its model have changed since its revision was made")
	}
	if now != "" {
		u.view.Files = now
	}
	return nil
}

// checkRepository looks at a model that a process is told as its repository.
// Triton names models by their folders: it would be ready, and know no model of
// the service's name. The note is a warning for people.
func checkRepository(path, name string, command []string) (note string, err error) {
	told := func(w string) bool {
		return strings.HasPrefix(w, "--model-repository=") || strings.HasPrefix(w, "--model-store=")
	}
	if path == "" || !slices.ContainsFunc(command, told) {
		return "", nil
	}
	found, self := artifact.Repository(path)
	switch {
	case self:
		return "", failf("ModelLoadFailed", "%s is the folder of one model, and %s is given a folder of models: name the folder above it, with the model in a folder %q", path, command[0], name)
	case len(found) > 0 && !slices.Contains(found, name):
		return fmt.Sprintf("there is no model %q in its repository, only %s: rename the folder and the name in its config.pbtxt, or the service, or ask the service's host for those names", name, quoted(found)), nil
	}
	return "", nil
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
