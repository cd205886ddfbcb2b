package demand

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/state/prompts"
)

// ServerName is the name in the certificate of every controller pod, however
// it is reached.
const ServerName = "roundhouse-controller"

// ClientConfig configures a Client. All fields but Transport and Log are required.
type ClientConfig struct {
	// Pod is this gateway's.
	Pod string
	// Token is the file of the ServiceAccount's token. It is read for every
	// report, because the kubelet replaces it.
	Token string
	// Roots returns the authorities that may have signed a controller's certificate.
	Roots func(context.Context) (*x509.CertPool, error)
	// InFlight counts a service's requests by pod.
	InFlight func(service string) map[string]int
	// Engines are what the engines told of the services that scale by it; nil tells
	// of none. It is called for every report, and may keep engines read.
	Engines func(now time.Time) []Engine
	// Hosts are the pods that load models of other services; nil tells of none.
	Hosts func(now time.Time) []Host
	// Heard is told which blocks of prompts an endpoint was sent by other gateways;
	// nil neither hears of prompts nor tells of them.
	Heard func(endpoint string, blocks []uint64)
	// Every is the least time between two reports of changes. Heartbeat is the
	// time between two reports when nothing changes. A service that becomes busy
	// is reported at once.
	Every, Heartbeat time.Duration
	// Timeout bounds one report, MaxBackoff the time to the next try.
	Timeout, MaxBackoff time.Duration
	// Transport carries the reports; nil is TLS to a controller that Roots know.
	Transport http.RoundTripper
	Log       *slog.Logger
}

// DefaultClientConfig reports changes each second.
func DefaultClientConfig() ClientConfig {
	return ClientConfig{Every: time.Second, Heartbeat: 5 * time.Second, Timeout: 5 * time.Second, MaxBackoff: 5 * time.Second}
}

// Validate names what is missing.
func (c ClientConfig) Validate() error {
	if c.Pod == "" || c.Token == "" || c.Roots == nil || c.InFlight == nil || c.Every <= 0 || c.Heartbeat <= 0 || c.Timeout <= 0 || c.MaxBackoff <= 0 {
		return errors.New("demand: Pod, Token, Roots, InFlight and times above 0 are required")
	}
	return nil
}

// Client reports one gateway's demand to every controller pod. It is safe for
// concurrent use.
type Client struct {
	cfg     ClientConfig
	started time.Time
	http    *http.Client
	teller  *prompts.Teller // its mutex is taken after mu

	mu struct {
		sync.Mutex
		known   map[string]seen
		targets map[string]*target
		// number is that of the last report to any target: a controller that is a
		// target once more takes no report whose number is not above the last one's.
		number uint64
		ctx    context.Context // of Run; nil before
	}
	running sync.WaitGroup
}

// seen is the demand that a service last reported, and when.
type seen struct {
	demand autoscale.Demand
	gone   bool
}

// target is one controller pod. Client.mu guards its fields, except those that
// only its own goroutine uses.
type target struct {
	address  string
	dirty    map[string]struct{}
	full     bool
	urgent   bool
	answered bool          // a report got an answer
	told     uint64        // number of the first prompt that it was not told
	toldAt   time.Time     // when it was last told of prompts
	heard    uint64        // as the target numbers prompts
	heardAt  time.Time     // when its answer last had prompts
	wake     chan struct{} // there may be something to report
	stop     context.CancelFunc
	failing  bool // used by its goroutine only
}

// NewClient makes a client without targets.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	now := time.Now()
	c := &Client{cfg: cfg, started: now, teller: prompts.NewTeller(now)}
	c.mu.known, c.mu.targets = map[string]seen{}, map[string]*target{}
	if cfg.Transport == nil {
		cfg.Transport = &http.Transport{DialTLSContext: c.dial, MaxIdleConnsPerHost: 1, IdleConnTimeout: idleTimeout,
			DisableCompression: true, MaxResponseHeaderBytes: maxHeaderBytes}
	}
	c.http = &http.Client{Timeout: cfg.Timeout, Transport: cfg.Transport}
	return c, nil
}

