package kafka

import (
	"context"
	"log/slog"
	"net"
	"sync"

	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// Service is what answers. *modelserver.Server is one.
type Service interface {
	Infer(ctx context.Context, name, version string, r *tensor.Request) (*tensor.Response, error)
	AddCloudEvents(metadata map[string][]string, r *tensor.Response)
	// Loaded is closed once the models of the start have been tried.
	Loaded() <-chan struct{}
}

// Bridge answers the records of a topic. It is a modelserver.Transport that
// listens nowhere.
type Bridge struct {
	config  Config
	service Service
	log     *slog.Logger
	meters  *meters

	ending   chan struct{} // closed when Shutdown begins
	stopOnce sync.Once
	ctx      context.Context // of requests; ends with Shutdown's time
	cancel   context.CancelFunc
	done     chan struct{} // closed when Serve returned

	mu struct {
		sync.Mutex
		serving bool
	}
}

// New makes a bridge. Nothing is connected before Serve.
func New(c Config, service Service, registry *metrics.Registry, log *slog.Logger) (*Bridge, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m, err := newMeters(registry)
	if err != nil {
		return nil, err
	}
	b := &Bridge{config: c, service: service, log: log, meters: m, ending: make(chan struct{}), done: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b, nil
}

// Protocol is Kafka.
func (b *Bridge) Protocol() string { return "Kafka" }

// Listen does nothing: a bridge has no address.
func (b *Bridge) Listen() (net.Addr, error) { return nil, nil }

// Serve answers records from when the models are loaded until Shutdown.
func (b *Bridge) Serve() error {
	b.mu.Lock()
	b.mu.serving = true
	b.mu.Unlock()
	defer close(b.done)
	select {
	case <-b.service.Loaded():
	case <-b.ending:
		return nil
	}
	c, err := newConsumer(b.config, b.answer, b.log)
	if err != nil {
		return err
	}
	polling, stop := context.WithCancel(b.ctx)
	defer stop()
	go func() {
		select {
		case <-b.ending:
			stop()
		case <-polling.Done():
		}
	}()
	b.log.Info("kafka requests are read", "servers", b.config.Servers, "topic", b.config.Input, "group", b.config.Group)
	c.poll(polling, b.ctx)
	c.end()
	return nil
}

// Shutdown takes no more records and waits for those under way. When ctx ends first it cancels them,
// and the next consumer of their partitions reads them again.
func (b *Bridge) Shutdown(ctx context.Context) error {
	b.stopOnce.Do(func() { close(b.ending) })
	defer b.cancel()
	b.mu.Lock()
	serving := b.mu.serving
	b.mu.Unlock()
	if !serving {
		return nil
	}
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		b.cancel()
		<-b.done
		return ctx.Err()
	}
}

// meters count the records answered.
type meters struct {
	requests, duration *metrics.Family
	open               *metrics.Series
}

func newMeters(r *metrics.Registry) (*meters, error) {
	m := &meters{}
	var open *metrics.Family
	for _, item := range []struct {
		family **metrics.Family
		desc   metrics.Desc
	}{
		{&m.requests, metrics.Desc{Name: "kafka_server_requests_total", Help: "Kafka records answered, by status.", Kind: metrics.Counter, Labels: []string{"status_code"}}},
		{&m.duration, metrics.Desc{Name: "kafka_server_request_duration_seconds", Help: "Seconds from a Kafka record's arrival to its answer.", Kind: metrics.Histogram, Labels: []string{"status_code"}}},
		{&open, metrics.Desc{Name: "kafka_server_requests_in_progress", Help: "Kafka records being answered.", Kind: metrics.Gauge}},
	} {
		var err error
		if *item.family, err = r.Register(item.desc); err != nil {
			return nil, err
		}
	}
	m.open = open.With()
	return m, nil
}

func (m *meters) observe(status int, took time.Duration) {
	code := strconv.Itoa(status)
	m.requests.With(code).Add(1)
	m.duration.With(code).Observe(took.Seconds())
}
