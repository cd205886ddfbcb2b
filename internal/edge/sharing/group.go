// Package sharing has gateways that have no controllers tell each other which prompts
// they sent where (state/prompts).
package sharing

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"

	"roundhouse.dev/roundhouse/internal/state/prompts"
)

// Path is where prompts are posted.
const Path = "/v1/prompts"

// Bounds of a Group.
const (
	// maxPeers is the most peers.
	maxPeers = 32
	// MinSecret is the least length of a secret, in bytes. Who connects sees the public
	// key that is made of it, and could try short ones.
	MinSecret = 32
	// batch is the least time from one telling to the next: a prompt after a pause is
	// told at once, since a program's next turn follows at once, and of many those of a
	// batch together.
	batch = 50 * time.Millisecond
	// timeout bounds telling one peer once, minBackoff and maxBackoff the time to the
	// next try.
	timeout                = 5 * time.Second
	minBackoff, maxBackoff = 100 * time.Millisecond, 5 * time.Second
	// rest is how long this gateway does not try again to tell itself.
	rest = time.Minute
	// idle is how long a gateway keeps a connection without messages, and half of that
	// how long it uses one: a message does not meet its end.
	idle           = 2 * time.Minute
	maxConnections = 256
	maxHeader      = 8 << 10
	maxAnswer      = 4 << 10
	maxBody        = 384 << 10 // twice what is told at once
	serverName     = "roundhouse-gateway"
)

// Config configures a Group. All fields but Log are required.
type Config struct {
	// Peers are the other gateways, each host:port; this one may be among them.
	Peers []string
	// Secret is what all of them have and nobody else: MinSecret bytes or more.
	Secret []byte
	// Heard is told which blocks of prompts an endpoint was sent by other gateways. It
	// must not keep them.
	Heard func(endpoint string, blocks []uint64)
	Log   *slog.Logger
}

// Group is this gateway among its peers: each tells all others. Messages are JSON over
// TLS, in which both sides show that they know the secret. It is safe for concurrent
// use, and a prometheus.Collector.
type Group struct {
	cfg      Config
	instance int64 // when it started, in nanoseconds since 1970
	tls      *tls.Config
	teller   *prompts.Teller
	peers    []*peer
	told     *prometheus.CounterVec
	heard    prometheus.Counter
	failing  prometheus.GaugeFunc
}

// peer is another gateway. Its own goroutine alone uses instance and next.
type peer struct {
	address  string
	client   *http.Client
	wake     chan struct{} // there may be something to tell
	instance int64         // of its process; 0 before the first answer
	next     uint64        // number of the first prompt that it was not told
	failing  atomic.Bool
}

// message is what a gateway tells, and answer what the other one says to that.
type (
	message struct {
		Instance int64            `json:"instance"` // of the gateway that tells
		Prompts  []prompts.Prompt `json:"prompts"`
	}
	answer struct {
		Instance int64 `json:"instance"` // of the gateway that was told
	}
)

// NewGroup makes a group that neither listens nor tells yet.
func NewGroup(cfg Config) (*Group, error) {
	if cfg.Heard == nil || len(cfg.Peers) == 0 {
		return nil, errors.New("sharing: Peers and Heard are required")
	}
	if len(cfg.Peers) > maxPeers {
		return nil, fmt.Errorf("%d peers: want at most %d", len(cfg.Peers), maxPeers)
	}
	if len(cfg.Secret) < MinSecret {
		return nil, fmt.Errorf("the secret has %d bytes: want %d or more, as `openssl rand -hex 32` prints them", len(cfg.Secret), MinSecret)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	now := time.Now()
	g := &Group{cfg: cfg, instance: now.UnixNano(), teller: prompts.NewTeller(now)}
	var err error
	if g.tls, err = secured(cfg.Secret); err != nil {
		return nil, err
	}
	for _, address := range slices.Compact(slices.Sorted(slices.Values(cfg.Peers))) {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("peer %q: want host:port", address)
		}
		transport := &http.Transport{TLSClientConfig: g.tls, MaxIdleConnsPerHost: 1, IdleConnTimeout: idle / 2, DisableCompression: true, MaxResponseHeaderBytes: maxHeader}
		g.peers = append(g.peers, &peer{address: address, client: &http.Client{Timeout: timeout, Transport: transport}, wake: make(chan struct{}, 1)})
	}
	const prefix = "roundhouse_sharing_"
	g.told = prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "told_total", Help: "Prompts told to other gateways: told, or failed and told again later."}, []string{"result"})
	g.told.WithLabelValues("told")
	g.told.WithLabelValues("failed")
	g.heard = prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "heard_total", Help: "Prompts heard of from other gateways."})
	g.failing = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "failing_peers", Help: "Other gateways that cannot be told."}, g.countFailing)
	return g, nil
}