// dial connects, and checks the controller's certificate against the current authorities.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	roots, err := c.cfg.Roots(ctx)
	if err != nil {
		return nil, fmt.Errorf("the controller's authorities: %w", err)
	}
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: c.cfg.Timeout},
		Config: &tls.Config{RootCAs: roots, ServerName: ServerName, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}}}
	return d.DialContext(ctx, network, address)
}

// Report takes a service's demand, to be sent to all targets. It does not block.
func (c *Client) Report(service string, d autoscale.Demand) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.mu.known[service]
	if !known && len(c.mu.known) >= maxServices {
		return // the report would be refused as a whole
	}
	c.mu.known[service] = seen{demand: d}
	c.changed(service, d.Queued+d.Running > 0 && before.demand.Queued+before.demand.Running == 0)
}

// Forget reports that a service has been deleted.
func (c *Client) Forget(service string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.mu.known[service]; known {
		c.mu.known[service] = seen{gone: true}
		c.changed(service, false)
	}
}

// changed marks a service to be sent to every target; c.mu is held.
func (c *Client) changed(service string, urgent bool) {
	for _, t := range c.mu.targets {
		t.dirty[service] = struct{}{}
		t.urgent = t.urgent || urgent
		if urgent || len(t.dirty) == 1 {
			t.poke()
		}
	}
	if len(c.mu.targets) == 0 && c.mu.known[service].gone {
		delete(c.mu.known, service)
	}
}

func (t *target) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// SetTargets sets the controller pods that get the reports, as host:port. Reports
// are sent while Run runs.
func (c *Client) SetTargets(addresses []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	want := map[string]bool{}
	for _, a := range addresses {
		want[a] = true
		if c.mu.targets[a] == nil && len(c.mu.targets) < maxTargets {
			t := &target{address: a, dirty: map[string]struct{}{}, full: true, urgent: true, wake: make(chan struct{}, 1)}
			c.mu.targets[a] = t
			c.start(t)
		}
	}
	for a, t := range c.mu.targets {
		if !want[a] {
			if t.stop != nil {
				t.stop()
			}
			delete(c.mu.targets, a)
		}
	}
}

// maxTargets is the most controller pods that get reports.
const maxTargets = 32

// start begins to send reports to t; c.mu is held.
func (c *Client) start(t *target) {
	if c.mu.ctx == nil || c.mu.ctx.Err() != nil {
		return
	}
	var ctx context.Context
	ctx, t.stop = context.WithCancel(c.mu.ctx)
	c.running.Go(func() { c.report(ctx, t) })
}

// Run sends reports until ctx ends, and then a last one with what changed since.
func (c *Client) Run(ctx context.Context) {
	c.mu.Lock()
	c.mu.ctx = ctx
	for _, t := range c.mu.targets {
		c.start(t)
	}
	c.mu.Unlock()
	<-ctx.Done()
	c.running.Wait()
	c.http.CloseIdleConnections()
}

// Reported reports whether every known controller pod has answered a report of
// this gateway.
func (c *Client) Reported() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.mu.targets {
		if !t.answered {
			return false
		}
	}
	return true
}

// report reports to one target until ctx ends.
func (c *Client) report(ctx context.Context, t *target) {
	var last time.Time
	backoff := time.Duration(0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		if wait := max(c.due(t, last), backoff); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-t.wake:
				if backoff == 0 {
					continue // it may be due now
				}
				<-timer.C // a change does not shorten the wait after a failure
			case <-ctx.Done():
			}
			if ctx.Err() != nil {
				break
			}
			if backoff == 0 && c.due(t, last) > 0 {
				continue
			}
		}
		err := c.send(ctx, t)
		last = time.Now()
		if backoff = c.judge(ctx, t, err, backoff); err == nil {
			backoff = 0
		}
	}
	if !t.failing { // a last report, so that nothing is lost with this gateway
		final, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = c.send(final, t) // a controller that is gone needs none
	}
}

// due is how long until the next report. A gateway that told or heard of prompts
// lately goes on asking for them.
func (c *Client) due(t *target, last time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := time.Since(last)
	switch {
	case t.urgent:
		return 0
	case len(t.dirty) > 0 || t.toldAt.Add(c.cfg.Heartbeat).After(last) || t.heardAt.Add(c.cfg.Heartbeat).After(last):
		return c.cfg.Every - since
	case c.cfg.Heard != nil && t.told != c.teller.Next():
		return c.cfg.Every - since
	default:
		return c.cfg.Heartbeat - since
	}
}

