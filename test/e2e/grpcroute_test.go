package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"roundhouse.dev/roundhouse/api/oip"
)

// translators are gRPC servers of example.v1.Translator, which `up` does not know. Each
// answers every text with its number, the method and the metadata x-tenant. They return
// their addresses.
func translators(t *testing.T, n int) []string {
	t.Helper()
	var out []string
	for i := range n {
		server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(s)
			md, _ := metadata.FromIncomingContext(s.Context())
			s.SetTrailer(metadata.Pairs("x-trailer", method))
			for {
				var in wrapperspb.StringValue
				switch err := s.RecvMsg(&in); {
				case errors.Is(err, io.EOF):
					return nil
				case err != nil:
					return err
				case in.GetValue() == "fail":
					return status.Error(codes.OutOfRange, "no such language")
				}
				if err := s.SendMsg(wrapperspb.String(fmt.Sprint(i, " ", method, " ", md["x-tenant"], " ", in.GetValue()))); err != nil {
					return err
				}
			}
		}))
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = server.Serve(l) }()
		t.Cleanup(server.Stop)
		out = append(out, l.Addr().String())
	}
	return out
}

const grpcRoute = `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: first}
spec: {protocol: grpc-v2, addresses: [%q], healthCheck: {disabled: true}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: second}
spec: {protocol: grpc-v2, addresses: [%q], healthCheck: {disabled: true}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: models}
spec:
  parentRefs: [{name: inference-gateway}]
  hostnames: [models.test]
  rules:
  - matches: [{method: {service: inference.GRPCInferenceService}}]
    backendRefs: [{name: iris, port: 80}]
  - matches: [{method: {service: example.v1.Translator}}]
    filters:
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-tenant, value: blue}]}}
    backendRefs: [{group: roundhouse.dev, kind: Pool, name: first}]
  - matches:
    - {method: {service: example.v1.Translator, method: Both}, headers: [{name: x-version, value: next}]}
    backendRefs: [{group: roundhouse.dev, kind: Pool, name: second}]
  - matches: [{method: {type: RegularExpression, service: "example\\.v[23]\\..*"}}]
    backendRefs: [{group: roundhouse.dev, kind: Pool, name: nowhere}]
`

// TestGRPCRoute: a GRPCRoute leads calls of models and of other servers' services, at the
// gateway's gRPC port and at that of HTTP.
func TestGRPCRoute(t *testing.T) {
	t.Parallel()
	servers := translators(t, 2)
	n := startNode(t)
	dir := t.TempDir()
	n.do("apply", "--wait", "-f", write(t, dir, "iris.yaml", irisManifest("iris", "{minReplicas: 1, maxReplicas: 1}")))
	contains(t, n.do("apply", "-f", write(t, dir, "r.yaml", fmt.Sprintf(grpcRoute, servers[0], servers[1]))),
		"grpcroute default/models created", "there is no pool default/nowhere")
	contains(t, n.do("get", "grpcroutes"), "models")
	contains(t, n.do("get", "routes"), "models.test", "iris")
	contains(t, n.do("get", "grpcroute", "models", "-o", "yaml"), "reason: BackendNotFound", "type: Accepted", "name: inference-gateway")
	contains(t, n.do("describe", "grpcroute", "models"), "/inference.GRPCInferenceService/* to iris\n", "/example.v1.Translator/* to first\n    request header: set X-Tenant\n",
		"/example.v1.Translator/Both header X-Version=next to second\n", `~/(?:example\.v[23]\..*)/[^/]+ to nowhere`)
	contains(t, n.do("explain", "request", write(t, dir, "none", ""), "--path", "/example.v1.Translator/One", "--host", "models.test", "-H", "Content-Type: application/grpc"),
		"GRPCRoute default/models, rule 2", "pool default/first")

	for name, address := range map[string]string{"gRPC": after(n.out.String(), "gRPC                   "), "HTTP": strings.TrimPrefix(n.gateway, "http://")} {
		t.Run(name, func(t *testing.T) {
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			ctx, at := t.Context(), grpc.CallAuthority("models.test")
			models := oip.NewGRPCInferenceServiceClient(conn)
			for _, o := range [][]grpc.CallOption{nil, {at}} {
				if m, err := models.ModelInfer(ctx, irisRequest("7"), o...); err != nil || m.GetId() != "7" || len(m.GetOutputs()) != 1 {
					t.Errorf("%v %v", m, err)
				}
			}
			ask := func(method, text string, o ...grpc.CallOption) (string, error) {
				var reply wrapperspb.StringValue
				err := conn.Invoke(ctx, method, wrapperspb.String(text), &reply, append(o, at)...)
				return reply.GetValue(), err
			}
			var trailer metadata.MD
			if got, err := ask("/example.v1.Translator/One", "hi", grpc.Trailer(&trailer)); err != nil || got != "0 /example.v1.Translator/One [blue] hi" || len(trailer["x-trailer"]) != 1 {
				t.Errorf("%q %v, trailer %v", got, err, trailer)
			}
			for call, want := range map[[2]string]codes.Code{
				{"/example.v1.Translator/One", "fail"}: codes.OutOfRange, {"/example.v1.Other/One", "hi"}: codes.Unimplemented, {"/example.v2.Translator/One", "hi"}: codes.Unavailable,
			} {
				if _, err := ask(call[0], call[1]); status.Code(err) != want {
					t.Errorf("%s: %v, want %v", call, err, want)
				}
			}
			s, err := conn.NewStream(metadata.AppendToOutgoingContext(ctx, "x-version", "next"), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/example.v1.Translator/Both", at)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range []string{"a", "b", "c"} {
				var reply wrapperspb.StringValue
				if err := s.SendMsg(wrapperspb.String(text)); err != nil {
					t.Fatal(err)
				}
				if err := s.RecvMsg(&reply); err != nil || reply.GetValue() != "1 /example.v1.Translator/Both [] "+text {
					t.Errorf("%q %v", reply.GetValue(), err)
				}
			}
			_ = s.CloseSend()
			if err := s.RecvMsg(&wrapperspb.StringValue{}); !errors.Is(err, io.EOF) {
				t.Error(err)
			}
		})
	}
	// What is no call is none of the route's.
	if a := n.post("/example.v1.Translator/One", "hi", "Host", "models.test"); a.status != 404 {
		t.Errorf("a request over HTTP: %s", a)
	}
	contains(t, n.do("delete", "grpcroute", "models"), "grpcroute default/models deleted")
}
