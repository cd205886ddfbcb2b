package rawgrpc

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/api/oip/modelrepository"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// inference is inference.GRPCInferenceService, but for the calls that are
// forwarded.
type inference struct {
	oip.UnimplementedGRPCInferenceServiceServer
	server *Server
}

// ServerLive is true.
func (i *inference) ServerLive(context.Context, *oip.ServerLiveRequest) (*oip.ServerLiveResponse, error) {
	return &oip.ServerLiveResponse{Live: true}, nil
}

// ServerReady is false only while the gateway stops.
func (i *inference) ServerReady(context.Context, *oip.ServerReadyRequest) (*oip.ServerReadyResponse, error) {
	return &oip.ServerReadyResponse{Ready: !i.server.draining.Load()}, nil
}

// ServerMetadata names the gateway.
func (i *inference) ServerMetadata(context.Context, *oip.ServerMetadataRequest) (*oip.ServerMetadataResponse, error) {
	return &oip.ServerMetadataResponse{Name: "roundhouse", Version: i.server.cfg.Version, Extensions: []string{"model_repository"}}, nil
}

// ModelReady reports whether a request would be answered. It wakes nothing.
func (i *inference) ModelReady(ctx context.Context, r *oip.ModelReadyRequest) (*oip.ModelReadyResponse, error) {
	q := query(ctx, oip.GRPCInferenceService_ModelReady_FullMethodName, r.GetName())
	if err := i.server.check(ctx, q); err != nil {
		return nil, err
	}
	s, err := i.server.dispatch.Resolve(q)
	if err != nil {
		_, err = i.server.refuse(ctx, passOf(ctx), q.Model, err)
		return nil, err
	}
	return &oip.ModelReadyResponse{Ready: s.Answers() && mayAnswer(s.Pool)}, nil
}

// RepositoryIndex lists all services.
func (i *inference) RepositoryIndex(ctx context.Context, r *oip.RepositoryIndexRequest) (*oip.RepositoryIndexResponse, error) {
	out := &oip.RepositoryIndexResponse{}
	for _, s := range i.server.index(ctx, r.GetReady()) {
		out.Models = append(out.Models, &oip.RepositoryIndexResponse_ModelIndex{Name: s.Name, State: repositoryState(s.State), Reason: s.Message})
	}
	return out, nil
}

// RepositoryModelLoad wakes a service and waits until it is ready.
func (i *inference) RepositoryModelLoad(ctx context.Context, r *oip.RepositoryModelLoadRequest) (*oip.RepositoryModelLoadResponse, error) {
	return &oip.RepositoryModelLoadResponse{}, i.server.load(ctx, r.GetModelName())
}

// RepositoryModelUnload puts a service to sleep until its next request.
func (i *inference) RepositoryModelUnload(ctx context.Context, r *oip.RepositoryModelUnloadRequest) (*oip.RepositoryModelUnloadResponse, error) {
	return &oip.RepositoryModelUnloadResponse{}, i.server.unload(ctx, r.GetModelName())
}

// repository is the deprecated inference.model_repository service.
type repository struct {
	modelrepository.UnimplementedModelRepositoryServiceServer
	server *Server
}

// RepositoryIndex lists all services.
func (r *repository) RepositoryIndex(ctx context.Context, in *modelrepository.RepositoryIndexRequest) (*modelrepository.RepositoryIndexResponse, error) {
	out := &modelrepository.RepositoryIndexResponse{}
	for _, s := range r.server.index(ctx, in.GetReady()) {
		out.Models = append(out.Models, &modelrepository.RepositoryIndexResponse_ModelIndex{Name: s.Name, State: repositoryState(s.State), Reason: s.Message})
	}
	return out, nil
}

// RepositoryModelLoad wakes a service and waits until it is ready.
func (r *repository) RepositoryModelLoad(ctx context.Context, in *modelrepository.RepositoryModelLoadRequest) (*modelrepository.RepositoryModelLoadResponse, error) {
	return &modelrepository.RepositoryModelLoadResponse{}, r.server.load(ctx, in.GetModelName())
}

// RepositoryModelUnload puts a service to sleep until its next request.
func (r *repository) RepositoryModelUnload(ctx context.Context, in *modelrepository.RepositoryModelUnloadRequest) (*modelrepository.RepositoryModelUnloadResponse, error) {
	return &modelrepository.RepositoryModelUnloadResponse{}, r.server.unload(ctx, in.GetModelName())
}

// query asks for a model by its name and the host that was called.
func query(ctx context.Context, method, model string) dispatch.Request {
	md, _ := metadata.FromIncomingContext(ctx)
	_, _, secure := client(ctx)
	return dispatch.Request{Host: first(md[keyAuthority]), Path: method, Method: http.MethodPost, GRPC: true, Secure: secure, Model: model, Namespaces: passOf(ctx).Namespaces(),
		Header: func(name string) string { return first(md[strings.ToLower(name)]) }}
}

