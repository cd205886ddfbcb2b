package rawgrpc

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/api/oip/modelrepository"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

func TestConfigValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	bad := DefaultConfig()
	bad.MaxMessageBytes, bad.ClientTimeout, bad.MaxBufferedBytes, bad.MaxCalls = 0, -1, -5, 0
	err := bad.Validate()
	for _, part := range []string{"MaxMessageBytes", "ClientTimeout", "MaxBufferedBytes", "MaxCalls"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v lacks %s", err, part)
		}
	}
	if _, err := New(bad, nil, nil, prometheus.NewRegistry()); err == nil {
		t.Error("New took a bad Config")
	}
	reg := prometheus.NewRegistry()
	for i := range 2 {
		if _, err := New(DefaultConfig(), nil, slog.New(slog.DiscardHandler), reg); (err != nil) != (i == 1) {
			t.Errorf("registration %d: %v", i, err)
		}
	}
}

// metric is the sum of a counter's series.
func metric(t *testing.T, reg *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// TestOwnAnswers: what the gateway knows itself, it says without a replica.
func TestOwnAnswers(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.Version = "1.2" })
	f := startFake(t, nil)
	r.d.SetPool(pool("iris", f.address))
	r.d.SetPool(pool("asleep"))
	loading := pool("loading", f.address)
	loading.Replicas[0].Phase = replica.Starting
	r.d.SetPool(loading)
	chat := pool("chat", "")
	chat.Protocol = service.ProtocolOpenAI
	r.d.SetPool(chat)
	ctx := t.Context()
	if live, err := r.ServerLive(ctx, &oip.ServerLiveRequest{}); err != nil || !live.GetLive() {
		t.Errorf("%v %v", live, err)
	}
	if ready, err := r.ServerReady(ctx, &oip.ServerReadyRequest{}); err != nil || !ready.GetReady() {
		t.Errorf("%v %v", ready, err)
	}
	if m, err := r.ServerMetadata(ctx, &oip.ServerMetadataRequest{}); err != nil || m.GetName() != "roundhouse" || m.GetVersion() != "1.2" {
		t.Errorf("%v %v", m, err)
	}
	for model, ready := range map[string]bool{"iris": true, "asleep": true, "loading": false, "chat": false} {
		if m, err := r.ModelReady(ctx, &oip.ModelReadyRequest{Name: model}); err != nil || m.GetReady() != ready {
			t.Errorf("%s: %v %v, want %v", model, m.GetReady(), err, ready)
		}
	}
	_, err := r.ModelReady(ctx, &oip.ModelReadyRequest{Name: "nope"})
	want(t, err, codes.NotFound, "nope")

	old := modelrepository.NewModelRepositoryServiceClient(r.conn)
	states := map[string]string{"iris": "READY", "asleep": "UNAVAILABLE", "loading": "LOADING", "chat": "READY"}
	index, err := r.RepositoryIndex(ctx, &oip.RepositoryIndexRequest{})
	if err != nil || len(index.GetModels()) != len(states) {
		t.Fatalf("%v %v", index, err)
	}
	for _, m := range index.GetModels() {
		if m.GetState() != states[m.GetName()] || (m.GetState() == "READY") != (m.GetReason() == "") {
			t.Errorf("%v", m)
		}
	}
	oldIndex, err := old.RepositoryIndex(ctx, &modelrepository.RepositoryIndexRequest{Ready: true})
	if err != nil || len(oldIndex.GetModels()) != 2 || oldIndex.GetModels()[1].GetName() != "iris" {
		t.Errorf("%v %v", oldIndex, err)
	}
	if _, err := r.RepositoryModelUnload(ctx, &oip.RepositoryModelUnloadRequest{ModelName: "iris"}); err != nil || r.demand.slept.Load() != 1 {
		t.Errorf("%v, slept %d", err, r.demand.slept.Load())
	}
	_, err = r.RepositoryModelUnload(ctx, &oip.RepositoryModelUnloadRequest{ModelName: "nope"})
	want(t, err, codes.NotFound)
	_, err = r.RepositoryModelLoad(ctx, &oip.RepositoryModelLoadRequest{ModelName: "nope"})
	want(t, err, codes.NotFound)
	r.demand.onWake = func(string) { go r.d.SetPool(pool("asleep", f.address)) }
	if _, err := old.RepositoryModelLoad(ctx, &modelrepository.RepositoryModelLoadRequest{ModelName: "asleep"}); err != nil || r.demand.wakes.Load() != 1 {
		t.Errorf("%v, %d wakes", err, r.demand.wakes.Load())
	}
	if _, err := old.RepositoryModelUnload(ctx, &modelrepository.RepositoryModelUnloadRequest{ModelName: "asleep"}); err != nil || r.demand.slept.Load() != 2 {
		t.Errorf("%v, slept %d", err, r.demand.slept.Load())
	}
	if f.calls.Load() != 0 {
		t.Error("a replica was asked")
	}
}

