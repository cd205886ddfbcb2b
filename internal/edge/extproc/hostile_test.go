package extproc

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "roundhouse.dev/roundhouse/api/extproc"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestHostile: what no Envoy sends.
func TestHostile(t *testing.T) {
	f := newFake()
	s, conn, _, _ := serve(t, f, func(c *Config) { c.MaxBodyBytes, c.MaxBufferedBytes = 1<<20, 3<<20 })
	open := func() grpc.ClientStream {
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{StreamName: "Process", ServerStreams: true, ClientStreams: true},
			"/"+pb.ServiceName+"/Process", grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(8<<20))
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	for name, bad := range map[string][]byte{"no protobuf": []byte("\xff\xff\xff"), "a truncated field": {0x12, 0x7f, 0x0a}} {
		stream := open()
		_ = stream.SendMsg(bad)
		if err := stream.RecvMsg(&[]byte{}); status.Code(err) != codes.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
	stream := open()
	_ = stream.SendMsg(make([]byte, 1<<20+maxMessageExtra+1))
	if err := stream.RecvMsg(&[]byte{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message that is too long: %v", err)
	}

	e := begin(t, t.Context(), conn)
	e.send(requestHeaders(false, ":method", "POST", ":path", "/v1/completions"))
	e.send(requestBody(make([]byte, 1<<20+1), false))
	if got := e.recv().GetImmediateResponse(); got.GetStatus().GetCode() != 413 {
		t.Errorf("a body that is too long: %v", got)
	}

	// Several streams' bodies are too much together.
	var all []*envoy
	for range 3 {
		e := begin(t, t.Context(), conn)
		e.send(requestHeaders(false, ":method", "POST", ":path", "/v1/completions"))
		e.send(requestBody(make([]byte, 1<<20), false))
		all = append(all, e)
	}
	wait(t, func() bool { return s.buffered.Load() == 3<<20 })
	e = begin(t, t.Context(), conn)
	e.send(requestHeaders(false, ":method", "POST", ":path", "/v1/completions"))
	e.send(requestBody([]byte("x"), false))
	if got := e.recv().GetImmediateResponse(); got.GetStatus().GetCode() != 429 {
		t.Errorf("memory is full: %v", got)
	}
	for _, e := range all {
		_ = e.stream.CloseSend()
	}
	wait(t, func() bool { return s.buffered.Load() == 0 })
}

// rawCodec sends and receives bytes.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (rawCodec) Name() string                       { return "proto" }

func TestPoolOfAStream(t *testing.T) {
	for _, c := range []struct {
		authority, metadata string
		flag                service.Key
		want                string
	}{
		{"127.0.0.1:9002", "", service.Key{}, "/"},
		{"127.0.0.1:9002", "", service.Key{Namespace: "a", Name: "b"}, "a/b"},
		{"127.0.0.1:9002", "c/d", service.Key{Namespace: "a", Name: "b"}, "c/d"},
		{"llama-epp.prod.svc.cluster.local:9002", "", service.Key{Namespace: "a", Name: "b"}, "prod/llama"},
		{"llama-epp.prod:9002", "", service.Key{}, "prod/llama"},
		{"llama-epp:9002", "", service.Key{Namespace: "a", Name: "b"}, "a/b"},
		{"llama.prod.svc:9002", "", service.Key{}, "/"},
		{"-epp.prod", "", service.Key{}, "/"},
		{"llama-epp.prod", "c/d", service.Key{}, "c/d"},
		{"llama-epp.prod", "d", service.Key{}, "default/d"},
		{"llama-epp.prod", "a/b/c", service.Key{}, "InvalidArgument"},
		{"llama-epp.prod", "/b", service.Key{}, "InvalidArgument"},
	} {
		md := metadata.Pairs(":authority", c.authority)
		if c.metadata != "" {
			md.Set(pb.PoolMetadata, c.metadata)
		}
		s := &Server{cfg: Config{Pool: c.flag}}
		k, err := s.pool(metadata.NewIncomingContext(t.Context(), md))
		got := k.Namespace + "/" + k.Name
		if err != nil {
			got = status.Code(err).String()
		}
		if got != c.want {
			t.Errorf("authority %q, metadata %q: %s, want %s", c.authority, c.metadata, got, c.want)
		}
	}
	// And over the wire.
	f := newFake()
	_, conn, _, _ := serve(t, f, nil)
	e := begin(t, metadata.AppendToOutgoingContext(t.Context(), pb.PoolMetadata, "prod/llama"), conn)
	e.send(requestHeaders(true, ":method", "GET", ":path", "/v1/models"))
	e.recv()
	if log := f.taken(); !strings.HasPrefix(log[0], "admit pool=prod/llama ") {
		t.Errorf("%q", log)
	}
	_ = e.stream.CloseSend()
	f.settled(t)
}

func TestHealthAndDrain(t *testing.T) {
	f := newFake()
	ready := make(chan bool, 1)
	ready <- false
	_, conn, health, stop := serve(t, f, func(c *Config) {
		c.Ready = func() bool { r := <-ready; ready <- r; return r }
	})
	check := func(conn *grpc.ClientConn, service string) string {
		r, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil {
			return status.Code(err).String()
		}
		return r.Status.String()
	}
	for _, name := range []string{"", "readiness", pb.ServiceName} {
		if got := check(health, name); got != "NOT_SERVING" {
			t.Errorf("%q: %s before there is an endpoint", name, got)
		}
	}
	if got := check(health, "liveness"); got != "SERVING" {
		t.Errorf("liveness: %s", got)
	}
	if got := check(health, "other"); got != "NotFound" {
		t.Errorf("other: %s", got)
	}
	<-ready
	ready <- true
	if got := check(conn, "readiness"); got != "SERVING" {
		t.Errorf("on the main port: %s", got)
	}
	watch, err := grpc_health_v1.NewHealthClient(health).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "readiness"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || r.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatalf("%v, %v", r, err)
	}

	// A request under way is finished while the server ends.
	e := begin(t, t.Context(), conn)
	e.send(requestHeaders(true, ":method", "GET", ":path", "/v1/models"))
	e.recv()
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	if r, err := watch.Recv(); err != nil || r.Status != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("while draining: %v, %v", r, err)
	}
	if got := check(health, "liveness"); got != "SERVING" {
		t.Errorf("liveness while draining: %s", got)
	}
	e.send(responseHeaders(":status", "200"))
	if e.recv().GetResponseHeaders() == nil {
		t.Error("no answer while draining")
	}
	_ = e.stream.CloseSend()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	f.settled(t)
}

