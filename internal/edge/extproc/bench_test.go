package extproc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// serverEnv has the test binary be an endpoint picker instead of testing, so
// that a benchmark can tell its CPU from Envoy's.
const serverEnv = "ROUNDHOUSE_EXTPROC_BENCH_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) == "" {
		os.Exit(m.Run())
	}
	if err := benchServer(); err != nil {
		panic(err)
	}
}

// benchServer picks among 10 endpoints with the real dispatcher, and answers
// every line of its input with the CPU time it has used, in µs.
func benchServer() error {
	debug.SetGCPercent(400) // as the command does
	d, err := dispatch.New(dispatch.DefaultConfig(), nobody{}, nil, nil)
	if err != nil {
		return err
	}
	key := service.Key{Namespace: "default", Name: "llama"}
	f := dispatch.PoolConfig{Key: key, Shared: true}
	for i := range 10 {
		at := fmt.Sprintf("10.0.0.%d:8000", i+1)
		f.Replicas = append(f.Replicas, replica.Replica{ID: at, Role: service.RoleEngine, Phase: replica.Ready, HTTP: at})
	}
	d.SetPool(f)
	d.SetObjects([]routing.Object{&routing.Pool{Meta: service.Meta{Key: key}, Addresses: []string{"10.0.0.1:8000"}}})
	cfg := DefaultConfig()
	cfg.Listen, cfg.HealthListen = "127.0.0.1:0", "127.0.0.1:0"
	s, err := New(cfg, real{d}, nil)
	if err != nil {
		return err
	}
	at, _, err := s.Listen()
	if err != nil {
		return err
	}
	fmt.Println(at)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			var r syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
			fmt.Println((r.Utime.Nano() + r.Stime.Nano()) / 1000)
		}
		os.Exit(0)
	}()
	return s.Run(context.Background())
}

// nobody is a Demand.
type nobody struct{}

func (nobody) Wake(context.Context, string, int) error { return nil }
func (nobody) Sleep(context.Context, string) error     { return nil }
func (nobody) Report(string, autoscale.Demand)         {}

// real admits with a Dispatcher.
type real struct{ *dispatch.Dispatcher }

func (d real) Admit(ctx context.Context, _ service.Key, r dispatch.Request) (Grant, error) {
	r.Host = route.Host(service.Key{Namespace: "default", Name: "llama"}, "")
	g, err := d.Dispatcher.Admit(ctx, r)
	if err != nil {
		return nil, err
	}
	return place{g}, nil
}

type place struct{ *dispatch.Grant }

func (place) Alternatives() []string { return nil }
func (place) Served(string)          {}

// BenchmarkRequest leads whole conversations, 8 at once, and tells the CPU time
// of the endpoint picker for each.
func BenchmarkRequest(b *testing.B) {
	for _, size := range []int{800, 10 << 10, 220 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) { benchRequests(b, size) })
	}
}

func benchRequests(b *testing.B, size int) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	lines.Scan()
	conn, err := grpc.NewClient(lines.Text(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	used := func() int64 {
		if _, err := io.WriteString(in, "\n"); err != nil || !lines.Scan() {
			b.Fatal("the server is gone")
		}
		n, _ := strconv.ParseInt(lines.Text(), 10, 64)
		return n
	}
	body := []byte(`{"model":"llama","max_tokens":100,"prompt":"` + strings.Repeat("Once upon a time, ", size/18) + `"}`)
	run := func(n int) {
		var all sync.WaitGroup
		next := make(chan struct{}, n)
		for range n {
			next <- struct{}{}
		}
		close(next)
		for range 8 {
			all.Go(func() {
				for range next {
					converse(b, conn, body)
				}
			})
		}
		all.Wait()
	}
	run(200)
	b.ResetTimer()
	before, begun := used(), time.Now()
	run(b.N)
	b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-µs/request")
	b.ReportMetric(float64(b.N)/time.Since(begun).Seconds(), "requests/s")
}

// converse is one request, with an answer of 1 KB.
func converse(b *testing.B, conn *grpc.ClientConn, body []byte) {
	e := begin(b, context.Background(), conn)
	e.send(requestHeaders(false, ":method", "POST", ":path", "/v1/completions", ":authority", "gw.example.com", ":scheme", "http",
		"content-type", "application/json", "content-length", strconv.Itoa(len(body)), "user-agent", "curl/8", "accept", "*/*",
		"x-request-id", "0d7f4d1c-2b0c-4c3b-9a3d-5f8a8e3c1b2a", "x-forwarded-proto", "http", "x-envoy-internal", "true"))
	const piece = 32 << 10 // Envoy passes on what it has read
	for at := 0; at < len(body); at += piece {
		to := min(len(body), at+piece)
		e.send(requestBody(body[at:to], to == len(body)))
	}
	if r := e.recv(); r.GetRequestHeaders() == nil {
		b.Fatal("not placed: ", r)
	}
	if got := e.body((*extprocv3.ProcessingResponse).GetRequestBody); len(got) != len(body) {
		b.Fatal("the body has changed")
	}
	e.send(responseHeaders(":status", "200", "content-type", "application/json", "x-envoy-upstream-service-time", "3"))
	e.send(responseBody([]byte(`{"text":"`+strings.Repeat("x", 1000)+`","usage":{"prompt_tokens":7,"completion_tokens":10}}`), true))
	e.recv()
	e.body((*extprocv3.ProcessingResponse).GetResponseBody)
	_ = e.stream.CloseSend()
	if _, err := e.stream.Recv(); !errors.Is(err, io.EOF) {
		b.Fatal(err)
	}
}
