package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"google.golang.org/grpc"

	"roundhouse.dev/roundhouse/api/oip"
)

// stockServer is what anyone writes with grpc-go and the generated code: it
// decodes the tensors, sums the rows, and encodes the sums.
type stockServer struct {
	oip.UnimplementedGRPCInferenceServiceServer
}

func (stockServer) ModelInfer(_ context.Context, r *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
	if len(r.GetInputs()) != 1 || len(r.GetRawInputContents()) != 1 || len(r.GetInputs()[0].GetShape()) != 2 {
		return nil, errors.New("want one tensor of rows, raw")
	}
	data, rows := r.GetRawInputContents()[0], int(r.GetInputs()[0].GetShape()[0])
	values := make([]float32, len(data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	sums := make([]float32, rows)
	for i, v := range values {
		sums[i*rows/len(values)] += v
	}
	return &oip.ModelInferResponse{ModelName: r.GetModelName(), Id: r.GetId(), RawOutputContents: [][]byte{raw(sums)},
		Outputs: []*oip.ModelInferResponse_InferOutputTensor{{Name: "sum", Datatype: "FP32", Shape: []int64{int64(rows), 1}}}}, nil
}

// serveStock answers on a port until its process is ended.
func serveStock(ctx context.Context, port string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	oip.RegisterGRPCInferenceServiceServer(s, stockServer{})
	context.AfterFunc(ctx, s.GracefulStop)
	return s.Serve(l)
}

// stock measures what the gRPC server costs beside one that is as plain as can
// be and has no model.
func stock(ctx context.Context, b *bench) error {
	python := os.Getenv("ROUNDHOUSE_MLSERVER_PYTHON")
	if python == "" {
		return errors.New("ROUNDHOUSE_MLSERVER_PYTHON names no Python with xgboost: `make bench` sets it")
	}
	folder := filepath.Join(b.scratch, "stock")
	if said, err := exec.CommandContext(ctx, python, "-c", serversScript, "repository", folder).CombinedOutput(); err != nil {
		return fmt.Errorf("python: %w: %s", err, said)
	}
	ours, err := startServer(ctx, "ours", folder, func(int) *exec.Cmd { return exec.CommandContext(ctx, b.binary, "serve", folder) })
	if err != nil {
		return err
	}
	plain, err := startStock(ctx)
	if err == nil {
		err = compareStock(ctx, b, folder, ours, plain)
		err = errors.Join(err, plain.close())
	}
	return errors.Join(err, ours.close())
}

// startStock starts this program as the stock server.
func startStock(ctx context.Context) (*modelServer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p, err := launch(exec.CommandContext(ctx, self, "-stock", strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	s := &modelServer{process: p, name: "stock", grpc: loopback(port)}
	err = s.until(ctx, readyPause, func() error {
		c, err := dial(s.grpc)
		if err == nil {
			err = c.Close()
		}
		return err
	})
	if err == nil {
		s.connection, err = connect(s.grpc)
	}
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return s, nil
}

func compareStock(ctx context.Context, b *bench, folder string, ours, plain *modelServer) error {
	rows, err := readFloats(filepath.Join(folder, "wide.f32"))
	if err != nil {
		return err
	}
	t := table{title: fmt.Sprintf("gRPC, raw tensors: CPU of the server a request, against a stock grpc-go server without a model (%d paired rounds)", b.rounds)}
	for _, c := range []struct {
		what string
		send func(context.Context, *modelServer) (int, error)
	}{{"1 row of 4", called("iris", []float32{5.1, 3.5, 1.4, 0.2}, 1)}, {"150,000 FP32", called("wide", rows, wideRows)}} {
		us, them := &work{what: c.what, server: ours, send: c.send}, &work{what: c.what, server: plain, send: c.send}
		for round := range b.rounds + 1 {
			if err := errors.Join(them.measure(ctx, round > 0), us.measure(ctx, round > 0)); err != nil {
				return fmt.Errorf("%s: %w", c.what, err)
			}
		}
		t.rows = append(t.rows, row{what: c.what + ": stock", samples: them.cpu, unit: "µs"}, row{what: "  ours", samples: us.cpu, unit: "µs"},
			row{what: "  ours ÷ stock", samples: pairwise(us.cpu, them.cpu, ratio), unit: "×", goal: 1.15})
	}
	t.print(b.out)
	return nil
}
