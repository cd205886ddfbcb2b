// Package payloads sends copies of requests and answers to the servers that services'
// loggers name, as CloudEvents over HTTP in the binary form. It never slows a request:
// what does not fit its bounds is dropped and counted.
package payloads

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/edge/gateway/outside"
)

// Config bounds a Queue.
type Config struct {
	// MaxEvents is how many events wait at most, MaxBytes what all copies take that
	// are made or wait, with their attributes, and MaxPayload the longest that is copied.
	MaxEvents  int
	MaxBytes   int64
	MaxPayload int
	// Senders is how many events are sent at a time, Timeout how long one may take.
	Senders int
	Timeout time.Duration
	// Failed is told of an event that was not taken; it must not block.
	Failed func(url string, err error)
	// Reach returns where an event's URL leads; nil has it lead anywhere.
	Reach outside.Reach
}

// DefaultConfig holds 1,000 events of up to 4 MiB, 64 MiB together.
func DefaultConfig() Config {
	return Config{MaxEvents: 1000, MaxBytes: 64 << 20, MaxPayload: 4 << 20, Senders: 4, Timeout: 10 * time.Second}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	if c.MaxEvents <= 0 || c.MaxBytes <= 0 || c.MaxPayload <= 0 || c.Senders <= 0 || c.Timeout <= 0 {
		return fmt.Errorf("payloads: every bound must be more than 0: %+v", c)
	}
	return nil
}

// Event is one copy and what it says of itself.
type Event struct {
	URL string
	// Namespace is that of the service whose logger names the URL.
	Namespace string
	// ID, Type and Source are CloudEvents' own, Attributes its extensions.
	ID, Type, Source string
	Time             time.Time
	Attributes       map[string]string
	ContentType      string
	Data             *Copy
}

// Queue holds events until they are sent. Its senders run while there are any.
type Queue struct {
	cfg    Config
	client *outside.Client
	events *prometheus.CounterVec
	held   atomic.Int64

	mu      sync.Mutex
	waiting []Event
	senders int
	idle    *sync.Cond // no sender runs
}

// New makes an empty queue.
func New(cfg Config) (*Queue, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	q := &Queue{cfg: cfg, client: outside.New(outside.Config{Reach: cfg.Reach, Dial: cfg.Timeout, Whole: cfg.Timeout, Idle: cfg.Senders}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "roundhouse_gateway_logged_payloads_total",
			Help: "Copies of requests and answers for services' loggers, by what became of them: sent, failed, dropped (over a bound)."}, []string{"result"})}
	q.idle = sync.NewCond(&q.mu)
	return q, nil
}

// Describe implements prometheus.Collector.
func (q *Queue) Describe(c chan<- *prometheus.Desc) { q.events.Describe(c) }

// Collect implements prometheus.Collector.
func (q *Queue) Collect(c chan<- prometheus.Metric) { q.events.Collect(c) }

// Copy is a payload that is being copied. The nil Copy copies nothing.
type Copy struct {
	q    *Queue
	data []byte
	more int // held besides: the attributes
	lost bool
}

// Copy begins a copy. Whoever begins it puts it into an event, or drops it.
func (q *Queue) Copy() *Copy { return &Copy{q: q} }

// Write appends a part, unless the copy is over a bound, then or before.
func (c *Copy) Write(b []byte) {
	if c == nil || c.lost {
		return
	}
	if len(c.data)+len(b) > c.q.cfg.MaxPayload || !c.q.take(int64(len(b))) {
		c.Lose()
		return
	}
	c.data = append(c.data, b...)
}

// Lose drops the copy, which counts as over a bound.
func (c *Copy) Lose() {
	c.Drop()
	c.lost = true
}

// Drop gives back what the copy holds.
func (c *Copy) Drop() {
	if c != nil {
		c.q.held.Add(-int64(len(c.data) + c.more))
		c.data, c.more = nil, 0
	}
}

func (q *Queue) take(n int64) bool {
	if q.held.Add(n) > q.cfg.MaxBytes {
		q.held.Add(-n)
		return false
	}
	return true
}

// MaxID is the most of an event's id that is sent.
const MaxID = 256

// attributes is the memory that what e says of itself takes.
func (e *Event) attributes() int {
	n := len(e.ID) + len(e.ContentType)
	for name, value := range e.Attributes {
		n += len(name) + len(value)
	}
	return n
}

// hold counts the attributes of the copy's event, or loses the copy.
func (c *Copy) hold(attributes int) {
	if c.lost {
		return
	}
	if !c.q.take(int64(attributes)) {
		c.Lose()
		return
	}
	c.more += attributes
}

// Put has an event sent. The queue owns its data then.
func (q *Queue) Put(e Event) {
	// The clone lets go of the header that the id is a part of.
	e.ID = strings.Clone(e.ID[:min(len(e.ID), MaxID)])
	e.Data.hold(e.attributes())
	if e.Data.lost {
		q.events.WithLabelValues("dropped").Inc()
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= q.cfg.MaxEvents {
		e.Data.Drop()
		q.events.WithLabelValues("dropped").Inc()
		return
	}
	q.waiting = append(q.waiting, e)
	if q.senders < q.cfg.Senders {
		q.senders++
		go q.drain()
	}
}

// drain sends events until none waits.
func (q *Queue) drain() {
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			if q.senders--; q.senders == 0 {
				q.waiting = nil
				q.idle.Broadcast()
			}
			q.mu.Unlock()
			return
		}
		e := q.waiting[0]
		q.waiting[0] = Event{}
		q.waiting = q.waiting[1:]
		q.mu.Unlock()
		err := q.send(e)
		e.Data.Drop()
		result := "sent"
		if err != nil {
			result = "failed"
			if q.cfg.Failed != nil {
				q.cfg.Failed(e.URL, err)
			}
		}
		q.events.WithLabelValues(result).Inc()
	}
}

// Close waits until every event was sent, or until ctx ends.
func (q *Queue) Close(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.idle.Broadcast()
	})
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.senders > 0 && ctx.Err() == nil {
		q.idle.Wait()
	}
}

// maxAnswer is how much of a server's answer is read, so that its connection can be
// used again.
const maxAnswer = 64 << 10

func (q *Queue) send(e Event) error {
	ctx, cancel := context.WithTimeout(context.Background(), q.cfg.Timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL, bytes.NewReader(e.Data.data))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": e.ID, "Ce-Type": e.Type, "Ce-Source": e.Source,
		"Ce-Time": e.Time.UTC().Format(time.RFC3339Nano), "Ce-Recordedtime": time.Now().UTC().Format(time.RFC3339Nano), "Content-Type": e.ContentType} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	for name, value := range e.Attributes {
		r.Header.Set("Ce-"+name, value)
	}
	resp, err := q.client.Do(r, e.Namespace)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	if resp.StatusCode/100 != 2 {
		return errors.New("it answered " + strconv.Itoa(resp.StatusCode))
	}
	return nil
}

// JSON is v as JSON of ASCII alone, which a header field can hold.
func JSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	out := make([]byte, 0, len(b))
	for _, r := range string(b) {
		if r < 0x7f {
			out = append(out, byte(r))
			continue
		}
		if r > 0xffff {
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
			continue
		}
		out = fmt.Appendf(out, `\u%04x`, r)
	}
	return string(out)
}
