package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// Target is a server whose metrics are read.
type Target struct {
	// ID is what the sink knows it by.
	ID string
	// URL is "http://host:port"; with a path it is that of the metrics, else
	// the engine's own path is added.
	URL string
	// Engine is the name of an Engine; "" has it found out.
	Engine string
	// Ranks is how many data-parallel ranks the server's engine has: from 2 on the sink
	// is told of each under its own ID.
	Ranks int
}

// id is what the sink knows a rank by, or the server.
func (t *Target) id(rank int) string {
	if t.Ranks < 2 {
		return t.ID
	}
	return replica.RankID(t.ID, rank)
}

// What a server answered that is of no use, for errors.Is.
var (
	errStatus = errors.New("unexpected answer")
	errForm   = errors.New("not in Prometheus' text format")
)

// everything is the plan for an engine that is not known yet; own are those of
// each engine.
var (
	everything = newPlan(known())
	own        = ownPlans()
)

func known() (list []*Engine) {
	for i := range Engines {
		list = append(list, &Engines[i])
	}
	return list
}

func ownPlans() map[string]*plan {
	plans := map[string]*plan{}
	for _, e := range known() {
		plans[e.Name] = newPlan([]*Engine{e})
	}
	return plans
}

// source is where and how a target is read. Those found out by trying are kept
// until they fail.
type source struct {
	plan *plan
	urls []*url.URL // one, once it is known which
}

// source returns the addresses from which a target may be read.
func (t Target) source() (source, error) {
	u, err := url.Parse(t.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return source{}, fmt.Errorf("scrape: target %s: %q is no URL such as http://10.0.0.1:8000", t.ID, t.URL)
	}
	p := source{plan: everything}
	engines := known()
	if t.Engine != "" {
		if p.plan = own[t.Engine]; p.plan == nil {
			return source{}, fmt.Errorf("scrape: target %s: engine %q is not known: %w", t.ID, t.Engine, everything.unknown())
		}
		engines = []*Engine{p.plan.engines[0].Engine}
	}
	if u.Path != "" && u.Path != "/" {
		p.urls = []*url.URL{u}
		return p, nil
	}
	for _, e := range engines {
		at := *u
		at.Path = e.Path
		if !slices.ContainsFunc(p.urls, func(o *url.URL) bool { return o.Path == at.Path }) {
			p.urls = append(p.urls, &at)
		}
	}
	return p, nil
}

// worker is what one goroutine reads with.
type worker struct {
	reader    reader
	gathering gathering
}

// readFrom reads a target where it may be, and returns the load of each of its ranks and
// where it was.
func (w *worker) readFrom(ctx context.Context, c *Config, p source, ranks int) ([]*replica.Load, source, error) {
	var errs []error
	for _, u := range p.urls {
		l, e, err := w.readURL(ctx, c, p.plan, u, ranks)
		if err == nil && p.plan == own[e.Name] && len(p.urls) == 1 {
			return l, p, nil
		}
		if err == nil {
			return l, source{own[e.Name], []*url.URL{u}}, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", u, err))
		if !errors.Is(err, errUnknown) && !errors.Is(err, errForm) && !errors.Is(err, errStatus) {
			break // it would be the same elsewhere
		}
	}
	return nil, p, errors.Join(errs...)
}

func (w *worker) readURL(ctx context.Context, c *Config, p *plan, u *url.URL, ranks int) ([]*replica.Load, *Engine, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	req := (&http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: requestHeader}).WithContext(ctx)
	at := c.Clock.Now()
	res, err := c.Transport.RoundTrip(req)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		// What little there is is read, so that the connection can be kept.
		_, _ = io.CopyN(io.Discard, res.Body, 4<<10)
		return nil, nil, fmt.Errorf("%w: %s", errStatus, res.Status)
	}
	if v := res.Header.Get("Content-Type"); v != "" {
		if form, _, _ := strings.Cut(v, ";"); !strings.EqualFold(strings.TrimSpace(form), "text/plain") {
			return nil, nil, fmt.Errorf("%w: Content-Type is %.80q", errForm, v)
		}
	}
	w.gathering.start(p, ranks)
	if err := w.reader.read(res.Body, c.MaxBytes, &p.names, w.gathering.take); err != nil {
		return nil, nil, err
	}
	return w.gathering.loads(at)
}

// requestHeader is every request's; nobody changes it.
var requestHeader = http.Header{
	"Accept":     {"text/plain;version=0.0.4"},
	"User-Agent": {"roundhouse"},
}

// reason classes a failure for the metrics: a small set.
func reason(err error) string {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, errUnknown):
		return "engine"
	case errors.Is(err, errStatus):
		return "status"
	case errors.Is(err, errForm), errors.Is(err, errLine), errors.Is(err, errLongLine), errors.Is(err, errTooLong):
		return "body"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return "connection"
}

// reasons are all that reason returns.
var reasons = []string{"engine", "status", "body", "timeout", "connection"}

// pause is how long after a reading the next one is due, without jitter.
//
//   - after failures: Fast, doubled with each one in a row, up to MaxBackoff;
//   - with requests of ours on the server: Fast;
//   - else: twice the last pause, up to Slow;
//   - and never so short that readings take more than MaxShare of the time.
func (c *Config) pause(last, took time.Duration, failures, inFlight int) time.Duration {
	if failures > 0 {
		return min(c.MaxBackoff, c.Fast<<min(failures, 16))
	}
	next := c.Fast
	if inFlight == 0 {
		next = min(c.Slow, max(c.Fast, 2*last))
	}
	return max(next, time.Duration(float64(took)/c.MaxShare))
}
