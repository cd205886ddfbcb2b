package rawgrpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

type (
	bidiClient = grpc.BidiStreamingClient[oip.ModelInferRequest, oip.ModelInferResponse]
	bidiServer = grpc.BidiStreamingServer[oip.ModelInferRequest, oip.ModelInferResponse]
)

func (r *rig) open(ctx context.Context, requests ...*oip.ModelInferRequest) bidiClient {
	r.t.Helper()
	s, err := r.ModelStreamInfer(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, m := range requests {
		if err := s.Send(m); err != nil {
			r.t.Fatal(err)
		}
	}
	return s
}

func numbered(model string, n int) *oip.ModelInferRequest {
	m := request(model)
	m.Id = fmt.Sprint(n)
	return m
}

// TestStream: messages pass one by one in both directions, all renamed, with
// metadata before and after.
func TestStream(t *testing.T) {
	r := newRig(t, nil)
	f := startFake(t, func(f *fake) {
		f.stream = func(s bidiServer) error {
			_ = s.SetHeader(metadata.Pairs("h", "1"))
			s.SetTrailer(metadata.Pairs("t", "2"))
			for {
				m, err := s.Recv()
				if errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				f.note(s.Context(), m)
				for range 2 {
					if err := s.Send(echo(m)); err != nil {
						return err
					}
				}
			}
		}
	})
	p := pool("iris", f.address)
	p.ServedName = "m"
	r.d.SetPool(p)
	s := r.open(t.Context())
	for i := range 20 {
		m := numbered("iris", i)
		if i == 7 {
			m.RawInputContents = [][]byte{bytes.Repeat([]byte("x"), 500_000)}
		}
		if i == 9 {
			m.ModelName = "" // the first one says it
		}
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			out, err := s.Recv()
			if err != nil || out.GetId() != m.GetId() || !bytes.Equal(out.GetRawOutputContents()[0], m.GetRawInputContents()[0]) {
				t.Fatalf("%d: %v %.100v", i, err, out)
			}
		}
	}
	_ = s.CloseSend()
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	h, err := s.Header()
	if err != nil || first(h["h"]) != "1" || len(h["x-request-id"]) != 1 || first(s.Trailer()["t"]) != "2" {
		t.Errorf("%v %v %v", err, h, s.Trailer())
	}
	asked, _ := f.seen()
	for i, m := range asked {
		if m.GetModelName() != "m" {
			t.Errorf("message %d names %q", i, m.GetModelName())
		}
	}
	if len(asked) != 20 {
		t.Errorf("%d messages", len(asked))
	}
}

func TestStreamRefusals(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.StallTimeout = time.Second })
	f := startFake(t, nil)
	r.d.SetPool(pool("iris", f.address))
	r.d.SetPool(pool("http", ""))
	recv := func(s bidiClient) error {
		for {
			if _, err := s.Recv(); err != nil {
				return err
			}
		}
	}
	want(t, recv(r.open(t.Context(), request("nope"))), codes.NotFound, `"nope"`)
	want(t, recv(r.open(t.Context(), request("http"))), codes.Unimplemented, "HTTP alone")
	want(t, recv(r.open(t.Context(), request("iris"), request("http"))), codes.InvalidArgument, `is for model "iris"`, `names "http"`)
	empty := r.open(t.Context())
	_ = empty.CloseSend()
	want(t, recv(empty), codes.InvalidArgument, "no request")
	want(t, recv(r.open(t.Context())), codes.DeadlineExceeded, "no request came within")
	want(t, recv(r.open(t.Context(), request("iris"))), codes.DeadlineExceeded, "neither a request nor an answer passed")
	until(t, func() bool {
		s, _ := r.d.Status(routing.Service(service.ParseKey("default/iris")))
		return s.Demand.Running == 0
	})
}