const firstBackoff = 50 * time.Millisecond

// judge logs the first of consecutive failures and the success that ends them,
// and returns how long to wait.
func (c *Client) judge(ctx context.Context, t *target, err error, backoff time.Duration) time.Duration {
	switch {
	case err == nil && t.failing:
		t.failing = false
		c.cfg.Log.Info("demand is reported again", "controller", t.address)
	case err != nil && !t.failing && ctx.Err() == nil:
		t.failing = true
		c.cfg.Log.Warn("demand is not reported: the autoscaler keeps its counts until it is", "controller", t.address, "error", err)
	}
	return min(max(2*backoff, firstBackoff), c.cfg.MaxBackoff)
}

// send sends one report of what the target does not know yet.
func (c *Client) send(ctx context.Context, t *target) error {
	r, sent, told := c.compose(t)
	answer, err := c.post(ctx, t.address, r)
	c.heard(answer.Prompts)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		for _, name := range sent {
			t.dirty[name] = struct{}{}
		}
		t.full = t.full || r.Full
		return err
	}
	t.answered = true
	if t.told, t.heard = told, answer.Heard; len(answer.Prompts) > 0 {
		t.heardAt = time.Now()
	}
	if answer.All && !r.Full {
		t.full, t.urgent, t.told = true, true, 0 // it has forgotten the prompts too
	}
	for _, l := range r.Services {
		if l.Gone && c.reportedToAll(l.Service) {
			delete(c.mu.known, l.Service)
		}
	}
	return nil
}

// reportedToAll reports whether all targets know the state of a service; c.mu is held.
func (c *Client) reportedToAll(service string) bool {
	for _, t := range c.mu.targets {
		if _, dirty := t.dirty[service]; dirty {
			return false
		}
	}
	return c.mu.known[service].gone
}

// compose makes the next report to a target. It returns the services in it, and the
// number of the prompt after those in it.
func (c *Client) compose(t *target) (Report, []string, uint64) {
	c.mu.Lock()
	now := time.Now()
	c.mu.number++
	r := Report{Pod: c.cfg.Pod, Instance: c.started.UnixNano(), Age: now.Sub(c.started).Milliseconds(), Number: c.mu.number, Full: t.full}
	if t.full {
		for name := range c.mu.known {
			t.dirty[name] = struct{}{}
		}
	}
	sent := make([]string, 0, len(t.dirty))
	for name := range t.dirty {
		sent = append(sent, name)
		v := c.mu.known[name]
		l := line(name, v.demand, nil, now)
		l.Gone = v.gone
		r.Services = append(r.Services, l)
	}
	told := t.told
	if c.cfg.Heard != nil {
		heard := t.heard
		r.Heard = &heard
		if now.Sub(t.toldAt) >= c.cfg.Every {
			if r.Prompts, told = c.teller.Since(told, now); len(r.Prompts) > 0 {
				t.toldAt = now
			}
		}
	}
	clear(t.dirty)
	t.full, t.urgent = false, false
	c.mu.Unlock()
	for i := range r.Services {
		if l := &r.Services[i]; l.Running > 0 {
			l.InFlight = c.cfg.InFlight(l.Service)
		}
	}
	if c.cfg.Engines != nil {
		r.Engines = c.cfg.Engines(now)
		r.Engines = r.Engines[:min(len(r.Engines), maxEngines)]
	}
	if c.cfg.Hosts != nil {
		r.Hosts = fitting(c.cfg.Hosts(now))
	}
	return r, sent, told
}

// post sends a report and reads the answer.
func (c *Client) post(ctx context.Context, address string, r Report) (Answer, error) {
	var out Answer
	body, err := json.Marshal(r)
	if err != nil {
		return out, err
	}
	token, err := os.ReadFile(c.cfg.Token) // a memory file; the kubelet may have replaced it
	if err != nil {
		return out, fmt.Errorf("token: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+Path, bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return out, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return out, err
	}
	if resp.StatusCode != http.StatusOK {
		return out, fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(answer)))
	}
	return out, json.Unmarshal(answer, &out)
}

const maxAnswerBytes = 4<<10 + maxHeardBytes
