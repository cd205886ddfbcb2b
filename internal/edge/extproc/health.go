package extproc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

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
	case "", "readiness", ServiceName:
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
		return nil, status.Errorf(codes.NotFound, "service %q is not known: ask for liveness, readiness or %s", r.Service, ServiceName)
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
			return status.Error(codes.Unavailable, "the endpoint picker is ending")
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
