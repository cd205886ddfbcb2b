package rawgrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// keyStore keeps keys in memory.
type keyStore struct {
	mu   sync.Mutex
	keys []apikey.Key
}

func (s *keyStore) Load() ([]apikey.Key, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.keys), s.keys != nil, nil
}

func (s *keyStore) Update(f func([]apikey.Key) ([]apikey.Key, error)) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys, err = f(s.keys)
	return err
}

func (s *keyStore) Stamp() string { return "" }

// TestKeys: with API keys no method but health needs none, and a key is for
// its models and within its limits.
// TestKeysInFull: what a key may ask by a bare name it may ask by the full one.
func TestKeysInFull(t *testing.T) {
	ring, err := keys.Open(keys.DefaultConfig(), &keyStore{})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.Keys = ring })
	f := startFake(t, nil)
	for _, name := range []string{"apps/iris", "apps/both", "other/both"} {
		r.d.SetPool(pool(name, f.address))
	}
	for _, c := range []struct {
		limits apikey.Limits
		model  string
		code   codes.Code
	}{
		{apikey.Limits{Models: []string{"iris"}}, "apps/iris", codes.OK},
		{apikey.Limits{Models: []string{"both"}}, "apps/both", codes.PermissionDenied},
		{apikey.Limits{Models: []string{"both"}, Namespaces: []string{"apps"}}, "apps/both", codes.OK},
		{apikey.Limits{Models: []string{"both"}, Namespaces: []string{"apps"}}, "apps/iris", codes.PermissionDenied},
	} {
		_, secret, err := ring.Create("test", c.limits, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.ModelInfer(t.Context(), request(c.model), grpc.PerRPCCredentials(credential{"x-api-key", secret}))
		if status.Code(err) != c.code {
			t.Errorf("%s with %+v: %v, want %v", c.model, c.limits, err, c.code)
		}
	}
}

