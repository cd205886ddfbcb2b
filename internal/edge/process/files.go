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

// fetch brings the model and its adapters and returns their paths, or those of the
// model's parts in place of its own.
func (u *unit) fetch() (model string, parts []string, adapters map[string]string, err error) {
	ctx, cancel := u.untilEnding()
	defer cancel()
	return u.files.get(ctx, u.wanted(), func(pr *replica.Progress) {
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

// wanted is the model as the service's revision has it now: it may be fetched with
// other credentials than those that the replica began with.
func (u *unit) wanted() workload.Model {
	m := u.model
	u.o.mu.Lock()
	defer u.o.mu.Unlock()
	if r := u.o.revision; r != nil && r.Hash == u.revision {
		m.Credentials = r.ModelOf(u.role).Credentials
	}
	return m
}

// modelFiles fetches the files of one replica and knows which it fetched.
type modelFiles struct {
	fetches *fetches
	stamp   func(ctx context.Context, f service.Files) string // Config.Fingerprint
	fetched map[string]string                                 // fingerprints by URI
}

// get brings a model, or its parts, and its adapters, one after the other. report is
// called with nil when a fetch begins, then with its progress.
func (f *modelFiles) get(ctx context.Context, m workload.Model, report func(*replica.Progress)) (model string, parts []string, adapters map[string]string, err error) {
	if len(m.Parts) == 0 || m.Verbatim {
		if model, err = f.bring(ctx, m.Credentials.Of(m.URI), "", m.Verbatim, report); err != nil {
			return "", nil, nil, err
		}
	} else {
		for _, p := range m.Parts {
			path, err := f.bring(ctx, m.Credentials.Of(p.URI), "", false, report)
			if err != nil {
				return "", nil, nil, err
			}
			parts = append(parts, path)
		}
	}
	for _, a := range m.Adapters {
		path, err := f.bring(ctx, m.Credentials.Of(a.URI), fmt.Sprintf("adapter %q: ", a.Name), m.Verbatim, report)
		if err != nil {
			return "", nil, nil, err
		}
		if adapters == nil {
			adapters = map[string]string{}
		}
		adapters[a.Name] = path
	}
	return model, parts, adapters, nil
}

// bring fetches files and returns their path; what begins the message of a
// failure.
func (f *modelFiles) bring(ctx context.Context, files service.Files, what string, verbatim bool, report func(*replica.Progress)) (string, error) {
	uri := files.URI
	if uri == "" || verbatim {
		return uri, nil
	}
	report(nil)
	var shown time.Time
	path, err := f.fetches.get(ctx, files, func(pr replica.Progress) {
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
	f.fetched[uri] = f.fingerprint(ctx, files)
	return path, nil
}

// fingerprint tells files from later ones.
func (f *modelFiles) fingerprint(ctx context.Context, files service.Files) string {
	if f.stamp == nil {
		return ""
	}
	return f.stamp(ctx, files)
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
		same = same && (v.revision != u.revision || u.o.apart(u, v) || workload.SameFiles(v.view.Files, now))
	}
	if !same {
		return failf(replica.ReasonModelChanged, "the files of its model have changed since its revision was made")
	}
	if now != "" {
		u.view.Files = now
	}
	return nil
}

// apart reports whether one of two replicas of a revision has files of its own role, and
// the other has not. The lock is held.
func (o *owner) apart(u, v *unit) bool {
	if u.role == v.role {
		return false
	}
	for r := o.revision; r != nil; r = r.Before {
		for i := range r.Components {
			if c := &r.Components[i]; r.Hash == u.revision && c.Files != nil && (c.Role == u.role || c.Role == v.role) {
				return true
			}
		}
	}
	return false
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
	flights map[string]*flight // by the files' key
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

// get brings files here. progress is called with what is known whenever that
// changes, not after get returned.
func (f *fetches) get(ctx context.Context, files service.Files, progress func(replica.Progress)) (string, error) {
	if f.fetcher == nil {
		return "", fmt.Errorf("model %s: this platform does not download models", service.RedactURI(files.URI))
	}
	key := files.Key()
	for {
		fl, user := f.join(key, files, progress)
		select {
		case <-fl.done:
			f.leave(key, fl, user)
			// Its last user may have left, and so cancelled it, just before
			// we came: then it says nothing about our own fetch.
			if errors.Is(fl.err, context.Canceled) && ctx.Err() == nil {
				continue
			}
			return fl.path, fl.err
		case <-ctx.Done():
			f.leave(key, fl, user)
			return "", ctx.Err()
		}
	}
}

func (f *fetches) join(key string, files service.Files, progress func(replica.Progress)) (*flight, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.flights[key]
	if fl == nil {
		ctx, cancel := context.WithCancel(context.Background())
		fl = &flight{cancel: cancel, done: make(chan struct{}), users: map[int]func(replica.Progress){}}
		if f.flights == nil {
			f.flights = map[string]*flight{}
		}
		f.flights[key] = fl
		go f.run(ctx, key, files, fl)
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

func (f *fetches) run(ctx context.Context, key string, files service.Files, fl *flight) {
	path, err := f.fetcher.Fetch(ctx, files, fl.report)
	f.mu.Lock()
	if f.flights[key] == fl {
		delete(f.flights, key)
	}
	f.mu.Unlock()
	fl.path, fl.err = path, err
	fl.cancel()
	close(fl.done)
}

func (f *fetches) leave(key string, fl *flight, user int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.mu.Lock()
	defer fl.mu.Unlock()
	delete(fl.users, user)
	if len(fl.users) == 0 {
		fl.cancel()
		if f.flights[key] == fl {
			delete(f.flights, key)
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