// secured is TLS in which both sides show that they have the key that is made of the
// secret: who has another one is refused. What else is in a certificate does not count,
// so that releases which write them otherwise still know each other.
func secured(secret []byte) (*tls.Config, error) {
	seed, err := hkdf.Key(sha256.New, secret, nil, "roundhouse sharing v1", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: serverName}, DNSNames: []string{serverName},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)} // as long as the secret
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	own := key.Public().(ed25519.PublicKey)
	return &tls.Config{MinVersion: tls.VersionTLS13, ServerName: serverName, ClientAuth: tls.RequireAnyClientCert,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does it: the key is the identity
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || !own.Equal(s.PeerCertificates[0].PublicKey) {
				return errors.New("the other side has another secret")
			}
			return nil
		},
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"http/1.1"}}, nil
}

// Sent takes in that an endpoint was sent a prompt and began to answer, to be told to
// all peers. It does not block and does not keep blocks.
func (g *Group) Sent(endpoint string, blocks []uint64) {
	if !g.teller.Tell(endpoint, blocks, time.Now()) {
		return
	}
	for _, p := range g.peers {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// Run listens on l and tells the peers until ctx ends.
func (g *Group) Run(ctx context.Context, l net.Listener) error {
	srv := &http.Server{Handler: g.handler(), ReadHeaderTimeout: timeout, ReadTimeout: 2 * timeout, WriteTimeout: 2 * timeout, IdleTimeout: idle, MaxHeaderBytes: maxHeader,
		TLSConfig: g.tls, Protocols: new(http.Protocols), ErrorLog: slog.NewLogLogger(g.cfg.Log.Handler(), slog.LevelDebug)}
	srv.Protocols.SetHTTP1(true)
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	telling, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, p := range g.peers {
		all.Go(func() { g.follow(telling, p) })
	}
	err := srv.ServeTLS(netutil.LimitListener(l, maxConnections), "", "")
	end()
	all.Wait()
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("sharing on %s: %w", l.Addr(), err)
	}
	return nil
}

func (g *Group) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+Path, func(w http.ResponseWriter, r *http.Request) {
		var in message
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err == nil {
			err = json.Unmarshal(body, &in)
		}
		if err == nil {
			err = prompts.Validate(in.Prompts)
		}
		if err != nil {
			http.Error(w, "prompts: "+err.Error(), http.StatusBadRequest)
			return
		}
		if in.Instance != g.instance {
			g.heard.Add(float64(len(in.Prompts)))
			prompts.Hear(in.Prompts, g.cfg.Heard)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer{g.instance}) // fails only for a gateway that is gone
	})
	return mux
}

// follow tells a peer what it does not know yet, until ctx ends.
func (g *Group) follow(ctx context.Context, p *peer) {
	defer p.client.CloseIdleConnections()
	wait, backoff := time.Duration(0), time.Duration(0)
	for told := (time.Time{}); ; told = time.Now() {
		if wait == 0 { // it knows all
			select {
			case <-p.wake:
			case <-ctx.Done():
				return
			}
			wait = max(0, time.Until(told.Add(batch)))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		err := g.tell(ctx, p)
		switch own := p.instance == g.instance; {
		case err != nil:
			backoff = min(max(2*backoff, minBackoff), maxBackoff)
			wait = backoff
		case own:
			wait, backoff = rest, 0
		default:
			if wait, backoff = 0, 0; p.next != g.teller.Next() {
				wait = batch // it was more than can be told at once, or has grown
			}
		}
		g.judge(ctx, p, err)
	}
}

// tell tells a peer once. A process that is new is told all from the next time on.
func (g *Group) tell(ctx context.Context, p *peer) error {
	all, next := g.teller.Since(p.next, time.Now())
	body, err := json.Marshal(message{g.instance, all})
	if err != nil {
		return err
	}
	var out answer
	if err = post(ctx, p, body, &out); err != nil {
		g.told.WithLabelValues("failed").Add(float64(len(all)))
		return err
	}
	g.told.WithLabelValues("told").Add(float64(len(all)))
	if p.next = next; p.instance != out.Instance && p.instance != 0 {
		p.next = 0
	}
	p.instance = out.Instance
	return nil
}

func post(ctx context.Context, p *peer, body []byte, out *answer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+p.address+Path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return json.Unmarshal(text, out)
}

// judge logs the first of consecutive failures, and the success that ends them.
func (g *Group) judge(ctx context.Context, p *peer, err error) {
	was := p.failing.Swap(err != nil)
	switch {
	case ctx.Err() != nil:
	case err != nil && !was:
		g.cfg.Log.Warn("another gateway cannot be told which prompts went where: it may send follow-ups elsewhere", "peer", p.address, "error", err)
	case err == nil && was:
		g.cfg.Log.Info("another gateway can be told again", "peer", p.address)
	}
}

func (g *Group) countFailing() float64 {
	n := 0.0
	for _, p := range g.peers {
		if p.failing.Load() {
			n++
		}
	}
	return n
}

// Describe implements prometheus.Collector.
func (g *Group) Describe(c chan<- *prometheus.Desc) {
	g.told.Describe(c)
	g.heard.Describe(c)
	g.failing.Describe(c)
}

// Collect implements prometheus.Collector.
func (g *Group) Collect(c chan<- prometheus.Metric) {
	g.told.Collect(c)
	g.heard.Collect(c)
	g.failing.Collect(c)
}
