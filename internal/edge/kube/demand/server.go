package demand

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/prompts"
)

// Config configures a Server. Reviewer and Accounts are required.
type Config struct {
	// Reviewer authenticates tokens.
	Reviewer Reviewer
	// Accounts may report: "system:serviceaccount:NAMESPACE:NAME".
	Accounts []string
	// Silence is how long a gateway may send no report before its requests in
	// flight no longer count. Gateways report every few seconds.
	Silence time.Duration
	// Demanded is called with a service whose demand has changed; nil is not
	// called. It must not block.
	Demanded func(service.Key)
	Now      func() time.Time
	Log      *slog.Logger
}

// DefaultConfig has a Silence of 15 seconds.
func DefaultConfig() Config { return Config{Silence: 15 * time.Second} }

// Validate names what is missing.
func (c Config) Validate() error {
	if c.Reviewer == nil || len(c.Accounts) == 0 || c.Silence <= 0 {
		return errors.New("demand: Reviewer, Accounts and a Silence above 0 are required")
	}
	return nil
}

// Server takes the reports of gateways. It is the fleet.Traffic of a
// controller and, for its metrics, a prometheus.Collector. It is safe for
// concurrent use.
type Server struct {
	cfg     Config
	allowed map[string]bool
	metrics metrics

	mu struct {
		sync.Mutex
		book    *book
		unknown bool
		served  map[service.Key]bool // published
		warned  time.Time            // of a refused report
		// waited is when the log next names the gateways that do not report; zero
		// while all report.
		waited time.Time
	}
}

var _ fleet.Traffic = (*Server)(nil)

// NewServer makes a server that has had no report yet.
func NewServer(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Demanded == nil {
		cfg.Demanded = func(service.Key) {}
	}
	s := &Server{cfg: cfg, allowed: map[string]bool{}, metrics: newMetrics()}
	for _, a := range cfg.Accounts {
		s.allowed[a] = true
	}
	s.mu.book, s.mu.unknown, s.mu.served = newBook(cfg.Now(), cfg.Silence), true, map[service.Key]bool{}
	return s, nil
}

// SetLive sets the gateway pods that take requests: those that are ready in the
// gateway's EndpointSlices. Every demand is unknown before the first call, and
// until each of these pods has reported.
func (s *Server) SetLive(pods []string) {
	live := map[string]bool{}
	for _, p := range pods {
		live[p] = true
	}
	s.update(func(b *book) []string { b.live = live; return nil })
}

// update changes the book and calls Demanded with the services whose demand changed.
func (s *Server) update(change func(*book) []string) {
	s.mu.Lock()
	changed := change(s.mu.book)
	var keys []service.Key
	if was := s.mu.unknown; was != s.mu.book.unknown() {
		if s.mu.unknown = !was; was { // the clocks may run
			for k := range s.mu.served {
				keys = append(keys, k)
			}
		}
	}
	s.mu.Unlock()
	for _, name := range changed {
		keys = append(keys, service.ParseKey(name))
	}
	for _, k := range keys {
		s.cfg.Demanded(k)
	}
}

// Publish implements fleet.Traffic: it notes that the service exists. Gateways
// watch everything else themselves.
func (s *Server) Publish(v fleet.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.served[v.Key] = true
}

// Withdraw implements fleet.Traffic: it forgets the service's demand.
func (s *Server) Withdraw(k service.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.served, k)
	s.mu.book.forget(k.String())
}

// Demand implements fleet.Traffic. Its counters begin when this process starts,
// and reach the reported values a moment after a report. Queued and running
// requests are as last reported.
func (s *Server) Demand(k service.Key) autoscale.Demand {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.book.demand(k.String(), s.cfg.Now())
}

// Engine is what the engine of a service's pod last told any gateway; nil where
// nothing is known.
func (s *Server) Engine(k service.Key, pod string) *replica.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.book.engine(k.String(), pod)
}

// InFlight implements fleet.Traffic. The id is a pod's name; pods of the same name
// in several namespaces count together.
func (s *Server) InFlight(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.book.pods[id]
}