// TestStreamStatus: a stream that the replica refuses, before or after it
// answered, ends with the replica's status.
func TestStreamStatus(t *testing.T) {
	r := newRig(t, nil)
	f := startFake(t, func(f *fake) {
		f.stream = func(s bidiServer) error {
			m, err := s.Recv()
			if err != nil {
				return err
			}
			s.SetTrailer(metadata.Pairs("t", "1"))
			if m.GetId() == "late" {
				if err := s.Send(echo(m)); err != nil {
					return err
				}
			}
			st, _ := status.New(codes.FailedPrecondition, "not now").WithDetails(&oip.ModelReadyRequest{Name: "detail"})
			return st.Err()
		}
	})
	r.d.SetPool(pool("iris", f.address, startFake(t, nil).address))
	for _, id := range []string{"early", "late"} {
		m := request("iris")
		m.Id = id
		r.d.SetPool(pool("iris", f.address))
		s := r.open(t.Context(), m)
		if id == "late" {
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.Recv()
		want(t, err, codes.FailedPrecondition, "not now")
		if len(status.Convert(err).Details()) != 1 || first(s.Trailer()["t"]) != "1" {
			t.Errorf("%s: %v %v", id, status.Convert(err).Details(), s.Trailer())
		}
	}
}

// TestStreamMoves: a replica that ends before it answers is replaced, and the
// next gets every message, once and in order.
func TestStreamMoves(t *testing.T) {
	for _, half := range []bool{false, true} {
		r := newRig(t, nil)
		dying := startFake(t, func(f *fake) {
			f.stream = func(s bidiServer) error {
				for i := 0; i < 3; i++ {
					if _, err := s.Recv(); err != nil {
						return err
					}
				}
				if half {
					_, _ = s.Recv() // the end
				}
				go f.server.Stop()
				<-s.Context().Done()
				return s.Context().Err()
			}
		})
		f := startFake(t, nil)
		r.d.SetPool(pool("iris", dying.address, f.address))
		s := r.open(t.Context(), numbered("iris", 0), numbered("iris", 1), numbered("iris", 2))
		if half {
			_ = s.CloseSend()
		}
		for i := range 3 {
			if m, err := s.Recv(); err != nil || m.GetId() != fmt.Sprint(i) {
				t.Fatalf("message %d: %v %v", i, m, err)
			}
		}
		if !half {
			if err := s.Send(numbered("iris", 3)); err != nil {
				t.Fatal(err)
			}
			if m, err := s.Recv(); err != nil || m.GetId() != "3" {
				t.Fatalf("%v %v", m, err)
			}
			_ = s.CloseSend()
		}
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		if dying.calls.Load() != 1 || f.calls.Load() != 1 {
			t.Errorf("%d and %d calls", dying.calls.Load(), f.calls.Load())
		}
	}
}

// TestStreamTooLongToMove: over the bound the messages are not kept, and the
// failure is told. Empty messages count as well, and all of a stream's as its client's.
func TestStreamTooLongToMove(t *testing.T) {
	large := request("iris")
	large.RawInputContents = [][]byte{make([]byte, 60_000)}
	for name, c := range map[string]struct {
		message  *oip.ModelInferRequest
		n        int
		buffered int64
	}{
		"large": {large, 3, 1 << 30},
		"empty": {&oip.ModelInferRequest{}, 1000, 1 << 30},
		"share": {&oip.ModelInferRequest{}, 350, 170_000},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(cfg *Config, _ *dispatch.Config) { cfg.MaxMessageBytes, cfg.MaxBufferedBytes = 100_000, c.buffered })
			dying := startFake(t, func(f *fake) {
				f.stream = func(s bidiServer) error {
					for range c.n {
						if _, err := s.Recv(); err != nil {
							return err
						}
					}
					go f.server.Stop()
					<-s.Context().Done()
					return s.Context().Err()
				}
			})
			r.d.SetPool(pool("iris", dying.address, startFake(t, nil).address))
			s := r.open(t.Context(), request("iris"))
			for range c.n - 1 {
				if err := s.Send(c.message); err != nil {
					t.Fatal(err)
				}
			}
			_, err := s.Recv()
			want(t, err, codes.Unavailable, "cannot be sent again")
			until(t, func() bool { return r.server.buffered.Used() == 0 })
		})
	}
}

// TestStreamCut: a replica that ends within its answer ends the stream with a
// message.
func TestStreamCut(t *testing.T) {
	r := newRig(t, nil)
	dying := startFake(t, func(f *fake) {
		f.stream = func(s bidiServer) error {
			m, err := s.Recv()
			if err != nil {
				return err
			}
			if err := s.Send(echo(m)); err != nil {
				return err
			}
			_, _ = s.Recv()
			go f.server.Stop()
			<-s.Context().Done()
			return s.Context().Err()
		}
	})
	r.d.SetPool(pool("iris", dying.address, startFake(t, nil).address))
	s := r.open(t.Context(), request("iris"))
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	_ = s.Send(request("iris"))
	_, err := s.Recv()
	want(t, err, codes.Unavailable, "failed within its answer")
	if n := metric(t, r.reg, "roundhouse_gateway_grpc_answers_cut_total"); n != 1 {
		t.Errorf("%v cuts counted", n)
	}
}

