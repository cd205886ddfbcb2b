package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "roundhouse.dev/roundhouse/api/extproc"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// ServiceName is Envoy's name of the protocol, and one of the names that the
// health service knows.
const ServiceName = "envoy.service.ext_proc.v3.ExternalProcessor"

// PoolMetadata is the gRPC metadata by which a stream names its pool,
// "namespace/name" or a name in the namespace "default". In Envoy it is the
// GrpcService's initial_metadata.
const PoolMetadata = "x-gateway-inference-pool"

// Server speaks the protocol. A stream's pool is, in this order: the one that
// its metadata PoolMetadata names; the one that its :authority names, as
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
	ServiceName: ServiceName,
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
		return nil, nil, fmt.Errorf("extproc: %w: is another endpoint picker running? choose another --listen", err)
	}
	h, err := net.Listen("tcp", s.cfg.HealthListen)
	if err != nil {
		_ = l.Close() // nothing was accepted
		return nil, nil, fmt.Errorf("extproc: %w: choose another --health-listen", err)
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
		s.log.Warn("requests cut off: the time to drain is over", slog.Int64("requests", s.streams.Load()), slog.Duration("after", s.cfg.DrainTimeout))
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
	if v := md.Get(PoolMetadata); len(v) > 0 && v[0] != "" {
		k := service.ParseKey(v[0])
		if k.Name == "" || k.Namespace == "" || strings.Contains(k.Name, "/") {
			return service.Key{}, status.Errorf(codes.InvalidArgument, "metadata %s is %q: want NAMESPACE/NAME", PoolMetadata, v[0])
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
