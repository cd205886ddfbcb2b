package rawgrpc

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
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

// secretKeys are the metadata in which clients put their key, as for HTTP.
var secretKeys = lower(ingress.SecretHeaders)

func lower(names []string) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, strings.ToLower(n))
	}
	return out
}

// enter lets a call in by its key. The pass is to be left; it is nil when no
// key is needed. md keeps no key of ours.
func (s *Server) enter(md metadata.MD) (*keys.Pass, metadata.MD, error) {
	if s.cfg.Keys == nil || !s.cfg.Keys.Required() {
		return nil, nil, nil
	}
	pass, err := s.cfg.Keys.Enter(ingress.TakeSecret(md, secretKeys))
	var limited *keys.Refusal
	switch {
	case err == nil:
		return pass, nil, nil
	case errors.As(err, &limited):
		return nil, metadata.Pairs(keyRetryAfter, ingress.Seconds(limited.RetryAfter)), errorf(codes.ResourceExhausted, "%s", limited.Message)
	case errors.Is(err, keys.ErrNoKey):
		return nil, nil, errorf(codes.Unauthenticated, "an API key is needed: send metadata authorization: Bearer KEY, or x-api-key: KEY")
	default:
		return nil, nil, errorf(codes.Unauthenticated, "the API key is not valid: it is mistyped, revoked or expired")
	}
}

// passKey is under which a call's context has its pass.
type passKey struct{}

func passOf(ctx context.Context) *keys.Pass {
	pass, _ := ctx.Value(passKey{}).(*keys.Pass)
	return pass
}

// guardUnary lets calls in that are answered here.
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

// guardStream lets streams in that are answered here.
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

// defaultPrefix is what the shortest name of a service in the default
// namespace leaves out.
const defaultPrefix = service.DefaultNamespace + "/"

// mayUse is an error if a key is not for the model that q names. An unknown
// model gets the same answer unless the key names it, or a limited key would
// tell which other models there are.
func (s *Server) mayUse(pass *keys.Pass, q dispatch.Request) error {
	may := s.may(pass, q)
	if may == nil {
		return nil
	}
	k, err := s.dispatch.Key(q)
	if err != nil {
		if pass.Allows(q.Model) {
			return nil
		}
		return forbidden(pass, q.Model)
	}
	return may(k)
}

// forbidden says that a key is not for a model.
func forbidden(pass *keys.Pass, model string) error {
	return errorf(codes.PermissionDenied, "API key %s is not for model %q", pass.Key(), model)
}

// may says which services and shared pools a key lets q use; nil for any.
func (s *Server) may(pass *keys.Pass, q dispatch.Request) func(service.Key) error {
	if len(pass.Models()) == 0 {
		return nil
	}
	return func(k service.Key) error {
		names := []string{k.String(), strings.TrimPrefix(k.String(), defaultPrefix)}
		if _, err := s.dispatch.Key(dispatch.Request{Host: q.Host, Path: q.Path, Header: q.Header, Namespaces: q.Namespaces}); err != nil {
			// The host does not decide by itself, so the name it is asked by is the
			// model's.
			names = append(names, q.Model)
		}
		if pass.Allows(names...) || s.allowsBare(pass, k) {
			return nil
		}
		return forbidden(pass, q.Model)
	}
}

// allowsBare says whether a key names a service without its namespace: the key
// is for that namespace, or the name is the service's for whoever has the key.
func (s *Server) allowsBare(pass *keys.Pass, k service.Key) bool {
	if !pass.Allows(k.Name) {
		return false
	}
	if pass.AllowsIn(k.Namespace, k.Name) {
		return true
	}
	at, err := s.dispatch.Key(dispatch.Request{Model: k.Name, Namespaces: pass.Namespaces()})
	return err == nil && at == k
}

// sees says whether a key is for a service.
func sees(pass *keys.Pass, s *dispatch.Status) bool {
	k := s.Pool.Key.String()
	return pass.Allows(s.Name, k, strings.TrimPrefix(k, defaultPrefix)) || pass.AllowsIn(s.Pool.Key.Namespace, s.Pool.Key.Name)
}
