package rawgrpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/api/oip/modelrepository"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// The bounds of a client's connection that are no settings.
const (
	pingInterval = 10 * time.Second // at which a client may ask whether the server is there
	idlePing     = time.Minute      // after which the server asks whether the client is
	pingTime     = 20 * time.Second // for the client to answer that
	// workers are the goroutines that answer call after call, with stacks that
	// have grown already; calls beyond them get one of their own.
	workers = 16
)

// Server is the gateway's gRPC server.
type Server struct {
	cfg       Config
	dispatch  *dispatch.Dispatcher
	log       *slog.Logger
	warnings  *observe.Warnings // those that each failed try would repeat
	metrics   *metrics
	upstreams *upstreams
	buffered  ingress.Budget
	server    *grpc.Server
	// web answers what of the gateway's own methods, own, is called over the HTTP port. It
	// is never asked to stop: the HTTP server waits for its calls.
	web      *grpc.Server
	own      map[string]bool
	mirrored atomic.Int64 // copies of calls under way
	draining atomic.Bool
	calls    counts        // under way, of each connection to the HTTP port
	ending   chan struct{} // closed when the server begins to stop
	// speaks are services that have answered over gRPC of late.
	speaks sync.Map // of service.Key
}

// New makes a server in front of d and registers its metrics.
func New(cfg Config, d *dispatch.Dispatcher, log *slog.Logger, reg prometheus.Registerer) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := codec{encoding.GetCodecV2(encodingproto.Name)}
	s := &Server{cfg: cfg, dispatch: d, log: log, warnings: observe.NewWarnings(log), metrics: newMetrics(d), ending: make(chan struct{}),
		upstreams: &upstreams{cfg: cfg, codec: c, byAddr: map[string]*upstream{}}, own: map[string]bool{}}
	s.buffered.Limit = cfg.MaxBufferedBytes
	if err := reg.Register(s.metrics); err != nil {
		return nil, fmt.Errorf("rawgrpc: register metrics: %w", err)
	}
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(c),
		grpc.MaxRecvMsgSize(cfg.MaxMessageBytes),
		grpc.UnaryInterceptor(s.guardUnary),
		grpc.StreamInterceptor(s.guardStream),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
		grpc.MaxConcurrentStreams(cfg.MaxCalls),
		grpc.MaxHeaderListSize(cfg.MaxMetadataBytes),
		grpc.ConnectionTimeout(cfg.HandshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingInterval, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: idlePing, Timeout: pingTime, MaxConnectionIdle: cfg.IdleTimeout}),
	}
	if cfg.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	s.web = s.register(grpc.NewServer(append(slices.Clip(options), grpc.MaxRecvMsgSize(min(maxOwnBytes, cfg.MaxMessageBytes)))...))
	s.server = s.register(grpc.NewServer(append(options, grpc.NumStreamWorkers(workers), grpc.UnknownServiceHandler(s.passUnknown))...))
	for service, info := range s.server.GetServiceInfo() {
		for _, m := range info.Methods {
			method := "/" + service + "/" + m.Name
			s.own[method] = !unaryForwards[method] && !streamForwards[method]
		}
	}
	return s, nil
}

// register registers the services of which the gateway answers any call.
func (s *Server) register(at *grpc.Server) *grpc.Server {
	to := registrar{at, s}
	to.RegisterService(inferenceService(), &inference{server: s})
	modelrepository.RegisterModelRepositoryServiceServer(to, &repository{server: s})
	grpc_health_v1.RegisterHealthServer(to, &health{server: s})
	reflection.Register(to)
	return at
}

// The methods that are forwarded by the model that their messages name.
var (
	unaryForwards = map[string]bool{
		oip.GRPCInferenceService_ModelInfer_FullMethodName:      true,
		oip.GRPCInferenceService_ModelMetadata_FullMethodName:   true,
		oip.GRPCInferenceService_ModelStatistics_FullMethodName: true,
		oip.GRPCInferenceService_ModelConfig_FullMethodName:     true,
	}
	streamForwards = map[string]bool{oip.GRPCInferenceService_ModelStreamInfer_FullMethodName: true}
)

// inferenceService is the generated description of the service with the calls
// that are forwarded handled as frames.
func inferenceService() *grpc.ServiceDesc {
	d := oip.GRPCInferenceService_ServiceDesc
	d.Methods = append([]grpc.MethodDesc(nil), d.Methods...)
	for i := range d.Methods {
		if method := "/" + d.ServiceName + "/" + d.Methods[i].MethodName; unaryForwards[method] {
			d.Methods[i].Handler = unaryHandler(method)
		}
	}
	d.Streams = append([]grpc.StreamDesc(nil), d.Streams...)
	for i := range d.Streams {
		if streamForwards["/"+d.ServiceName+"/"+d.Streams[i].StreamName] {
			d.Streams[i].Handler = streamHandler
		}
	}
	return &d
}

// Serve answers on l until ctx ends, then lets calls in flight finish for at
// most DrainTimeout. It closes l. The error is nil after a stop by ctx, even if
// calls had to be cut. Without a listener calls come over the HTTP port alone, by
// ServeHTTP.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer s.upstreams.close()
	served := make(chan error, 1)
	if l == nil {
		served = nil
	} else {
		go func() { served <- s.server.Serve(newListener(l, s.cfg.MaxConnections)) }()
	}
	sweep := time.NewTicker(s.cfg.IdleTimeout / 4)
	defer sweep.Stop()
	for {
		select {
		case err := <-served:
			return fmt.Errorf("gRPC gateway on %s: %w", l.Addr(), err)
		case now := <-sweep.C:
			s.upstreams.sweep(now.Add(-s.cfg.IdleTimeout))
			s.speaks.Clear()
		case <-ctx.Done():
			if s.stop(); l == nil {
				return nil
			}
			if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				return err
			}
			return nil
		}
	}
}

// stop lets calls in flight finish, for at most DrainTimeout.
func (s *Server) stop() {
	s.draining.Store(true)
	close(s.ending)
	done := make(chan struct{})
	go func() { s.server.GracefulStop(); close(done) }()
	limit := time.NewTimer(s.cfg.DrainTimeout)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		s.log.Warn("gRPC calls were cut at the end of the drain", "timeout", s.cfg.DrainTimeout)
		s.server.Stop()
		<-done
	}
}
