package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/hubcache"
	"roundhouse.dev/roundhouse/internal/edge/prefetch"
	"roundhouse.dev/roundhouse/internal/edge/process/brought"
)

// fetcher fetches models for the platform.
type fetcher struct {
	*artifact.Store
	downloads front.Downloads
	opener
	// bring fetches what Store does not; nil fetches none of that.
	bring func(context.Context, service.Files) (path string, err error)
}

// opener puts together what files are fetched with; nil knows no credentials but the
// environment.
type opener func(service.Files) (credentials.Opened, error)

// request is how files are asked for.
func (o opener) request(f service.Files) (artifact.Request, error) {
	if o == nil || f.Zero() {
		return artifact.Request{URI: f.URI}, nil
	}
	opened, err := o(f)
	if err != nil {
		return artifact.Request{}, err
	}
	out := artifact.Request{URI: opened.URI}
	if opened.Variables != nil || opened.Shown != "" || opened.Region != "" || opened.Authorities != "" || opened.Unverified {
		out.Credentials = &artifact.Credentials{Variables: opened.Variables, Scope: opened.Scope, Shown: opened.Shown, From: opened.From, Region: opened.Region,
			Authorities: opened.Authorities, Unverified: opened.Unverified}
	}
	return out, nil
}

// Fetch implements process.Fetcher.
func (f fetcher) Fetch(ctx context.Context, files service.Files, progress func(done, total int64)) (string, error) {
	if f.bring != nil && service.ForeignURI(files.URI) {
		return f.bring(ctx, files)
	}
	req, err := f.request(files)
	if err != nil {
		return "", err
	}
	// A revision's model was settled when it was made: what is here is not
	// compared with its source again, so a wake waits for nobody.
	if path, ok := f.Lookup(req); ok {
		return path, nil
	}
	return f.download(ctx, req, progress)
}

// Pull downloads a model ahead of its use, or brings what is here up to date.
func (f fetcher) Pull(ctx context.Context, uri string, progress func(done, total int64)) error {
	_, err := f.download(ctx, artifact.Request{URI: uri}, progress)
	return err
}

func (f fetcher) download(ctx context.Context, req artifact.Request, progress func(done, total int64)) (string, error) {
	began := time.Now()
	var last atomic.Int64
	path, err := f.Store.Fetch(ctx, req, func(p artifact.Progress) {
		last.Store(p.Done)
		if progress != nil {
			progress(p.Done, p.Total)
		}
	})
	f.downloads.Count(last.Load(), time.Since(began), err)
	return path, err
}

// Inspector reads the attributes of models for a fleet.
type Inspector struct {
	*artifact.Store
	open opener
}

// inspectTimeout bounds how long a remote model's own files may take to read.
const inspectTimeout = 15 * time.Second

// Inspect implements fleet.Models.
func (i Inspector) Inspect(ctx context.Context, files service.Files) (service.Attributes, error) {
	if service.ForeignURI(files.URI) {
		return service.Attributes{}, fmt.Errorf("%s is fetched by a container as the replica starts: name the model's format", service.RedactURI(files.URI))
	}
	req, err := i.open.request(files)
	if err != nil {
		return service.Attributes{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	f, err := i.Peek(ctx, req)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = Missing{err}
		}
		return service.Attributes{Environment: f.Environment}, err
	}
	if from, ok := f.From["frameworkversion"]; ok {
		f.From["framework.version"] = from
	}
	return service.Attributes{Format: service.NamedVersion{Name: f.Format}, Framework: service.NamedVersion{Name: f.Framework, Version: f.FrameworkVersion},
		Architecture: f.Architecture, Quantization: f.Quantization, Parameters: f.Parameters, Diffusion: f.Diffusion, Bytes: f.Bytes, AdapterRank: f.AdapterRank, Environment: f.Environment, From: f.From}, nil
}

// Missing is the error for a model that certainly does not exist.
type Missing struct{ Err error }

// Error is the error itself.
func (m Missing) Error() string { return m.Err.Error() }

// NotExist tells the fleet that it need not try again.
func (Missing) NotExist() bool { return true }

func (m Missing) Unwrap() error { return m.Err }

// openModels opens the models of a data directory to fetch some: those of the Hub
// through its cache.
func openModels(dataDir string, uris []string) (store *artifact.Store, done func(), err error) {
	if dataDir == "" {
		return nil, nil, datadir.ErrHomeless
	}
	cfg, done := artifact.Config{Dir: filepath.Join(dataDir, "models")}, func() {}
	if slices.ContainsFunc(uris, func(u string) bool { return strings.HasPrefix(u, "hf://") }) {
		hub := hubConfig(dataDir, nil)
		if cfg.HubEndpoint, done, err = hubOf(dataDir, hub); err != nil {
			return nil, nil, err
		}
		if cfg.HubEndpoint != "" {
			cfg.Blobs = hubcache.At(hub.Dir).Blobs()
		}
	}
	store, err = artifact.New(cfg, nil, nil)
	if err != nil {
		done()
		return nil, nil, err
	}
	return store, done, nil
}

