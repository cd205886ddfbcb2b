package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "roundhouse.dev/roundhouse/api/extproc"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Server speaks the protocol. A stream's pool is, in this order: the one that
// its metadata pb.PoolMetadata names; the one that its :authority names, as
// "POOL-epp.NAMESPACE" with anything behind, the service that an
// InferencePool's extensionRef points at; Config.Pool; else the request's host,
// path and model decide, as they do in the gateway.
type Server struct {
	cfg      Config
	admitter Admitter
	log      *slog.Logger
	metrics  *metrics
	health   *health
	main     *grpc.Server
	probes   *grpc.Server
	streams  atomic.Int64
	buffered atomic.Int64 // bytes of request bodies

	mu struct {
		sync.Mutex
		listener, healthListener net.Listener
	}
}

// New makes a Server. Its metrics are registered with r unless that is nil.
func New(cfg Config, a Admitter, r prometheus.Registerer) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, admitter: a, log: cfg.Log}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.metrics = newMetrics(s)
	if r != nil {
		if err := r.Register(s.metrics); err != nil {
			return nil, fmt.Errorf("extproc: %w", err)
		}
	}
	s.health = newHealth(cfg.Ready)
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(int(cfg.MaxBodyBytes) + maxMessageExtra),
		grpc.NumStreamWorkers(workers),
		grpc.WriteBufferSize(transportBuffer),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
		grpc.MaxConcurrentStreams(connStreams),
		grpc.MaxHeaderListSize(maxMetadata),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingInterval, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: idlePing, Timeout: pingTime}),
	}
	s.probes = grpc.NewServer(options...)
	if cfg.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	s.main = grpc.NewServer(options...)
	s.main.RegisterService(&description, s)
	s.health.register(s.main)
	s.health.register(s.probes)
	return s, nil
}

// description is the service. It is written by hand: the messages' names are
// our own, the service's is Envoy's.
var description = grpc.ServiceDesc{
	ServiceName: pb.ServiceName,
	HandlerType: (*processor)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName:    "Process",
		ServerStreams: true,
		ClientStreams: true,
		Handler:       func(srv any, stream grpc.ServerStream) error { return srv.(processor).process(stream) },
	}},
}

type processor interface{ process(grpc.ServerStream) error }

// Listen binds both ports and returns their addresses; at most once.
func (s *Server) Listen() (main, health net.Addr, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("extproc: %w", err)
	}
	h, err := net.Listen("tcp", s.cfg.HealthListen)
	if err != nil {
		_ = l.Close() // nothing was accepted
		return nil, nil, fmt.Errorf("extproc: health: %w", err)
	}
	s.mu.listener, s.mu.healthListener = l, h
	return l.Addr(), h.Addr(), nil
}

// Run answers until ctx is done, after Listen. Then it is not ready any more,
// takes no new streams and gives those under way Config.DrainTimeout.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	l, h := s.mu.listener, s.mu.healthListener
	s.mu.Unlock()
	if l == nil {
		return errors.New("extproc: Run without Listen")
	}
	failed := make(chan error, 2)
	go func() { failed <- s.main.Serve(l) }()
	go func() { failed <- s.probes.Serve(h) }()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	s.health.drain()
	done := make(chan struct{})
	go func() { s.main.GracefulStop(); close(done) }()
	timer := time.NewTimer(s.cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		s.log.Warn("draining timed out; the remaining requests were ended", slog.Int64("requests", s.streams.Load()), slog.Duration("after", s.cfg.DrainTimeout))
		s.main.Stop()
		<-done
	}
	s.probes.Stop()
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("extproc: %w", err)
	}
	return nil
}

// process is one stream: one request of a client of Envoy's.
func (s *Server) process(stream grpc.ServerStream) error {
	n := s.streams.Add(1)
	defer s.streams.Add(-1)
	ctx := stream.Context()
	pool, err := s.pool(ctx)
	if err != nil {
		return err
	}
	c := conversation{s: s, pool: pool, full: n > int64(s.cfg.MaxStreams), send: func(r *pb.ProcessingResponse) error { return stream.SendMsg(r) }}
	defer c.end()
	for {
		// A message of its own each time: parts of the last may still be in use.
		r := &inbound{to: &c}
		err := stream.RecvMsg(r)
		switch {
		case err != nil:
			return ended(err)
		case r.err != nil:
			err = c.refuse(r.err)
		default:
			err = c.take(ctx, &r.ProcessingRequest)
		}
		if err != nil || c.phase == over {
			return err
		}
	}
}

