// Package artifact turns model URIs into local files and inspects those files.
//
// A [Store] fetches file://, http(s)://, s3://, gs://, az://, hf://, oci:// and
// upload:// URIs. Local files are served in place. Remote ones are downloaded
// once, resumed after an interruption, verified, and kept in the store's folder
// under a name derived from their URI and content, so a running replica never
// sees its files change. The least recently used that nobody needs go when the
// store exceeds its bound.
//
// [Inspect] reads the headers of model files (transformers' config.json,
// safetensors, XGBoost, LightGBM, GGUF, …) into [Facts]; [Store.Peek] does the
// same for a remote folder without downloading its weights. Every file is
// treated as hostile: all lengths are checked and all reads bounded.
//
// The store's folder holds
//
//	models/<uri key>/record.json      what the current copy is
//	models/<uri key>/<version>/…      complete copies, renamed into place
//	partial/<uri key>/…               downloads under way, resumable: a .part, its
//	                                  .part.json, and the .part.index of its pieces
//	uploads/<sha256>/…                files given by clients
package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// Store fetches artifacts into a folder and keeps them. It is safe for
// concurrent use, also by several processes over one folder.
type Store struct {
	cfg     Config
	log     *slog.Logger
	sources sourceSets
	flights flights // by location key and pinned checksum

	requests   *requester
	folder     *folder
	retention  *retention
	downloader *downloader
	installer  *installer
	*uploads
}

// New makes a store over cfg.Dir, creating the folder. A nil client means one
// with the proxy settings of the environment; a nil logger means silence. The
// client is used as it is and not closed.
func New(cfg Config, client *http.Client, log *slog.Logger) (*Store, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("dir %s: %w", cfg.Dir, err)
	}
	cfg.Dir = abs
	for _, sub := range []string{"", "models", "partial", "uploads"} {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("cannot create the store's folder: %w", err)
		}
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r := newRequester(cfg, client)
	d := &folder{dir: cfg.Dir, disk: realDisk{}}
	k := &retention{folder: d, blobs: cfg.Blobs, bound: cfg.StoreBytes, boundName: cfg.BoundName, ask: cfg.InUse, log: log, locked: map[string]*os.File{}, reserved: map[string]int64{}}
	n := &installer{folder: d, blobs: cfg.Blobs, limits: limits{cfg.MaxFiles, cfg.MaxBytes}, expansion: cfg.MaxExpansion}
	if cfg.StoreBytes > 0 { // nothing unpacks to more than the store may hold
		n.limits.bytes = min(cfg.MaxBytes, cfg.StoreBytes)
	}
	return &Store{
		cfg: cfg, log: log, flights: flights{byKey: map[string]*flight{}},
		sources:  sourceSets{make: func(env environment) map[string]source { return sources(cfg, r, env, log) }, sets: map[string]map[string]source{}},
		requests: r, folder: d, retention: k, installer: n,
		downloader: &downloader{
			requests: r, folder: d, retention: k, blobs: cfg.Blobs, slots: make(chan struct{}, cfg.Concurrency),
			connections: cfg.Connections, pieceBytes: cfg.PieceBytes, maxBytes: cfg.MaxBytes,
		},
		uploads: &uploads{folder: d, retention: k, installer: n, maxBytes: cfg.MaxBytes},
	}, nil
}

// newRequester makes the requester of a store with this client, nil for one of its own.
func newRequester(cfg Config, client *http.Client) *requester {
	trust := &trusts{publicOnly: cfg.PublicOnly}
	if client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConnsPerHost = 16 // several ranges of a file are read at a time
		// Over HTTP/2 they would share one TCP connection and its losses.
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetHTTP1(true)
		client, trust.transport = &http.Client{Transport: transport}, transport
		if cfg.PublicOnly {
			client.Transport = newPublicOnly(transport)
		}
	}
	if trust.transport == nil { // a client of the caller's, whose own one may be of any kind
		trust.transport = http.DefaultTransport.(*http.Transport)
	}
	return &requester{client: guardRedirects(client), trusts: trust, most: cfg.Attempts, wait: cfg.RetryWait, stall: cfg.StallTimeout}
}

func (s *Store) limits() limits { return limits{s.cfg.MaxFiles, s.cfg.MaxBytes} }

// Fetch returns the local path of an artifact: of the file when the URI names
// one, of the folder when it names a folder or an archive. A remote file lies
// alone in its folder. The path stays valid while Config.InUse names it, and in
// a store without InUse as long as the process runs.
//
// Concurrent fetches of one URI share a download, which ends early only when
// nobody waits for it any more. progress, when not nil, is called from Fetch's
// goroutine. A remote copy is checked with its source at most once a fetch;
// when the source cannot be reached, a complete copy is used with a warning.
func (s *Store) Fetch(ctx context.Context, req Request, progress func(Progress)) (string, error) {
	loc, err := parse(req)
	if err != nil {
		return "", err
	}
	switch loc.scheme {
	case "file":
		return s.localPath(ctx, loc)
	case "upload":
		return s.uploads.uploaded(loc)
	}
	src, err := s.source(loc)
	if err != nil {
		return "", err
	}
	return s.flights.share(ctx, loc.key()+loc.sha256, progress, func(ctx context.Context, m *meter) (string, error) {
		path, err := s.fetchRemote(ctx, loc, src, m)
		if err != nil {
			return "", loc.whose(err)
		}
		if _, err := s.Prune(ctx); err != nil {
			s.log.WarnContext(ctx, "models that are not used cannot be removed", "error", err)
		}
		return path, nil
	})
}

