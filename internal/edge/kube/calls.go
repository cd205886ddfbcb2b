package kube

import (
	"context"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Calls counts a process's requests to the API server, of all its clients: how
// often each kind is read and written and with what result, how long that
// takes, and which watches are open. It is a prometheus.Collector; labels are
// verbs, kinds and results, never names of objects.
type Calls struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	open     *prometheus.Desc

	mu      sync.Mutex
	watches map[string]*watched // by resource
}

// watched is how a resource is watched: open connections, and informers that
// need one.
type watched struct {
	open int
	by   map[<-chan struct{}]bool // by the channel that ends the informer
}

// NewCalls returns Calls with all counters at zero.
func NewCalls() *Calls {
	const prefix = "roundhouse_kubernetes_"
	return &Calls{
		watches: map[string]*watched{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Requests to the API server: ok, not_found, conflict, expired, refused, throttled, failed (5xx), unreachable."}, []string{"verb", "resource", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "request_seconds",
			Help: "Time to the header of the API server's answer, waits for our own rate limit left out.", Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}}, []string{"verb"}),
		open: prometheus.NewDesc(prefix+"watches", "Watches of each kind that are open now; 0 while one is wanted and none is open.", []string{"resource"}, nil),
	}
}

// Of counts the requests of every client that is made with a configuration.
func (c *Calls) Of(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &counted{c, next} })
}

// Describe implements prometheus.Collector.
func (c *Calls) Describe(out chan<- *prometheus.Desc) {
	c.requests.Describe(out)
	c.seconds.Describe(out)
	out <- c.open
}

// Collect implements prometheus.Collector.
func (c *Calls) Collect(out chan<- prometheus.Metric) {
	c.requests.Collect(out)
	c.seconds.Collect(out)
	c.mu.Lock()
	defer c.mu.Unlock()
	for resource, w := range c.watches {
		out <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(w.open), resource)
	}
}

// counted is a transport whose requests are counted.
type counted struct {
	*Calls
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	verb, resource := asked(r)
	began := time.Now()
	if verb == "watch" {
		c.want(r.Context(), resource)
	}
	res, err := c.next.RoundTrip(r)
	if err != nil && r.Context().Err() != nil {
		return res, err // the caller gave up
	}
	c.requests.WithLabelValues(verb, resource, resultOf(res, err)).Inc()
	c.seconds.WithLabelValues(verb).Observe(time.Since(began).Seconds())
	if err == nil && verb == "watch" && res.StatusCode == http.StatusOK {
		c.opened(resource, 1)
		res.Body = &watchBody{res.Body, sync.OnceFunc(func() { c.opened(resource, -1) })}
	}
	return res, err
}

// want notes an informer that needs a watch of a resource, until it ends.
func (c *Calls) want(ctx context.Context, resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.watches[resource]
	if w == nil {
		w = &watched{by: map[<-chan struct{}]bool{}}
		c.watches[resource] = w
	}
	end := ctx.Done() // one for all tries of an informer
	if w.by[end] {
		return
	}
	w.by[end] = true
	context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(w.by, end)
		c.settle(resource, w)
	})
}

func (c *Calls) opened(resource string, by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.watches[resource]; w != nil {
		w.open += by
		c.settle(resource, w)
	}
}

// settle forgets a resource without informers; mu is held.
func (c *Calls) settle(resource string, w *watched) {
	if w.open == 0 && len(w.by) == 0 && c.watches[resource] == w {
		delete(c.watches, resource)
	}
}

// watchBody is a watch's stream of events.
type watchBody struct {
	io.ReadCloser
	closed func()
}

// Close implements io.Closer.
func (b *watchBody) Close() error {
	b.closed()
	return b.ReadCloser.Close()
}

// asked returns a request's verb and its kind: its resource's name and group,
// as a CRD is named, with the subresource after a slash.
func asked(r *http.Request) (verb, resource string) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group, rest := "", parts
	switch {
	case len(parts) > 2 && parts[0] == "api":
		rest = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		group, rest = "."+parts[1], parts[3:]
	default:
		return strings.ToLower(r.Method), "discovery" // what there is, the version
	}
	if len(rest) > 2 && rest[0] == "namespaces" {
		rest = rest[2:]
	}
	resource = rest[0] + group
	if len(rest) > 2 {
		resource += "/" + rest[2]
	}
	return verbOf(r, len(rest) > 1), resource
}

func verbOf(r *http.Request, named bool) string {
	switch r.Method {
	case http.MethodGet:
		switch watch := r.URL.Query().Get("watch"); {
		case watch == "true" || watch == "1":
			return "watch"
		case named:
			return "get"
		}
		return "list"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodDelete:
		return "delete"
	case http.MethodPatch:
		if t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); t == string(types.ApplyYAMLPatchType) || t == string(types.ApplyCBORPatchType) {
			return "apply"
		}
		return "patch"
	}
	return "other"
}

func resultOf(res *http.Response, err error) string {
	if err != nil {
		return "unreachable"
	}
	switch code := res.StatusCode; {
	case code < 400:
		return "ok"
	case code == http.StatusNotFound:
		return "not_found"
	case code == http.StatusConflict:
		return "conflict"
	case code == http.StatusGone:
		return "expired"
	case code == http.StatusTooManyRequests:
		return "throttled"
	case code < 500:
		return "refused"
	}
	return "failed"
}