// ended is how a stream ends that cannot be read any more: well, if Envoy has
// said all, or has left.
func ended(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// pool is the pool that a stream names.
func (s *Server) pool(ctx context.Context) (service.Key, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(pb.PoolMetadata); len(v) > 0 && v[0] != "" {
		k := service.ParseKey(v[0])
		if k.Name == "" || k.Namespace == "" || strings.Contains(k.Name, "/") {
			return service.Key{}, status.Errorf(codes.InvalidArgument, "metadata %s is %q: want NAMESPACE/NAME", pb.PoolMetadata, v[0])
		}
		return k, nil
	}
	if v := md.Get(":authority"); len(v) > 0 {
		host, rest, _ := strings.Cut(v[0], ".")
		if name, ok := strings.CutSuffix(host, "-epp"); ok && name != "" {
			namespace, _, _ := strings.Cut(rest, ".")
			namespace, _, _ = strings.Cut(namespace, ":")
			if namespace != "" {
				return service.Key{Namespace: namespace, Name: name}, nil
			}
		}
	}
	return s.cfg.Pool, nil
}

// metrics are the endpoint picker's. Their one label is the status code, so
// that clients cannot make up series.
type metrics struct {
	server   *Server
	requests *prometheus.CounterVec
	admit    prometheus.Histogram
	streams  *prometheus.Desc
	buffered *prometheus.Desc
}

func newMetrics(s *Server) *metrics {
	const prefix = "roundhouse_endpoint_picker_"
	return &metrics{
		server: s,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Requests, by the status code of their answer; 0 is one that left before any."}, []string{"code"}),
		admit: prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "admission_seconds",
			Help:    "Time from a request's last byte to its endpoint, waiting included.",
			Buckets: []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 600}}),
		streams:  prometheus.NewDesc(prefix+"requests_under_way", "Requests under way.", nil, nil),
		buffered: prometheus.NewDesc(prefix+"buffered_bytes", "Bytes of requests' bodies in memory.", nil, nil),
	}
}

func (m *metrics) admitted(begun time.Time) { m.admit.Observe(time.Since(begun).Seconds()) }

func (m *metrics) answered(status int) { m.requests.WithLabelValues(strconv.Itoa(status)).Inc() }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	m.requests.Describe(c)
	m.admit.Describe(c)
	c <- m.streams
	c <- m.buffered
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	m.requests.Collect(c)
	m.admit.Collect(c)
	c <- prometheus.MustNewConstMetric(m.streams, prometheus.GaugeValue, float64(m.server.streams.Load()))
	c <- prometheus.MustNewConstMetric(m.buffered, prometheus.GaugeValue, float64(m.server.buffered.Load()))
}

// health is gRPC's health service. "liveness" serves while the process does;
// "readiness", the server as a whole ("") and the protocol's name serve while
// requests can be placed.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	ready    func() bool
	draining chan struct{} // closed when the end begins
	once     sync.Once
}

// watchInterval is how often readiness is looked at for those who watch it.
const watchInterval = time.Second

func newHealth(ready func() bool) *health {
	return &health{ready: ready, draining: make(chan struct{})}
}

func (h *health) register(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, h) }

func (h *health) drain() { h.once.Do(func() { close(h.draining) }) }

func (h *health) of(service string) grpc_health_v1.HealthCheckResponse_ServingStatus {
	switch service {
	case "liveness":
		return grpc_health_v1.HealthCheckResponse_SERVING
	case "", "readiness", pb.ServiceName:
	default:
		return grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN
	}
	select {
	case <-h.draining:
		return grpc_health_v1.HealthCheckResponse_NOT_SERVING
	default:
	}
	if h.ready != nil && !h.ready() {
		return grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return grpc_health_v1.HealthCheckResponse_SERVING
}

// Check implements grpc_health_v1.HealthServer.
func (h *health) Check(_ context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	st := h.of(r.Service)
	if st == grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Errorf(codes.NotFound, "service %q is not known: ask for liveness, readiness or %s", r.Service, pb.ServiceName)
	}
	return &grpc_health_v1.HealthCheckResponse{Status: st}, nil
}

// Watch implements grpc_health_v1.HealthServer.
func (h *health) Watch(r *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	last := grpc_health_v1.HealthCheckResponse_ServingStatus(-1)
	for {
		if st := h.of(r.Service); st != last {
			last = st
			if err := stream.Send(&grpc_health_v1.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
		}
		select {
		case <-h.draining:
			if last == grpc_health_v1.HealthCheckResponse_SERVING && r.Service != "liveness" {
				continue // say so first
			}
			return status.Error(codes.Unavailable, "the endpoint picker is shutting down")
		default:
		}
		select {
		case <-tick.C:
		case <-h.draining:
		case <-stream.Context().Done():
			return nil
		}
	}
}
