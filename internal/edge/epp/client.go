package epp

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Target is where a pool's picker is.
type Target struct {
	// Name is the Service's, "namespace/name:port".
	Name string
	// Authority is the name that it is asked by, "name.namespace.svc:port".
	Authority string
	// Addresses are the "ip:port" of those that are ready, in the order to try.
	Addresses []string
	// Plain: it speaks HTTP/2 in plain text, and not over TLS.
	Plain bool
	// Problem is why it cannot be asked; "" where it can.
	Problem string
}

func (t *Target) equal(o *Target) bool {
	return t.Name == o.Name && t.Authority == o.Authority && t.Plain == o.Plain && t.Problem == o.Problem && slices.Equal(t.Addresses, o.Addresses)
}

// Client asks the pickers of pools. Its methods are safe for concurrent use.
type Client struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	streams atomic.Int64

	mu     sync.RWMutex
	pools  map[service.Key]*peer
	peers  map[identity]*peer
	shares map[string]*share // by namespace
}

// identity is what makes two pools' pickers one.
type identity struct {
	name, authority string
	plain           bool
}

// peer is a picker, of one pool or of several.
type peer struct {
	identity
	conn     *grpc.ClientConn
	resolver *manual.Resolver
	pools    int // that use it; Client.mu guards it
	target   atomic.Pointer[Target]
	silence  silence
	share    *share // its namespace's
}

// New makes a Client without pools. Its metrics are registered with r unless
// that is nil. Close ends it.
func New(cfg Config, r prometheus.Registerer) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, log: cfg.Log, pools: map[service.Key]*peer{}, peers: map[identity]*peer{}, shares: map[string]*share{}}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.metrics = newMetrics(c)
	if r != nil {
		if err := r.Register(c.metrics); err != nil {
			return nil, fmt.Errorf("epp: %w", err)
		}
	}
	return c, nil
}

// Set sets where a pool's picker is; nil: it has none. The connection is made
// at the first request.
func (c *Client) Set(pool service.Key, t *Target) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.pools[pool]
	if t == nil {
		delete(c.pools, pool)
		c.metrics.forget(pool)
		c.leave(old)
		return nil
	}
	id := identity{t.Name, t.Authority, t.Plain}
	if old != nil && old.identity == id {
		old.set(t)
		return nil
	}
	p := c.peers[id]
	if p == nil {
		var err error
		if p, err = c.newPeer(id, t); err != nil {
			return err
		}
		p.share = c.sharing(pool.Namespace)
		c.peers[id] = p
	}
	p.set(t)
	p.pools++
	c.pools[pool] = p
	c.leave(old)
	return nil
}

// leave is called with mu held.
func (c *Client) leave(p *peer) {
	if p == nil {
		return
	}
	if p.pools--; p.pools == 0 {
		delete(c.peers, p.identity)
		_ = p.conn.Close() // what is under way fails
		c.unshare(p.share)
	}
}

// Close ends all connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, p := range c.pools {
		delete(c.pools, k)
		c.leave(p)
	}
}

func (c *Client) peer(pool service.Key) *peer {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.pools[pool]
}

// newPeer makes a picker, without connecting.
func (c *Client) newPeer(id identity, t *Target) (*peer, error) {
	p := &peer{identity: id, resolver: manual.NewBuilderWithScheme("picker")}
	p.resolver.InitialState(resolver.State{Addresses: addresses(t.Addresses)})
	p.target.Store(t)
	// Pickers sign their certificates themselves, anew at each start: there is
	// nothing to verify them by. Where they are, the API server says.
	creds := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // see above
	if id.plain {
		creds = insecure.NewCredentials()
	}
	var err error
	p.conn, err = grpc.NewClient("picker:///"+id.name,
		grpc.WithResolvers(p.resolver),
		grpc.WithAuthority(id.authority),
		grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent("roundhouse-gateway"),
		grpc.WithIdleTimeout(c.cfg.IdleTimeout),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithMaxHeaderListSize(maxMetadata),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTime}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: c.cfg.ConnectTimeout,
			Backoff: backoff.Config{BaseDelay: firstDelay, Multiplier: 1.6, Jitter: 0.2, MaxDelay: lastDelay}}))
	if err != nil {
		return nil, fmt.Errorf("endpoint picker %s: %w", id.name, err)
	}
	return p, nil
}

// set takes new addresses.
func (p *peer) set(t *Target) {
	old := p.target.Swap(t)
	if old.equal(t) || slices.Equal(old.Addresses, t.Addresses) {
		return
	}
	p.resolver.UpdateState(resolver.State{Addresses: addresses(t.Addresses)})
	p.conn.ResetConnectBackoff()
}