// TestReflection: clients can learn the services from the server.
func TestReflection(t *testing.T) {
	r := newRig(t, nil)
	s, err := grpc_reflection_v1.NewServerReflectionClient(r.conn).ServerReflectionInfo(t.Context())
	if err == nil {
		err = s.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
	}
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, one := range list.GetListServicesResponse().GetService() {
		names = append(names, one.GetName())
	}
	for _, name := range []string{"inference.GRPCInferenceService", "inference.model_repository.ModelRepositoryService", "grpc.health.v1.Health"} {
		if !slices.Contains(names, name) {
			t.Errorf("%v lacks %s", names, name)
		}
	}
	if err := s.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: "inference.GRPCInferenceService.ModelInfer"}}); err != nil {
		t.Fatal(err)
	}
	if file, err := s.Recv(); err != nil || len(file.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("%v %v", file, err)
	}
}

// TestStop: a call in flight is answered while the server stops, which those
// who watch its health are told.
func TestStop(t *testing.T) {
	r := newRig(t, nil)
	inside, release := make(chan struct{}), make(chan struct{})
	f := startFake(t, func(f *fake) {
		f.infer = func(_ context.Context, in *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
			close(inside)
			<-release
			return echo(in), nil
		}
	})
	r.d.SetPool(pool("iris", f.address))
	health := grpc_health_v1.NewHealthClient(r.conn)
	if h, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "inference.GRPCInferenceService"}); err != nil || h.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v %v", h, err)
	}
	_, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "nope"})
	want(t, err, codes.NotFound)
	watch, err := health.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if h, err := watch.Recv(); err != nil || h.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v %v", h, err)
	}
	answered := make(chan error, 1)
	go func() { _, err := r.ModelInfer(t.Context(), request("iris")); answered <- err }()
	<-inside
	r.stop()
	if h, err := watch.Recv(); err != nil || h.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("%v %v", h, err)
	}
	close(release)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if err := <-r.served; err != nil {
		t.Error(err)
	}
}

