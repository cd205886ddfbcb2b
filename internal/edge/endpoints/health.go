package endpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// HealthConfig bounds how servers are checked. Start from
// DefaultHealthConfig.
type HealthConfig struct {
	// Interval, Timeout and Failures hold where a pool states none. Of each
	// interval up to a tenth is left out at random.
	Interval, Timeout time.Duration
	Failures          int
	// MaxChecks is how many servers are asked at once.
	MaxChecks int
	// Changed is called with the first result of each server's checks and with
	// every change: why the server is not healthy, "" if it is. Failures checks in
	// a row are one result. Calls for one server come in order.
	Changed func(pool service.Key, address, why string)
}

// DefaultHealthConfig asks every 5 seconds.
func DefaultHealthConfig() HealthConfig {
	return HealthConfig{Interval: 5 * time.Second, Timeout: 2 * time.Second, Failures: 2, MaxChecks: 64}
}

// Health checks the servers at the addresses of pools.
type Health struct {
	cfg    HealthConfig
	client *http.Client
	slots  chan struct{}
	done   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	checks map[checked]*check
}

// checked is a server as a pool has it.
type checked struct {
	pool    service.Key
	address string
}

type check struct {
	question
	stop context.CancelFunc
}

// question is how a server is asked.
type question struct {
	url     string // "" : a connection is enough
	address string
	// lenient: a server that does not have the path is healthy.
	lenient           bool
	interval, timeout time.Duration
	failures          int
}

// NewHealth makes a Health of no pool.
func NewHealth(cfg HealthConfig) (*Health, error) {
	if cfg.Interval <= 0 || cfg.Timeout <= 0 || cfg.Failures <= 0 || cfg.MaxChecks <= 0 || cfg.Changed == nil {
		return nil, errors.New("endpoints: Interval, Timeout, Failures and MaxChecks of health checks must be more than 0, and Changed be set")
	}
	return &Health{cfg: cfg, slots: make(chan struct{}, cfg.MaxChecks), checks: map[checked]*check{}, client: &http.Client{
		Transport: &http.Transport{DialContext: (&net.Dialer{}).DialContext, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHealthHeader},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // where it leads is not asked
		},
	}}, nil
}

// maxHealthHeader bounds the header of an answer.
const maxHealthHeader = 64 << 10

// Set makes these the "ip:port" of a pool, and stops the checks of others; a pool
// that disables checks has none. It returns the addresses whose checks begin now:
// earlier results no longer hold for them.
func (h *Health) Set(p *routing.Pool, addresses []string) (begun []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	keep := map[checked]bool{}
	if !p.Health.Disabled && !h.closed {
		for _, a := range addresses {
			k, q := checked{p.Key, a}, h.question(p, a)
			keep[k] = true
			if c := h.checks[k]; c != nil && c.question == q {
				continue
			} else if c != nil {
				c.stop()
			}
			ctx, stop := context.WithCancel(context.Background())
			c := &check{q, stop}
			h.checks[k] = c
			begun = append(begun, a)
			h.done.Go(func() { h.ask(ctx, k, c) })
		}
	}
	for k, c := range h.checks {
		if k.pool == p.Key && !keep[k] {
			c.stop()
			delete(h.checks, k)
		}
	}
	return begun
}

// Close ends all checks and waits until nothing is told any more.
func (h *Health) Close() {
	h.mu.Lock()
	h.closed = true
	for _, c := range h.checks {
		c.stop()
	}
	h.mu.Unlock()
	h.done.Wait()
}

// question is how the servers of p are asked.
func (h *Health) question(p *routing.Pool, address string) question {
	c := p.Health
	q := question{address: address, interval: h.cfg.Interval, timeout: h.cfg.Timeout, failures: h.cfg.Failures}
	if c.Interval > 0 {
		q.interval = c.Interval
	}
	if c.Timeout > 0 {
		q.timeout = c.Timeout
	}
	if c.FailureThreshold > 0 {
		q.failures = c.FailureThreshold
	}
	if host, _, err := net.SplitHostPort(address); err == nil && c.Port > 0 {
		q.address = net.JoinHostPort(host, strconv.Itoa(int(c.Port)))
	}
	path := c.Path
	if path == "" {
		path, q.lenient = ownPath(p), true
	}
	if path != "" {
		q.url = "http://" + q.address + path
	}
	return q
}

// ownPath is where a pool's servers tell their health; "" where nothing is
// known.
func ownPath(p *routing.Pool) string {
	const openInference = "/v2/health/ready"
	switch {
	case p.Protocol == service.ProtocolGRPCV2:
		return ""
	case p.Metrics.Engine == "roundhouse", p.Metrics.Engine == "triton-trtllm", p.Metrics.Engine == "triton", p.Protocol == service.ProtocolV2:
		return openInference
	case p.Metrics.Engine != "", p.Protocol == service.ProtocolOpenAI:
		return "/health"
	}
	return ""
}

// ask asks one server until ctx ends.
func (h *Health) ask(ctx context.Context, k checked, c *check) {
	failed, known, ill := 0, false, false
	for {
		err := h.once(ctx, c)
		if ctx.Err() != nil {
			return
		}
		wait := c.interval
		switch {
		case err == nil && (ill || !known):
			known, ill = true, false
			h.cfg.Changed(k.pool, k.address, "")
		case err != nil && !ill:
			if failed++; failed >= c.failures {
				known, ill = true, true
				h.cfg.Changed(k.pool, k.address, err.Error())
			} else {
				wait = min(wait, time.Second) // it is soon known
			}
		}
		if err == nil {
			failed = 0
		}
		select {
		case <-time.After(wait - time.Duration(rand.Float64()*float64(wait/10))):
		case <-ctx.Done():
			return
		}
	}
}

// once asks a server once. The error is why it is not healthy.
func (h *Health) once(ctx context.Context, c *check) error {
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer to the health check within %v", c.timeout))
	defer cancel()
	err := h.get(ctx, c)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return err
}

func (h *Health) get(ctx context.Context, c *check) error {
	if c.url == "" {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "roundhouse")
	res, err := h.client.Do(req)
	if err != nil {
		var inner interface{ Unwrap() error }
		if errors.As(err, &inner) {
			err = inner.Unwrap() // without the URL, which is its own
		}
		return fmt.Errorf("health check: %w", err)
	}
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10) // what it says does not matter
	_ = res.Body.Close()
	if res.StatusCode >= 500 || res.StatusCode >= 400 && !c.lenient {
		return fmt.Errorf("%s is answered %s", req.URL.Path, res.Status)
	}
	return nil
}