// Lookup returns the path of an artifact that is here already, without asking
// its source. It reports false for anything that Fetch would have to download.
func (s *Store) Lookup(req Request) (path string, ok bool) {
	loc, err := parse(req)
	if err != nil {
		return "", false
	}
	switch loc.scheme {
	case "file":
		_, err := os.Stat(loc.path)
		return loc.path, err == nil
	case "upload":
		path, err := s.uploads.uploaded(loc)
		return path, err == nil
	}
	rec := s.folder.readRecord(loc)
	if rec == nil || !rec.pinnedTo(loc.sha256) {
		return "", false
	}
	path = s.folder.recordPath(loc, rec)
	s.retention.hold(path)
	return path, true
}

// noFileError is about a path of this machine; it matches fs.ErrNotExist.
type noFileError string

func (e noFileError) Error() string { return "no file or folder at " + string(e) }

func (noFileError) Is(target error) bool { return target == os.ErrNotExist }

// localPath checks that a local path exists and, when pinned, has its content.
func (s *Store) localPath(ctx context.Context, loc location) (string, error) {
	info, err := os.Stat(loc.path)
	if errors.Is(err, os.ErrNotExist) {
		return "", noFileError(loc.path)
	}
	if err != nil {
		return "", err
	}
	if err := readable(loc.path, info); err != nil {
		return "", err
	}
	if loc.sha256 == "" {
		return loc.path, nil
	}
	if info.IsDir() {
		return "", fmt.Errorf("%s: #sha256= pins one file, and this is a folder", loc.path)
	}
	got, err := hashFile(ctx, loc.path)
	if err != nil {
		return "", err
	}
	return loc.path, checkDigest(loc, got)
}

// readable returns an error for a pipe, a socket or a device: reading a model
// from it might never end.
func readable(path string, info fs.FileInfo) error {
	if info.Mode().IsRegular() || info.IsDir() {
		return nil
	}
	return fmt.Errorf("%s is neither a file nor a folder (%s): name the model's file or folder", path, info.Mode().Type())
}

// fetchRemote runs under single-flight: it brings loc up to date.
func (s *Store) fetchRemote(ctx context.Context, loc location, src source, m *meter) (path string, err error) {
	ctx = loc.trusting(named(ctx, src))
	unlock, err := s.folder.lock(ctx, loc.key())
	if err != nil {
		return "", err
	}
	defer unlock()
	defer func() {
		if err == nil {
			s.retention.hold(path)
		}
	}()
	rec := s.folder.readRecord(loc)
	if rec != nil && loc.sha256 != "" && rec.pinnedTo(loc.sha256) {
		return s.folder.recordPath(loc, rec), nil
	}
	path, err = s.refresh(ctx, loc, src, rec, m)
	if errors.Is(err, errChanged) {
		path, err = s.refresh(ctx, loc, src, rec, m)
	}
	if err == nil || rec == nil || s.cfg.Confirmed || loc.sha256 != "" || ctx.Err() != nil || !errors.Is(err, errUnreachable) {
		return path, err
	}
	s.log.WarnContext(ctx, "the source of a model cannot be reached; using the copy of an earlier download",
		"uri", loc.String(), "fetched", rec.Fetched.Format(time.RFC3339), "error", err)
	return s.folder.recordPath(loc, rec), nil
}

// refresh lists the source and downloads what is not here yet.
func (s *Store) refresh(ctx context.Context, loc location, src source, rec *record, m *meter) (string, error) {
	l, err := s.list(ctx, loc, src, rec)
	if err != nil {
		return "", err
	}
	if l.unchanged {
		return s.folder.recordPath(loc, rec), checkDigest(loc, rec.Objects[0].SHA256)
	}
	if err := s.limits().check(loc, l.objects); err != nil {
		return "", err
	}
	if loc.sha256 != "" && len(l.objects) != 1 {
		return "", fmt.Errorf("%s: #sha256= pins one file, and this is a folder of %d", loc, len(l.objects))
	}
	var need, here int64
	for _, o := range l.objects {
		need += max(o.Size, 0)
		here += s.downloader.inBlobs(o)
	}
	done, err := s.retention.reserve(loc.key(), loc.String(), need, here)
	if err != nil {
		return "", err
	}
	defer done()
	t := &transfer{s.downloader, loc, src, m}
	objects, err := t.downloadAll(ctx, l.objects)
	if err != nil {
		return "", err
	}
	l.objects = objects
	rec, err = s.installer.install(ctx, loc, l)
	if err != nil {
		return "", err
	}
	return s.folder.recordPath(loc, rec), nil
}

// revalidateWithin bounds the question whether a copy that is here is still
// current, retries included: beyond it the copy is used as it is.
const revalidateWithin = 5 * time.Second

// list asks the source what loc is, with less patience when a copy is here.
func (s *Store) list(ctx context.Context, loc location, src source, rec *record) (listing, error) {
	if rec == nil {
		return src.list(ctx, loc, nil)
	}
	hurry, cancel := context.WithTimeoutCause(ctx, min(revalidateWithin, s.requests.stall), errStalled)
	defer cancel()
	l, err := src.list(hurry, loc, rec)
	if err != nil && hurry.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s: %w: %w", loc, errUnreachable, errStalled)
	}
	return l, err
}

func checkDigest(loc location, got string) error {
	if loc.sha256 == "" || loc.sha256 == got {
		return nil
	}
	return fmt.Errorf("%s: the content has sha256 %s, but the URI pins %s", loc, got, loc.sha256)
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func hashFile(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, blobs.ContextReader(ctx, f)); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