// modelsInUse lists what the store of models must keep: the models of revisions, of
// processes and of ModelCaches.
func (n *node) modelsInUse() []string {
	paths := n.platform.Models()
	for _, m := range n.caches.list() {
		if m.Refused == "" {
			paths = n.inUse(paths, m.Files)
		}
	}
	for _, st := range n.fleet.List() {
		for r := st.Revision; r != nil; r = r.Before {
			for _, m := range r.Models() {
				if m.Verbatim {
					continue
				}
				for _, uri := range append([]string{m.URI}, m.Others()...) {
					paths = n.inUse(paths, m.Credentials.Of(uri))
				}
			}
		}
	}
	return paths
}

// inUse adds what the store knows files by.
func (n *node) inUse(to []string, f service.Files) []string {
	if f.URI == "" || f.Zero() {
		if f.URI != "" {
			to = append(to, f.URI)
		}
		return to
	}
	// While a secret is gone, or leads elsewhere, what it has fetched stays for when it
	// is right again.
	had := n.store.KeysOf(f.URI)
	if req, err := n.open.request(f); err == nil {
		if to = append(to, req.URI, req.Key()); slices.Contains(had, req.Key()) {
			return to
		}
	}
	return append(to, had...)
}

// tidy removes the models that are not used, once all that are used are known.
func (n *node) tidy(ctx context.Context) {
	if err := n.brought.Tidy(ctx, n.names, n.platform.Models()); err != nil {
		n.log.Warn("cannot remove the models that are not used", "error", err)
	}
	if freed, err := n.store.Prune(ctx); err != nil {
		n.log.Warn("cannot remove the models that are not used", "error", err)
	} else if freed > 0 {
		n.log.Info("removed models that are not used", "bytes", freed)
	}
}

// OpenStore opens the models of a data directory, which a server may have open too.
func OpenStore(dataDir string) (*artifact.Store, error) {
	if dataDir == "" {
		return nil, datadir.ErrHomeless
	}
	return artifact.New(artifact.Config{Dir: filepath.Join(dataDir, "models")}, nil, nil)
}

// OpenCopies is OpenStore to list and remove the copies of models, whose files
// the cache of the Hub may have too.
func OpenCopies(dataDir string) (*artifact.Store, error) {
	if dataDir == "" {
		return nil, datadir.ErrHomeless
	}
	cfg := artifact.Config{Dir: filepath.Join(dataDir, "models")}
	if hub := hubConfig(dataDir, nil).Dir; isFolder(hub) {
		cfg.Blobs = hubcache.At(hub).Blobs()
	}
	return artifact.New(cfg, nil, nil)
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// Catalog returns the runtimes that come with Roundhouse.
func Catalog() ([]service.Runtime, error) {
	runtimes, err := catalog.Runtimes()
	if err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	return runtimes, nil
}

// bring has the container of the first StorageContainer by name that supports a URI fetch
// its files, with the secrets of the service.
func (n *node) bring(ctx context.Context, f service.Files) (string, error) {
	for _, o := range n.fleet.Objects(dialect.StorageContainerID) {
		if !o.StorageContainer.Fetches(f.URI) {
			continue
		}
		r := brought.Request{URI: f.URI, Container: o.StorageContainer.Container, Variables: maps.Clone(f.Variables)}
		for _, name := range f.Secrets {
			s, ok := n.fleet.Secret(service.Key{Namespace: f.Namespace, Name: name})
			if !ok {
				continue // as on a cluster
			}
			if r.Variables == nil {
				r.Variables = map[string]string{}
			}
			for key, v := range s.Data {
				r.Variables[key] = v.Reveal()
			}
		}
		return n.brought.Fetch(ctx, r)
	}
	scheme, _, _ := strings.Cut(f.URI, "://")
	return "", fmt.Errorf("%s: nothing fetches from %s://: apply a ClusterStorageContainer that supports it, or put the model where one of %s:// leads to",
		service.RedactURI(f.URI), scheme, strings.Join(service.FetchedSchemes, "://, "))
}

// names reports whether a revision or a ModelCache names a model by a URI, without what is
// secret of it.
func (n *node) names(uri string) bool {
	if slices.ContainsFunc(n.caches.list(), func(m prefetch.Model) bool { return service.RedactURI(m.Files.URI) == uri }) {
		return true
	}
	for _, st := range n.fleet.List() {
		for r := st.Revision; r != nil; r = r.Before {
			for _, m := range r.Models() {
				if slices.ContainsFunc(append([]string{m.URI}, m.Others()...), func(u string) bool { return service.RedactURI(u) == uri }) {
					return true
				}
			}
		}
	}
	return false
}
