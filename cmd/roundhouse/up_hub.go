package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/hubcache"
)

// hubVariable names the Hub for all its clients.
const hubVariable = "HF_ENDPOINT"

// defaultHubAddress is where a cache listens unless that is taken.
const defaultHubAddress = "127.0.0.1:8083"

// upHub is the Hugging Face Hub that an `up` and its replicas ask: a cache of
// its own, another one, or what the environment says.
type upHub struct {
	endpoint string // "": as the environment says
	cache    *lazyHub
	server   *http.Server
	listener net.Listener
}

// hubChoice is what --hub-cache says.
func hubChoice(flag string) (listen, endpoint string, err error) {
	env := os.Getenv(hubVariable)
	switch {
	case flag == "off", flag == "auto" && env != "":
		return "", "", nil
	case flag == "auto", flag == "on":
		return defaultHubAddress, "", nil
	case strings.Contains(flag, "://"):
		u, err := url.Parse(flag)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
			return "", "", command.Usagef("--hub-cache %s: want auto, on, off, HOST:PORT to listen at, or the URL of another cache", artifact.Redact(flag))
		}
		return "", strings.TrimRight(flag, "/"), nil
	}
	if _, _, err := net.SplitHostPort(flag); err != nil {
		return "", "", command.Usagef("--hub-cache %s: want auto, on, off, HOST:PORT to listen at, or the URL of another cache", flag)
	}
	return flag, "", nil
}

// openHub listens for clients of the Hub, where there is to be a cache. The
// cache itself is opened at the first request.
func openHub(flag, size string, dir *datadir.Dir, log *slog.Logger) (*upHub, error) {
	listen, endpoint, err := hubChoice(flag)
	if err != nil {
		return nil, err
	}
	h := &upHub{endpoint: endpoint}
	if listen != "" {
		cfg := hubConfig(dir.Path("."), log)
		if cfg.MaxBytes, err = parseShare("--hub-cache-max-bytes", size, cfg.Dir); err != nil {
			return nil, err
		}
		if err := cfg.Validate(); err != nil {
			return nil, command.Usagef("%w", err)
		}
		if h.listener, err = listenHub(listen, endpointFile(dir.Path("."))); err != nil {
			return nil, err
		}
		h.endpoint = "http://" + front.Reachable(h.listener.Addr().(*net.TCPAddr))
		h.cache = &lazyHub{cfg: cfg}
		h.server = &http.Server{Handler: h.cache, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	}
	return h, rememberEndpoint(endpointFile(dir.Path(".")), h.endpoint)
}

// hubConfig is a cache in a data directory of the Hub that the environment
// names.
func hubConfig(dataDir string, log *slog.Logger) hubcache.Config {
	cfg := hubcache.DefaultConfig()
	cfg.Dir, cfg.Log = filepath.Join(dataDir, "hub"), log
	if env := os.Getenv(hubVariable); env != "" {
		cfg.Upstream = strings.TrimRight(env, "/")
	}
	return cfg
}

// listenHub listens at an address; for the default one where an earlier `up`
// listened, since its replicas may run on, and else where there is room.
func listenHub(addr, remembered string) (net.Listener, error) {
	if addr != defaultHubAddress {
		return front.Listen(addr, "--hub-cache")
	}
	for _, a := range []string{hostOf(readEndpoint(remembered)), addr} {
		if host, _, err := net.SplitHostPort(a); err != nil || net.ParseIP(host) == nil || !net.ParseIP(host).IsLoopback() {
			continue
		}
		if l, err := net.Listen("tcp", a); err == nil {
			return l, nil
		}
	}
	return front.Listen("127.0.0.1:0", "--hub-cache")
}

// start answers clients until close.
func (h *upHub) start(reg prometheus.Registerer, log *slog.Logger) {
	if h.server == nil {
		return
	}
	h.cache.reg = reg
	go func() {
		if err := h.server.Serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the cache of the Hugging Face Hub no longer answers", "error", err)
		}
	}()
}

// close ends the cache, and downloads with it: the next one resumes them.
func (h *upHub) close() {
	if h.server == nil {
		return
	}
	_ = h.server.Close()
	_ = h.listener.Close() // where nothing was started
	h.cache.close()
}

// environment is what replicas are told, unless their manifests say otherwise.
func (h *upHub) environment() []string {
	if h.endpoint == "" {
		return nil
	}
	return []string{hubVariable + "=" + h.endpoint}
}

// lazyHub is a cache that is opened when it is first asked, so that an `up`
// without models of the Hub does not pay for it.
type lazyHub struct {
	cfg hubcache.Config
	reg prometheus.Registerer

	mu    sync.Mutex
	cache *hubcache.Cache
	ended bool
}

