package rawgrpc

import (
	"bufio"
	"context"
	"fmt"
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
	"google.golang.org/grpc/mem"

	"roundhouse.dev/roundhouse/api/oip"
)

// The environment of a test binary that is one of BenchmarkForward's gateways:
// which, and in front of whom.
const (
	kindVariable    = "ROUNDHOUSE_TEST_GRPC_GATEWAY" // "raw", "decode" or "echo"
	replicaVariable = "ROUNDHOUSE_TEST_GRPC_REPLICA"
)

// decoding is a gateway as the generated code makes it: it decodes a message to
// learn its model, and encodes it again for the replica.
type decoding struct {
	oip.UnimplementedGRPCInferenceServiceServer
	to oip.GRPCInferenceServiceClient
}

func (d decoding) ModelInfer(ctx context.Context, r *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
	r.ModelName = "m"
	return d.to.ModelInfer(ctx, r)
}

// TestGatewayProcess is no test but the other process of BenchmarkForward: it
// prints its address, then for every line it reads the processor time it took
// so far, in microseconds.
func TestGatewayProcess(t *testing.T) {
	var address string
	serve := func(service oip.GRPCInferenceServiceServer) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		oip.RegisterGRPCInferenceServiceServer(server, service)
		go func() { _ = server.Serve(l) }()
		t.Cleanup(server.Stop)
		address = l.Addr().String()
	}
	switch os.Getenv(kindVariable) {
	case "raw":
		r := newRig(t, nil)
		p := pool("iris", os.Getenv(replicaVariable))
		p.ServedName = "m"
		r.d.SetPool(p)
		address = r.address
	case "decode":
		conn, err := grpc.NewClient(os.Getenv(replicaVariable), grpc.WithTransportCredentials(plain))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		serve(decoding{to: oip.NewGRPCInferenceServiceClient(conn)})
	case "echo":
		serve(&fake{})
	default:
		t.Skip("runs for BenchmarkForward alone")
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

// gatewayProcess is such a process and a client.
type gatewayProcess struct {
	oip.GRPCInferenceServiceClient
	ask func() string
	run []float64 // microseconds a request, by round
}

func startGateway(b *testing.B, kind, replica string) *gatewayProcess {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestGatewayProcess$")
	cmd.Env = append(os.Environ(), kindVariable+"="+kind, replicaVariable+"="+replica)
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
	conn, err := grpc.NewClient(line(), grpc.WithTransportCredentials(plain))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = conn.Close()
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &gatewayProcess{GRPCInferenceServiceClient: oip.NewGRPCInferenceServiceClient(conn), ask: func() string {
		_, _ = fmt.Fprintln(in)
		return line()
	}}
}

// round sends n requests from a few clients at once.
func (p *gatewayProcess) round(b *testing.B, r *oip.ModelInferRequest, n int) {
	cpu := func() float64 {
		v, err := strconv.ParseFloat(p.ask(), 64)
		if err != nil {
			b.Fatal(err)
		}
		return v
	}
	const clients = 4
	before := cpu()
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
	p.run = append(p.run, (cpu()-before)/float64(n/clients*clients))
}

func (p *gatewayProcess) median() float64 {
	slices.Sort(p.run)
	return p.run[len(p.run)/2]
}

// BenchmarkForward compares the processor time of this gateway with that of one
// that decodes and encodes, and with a stock server that answers by itself, in
// paired rounds of the same requests; medians and ratios are the result. Each
// iteration is a round of all.
func BenchmarkForward(b *testing.B) {
	replica := startFake(b, nil)
	for _, test := range []struct {
		name     string
		elements int
		raw      bool
		requests int
	}{{"16B", 4, false, 2000}, {"600KB-fp32", 150_000, false, 80}, {"600KB-raw", 150_000, true, 80}} {
		b.Run(test.name, func(b *testing.B) {
			in := &oip.ModelInferRequest_InferInputTensor{Name: "x", Datatype: "FP32", Shape: []int64{1, int64(test.elements)}}
			r := &oip.ModelInferRequest{ModelName: "iris", Id: "7", Inputs: []*oip.ModelInferRequest_InferInputTensor{in}}
			if test.raw {
				r.RawInputContents = [][]byte{make([]byte, 4*test.elements)}
			} else {
				in.Contents = &oip.InferTensorContents{Fp32Contents: make([]float32, test.elements)}
			}
			raw, decode, echo := startGateway(b, "raw", replica.address), startGateway(b, "decode", replica.address), startGateway(b, "echo", "")
			all := []*gatewayProcess{raw, decode, echo}
			for _, p := range all { // warm
				p.round(b, r, test.requests/4)
				p.run = nil
			}
			for b.Loop() {
				for _, p := range all {
					p.round(b, r, test.requests)
				}
			}
			b.ReportMetric(raw.median(), "raw-cpu-µs/req")
			b.ReportMetric(decode.median(), "decode-cpu-µs/req")
			b.ReportMetric(echo.median(), "echo-cpu-µs/req")
			b.ReportMetric(raw.median()/decode.median(), "raw/decode")
			b.ReportMetric(raw.median()/echo.median(), "raw/echo")
		})
	}
}

// BenchmarkScanName reads the name of a message of 600 KB in 37 pieces.
func BenchmarkScanName(b *testing.B) {
	r := request("iris")
	r.RawInputContents = [][]byte{make([]byte, 600_000)}
	whole := wire(b, r)
	f := &frame{}
	for rest := whole; len(rest) > 0; {
		n := min(len(rest), 16<<10)
		f.parts = append(f.parts, mem.SliceBuffer(rest[:n]))
		rest = rest[n:]
	}
	b.Run("scan", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if at, err := scanName(f.parts); err != nil || at.name != "iris" {
				b.Fatal(err)
			}
		}
	})
	b.Run("scan and rename", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			at, _ := scanName(f.parts)
			f.renamed(at, "another").free()
		}
	})
}

// BenchmarkCall is one small call through the gateway, with client and replica
// in the same process.
func BenchmarkCall(b *testing.B) {
	r := newRig(b, nil)
	p := pool("iris", startFake(b, nil).address)
	p.ServedName = "m"
	r.d.SetPool(p)
	in := request("iris")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.ModelInfer(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}