// TestDrainIsBounded: a stream that never ends is cut off.
func TestDrainIsBounded(t *testing.T) {
	f := newFake()
	_, conn, _, stop := serve(t, f, func(c *Config) { c.DrainTimeout = 10 * time.Millisecond })
	e := begin(t, t.Context(), conn)
	e.send(requestHeaders(true, ":method", "GET", ":path", "/v1/models"))
	e.recv()
	if err := stop(); err != nil {
		t.Error(err)
	}
	f.settled(t)
}

// TestMany leads conversations in parallel that end anywhere.
func TestMany(t *testing.T) {
	f := newFake()
	s, conn, _, _ := serve(t, f, nil)
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			e := begin(t, ctx, conn)
			steps := []*extprocv3.ProcessingRequest{requestHeaders(false, ":method", "POST", ":path", "/v1/completions"),
				requestBody([]byte(`{"model":"llama"}`), true), responseHeaders(":status", "200"), responseBody([]byte("x"), false), responseBody(nil, true)}
			for _, step := range steps[:r.IntN(len(steps)+1)] {
				e.send(step)
			}
			if r.IntN(2) == 0 {
				_ = e.stream.CloseSend()
				for {
					if _, err := e.stream.Recv(); err != nil {
						break
					}
				}
			}
		})
	}
	settled := make(chan struct{})
	go func() {
		for {
			select {
			case <-f.done:
			case <-settled:
				return
			}
		}
	}()
	all.Wait()
	wait(t, func() bool { return s.streams.Load() == 0 && s.buffered.Load() == 0 })
	close(settled)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open != 0 {
		t.Errorf("%d places are not given back", f.open)
	}
}