// ServeHTTP implements http.Handler.
func (l *lazyHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/healthz" {
		_, _ = fmt.Fprintln(w, "ok")
		return
	}
	c, err := l.open()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	c.ServeHTTP(w, r)
}

// open is tried again by the next request: a `pull` may have the folder.
func (l *lazyHub) open() (*hubcache.Cache, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cache != nil {
		return l.cache, nil
	}
	if l.ended {
		return nil, errors.New("the cache is being closed")
	}
	var err error
	l.cache, err = hubcache.New(l.cfg, l.reg)
	return l.cache, err
}

func (l *lazyHub) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if l.cache != nil {
		l.cache.Close()
	}
}

// endpointFile says where the Hub is for commands beside an `up`.
func endpointFile(dataDir string) string { return filepath.Join(dataDir, "hub-endpoint") }

func rememberEndpoint(file, endpoint string) error {
	err := os.Remove(file)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if endpoint != "" && err == nil {
		err = os.WriteFile(file, []byte(endpoint+"\n"), 0o600)
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return nil
}

func readEndpoint(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil || len(raw) > 1000 {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

func hostOf(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	return u.Host
}

// hubBeside is the Hub for a command over a data directory: that of the `up`
// that runs there, else a cache of this process's own over the same folder.
// With HF_ENDPOINT it is as the environment says: "".
func hubBeside(dataDir string, cfg hubcache.Config) (endpoint string, done func(), err error) {
	if os.Getenv(hubVariable) != "" {
		return "", func() {}, nil
	}
	if upRuns(dataDir) {
		return readEndpoint(endpointFile(dataDir)), func() {}, nil
	}
	if cfg.MaxBytes, err = parseShare("", defaultHubShare, dataDir); err != nil {
		return "", nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	h := &upHub{listener: l, cache: &lazyHub{cfg: cfg}}
	h.server = &http.Server{Handler: h.cache, ReadHeaderTimeout: 10 * time.Second}
	h.start(prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	return "http://" + l.Addr().String(), h.close, nil
}

// upRuns says whether an `up` has a data directory's lock.
func upRuns(dataDir string) bool {
	f, err := os.Open(filepath.Join(dataDir, "lock"))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}

// The shares of the disk that models and the cache may take.
const (
	defaultModelShare = "80%"
	defaultHubShare   = "20%"
)

// parseShare reads "500GiB", a number of bytes, or "80%" of the disk that a
// folder is on, or is going to be on.
func parseShare(flag, s, dir string) (int64, error) {
	number, percent := strings.CutSuffix(s, "%")
	if !percent {
		return parseSize(flag, s)
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || v <= 0 || v > 100 {
		return 0, command.Usagef("%s is %q: want a size such as 500GiB, or a share of the disk such as 80%%", flag, s)
	}
	var st syscall.Statfs_t
	for at := dir; ; at = filepath.Dir(at) {
		if err = syscall.Statfs(at, &st); err == nil || at == filepath.Dir(at) {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	return max(1, int64(float64(st.Blocks)*float64(st.Bsize)*v/100)), nil
}

// openModels opens the models of a data directory to fetch some: those of the
// Hub through its cache.
func openModels(dataDir string, uris []string) (store *artifact.Store, done func(), err error) {
	if dataDir == "" {
		return nil, nil, datadir.ErrHomeless
	}
	endpoint, done := "", func() {}
	if slices.ContainsFunc(uris, func(u string) bool { return strings.HasPrefix(u, "hf://") }) {
		if endpoint, done, err = hubBeside(dataDir, hubConfig(dataDir, nil)); err != nil {
			return nil, nil, err
		}
	}
	store, err = artifact.New(artifact.Config{Dir: filepath.Join(dataDir, "models"), HubEndpoint: endpoint}, nil, nil)
	if err != nil {
		done()
		return nil, nil, err
	}
	return store, done, nil
}

// modelsInUse lists what the store of models must keep: what revisions name,
// and what processes read.
func (n *node) modelsInUse() []string {
	paths := n.platform.Models()
	for _, st := range n.fleet.List() {
		for r := st.Revision; r != nil; r = r.Before {
			if r.Model.Verbatim {
				continue
			}
			if r.Model.URI != "" {
				paths = append(paths, r.Model.URI)
			}
			for _, a := range r.Model.Adapters {
				paths = append(paths, a.URI)
			}
		}
	}
	return paths
}

// tidy removes the models that are not used, once everything is known that is.
func (n *node) tidy(ctx context.Context) {
	if freed, err := n.store.Prune(ctx); err != nil {
		n.log.Warn("models that are not used cannot be removed", "error", err)
	} else if freed > 0 {
		n.log.Info("removed models that are not used", "bytes", freed)
	}
}