// check returns an error if the caller's key does not allow the model of q.
func (s *Server) check(ctx context.Context, q dispatch.Request) error {
	err := ingress.CheckModel(s.dispatch, passOf(ctx), q)
	if err != nil {
		_, err = s.refuse(ctx, passOf(ctx), q.Model, err)
	}
	return err
}

// index returns the state of all services that the caller's key allows, or only of
// those that are loaded.
func (s *Server) index(ctx context.Context, loaded bool) []dispatch.Status {
	pass := passOf(ctx)
	var out []dispatch.Status
	for _, st := range s.dispatch.Pools() {
		part := strings.Contains(st.Pool.Key.Name, "/") // of a service, or a Kubernetes Service: no model has the name
		if !part && ingress.Lists(pass, &st) && pass.Knows(st.Pool.Key.Namespace) && (!loaded || st.State == dispatch.StateReady) {
			out = append(out, st)
		}
	}
	return out
}

// repositoryState returns a service's state in the repository protocol's terms.
func repositoryState(s dispatch.State) string {
	switch s {
	case dispatch.StateReady:
		return "READY"
	case dispatch.StateLoading:
		return "LOADING"
	default: // asleep or failed
		return "UNAVAILABLE"
	}
}

// load waits until a replica is ready, as a request would.
func (s *Server) load(ctx context.Context, model string) error {
	q := query(ctx, oip.GRPCInferenceService_RepositoryModelLoad_FullMethodName, model)
	if err := s.check(ctx, q); err != nil {
		return err
	}
	g, err := s.dispatch.Admit(ctx, q)
	if err != nil {
		_, err = s.refuse(ctx, passOf(ctx), q.Model, err)
		return err
	}
	g.Done(dispatch.Outcome{})
	return nil
}

func (s *Server) unload(ctx context.Context, model string) error {
	q := query(ctx, oip.GRPCInferenceService_RepositoryModelUnload_FullMethodName, model)
	if err := s.check(ctx, q); err != nil {
		return err
	}
	k, err := s.dispatch.Key(q)
	if err != nil {
		_, err = s.refuse(ctx, passOf(ctx), q.Model, err)
		return err
	}
	if err := s.dispatch.Sleep(ctx, k.String()); err != nil {
		return errorf(codes.InvalidArgument, "%s cannot be unloaded: %v", model, err)
	}
	return nil
}

// open lists the methods that need no key: they reveal only that the gateway runs.
var open = map[string]bool{
	oip.GRPCInferenceService_ServerLive_FullMethodName:  true,
	oip.GRPCInferenceService_ServerReady_FullMethodName: true,
	grpc_health_v1.Health_Check_FullMethodName:          true,
	grpc_health_v1.Health_List_FullMethodName:           true,
	grpc_health_v1.Health_Watch_FullMethodName:          true,
}

// secretKeys are the metadata fields in which clients send their key, as for HTTP.
var secretKeys = lower(ingress.SecretHeaders)

func lower(names []string) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, strings.ToLower(n))
	}
	return out
}

// enter checks the key of a call and removes it from md. The caller ends the pass
// with Leave; it is nil when no key is needed.
func (s *Server) enter(md metadata.MD) (pass *keys.Pass, trailer metadata.MD, limitedKey string, err error) {
	pass, err = ingress.Enter(s.cfg.Keys, md, secretKeys)
	if err == nil {
		return pass, nil, "", nil
	}
	var refusal *ingress.Refusal
	if errors.As(err, &refusal) {
		limitedKey = refusal.Key
	}
	trailer, err = s.refuse(context.Background(), nil, "", err)
	return nil, trailer, limitedKey, err
}

// passKey is the key of a call's pass in its context.
type passKey struct{}

func passOf(ctx context.Context) *keys.Pass {
	pass, _ := ctx.Value(passKey{}).(*keys.Pass)
	return pass
}

// guardUnary checks the keys of the calls that the gateway answers itself.
func (s *Server) guardUnary(ctx context.Context, in any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if open[info.FullMethod] {
		return handle(ctx, in)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	pass, trailer, _, err := s.enter(md)
	if err != nil {
		_ = grpc.SetTrailer(ctx, trailer) // fails only for a client that is gone
		return nil, err
	}
	defer pass.Leave(0)
	return handle(context.WithValue(ctx, passKey{}, pass), in)
}

// guardStream does the same for streams, and forwards those that a route leads to
// Kubernetes Services.
func (s *Server) guardStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	switch {
	case service == nil: // the method is not the gateway's
		return handle(service, stream)
	case s.passes(stream.Context(), info.FullMethod):
		return s.pass(stream, info.FullMethod, true)
	}
	if open[info.FullMethod] || info.FullMethod == oip.GRPCInferenceService_ModelStreamInfer_FullMethodName {
		return handle(service, stream)
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	pass, trailer, _, err := s.enter(md)
	if err != nil {
		stream.SetTrailer(trailer)
		return err
	}
	defer pass.Leave(0)
	return handle(service, stream)
}

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
