package rawgrpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/api/oip/modelrepository"
)

// health is gRPC's health service. The gateway as a whole ("") and each of its
// services serve until the gateway stops.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	server *Server
}

// of is the status of a service.
func (h *health) of(service string) grpc_health_v1.HealthCheckResponse_ServingStatus {
	switch service {
	case "", oip.GRPCInferenceService_ServiceDesc.ServiceName, modelrepository.ModelRepositoryService_ServiceDesc.ServiceName:
	default:
		return grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN
	}
	if h.server.draining.Load() {
		return grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return grpc_health_v1.HealthCheckResponse_SERVING
}

// Check is the status now.
func (h *health) Check(_ context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	s := h.of(r.GetService())
	if s == grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, errorf(codes.NotFound, "no such service: %s", r.GetService())
	}
	return &grpc_health_v1.HealthCheckResponse{Status: s}, nil
}

// Watch sends the status now and when the gateway stops.
func (h *health) Watch(r *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	if err := stream.Send(&grpc_health_v1.HealthCheckResponse{Status: h.of(r.GetService())}); err != nil {
		return err
	}
	select {
	case <-h.server.ending:
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	}
	if err := stream.Send(&grpc_health_v1.HealthCheckResponse{Status: h.of(r.GetService())}); err != nil {
		return err
	}
	return status.Error(codes.Unavailable, "the gateway is shutting down")
}
