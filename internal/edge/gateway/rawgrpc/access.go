package rawgrpc

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// open are the methods that need no key: they tell only that the gateway runs.
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
func (s *Server) enter(md metadata.MD) (*keys.Pass, metadata.MD, error) {
	pass, err := ingress.Enter(s.cfg.Keys, md, secretKeys)
	if err == nil {
		return pass, nil, nil
	}
	trailer, err := s.refuse(context.Background(), nil, "", err)
	return nil, trailer, err
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
	pass, trailer, err := s.enter(md)
	if err != nil {
		_ = grpc.SetTrailer(ctx, trailer) // fails only for a client that is gone
		return nil, err
	}
	defer pass.Leave(0)
	return handle(context.WithValue(ctx, passKey{}, pass), in)
}

// guardStream does so for streams.
func (s *Server) guardStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if open[info.FullMethod] || info.FullMethod == oip.GRPCInferenceService_ModelStreamInfer_FullMethodName {
		return handle(service, stream)
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	pass, trailer, err := s.enter(md)
	if err != nil {
		stream.SetTrailer(trailer)
		return err
	}
	defer pass.Leave(0)
	return handle(service, stream)
}