// TestStreamCancel: a client that leaves ends the replica's stream.
func TestStreamCancel(t *testing.T) {
	r := newRig(t, nil)
	ended := make(chan error, 1)
	f := startFake(t, func(f *fake) {
		f.stream = func(s bidiServer) error {
			m, err := s.Recv()
			if err == nil {
				err = s.Send(echo(m))
			}
			if err != nil {
				return err
			}
			<-s.Context().Done()
			ended <- s.Context().Err()
			return s.Context().Err()
		}
	})
	r.d.SetPool(pool("iris", f.address))
	ctx, cancel := context.WithCancel(t.Context())
	s := r.open(ctx, request("iris"))
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	until(t, func() bool {
		s, _ := r.d.Status(routing.Service(service.ParseKey("default/iris")))
		return s.Demand.Running == 0
	})
}

// TestSlowReader: a client that takes nothing stops its replica, holds no more
// than the windows, and is disconnected in the end; another client is served
// meanwhile.
func TestSlowReader(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.ClientTimeout = 2 * time.Second })
	var sent atomic.Int64
	ended := make(chan error, 1)
	block := make([]byte, 100_000)
	f := startFake(t, func(f *fake) {
		f.stream = func(s bidiServer) error {
			for {
				if err := s.Send(&oip.ModelInferResponse{RawOutputContents: [][]byte{block}}); err != nil {
					ended <- err
					return err
				}
				sent.Add(int64(len(block)))
			}
		}
	})
	r.d.SetPool(pool("iris", f.address))
	s := r.open(t.Context(), request("iris")) // and never reads
	other := oip.NewGRPCInferenceServiceClient(r.dial(plain))
	for served := false; !served; {
		select {
		case err := <-ended:
			served = true
			want(t, err, codes.Canceled)
		default:
			if _, err := other.ModelInfer(t.Context(), request("iris")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := sent.Load(); n > 4<<20 {
		t.Errorf("%d bytes were taken for a client that reads nothing", n)
	}
	for {
		if _, err := s.Recv(); err != nil {
			want(t, err, codes.Unavailable)
			break
		}
	}
	until(t, func() bool { return r.server.buffered.Used() == 0 })
}

// TestUntakenAnswer: an answer that a client does not take is held for so long,
// and counted, although its call has ended for the gateway.
func TestUntakenAnswer(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.ClientTimeout = 2 * time.Second })
	f := startFake(t, func(f *fake) {
		f.infer = func(context.Context, *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
			return &oip.ModelInferResponse{RawOutputContents: [][]byte{make([]byte, 900_000)}}, nil
		}
	})
	r.d.SetPool(pool("iris", f.address))
	s, err := r.conn.NewStream(t.Context(), &grpc.StreamDesc{}, oip.GRPCInferenceService_ModelInfer_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.SendMsg(request("iris")), s.CloseSend()); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return metric(t, r.reg, "roundhouse_gateway_grpc_calls_total") == 1 })
	if n := r.server.buffered.Used(); n < 900_000 {
		t.Errorf("%d bytes are counted", n)
	}
	until(t, func() bool { return r.server.buffered.Used() == 0 })
	want(t, s.RecvMsg(&oip.ModelInferResponse{}), codes.Unavailable)
}

// TestBackpressure: a replica that does not read stops the client.
func TestBackpressure(t *testing.T) {
	r := newRig(t, nil)
	release := make(chan struct{})
	f := startFake(t, func(f *fake) {
		f.stream = func(s bidiServer) error {
			m, err := s.Recv()
			if err == nil {
				err = s.Send(echo(m))
			}
			<-release
			return err
		}
	})
	r.d.SetPool(pool("iris", f.address))
	m := request("iris")
	m.RawInputContents = [][]byte{make([]byte, 100_000)}
	s := r.open(t.Context(), m)
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s.Send(m) == nil {
			sent.Add(100_000)
		}
	}()
	still := 0
	for last := int64(0); still < 50; time.Sleep(2 * time.Millisecond) {
		if now := sent.Load(); now != last {
			last, still = now, 0
		}
		still++
	}
	if n := sent.Load(); n > 8<<20 {
		t.Errorf("the client could send %d bytes that nobody read", n)
	}
	close(release)
	<-done
}

// TestManyStreams runs streams and calls at once.
func TestManyStreams(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("iris", startFake(t, nil).address, startFake(t, nil).address))
	errs := make(chan error, 40)
	for range 20 {
		go func() { _, err := r.ModelInfer(t.Context(), request("iris")); errs <- err }()
		go func() {
			s, err := r.ModelStreamInfer(t.Context())
			var ids []string
			for i := 0; i < 10 && err == nil; i++ {
				err = s.Send(numbered("iris", i))
			}
			if err == nil {
				err = s.CloseSend()
			}
			for err == nil {
				var m *oip.ModelInferResponse
				if m, err = s.Recv(); err == nil {
					ids = append(ids, m.GetId())
				}
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			if !slices.Equal(ids, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}) {
				err = errors.Join(err, fmt.Errorf("got %v", ids))
			}
			errs <- err
		}()
	}
	for range 40 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
