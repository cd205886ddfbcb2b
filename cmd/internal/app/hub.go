package app

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/blobs"
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
		if cfg.MaxBytes, err = command.ParseShare("--hub-cache-max-bytes", size, cfg.Dir); err != nil {
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
			log.Error("the cache of the Hugging Face Hub stopped", "error", err)
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

// blobs are the files of this process's own cache, for models to link to; nil
// where there is none.
func (h *upHub) blobs() *blobs.Store {
	if h.cache == nil {
		return nil
	}
	return hubcache.At(h.cache.cfg.Dir).Blobs()
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

// open opens the cache. After an error the next request tries again: a `pull` may
// have the folder.
func (l *lazyHub) open() (*hubcache.Cache, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cache != nil {
		return l.cache, nil
	}
	if l.ended {
		return nil, errors.New("the cache is shutting down")
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

// endpointFile tells commands where the cache of a running `up` listens.
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

// hubOf is the Hub for a command that works on a data directory: the cache of the
// `up` that runs there, else one of this process over the same folder. HF_ENDPOINT
// wins over both: then it is "".
func hubOf(dataDir string, cfg hubcache.Config) (endpoint string, done func(), err error) {
	if os.Getenv(hubVariable) != "" {
		return "", func() {}, nil
	}
	if upRuns(dataDir) {
		return readEndpoint(endpointFile(dataDir)), func() {}, nil
	}
	if cfg.MaxBytes, err = command.ParseShare("", DefaultHubShare, dataDir); err != nil {
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

// upRuns reports whether an `up` has a data directory's lock.
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
	DefaultModelShare = "80%"
	DefaultHubShare   = "20%"
)