// Run drops gateways that are gone, until ctx ends.
func (s *Server) Run(ctx context.Context) {
	t := time.NewTicker(max(s.cfg.Silence/15, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.update(func(b *book) []string { return b.sweep(s.cfg.Now()) })
			s.nag()
		case <-ctx.Done():
			return
		}
	}
}

// unheardFor is how long a gateway that takes requests may not report before a
// warning names it. nagEvery is how long after that the warning is repeated.
const (
	unheardFor = time.Minute
	nagEvery   = time.Hour
)

// nag logs which gateways do not report. Until they do, no replica count is lowered.
func (s *Server) nag() {
	now := s.cfg.Now()
	s.mu.Lock()
	pods, logged := s.mu.book.unheard(), false
	switch {
	case len(pods) == 0:
		s.mu.waited = time.Time{}
	case s.mu.waited.IsZero():
		s.mu.waited = now.Add(unheardFor)
	case !now.Before(s.mu.waited):
		s.mu.waited, logged = now.Add(nagEvery), true
	}
	s.mu.Unlock()
	if logged {
		s.cfg.Log.Warn("no service is put to sleep, and no count falls: gateways take requests and do not report; may they reach this port?", "pods", strings.Join(pods[:min(len(pods), maxNagged)], " "), "gateways", len(pods))
	}
}

// maxNagged is the most pods that one line names.
const maxNagged = 10

// Bounds of the server's connections.
const (
	readTimeout    = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 32 << 10
)

// Serve takes reports on l until ctx ends; certificate returns the current certificate.
func (s *Server) Serve(ctx context.Context, l net.Listener, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) error {
	srv := &http.Server{Handler: s.Handler(), ReadTimeout: readTimeout, WriteTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: certificate},
		Protocols: new(http.Protocols), ErrorLog: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug)}
	srv.Protocols.SetHTTP1(true) // a connection is one request at a time
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.ServeTLS(bound(l), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("demand on %s: %w", l.Addr(), err)
	}
	return nil
}

// Handler returns the handler that takes reports.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+Path, s.counted(s.report))
	return mux
}

func (s *Server) report(w http.ResponseWriter, r *http.Request) {
	who, status, err := s.authenticate(r)
	if err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReportBytes))
	if err != nil {
		http.Error(w, fmt.Sprintf("report: %v", err), http.StatusRequestEntityTooLarge)
		return
	}
	var in Report
	if err = json.Unmarshal(body, &in); err == nil {
		err = in.Validate()
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("report: %v", err), http.StatusBadRequest)
		return
	}
	if who.Pod != "" && who.Pod != in.Pod {
		http.Error(w, fmt.Sprintf("report of pod %q with the token of pod %q", in.Pod, who.Pod), http.StatusForbidden)
		return
	}
	var out Answer
	s.update(func(b *book) (changed []string) {
		now := s.cfg.Now()
		if out.All, changed = b.take(&in, now); in.Heard != nil {
			out.Prompts, out.Heard = b.prompts.Since(*in.Heard, prompts.Source{Name: in.Pod, Instance: in.Instance}, maxHeardBytes, now)
		}
		return changed
	})
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // fails only for a gateway that is gone
}

// warnEvery is the least time between two warnings of refused reports, which
// anybody who reaches the port can cause.
const warnEvery = 10 * time.Second

func (s *Server) warn(text string, args ...any) {
	level, now := slog.LevelDebug, s.cfg.Now()
	s.mu.Lock()
	if s.mu.warned.IsZero() || now.Sub(s.mu.warned) >= warnEvery {
		level, s.mu.warned = slog.LevelWarn, now
	}
	s.mu.Unlock()
	s.cfg.Log.Log(context.Background(), level, text, args...)
}

