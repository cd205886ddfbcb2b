// Package externalscaler answers KEDA's external scaler protocol with the counts that
// the fleet decides, so that KEDA, and its HorizontalPodAutoscalers, scale by them.
package externalscaler

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "roundhouse.dev/roundhouse/api/externalscaler"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// MetricName is the one metric there is: the replicas that a component is to have.
// Its target is 1 per replica, so that its value is the count.
const MetricName = "roundhouse-desired-replicas"

// The keys of a trigger's metadata.
const (
	metaService   = "service"
	metaNamespace = "namespace"
	metaComponent = "component"
)

const (
	maxMessage = 64 << 10
	drainTime  = time.Second
)

// Desired knows how many replicas components are to have.
type Desired interface {
	// Desired returns the count of a component; false where none is decided, or
	// the service is unknown.
	Desired(k service.Key, role service.Role) (int, bool)
}

// Config is how a Server answers. Start from DefaultConfig.
type Config struct {
	Desired Desired
	// TLS is nil for connections in the clear.
	TLS *tls.Config
	// Poll is how often a stream looks whether a component has become active.
	Poll time.Duration
	// MaxStreams is how many calls of a connection may be under way.
	MaxStreams uint32
}

// DefaultConfig looks every second.
func DefaultConfig() Config { return Config{Poll: time.Second, MaxStreams: 256} }

// Validate names what is missing.
func (c Config) Validate() error {
	if c.Desired == nil || c.Poll <= 0 || c.MaxStreams == 0 {
		return errors.New("externalscaler: Desired, Poll and MaxStreams are required")
	}
	return nil
}

// Server speaks the protocol.
type Server struct {
	cfg    Config
	server *grpc.Server
	ending chan struct{}
}

// New makes a Server.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	options := []grpc.ServerOption{grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(cfg.MaxStreams), grpc.MaxHeaderListSize(16 << 10),
		grpc.ConnectionTimeout(10 * time.Second), grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true})}
	if cfg.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	s := &Server{cfg: cfg, server: grpc.NewServer(options...), ending: make(chan struct{})}
	s.server.RegisterService(&description, s)
	return s, nil
}

// Serve answers on l until ctx ends; at most once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() {
		close(s.ending)
		late := time.AfterFunc(drainTime, s.server.Stop)
		s.server.GracefulStop()
		late.Stop()
	})
	defer stop()
	if err := s.server.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("answer KEDA: %w", err)
	}
	return nil
}

// description is the service. It is written by hand: the messages' names are our
// own, the service's is KEDA's.
var description = grpc.ServiceDesc{
	ServiceName: pb.ServiceName,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		unary("IsActive", (*Server).isActive),
		unary("GetMetricSpec", (*Server).metricSpec),
		unary("GetMetrics", (*Server).metrics),
	},
	Streams: []grpc.StreamDesc{{StreamName: "StreamIsActive", ServerStreams: true, Handler: func(srv any, stream grpc.ServerStream) error {
		var ref pb.ScaledObjectRef
		if err := stream.RecvMsg(&ref); err != nil {
			return err
		}
		return srv.(*Server).streamIsActive(&ref, stream)
	}}},
}

// unary describes a call with one request and one answer.
func unary[Q, A any](name string, answer func(*Server, *Q) (*A, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		q := new(Q)
		if err := decode(q); err != nil {
			return nil, err
		}
		return answer(srv.(*Server), q)
	}}
}

func (s *Server) isActive(ref *pb.ScaledObjectRef) (*pb.IsActiveResponse, error) {
	n, err := s.count(ref)
	return &pb.IsActiveResponse{Result: n > 0}, err
}

// streamIsActive sends whether a component is to have replicas: now, and whenever that
// changes. While that is not known it sends nothing.
func (s *Server) streamIsActive(ref *pb.ScaledObjectRef, stream grpc.ServerStream) error {
	if _, _, err := componentOf(ref); err != nil {
		return err
	}
	tick := time.NewTicker(s.cfg.Poll)
	defer tick.Stop()
	for told, active := false, false; ; {
		if n, err := s.count(ref); err == nil && (!told || active != (n > 0)) {
			told, active = true, n > 0
			if err := stream.SendMsg(&pb.IsActiveResponse{Result: active}); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.ending:
			return status.Error(codes.Unavailable, "the server stops")
		}
	}
}

func (s *Server) metricSpec(ref *pb.ScaledObjectRef) (*pb.GetMetricSpecResponse, error) {
	if _, _, err := componentOf(ref); err != nil {
		return nil, err
	}
	return &pb.GetMetricSpecResponse{MetricSpecs: []*pb.MetricSpec{{MetricName: MetricName, TargetSize: 1, TargetSizeFloat: 1}}}, nil
}

func (s *Server) metrics(q *pb.GetMetricsRequest) (*pb.GetMetricsResponse, error) {
	n, err := s.count(q.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	// KEDA names the metric as the HorizontalPodAutoscaler does, with a prefix.
	return &pb.GetMetricsResponse{MetricValues: []*pb.MetricValue{{MetricName: q.GetMetricName(), MetricValue: int64(n), MetricValueFloat: float64(n)}}}, nil
}

// count is how many replicas the component that ref means is to have.
func (s *Server) count(ref *pb.ScaledObjectRef) (int, error) {
	k, role, err := componentOf(ref)
	if err != nil {
		return 0, err
	}
	n, known := s.cfg.Desired.Desired(k, role)
	if !known {
		return 0, status.Errorf(codes.NotFound, "service %s has no component %s whose count is decided here: check %s and %s of the trigger's metadata", k, role, metaService, metaComponent)
	}
	return n, nil
}

// componentOf is the component that a trigger means: by default the engine of the
// service with the name of the ScaledObject. It is of the ScaledObject's namespace: who
// may write there need not know of others.
func componentOf(ref *pb.ScaledObjectRef) (service.Key, service.Role, error) {
	meta := ref.GetScalerMetadata()
	k, role := service.Key{Namespace: ref.GetNamespace(), Name: ref.GetName()}, service.RoleEngine
	if name := meta[metaService]; name != "" {
		k.Name = name
	}
	if c := meta[metaComponent]; c != "" {
		role = service.Role(c)
	}
	switch ns := meta[metaNamespace]; {
	case ns != "" && ns != k.Namespace:
		return k, role, status.Errorf(codes.PermissionDenied, "the trigger's %s is not that of the ScaledObject: a service is scaled from its own namespace", metaNamespace)
	case k.Name == "" || k.Namespace == "":
		return k, role, status.Errorf(codes.InvalidArgument, "the ScaledObject has no name or no namespace")
	}
	return k, role, nil
}
