package oipgrpc

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// echoVariable has the test binary be a server that gives inputs back, for
// BenchmarkEcho: "stock" as grpc-go and the generated code do it, or "ours".
const echoVariable = "ROUNDHOUSE_TEST_GRPC_ECHO"

// stockEcho decodes and encodes whole messages, and does nothing else.
type stockEcho struct {
	oip.UnimplementedGRPCInferenceServiceServer
}

func (stockEcho) ModelInfer(_ context.Context, r *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
	out := &oip.ModelInferResponse{ModelName: r.GetModelName(), ModelVersion: r.GetModelVersion(), Id: r.GetId(), RawOutputContents: r.GetRawInputContents()}
	for _, in := range r.GetInputs() {
		out.Outputs = append(out.Outputs, &oip.ModelInferResponse_InferOutputTensor{Name: in.GetName(), Datatype: in.GetDatatype(), Shape: in.GetShape(), Contents: in.GetContents()})
	}
	return out, nil
}

// TestEchoServer is no test but the other process of BenchmarkEcho: it prints
// its address, then for every line it reads the processor time it took so far,
// in microseconds.
func TestEchoServer(t *testing.T) {
	address := ""
	switch os.Getenv(echoVariable) {
	case "stock":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		oip.RegisterGRPCInferenceServiceServer(server, stockEcho{})
		go func() { _ = server.Serve(l) }()
		defer server.Stop()
		address = l.Addr().String()
	case "ours":
		address = start(t, models{"echo": "plain"}).address
	default:
		t.Skip("runs for BenchmarkEcho alone")
	}
	fmt.Println(address)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		fmt.Println((u.Utime.Nano() + u.Stime.Nano()) / 1000)
	}
}

// echoProcess is such a process and a client.
type echoProcess struct {
	oip.GRPCInferenceServiceClient
	ask func() string
	run []float64 // microseconds a request, by round
}

func startEcho(b *testing.B, kind string) *echoProcess {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestEchoServer$")
	cmd.Env = append(os.Environ(), echoVariable+"="+kind)
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
	lines := bufio.NewReader(out)
	line := func() string {
		text, err := lines.ReadString('\n')
		if err != nil {
			b.Fatal(err)
		}
		return strings.TrimSpace(text)
	}
	address := line()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = conn.Close()
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &echoProcess{GRPCInferenceServiceClient: oip.NewGRPCInferenceServiceClient(conn), ask: func() string {
		_, _ = fmt.Fprintln(in)
		return line()
	}}
}

// round sends n requests from a few clients at once.
func (p *echoProcess) round(b *testing.B, r *oip.ModelInferRequest, n int) {
	before, err := strconv.ParseFloat(p.ask(), 64)
	if err != nil {
		b.Fatal(err)
	}
	const clients = 4
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range n / clients {
				if _, err := p.ModelInfer(b.Context(), r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	after, err := strconv.ParseFloat(p.ask(), 64)
	if err != nil {
		b.Fatal(err)
	}
	p.run = append(p.run, (after-before)/float64(n/clients*clients))
}

// BenchmarkEcho compares the processor time of this server with that of a stock
// one, in paired rounds of the same requests; the medians and their ratio are
// the result. Each iteration is a round of both.
func BenchmarkEcho(b *testing.B) {
	for _, test := range []struct {
		name     string
		elements int
		raw      bool
		requests int
	}{{"4", 4, false, 4000}, {"1000", 1000, false, 2000}, {"150k", 150_000, false, 80}, {"150k-raw", 150_000, true, 80}} {
		b.Run(test.name, func(b *testing.B) {
			values := make([]float32, test.elements)
			for i := range values {
				values[i] = float32(math.Sin(float64(i)))
			}
			r := floats("echo", values...)
			r.Id = "7"
			if test.raw {
				t := tensor.Tensor{Datatype: tensor.FP32, Data: tensor.Values{Float32: values}}
				r.Inputs[0].Contents, r.RawInputContents = nil, [][]byte{t.AppendRaw(nil)}
			}
			ours, stock := startEcho(b, "ours"), startEcho(b, "stock")
			for _, p := range []*echoProcess{ours, stock} { // warm
				p.round(b, r, test.requests/4)
				p.run = nil
			}
			for b.Loop() {
				ours.round(b, r, test.requests)
				stock.round(b, r, test.requests)
			}
			slices.Sort(ours.run)
			slices.Sort(stock.run)
			a, c := ours.run[len(ours.run)/2], stock.run[len(stock.run)/2]
			b.ReportMetric(a, "ours-cpu-µs/req")
			b.ReportMetric(c, "stock-cpu-µs/req")
			b.ReportMetric(a/c, "ratio")
		})
	}
}