// authenticate returns who sent the report, or the status with which the report
// is refused.
func (s *Server) authenticate(r *http.Request) (Identity, int, error) {
	token := apikey.Bearer(r.Header.Get("Authorization"))
	if token == "" {
		return Identity{}, http.StatusUnauthorized, errors.New("a report needs a ServiceAccount's token: Authorization: Bearer TOKEN")
	}
	who, err := s.cfg.Reviewer.Review(r.Context(), token)
	switch {
	case errors.Is(err, ErrUnauthenticated):
		s.warn("a report with a token that is not valid was refused", "from", r.RemoteAddr, "error", err)
		return who, http.StatusUnauthorized, err
	case err != nil:
		return who, http.StatusServiceUnavailable, fmt.Errorf("the token could not be reviewed: %w", err)
	case !s.allowed[who.User]:
		s.warn("a report of an account that may not was refused", "from", r.RemoteAddr, "account", who.User)
		return who, http.StatusForbidden, fmt.Errorf("%s may not report: the controller allows %s", who.User, strings.Join(slices.Sorted(slices.Values(s.cfg.Accounts)), ", "))
	}
	return who, 0, nil
}

// The most connections that a controller has open, from one address and in all.
// Anybody who reaches the port can have a token reviewed. With so few at once, a
// pod that sends invalid tokens does not delay gateways for long.
const (
	maxFromOne     = 16
	maxConnections = 4_096
)

// bounded is a listener that closes connections beyond its limits.
type bounded struct {
	net.Listener
	mu   sync.Mutex
	all  int
	from map[string]int // by address without port
}

func bound(l net.Listener) *bounded { return &bounded{Listener: l, from: map[string]int{}} }

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil || !b.enter(host) {
			_ = c.Close()
			continue
		}
		return &counted{Conn: c, leave: sync.OnceFunc(func() { b.exit(host) })}, nil
	}
}

func (b *bounded) enter(host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all >= maxConnections || b.from[host] >= maxFromOne {
		return false
	}
	b.all++
	b.from[host]++
	return true
}

func (b *bounded) exit(host string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all--
	if b.from[host]--; b.from[host] == 0 {
		delete(b.from, host)
	}
}

// counted is a connection that no longer counts when it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}

// metrics are the metrics of a Server. Labels do not name gateways.
type metrics struct {
	reports         *prometheus.CounterVec
	gateways, known *prometheus.Desc
}

func newMetrics() metrics {
	const prefix = "roundhouse_controller_"
	return metrics{
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "demand_reports_total",
			Help: "Reports of demand: taken, refused (whose token it is), unreviewed (the API server did not say whose), invalid."}, []string{"result"}),
		gateways: prometheus.NewDesc(prefix+"gateways", "Gateways that take requests: reporting, silent, or unheard since this process or theirs began.", []string{"state"}, nil),
		known:    prometheus.NewDesc(prefix+"demand_known", "1 once every gateway that takes requests has told all it knows. Until then no service is put to sleep.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(c chan<- *prometheus.Desc) {
	s.metrics.reports.Describe(c)
	c <- s.metrics.gateways
	c <- s.metrics.known
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(c chan<- prometheus.Metric) {
	s.metrics.reports.Collect(c)
	s.mu.Lock()
	states, known := s.mu.book.states(), 0.0
	if !s.mu.book.unknown() {
		known = 1
	}
	s.mu.Unlock()
	for state, n := range states {
		c <- prometheus.MustNewConstMetric(s.metrics.gateways, prometheus.GaugeValue, float64(n), state)
	}
	c <- prometheus.MustNewConstMetric(s.metrics.known, prometheus.GaugeValue, known)
}

// states counts the gateways that take requests, by whether they report.
func (b *book) states() map[string]int {
	out := map[string]int{"reporting": 0, "silent": 0, "unheard": 0}
	for pod := range b.live {
		switch g := b.gateways[pod]; {
		case g != nil && g.silent:
			out["silent"]++
		case g == nil || !g.full:
			out["unheard"]++
		default:
			out["reporting"]++
		}
	}
	return out
}

// counted counts the reports that a handler answers, by status.
func (s *Server) counted(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer := &answer{ResponseWriter: w, status: http.StatusOK}
		h(answer, r)
		result := "invalid"
		switch answer.status {
		case http.StatusOK:
			result = "taken"
		case http.StatusUnauthorized, http.StatusForbidden:
			result = "refused"
		case http.StatusServiceUnavailable:
			result = "unreviewed"
		}
		s.metrics.reports.WithLabelValues(result).Inc()
	}
}

// answer remembers the status of the response.
type answer struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is http.ResponseController's.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