// TestStopCuts: calls that do not end are cut after the drain.
func TestStopCuts(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.DrainTimeout = 20 * time.Millisecond })
	f := startFake(t, func(f *fake) {
		f.infer = func(ctx context.Context, _ *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
			go r.stop()
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	r.d.SetPool(pool("iris", f.address))
	if _, err := r.ModelInfer(t.Context(), request("iris")); err == nil {
		t.Error("answered")
	}
	if err := <-r.served; err != nil {
		t.Error(err)
	}
}

// TestServeFails: a listener that breaks is an error.
func TestServeFails(t *testing.T) {
	d, err := dispatch.New(dispatch.DefaultConfig(), &demand{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(DefaultConfig(), d, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := s.Serve(t.Context(), l); err == nil {
		t.Error("no error")
	}
}

// TestConnections: a client over the bound waits until another leaves.
func TestConnections(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.MaxConnections = 1 })
	ask := func(conn *grpc.ClientConn) error {
		_, err := oip.NewGRPCInferenceServiceClient(conn).ServerLive(t.Context(), &oip.ServerLiveRequest{})
		return err
	}
	if err := ask(r.conn); err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() { waits <- ask(r.dial(plain)) }()
	select {
	case err := <-waits:
		t.Fatalf("a second connection was served: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	_ = r.conn.Close()
	if err := <-waits; err != nil {
		t.Error(err)
	}
}

// TestUnfinishedRequest: a message that does not come ends the connection.
func TestUnfinishedRequest(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.RequestTimeout = 300 * time.Millisecond })
	s, err := r.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, oip.GRPCInferenceService_ModelInfer_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	err = s.RecvMsg(&oip.ModelInferResponse{})
	want(t, err, codes.Unavailable)
}

// TestUpstreamsSweep: a connection that nobody uses is closed.
func TestUpstreamsSweep(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.IdleTimeout = time.Hour })
	f := startFake(t, nil)
	r.d.SetPool(pool("iris", f.address))
	u := r.server.upstreams
	count := func() int { u.mu.Lock(); defer u.mu.Unlock(); return len(u.byAddr) }
	for range 3 {
		if _, err := r.ModelInfer(t.Context(), request("iris")); err != nil {
			t.Fatal(err)
		}
	}
	if count() != 1 {
		t.Errorf("%d connections", count())
	}
	up, err := u.get(f.address)
	if err != nil {
		t.Fatal(err)
	}
	if u.sweep(time.Now().Add(time.Hour)); count() != 1 {
		t.Error("a connection in use was closed")
	}
	u.put(up)
	if u.sweep(time.Now().Add(-time.Hour)); count() != 1 {
		t.Error("a connection just used was closed")
	}
	if u.sweep(time.Now().Add(time.Hour)); count() != 0 {
		t.Error("an unused connection stays")
	}
	if _, err := r.ModelInfer(t.Context(), request("iris")); err != nil {
		t.Error(err)
	}
}

// TestSeriesGo: a deleted service's series go with it.
func TestSeriesGo(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("iris", startFake(t, nil).address))
	for _, model := range []string{"iris", "iris", "nope"} {
		_, _ = r.ModelInfer(t.Context(), request(model))
	}
	const calls = "roundhouse_gateway_grpc_calls_total"
	until(t, func() bool { return metric(t, r.reg, calls) == 3 })
	r.d.Remove(routing.Service(service.ParseKey("iris")))
	if n := metric(t, r.reg, calls); n != 1 {
		t.Errorf("%v calls counted after the service is gone", n)
	}
}

func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	r := newRig(t, func(c *Config, _ *dispatch.Config) {
		c.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	})
	r.d.SetPool(pool("iris", startFake(t, nil).address))
	conn := r.dial(credentials.NewTLS(&tls.Config{RootCAs: roots}))
	if _, err := oip.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), request("iris")); err != nil {
		t.Error(err)
	}
	_, err = r.ModelInfer(t.Context(), request("iris"))
	want(t, err, codes.Unavailable)
}

// TestGarbage: what is no HTTP/2 is dropped.
func TestGarbage(t *testing.T) {
	r := newRig(t, nil)
	for _, b := range [][]byte{[]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), bytes.Repeat([]byte{0xff}, 100)} {
		c, err := net.Dial("tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(b)
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection stays")
		}
		_ = c.Close()
	}
}

// TestOneAddressLeavesConnections: idle connections of one client lock nobody
// out.
func TestOneAddressLeavesConnections(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(inner, 4)
	accepted := make(chan net.Conn, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	dial := func(from string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	first := dial("127.0.0.2")
	one := <-accepted
	dial("127.0.0.2")
	<-accepted
	third := dial("127.0.0.2")
	if n, err := third.Read(make([]byte, 1)); err == nil {
		t.Errorf("more than the share of one address is open: %d bytes", n)
	}
	dial("127.0.0.3")
	if c := <-accepted; !strings.HasPrefix(c.RemoteAddr().String(), "127.0.0.3:") {
		t.Errorf("accepted %v", c.RemoteAddr())
	}
	_, _ = first.Close(), one.Close()
	dial("127.0.0.2")
	if c := <-accepted; !strings.HasPrefix(c.RemoteAddr().String(), "127.0.0.2:") {
		t.Errorf("a closed connection keeps its place: %v", c.RemoteAddr())
	}
}
