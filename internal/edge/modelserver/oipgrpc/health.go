package oipgrpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/api/oip/modelrepository"
)

// health is gRPC's health service. The server as a whole (""), and each of its
// services, serves when it is ready.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	server *Server
}

// watchInterval is how often readiness is looked at for those who watch it.
const watchInterval = time.Second

// healthServices are the names that are known.
var healthServices = []string{"", oip.GRPCInferenceService_ServiceDesc.ServiceName, modelrepository.ModelRepositoryService_ServiceDesc.ServiceName}

// of is the status of a service.
func (h *health) of(service string) grpc_health_v1.HealthCheckResponse_ServingStatus {
	for _, name := range healthServices {
		if name != service {
			continue
		}
		if h.server.service.Ready() {
			return grpc_health_v1.HealthCheckResponse_SERVING
		}
		return grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN
}

func (h *health) Check(_ context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	s := h.of(r.GetService())
	if s == grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Errorf(codes.NotFound, "no such service: %s", bounded(r.GetService()))
	}
	return &grpc_health_v1.HealthCheckResponse{Status: s}, nil
}

func (h *health) List(context.Context, *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	out := &grpc_health_v1.HealthListResponse{Statuses: map[string]*grpc_health_v1.HealthCheckResponse{}}
	for _, name := range healthServices {
		out.Statuses[name] = &grpc_health_v1.HealthCheckResponse{Status: h.of(name)}
	}
	return out, nil
}

// Watch sends the status now and whenever it has changed, until the client
// leaves or the server ends.
func (h *health) Watch(r *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	last := grpc_health_v1.HealthCheckResponse_ServingStatus(-1)
	for {
		if now := h.of(r.GetService()); now != last {
			last = now
			if err := stream.Send(&grpc_health_v1.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-h.server.ending:
			return status.Error(codes.Unavailable, "the server is shutting down")
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
