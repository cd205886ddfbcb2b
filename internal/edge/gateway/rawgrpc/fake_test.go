package rawgrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// fake is a replica: a stock gRPC server that gives inputs back.
type fake struct {
	oip.UnimplementedGRPCInferenceServiceServer
	address string
	server  *grpc.Server
	// infer and stream, if set, take the calls.
	infer  func(context.Context, *oip.ModelInferRequest) (*oip.ModelInferResponse, error)
	stream func(grpc.BidiStreamingServer[oip.ModelInferRequest, oip.ModelInferResponse]) error

	calls atomic.Int32
	mu    sync.Mutex
	asked []*oip.ModelInferRequest // the first askedKept of them
	md    metadata.MD              // of the last call
}

// askedKept bounds what a fake remembers: a benchmark's requests would fill the
// machine's memory.
const askedKept = 100

func startFake(t testing.TB, mutate func(*fake)) *fake {
	t.Helper()
	f := &fake{server: grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))}
	if mutate != nil {
		mutate(f)
	}
	oip.RegisterGRPCInferenceServiceServer(f.server, f)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = l.Addr().String()
	go func() { _ = f.server.Serve(l) }()
	t.Cleanup(f.server.Stop)
	return f
}

func (f *fake) note(ctx context.Context, r *oip.ModelInferRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.md, _ = metadata.FromIncomingContext(ctx)
	if len(f.asked) < askedKept {
		f.asked = append(f.asked, r)
	}
}

func (f *fake) seen() ([]*oip.ModelInferRequest, metadata.MD) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*oip.ModelInferRequest(nil), f.asked...), f.md
}

func (f *fake) ModelInfer(ctx context.Context, r *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
	f.calls.Add(1)
	f.note(ctx, r)
	if f.infer != nil {
		return f.infer(ctx, r)
	}
	return echo(r), nil
}

func echo(r *oip.ModelInferRequest) *oip.ModelInferResponse {
	return &oip.ModelInferResponse{ModelName: r.GetModelName(), Id: r.GetId(), RawOutputContents: r.GetRawInputContents()}
}

func (f *fake) ModelStatistics(_ context.Context, r *oip.ModelStatisticsRequest) (*oip.ModelStatisticsResponse, error) {
	return &oip.ModelStatisticsResponse{ModelStats: []*oip.ModelStatistics{{Name: r.GetName(), Version: r.GetVersion(), InferenceCount: 7}}}, nil
}

func (f *fake) ModelConfig(_ context.Context, r *oip.ModelConfigRequest) (*oip.ModelConfigResponse, error) {
	return &oip.ModelConfigResponse{Config: &oip.ModelConfiguration{Name: r.GetName(), Platform: "fake"}}, nil
}

func (f *fake) ModelMetadata(_ context.Context, r *oip.ModelMetadataRequest) (*oip.ModelMetadataResponse, error) {
	return &oip.ModelMetadataResponse{Name: r.GetName(), Versions: []string{r.GetVersion()}, Platform: "fake"}, nil
}

func (f *fake) ModelStreamInfer(s grpc.BidiStreamingServer[oip.ModelInferRequest, oip.ModelInferResponse]) error {
	f.calls.Add(1)
	if f.stream != nil {
		return f.stream(s)
	}
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		f.note(s.Context(), r)
		if err := s.Send(echo(r)); err != nil {
			return err
		}
	}
}

// demand calls back on a wake and counts sleeps.
type demand struct {
	onWake func(pool string)
	wakes  atomic.Int32
	slept  atomic.Int32
}

func (d *demand) Wake(_ context.Context, pool string, _ int) error {
	d.wakes.Add(1)
	if d.onWake != nil {
		d.onWake(pool)
	}
	return nil
}
func (d *demand) Sleep(context.Context, string) error { d.slept.Add(1); return nil }
func (d *demand) Report(string, autoscale.Demand)     {}

// rig is a gateway on loopback with a client.
type rig struct {
	t       testing.TB
	d       *dispatch.Dispatcher
	demand  *demand
	server  *Server
	reg     *prometheus.Registry
	address string
	stop    context.CancelFunc
	served  chan error
	conn    *grpc.ClientConn
	oip.GRPCInferenceServiceClient
}

func newRig(t testing.TB, mutate func(*Config, *dispatch.Config)) *rig {
	t.Helper()
	cfg, dcfg := DefaultConfig(), dispatch.DefaultConfig()
	if mutate != nil {
		mutate(&cfg, &dcfg)
	}
	r := &rig{t: t, demand: &demand{}, reg: prometheus.NewRegistry(), served: make(chan error, 1)}
	var err error
	if r.d, err = dispatch.New(dcfg, r.demand, nil, func(int) int { return 0 }); err != nil {
		t.Fatal(err)
	}
	if r.server, err = New(cfg, r.d, slog.New(slog.DiscardHandler), r.reg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.address = l.Addr().String()
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	go func() { r.served <- r.server.Serve(ctx, l); close(r.served) }()
	r.conn = r.dial(insecure.NewCredentials())
	r.GRPCInferenceServiceClient = oip.NewGRPCInferenceServiceClient(r.conn)
	t.Cleanup(func() {
		_ = r.conn.Close()
		r.stop()
		if err := <-r.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		r.d.Close()
		// A call may end while a message of its client is on its way to the replica.
		until(t, func() bool { return r.server.buffered.Used() == 0 })
	})
	return r
}

// pool is a service whose replicas speak gRPC at addresses.
func pool(name string, addresses ...string) dispatch.PoolConfig {
	k := service.ParseKey(name)
	p := dispatch.PoolConfig{Key: k, Limits: service.Scaling{}.Settled()}
	for i, a := range addresses {
		p.Replicas = append(p.Replicas, replica.Replica{ID: fmt.Sprintf("%s-%d", k.Name, i), Service: k,
			Role: service.RoleEngine, Phase: replica.Ready, HTTP: "127.0.0.1:1", GRPC: a})
	}
	return p
}

// until waits for what only counters tell.
func until(t testing.TB, is func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("it did not come to pass within a minute")
		}
	}
}

var plain = insecure.NewCredentials()

// credential is metadata that a call option adds.
type credential []string

func (c credential) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	out := map[string]string{}
	for i := 0; i+1 < len(c); i += 2 {
		out[c[i]] = c[i+1]
	}
	return out, nil
}

func (credential) RequireTransportSecurity() bool { return false }
