// Package promquery asks Prometheus servers for the values of expressions that
// services scale on.
//
// A query is asked every Config.Interval for as long as somebody wants its value,
// by a goroutine of its own. Each request has a timeout and a bound of bytes, goes
// to the server that the manifest names and no other, and carries no credentials.
package promquery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

// Config bounds what a Reader does. Start from DefaultConfig.
type Config struct {
	// Interval is the pause between two questions, Timeout bounds one.
	Interval, Timeout time.Duration
	// Unwanted is how long after its value was last wanted a query is still asked.
	Unwanted time.Duration
	// MaxBytes is the longest answer that is read.
	MaxBytes int64
	// MaxQueries is how many queries are asked at a time.
	MaxQueries int
	// Refuse returns why a server may not be asked, "" where it may; nil: all may.
	Refuse func(*url.URL) string
	// Transport is nil for connections of the Reader's own.
	Transport http.RoundTripper
}

// DefaultConfig asks every 10 s.
func DefaultConfig() Config {
	return Config{Interval: 10 * time.Second, Timeout: 5 * time.Second, Unwanted: time.Minute, MaxBytes: 1 << 20, MaxQueries: 256}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	if c.Interval <= 0 || c.Timeout <= 0 || c.Unwanted <= 0 || c.MaxBytes <= 0 || c.MaxQueries <= 0 {
		return errors.New("promquery: Interval, Timeout, Unwanted, MaxBytes and MaxQueries must be more than 0")
	}
	return nil
}

// Reader keeps the values of queries. It is safe for concurrent use.
type Reader struct {
	cfg    Config
	http   *http.Client
	ending context.Context
	end    context.CancelFunc
	asking sync.WaitGroup

	mu      sync.Mutex
	queries map[service.ExternalMetric]*query
}

// query is one that is asked; the Reader's lock guards it.
type query struct {
	last   autoscale.Reading
	wanted time.Time
}

// New makes a Reader. The caller closes it.
func New(cfg Config) (*Reader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Transport == nil {
		cfg.Transport = &http.Transport{DialContext: (&net.Dialer{Timeout: cfg.Timeout}).DialContext, TLSHandshakeTimeout: cfg.Timeout,
			MaxIdleConns: cfg.MaxQueries, MaxIdleConnsPerHost: 2, IdleConnTimeout: 3 * cfg.Interval, MaxResponseHeaderBytes: 64 << 10}
	}
	r := &Reader{cfg: cfg, queries: map[service.ExternalMetric]*query{}}
	r.http = &http.Client{Transport: cfg.Transport, Timeout: cfg.Timeout, CheckRedirect: sameHost}
	r.ending, r.end = context.WithCancel(context.Background())
	return r, nil
}

// Close ends all requests and waits for them. Reads afterwards return no value.
func (r *Reader) Close() {
	r.mu.Lock() // so that no Read that has seen no end starts a goroutine during the wait
	r.end()
	r.mu.Unlock()
	r.asking.Wait()
	r.http.CloseIdleConnections()
}

// Read returns the last value of a query, and has it asked on. It does not wait.
func (r *Reader) Read(m service.ExternalMetric) autoscale.Reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queries[m]
	switch {
	case q != nil:
	case r.ending.Err() != nil:
		return autoscale.Reading{}
	case len(r.queries) >= r.cfg.MaxQueries:
		return autoscale.Reading{Problem: fmt.Sprintf("not asked: %d other queries are asked, the most at a time; let services use the same query, or fewer services scale on one", r.cfg.MaxQueries)}
	default:
		q = &query{}
		r.queries[m] = q
		r.asking.Go(func() { r.ask(m, q) })
	}
	q.wanted = time.Now()
	return q.last
}

// ask asks a query until nobody wants its value.
func (r *Reader) ask(m service.ExternalMetric, q *query) {
	tick := time.NewTicker(r.cfg.Interval)
	defer tick.Stop()
	for {
		x, err := r.once(m)
		now := time.Now()
		r.mu.Lock()
		if err == nil {
			q.last = autoscale.Reading{At: now, Value: x}
		} else {
			q.last.Problem = err.Error()
		}
		if now.Sub(q.wanted) > r.cfg.Unwanted || r.ending.Err() != nil {
			delete(r.queries, m)
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		select {
		case <-tick.C:
		case <-r.ending.Done():
		}
	}
}

// errOtherHost is why a redirect is not followed.
var errOtherHost = errors.New("the server redirects to another host or another scheme, which is not asked: write the URL that it redirects to")

// sameHost refuses a redirect to another server.
func sameHost(next *http.Request, past []*http.Request) error {
	if from := past[0].URL; next.URL.Host != from.Host || next.URL.Scheme != from.Scheme {
		return errOtherHost
	}
	if len(past) > 3 {
		return errors.New("the server redirects more than 3 times")
	}
	return nil
}

// once asks a query once. The error names no URL, since that stands in the manifest,
// where it may be longer than a message.
func (r *Reader) once(m service.ExternalMetric) (float64, error) {
	u, err := url.Parse(m.URL)
	if err != nil {
		return 0, errors.New("the URL of the server cannot be read")
	}
	if r.cfg.Refuse != nil {
		if why := r.cfg.Refuse(u); why != "" {
			return 0, errors.New(why)
		}
	}
	u = u.JoinPath("api/v1/query")
	u.RawQuery = url.Values{"query": {m.Query}}.Encode()
	req, err := http.NewRequestWithContext(r.ending, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, errors.New("the URL of the server cannot be read")
	}
	req.Header.Set("Accept", "application/json")
	res, err := r.http.Do(req)
	if err != nil {
		if of, ok := errors.AsType[*url.Error](err); ok {
			err = of.Err
		}
		return 0, fmt.Errorf("ask %s: %w", u.Host, err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(res.Body, r.cfg.MaxBytes+1))
	switch {
	case err != nil:
		return 0, fmt.Errorf("read the answer of %s: %w", u.Host, err)
	case int64(len(b)) > r.cfg.MaxBytes:
		return 0, fmt.Errorf("the answer of %s is longer than %d bytes: write an expression with one result", u.Host, r.cfg.MaxBytes)
	}
	x, err := parse(b)
	if res.StatusCode != http.StatusOK {
		if !errors.Is(err, errRefused) {
			err = errors.New("not an answer of Prometheus' API")
		}
		return 0, fmt.Errorf("%s answers %d: %w", u.Host, res.StatusCode, err)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", u.Host, err)
	}
	return x, nil
}

// clip shortens what a server wrote.
func clip(s string) string {
	return cmp.Or(excerpt.Of(strings.TrimSpace(s), 200), "no reason")
}