func addresses(in []string) []resolver.Address {
	out := make([]resolver.Address, len(in))
	for i, a := range in {
		out[i].Addr = a
	}
	return out
}

// share is how much of what pickers may use the requests of one namespace do:
// a picker that holds its requests for long must not keep those of others from
// being asked about.
type share struct {
	namespace string
	streams   atomic.Int64
	peers     int // Client.mu guards it
}

// sharing is a namespace's share, for one picker more. c.mu is held.
func (c *Client) sharing(namespace string) *share {
	s := c.shares[namespace]
	if s == nil {
		s = &share{namespace: namespace}
		c.shares[namespace] = s
	}
	s.peers++
	return s
}

// unshare reports that a picker of the namespace is gone. What is under way counts
// on, so that a picker that comes back has no new share. c.mu is held.
func (c *Client) unshare(s *share) {
	s.peers--
	for namespace, s := range c.shares {
		if s.peers == 0 && s.streams.Load() == 0 {
			delete(c.shares, namespace)
		}
	}
}

// enter takes a place for a request; false where there is none. A namespace may
// have as many as are free (Choudhury and Hahne, "Dynamic queue length
// thresholds for shared-memory packet switches", 1998): something is left for
// whoever comes.
func (c *Client) enter(s *share) bool {
	all, own := c.streams.Add(1), s.streams.Add(1)
	if all > int64(c.cfg.MaxStreams) || own-1 > int64(c.cfg.MaxStreams)-all {
		c.exit(s)
		return false
	}
	return true
}

func (c *Client) exit(s *share) {
	s.streams.Add(-1)
	c.streams.Add(-1)
}

// longest is the longest message of a picker about a body of n bytes.
func longest(n int) int { return min(maxMessage, maxMessageExtra+2*n) }

// A picker that was silent so often, with no word in between, is left alone but
// for one request in a while: the others need not wait for it in vain, each for
// as long as it may take.
const (
	silentAfter = 3
	silentProbe = time.Second
)

// silence is how long a picker has said nothing.
type silence struct {
	times atomic.Int32 // in a row that it gave no answer in time
	probe atomic.Int64 // when the next request may ask, in Unix nanoseconds
}

// allows reports whether a request may ask now.
func (s *silence) allows(now time.Time) bool {
	if s.times.Load() < silentAfter {
		return true
	}
	at := s.probe.Load()
	return now.UnixNano() >= at && s.probe.CompareAndSwap(at, now.Add(silentProbe).UnixNano())
}

// note takes the end of one question.
func (s *silence) note(silent bool, now time.Time) {
	switch {
	case !silent && s.times.Load() != 0:
		s.times.Store(0)
	case silent:
		s.probe.Store(now.Add(silentProbe).UnixNano())
		s.times.Add(1)
	}
}

// metrics are of pools that name a picker, and go with them.
type metrics struct {
	client  *Client
	asked   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	streams *prometheus.Desc
}

func newMetrics(c *Client) *metrics {
	const prefix = "roundhouse_gateway_endpoint_picker_"
	return &metrics{
		client: c,
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Requests that a pool's endpoint picker was asked about: answered, refused by it, left by their client, or why it gave no answer: " +
				"missing, unreachable, timeout, broken, no_endpoint, foreign_endpoint, too_large, overloaded."}, []string{"pool", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "seconds",
			Help:    "Time a pool's endpoint picker took to say where a request goes, or to refuse it.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}}, []string{"pool"}),
		streams: prometheus.NewDesc(prefix+"streams", "Requests under way with endpoint pickers.", nil, nil),
	}
}

// The outcomes that are no failure's reason.
const (
	outcomeAnswered  = "answered"
	outcomeRefused   = "refused"
	outcomeCancelled = "left"
)

func (m *metrics) ended(pool service.Key, outcome string, begun time.Time) {
	if m.client.peer(pool) == nil {
		return // it has no picker, or none any more
	}
	name := pool.String()
	m.asked.WithLabelValues(name, outcome).Inc()
	if outcome == outcomeAnswered || outcome == outcomeRefused {
		m.seconds.WithLabelValues(name).Observe(time.Since(begun).Seconds())
	}
}

func (m *metrics) forget(pool service.Key) {
	gone := prometheus.Labels{"pool": pool.String()}
	m.asked.DeletePartialMatch(gone)
	m.seconds.DeletePartialMatch(gone)
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	m.asked.Describe(c)
	m.seconds.Describe(c)
	c <- m.streams
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	m.asked.Collect(c)
	m.seconds.Collect(c)
	c <- prometheus.MustNewConstMetric(m.streams, prometheus.GaugeValue, float64(m.client.streams.Load()))
}