func TestKeys(t *testing.T) {
	ring, err := keys.Open(keys.DefaultConfig(), &keyStore{})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.Keys = ring })
	f := startFake(t, nil)
	r.d.SetPool(pool("iris", f.address))
	r.d.SetPool(pool("digits", f.address))
	ctx := t.Context()
	if _, err := r.ModelInfer(ctx, request("iris")); err != nil {
		t.Error("there is no key yet: ", err)
	}
	create := func(l apikey.Limits) string {
		t.Helper()
		_, secret, err := ring.Create("test", l, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	secret := create(apikey.Limits{Models: []string{"iris"}})
	with := func(pairs ...string) grpc.CallOption { return grpc.PerRPCCredentials(credential(pairs)) }

	calls := map[string]func(...grpc.CallOption) error{
		"infer": func(o ...grpc.CallOption) error { _, err := r.ModelInfer(ctx, request("iris"), o...); return err },
		"metadata": func(o ...grpc.CallOption) error {
			_, err := r.ModelMetadata(ctx, &oip.ModelMetadataRequest{Name: "iris"}, o...)
			return err
		},
		"ready": func(o ...grpc.CallOption) error {
			_, err := r.ModelReady(ctx, &oip.ModelReadyRequest{Name: "iris"}, o...)
			return err
		},
		"server": func(o ...grpc.CallOption) error {
			_, err := r.ServerMetadata(ctx, &oip.ServerMetadataRequest{}, o...)
			return err
		},
		"load": func(o ...grpc.CallOption) error {
			_, err := r.RepositoryModelLoad(ctx, &oip.RepositoryModelLoadRequest{ModelName: "iris"}, o...)
			return err
		},
		"unload": func(o ...grpc.CallOption) error {
			_, err := r.RepositoryModelUnload(ctx, &oip.RepositoryModelUnloadRequest{ModelName: "iris"}, o...)
			return err
		},
		"index": func(o ...grpc.CallOption) error {
			list, err := r.RepositoryIndex(ctx, &oip.RepositoryIndexRequest{}, o...)
			if err == nil && (len(list.GetModels()) != 1 || list.GetModels()[0].GetName() != "iris") {
				return fmt.Errorf("the index shows %v", list)
			}
			return err
		},
		"stream": func(o ...grpc.CallOption) error {
			s, err := r.ModelStreamInfer(ctx, o...)
			if err == nil {
				_ = s.Send(request("iris")) // the answer says why it fails
				_, err = s.Recv()
			}
			return err
		},
		"reflection": func(o ...grpc.CallOption) error {
			s, err := grpc_reflection_v1.NewServerReflectionClient(r.conn).ServerReflectionInfo(ctx, o...)
			if err == nil {
				_ = s.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
				_, err = s.Recv()
			}
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			want(t, call(), codes.Unauthenticated, "an API key is needed")
			want(t, call(with("authorization", "Bearer "+secret+"x")), codes.Unauthenticated, "not valid")
			for _, o := range []grpc.CallOption{with("authorization", "Bearer "+secret), with("x-api-key", secret), with("authorization", "Basic mine", "api-key", secret)} {
				if err := call(o); err != nil {
					t.Error(err)
				}
			}
		})
	}
	asked := 0
	requests, md := f.seen()
	for _, m := range requests {
		if m.GetModelName() == "iris" {
			asked++
		}
	}
	if asked != 7 { // 1 without a key, 3 calls, 3 streams
		t.Errorf("the replica was asked %d times", asked)
	}
	if s := fmt.Sprint(md); strings.Contains(s, secret) || len(md["authorization"]) != 1 || md["authorization"][0] != "Basic mine" {
		t.Errorf("the replica got %v", md)
	}

	_, err = r.ModelInfer(ctx, request("digits"), with("x-api-key", secret))
	want(t, err, codes.PermissionDenied, `not for model "digits"`)
	_, err = r.ModelReady(ctx, &oip.ModelReadyRequest{Name: "digits"}, with("x-api-key", secret))
	want(t, err, codes.PermissionDenied)
	_, err = r.RepositoryModelLoad(ctx, &oip.RepositoryModelLoadRequest{ModelName: "digits"}, with("x-api-key", secret))
	want(t, err, codes.PermissionDenied)
	_, err = r.RepositoryModelUnload(ctx, &oip.RepositoryModelUnloadRequest{ModelName: "digits"}, with("x-api-key", secret))
	want(t, err, codes.PermissionDenied)
	_, err = r.ModelInfer(ctx, request("nope"), with("x-api-key", secret))
	want(t, err, codes.PermissionDenied) // as of a model that there is

	limited := create(apikey.Limits{RequestsPerMinute: 1, Models: []string{"digits"}})
	for _, model := range []string{"iris", "nope"} { // a refused model does not count
		_, err = r.ModelInfer(ctx, request(model), with("x-api-key", limited))
		want(t, err, codes.PermissionDenied)
		_, err = r.ModelReady(ctx, &oip.ModelReadyRequest{Name: model}, with("x-api-key", limited))
		want(t, err, codes.PermissionDenied)
		s, err := r.ModelStreamInfer(ctx, with("x-api-key", limited))
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Send(request(model)) // the answer says why it fails
		_, err = s.Recv()
		want(t, err, codes.PermissionDenied)
	}
	if _, err := r.ModelInfer(ctx, request("digits"), with("x-api-key", limited)); err != nil {
		t.Error(err)
	}
	var trailer metadata.MD
	_, err = r.ModelInfer(ctx, request("digits"), with("x-api-key", limited), grpc.Trailer(&trailer))
	want(t, err, codes.ResourceExhausted, "1 requests per minute")
	if first(trailer["retry-after"]) != "60" {
		t.Errorf("trailer %v", trailer)
	}

	if live, err := r.ServerLive(ctx, &oip.ServerLiveRequest{}); err != nil || !live.GetLive() {
		t.Error(err)
	}
	if ready, err := r.ServerReady(ctx, &oip.ServerReadyRequest{}); err != nil || !ready.GetReady() {
		t.Error(err)
	}
	if _, err := grpc_health_v1.NewHealthClient(r.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	watch, err := grpc_health_v1.NewHealthClient(r.conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Error(err)
	}
}

func TestAccessLog(t *testing.T) {
	var lines bytes.Buffer
	log := observe.NewAccessLog(&lines)
	ring, err := keys.Open(keys.DefaultConfig(), &keyStore{})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.Ended.AccessLog, c.Keys = log, ring })
	r.d.SetPool(pool("iris", startFake(t, nil).address))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "abc")
	if _, err := r.ModelInfer(ctx, request("iris")); err != nil {
		t.Fatal(err)
	}
	_, err = r.ModelInfer(ctx, request("nope"))
	want(t, err, codes.NotFound)
	key, secret, err := ring.Create("test", apikey.Limits{RequestsPerMinute: 1}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		_, err := r.ModelInfer(ctx, request("iris"), grpc.PerRPCCredentials(credential{"x-api-key", secret}))
		want(t, err, code)
	}
	until(t, func() bool { return metric(t, r.reg, "roundhouse_gateway_grpc_calls_total") == 4 })
	until(t, func() bool {
		s, _ := r.d.Status(routing.Service(service.ParseKey("default/iris")))
		return s.Demand.Running == 0
	})
	r.stop()
	<-r.served
	log.Close()
	got := strings.Split(strings.TrimSpace(lines.String()), "\n")
	if len(got) != 4 {
		t.Fatalf("%d lines: %s", len(got), &lines)
	}
	for i, wanted := range []map[string]any{
		{"method": "gRPC", "path": oip.GRPCInferenceService_ModelInfer_FullMethodName, "model": "iris", "target": "default/iris", "status": 200.0, "replica": "iris-0"},
		{"model": "nope", "status": 404.0, "reason": `model "nope" is not served here; the models are iris`},
		{"model": "iris", "status": 200.0, "key": key.ID},
		{"status": 429.0, "key": key.ID}, // over its limit
	} {
		var line map[string]any
		if err := json.Unmarshal([]byte(got[i]), &line); err != nil {
			t.Fatal(err)
		}
		for name, v := range wanted {
			if line[name] != v {
				t.Errorf("line %d: %s is %v, want %v: %s", i, name, line[name], v, got[i])
			}
		}
	}
}

// FuzzTakeSecret: no key of ours stays in the metadata.
func FuzzTakeSecret(f *testing.F) {
	f.Add("Bearer rh-a", "rh-b", "x")
	f.Add("bearer rh-a", " ", "rh-")
	f.Fuzz(func(t *testing.T, auth, x, y string) {
		md := metadata.MD{"authorization": {auth}, "x-api-key": {x, y}, "api-key": {y}, "other": {"rh-mine"}}
		secret := ingress.TakeSecret(md, secretKeys)
		for _, name := range secretKeys {
			for _, v := range md[name] {
				if strings.HasPrefix(v, apikey.Prefix) || secret != "" && strings.HasPrefix(secret, apikey.Prefix) && v == secret {
					t.Fatalf("%q stays in %v", v, md)
				}
			}
		}
		if first(md["other"]) != "rh-mine" {
			t.Fatal("took what is no key's metadata")
		}
	})
}
