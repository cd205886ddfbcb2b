package oipgrpc

import (
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/api/oip"
)

// rawMessage is a message as it is, which rawCodec sends.
type rawMessage string

type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(rawMessage))}, nil
}
func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }
func (rawCodec) Name() string                         { return "proto" }

// converse sends requests, ends the sending, and receives everything.
func converse(t *testing.T, s *site, requests ...*oip.ModelInferRequest) (out []*oip.ModelInferResponse, last []string, err error) {
	t.Helper()
	stream, err := s.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		if err := stream.Send(r); err != nil && !errors.Is(err, io.EOF) { // which says that the answer is there
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, stream.Trailer()["x-last"], nil
		}
		if err != nil {
			return out, stream.Trailer()["x-last"], err
		}
		out = append(out, r)
	}
}

func withID(r *oip.ModelInferRequest, id string) *oip.ModelInferRequest {
	r.Id = id
	return r
}

func TestStreams(t *testing.T) {
	s := start(t, models{"echo@1": "echo", "up": "one to many", "sum": "many to one", "running": "running", "late": "late fault", "fault": "fault"})
	tests := []struct {
		name     string
		requests []*oip.ModelInferRequest
		want     []float32
		last     string
		code     codes.Code
		says     string
	}{
		{"one to many", []*oip.ModelInferRequest{withID(floats("up", 3), "a")}, []float32{0, 1, 2}, "2", codes.OK, ""},
		{"many to one", []*oip.ModelInferRequest{withID(floats("sum", 1, 2), "a"), withID(floats("", 3), "b"), floats("none", 4)}, []float32{10}, "all", codes.OK, ""},
		{"many to many", []*oip.ModelInferRequest{withID(floats("running", 1), "a"), withID(floats("", 3), "b"), floats("none", 4)}, []float32{1, 4, 8}, "r", codes.OK, ""},
		{"one to one", []*oip.ModelInferRequest{withID(floats("echo", 5), "a")}, []float32{5}, "", codes.OK, ""},
		{"each to each", []*oip.ModelInferRequest{withID(floats("echo", 5), "a"), withID(floats("echo", 6), "b")}, []float32{5, 6}, "", codes.OK, ""},
		{"nothing", nil, nil, "", codes.InvalidArgument, "the stream has no request"},
		{"unknown model", []*oip.ModelInferRequest{floats("none", 1)}, nil, "", codes.NotFound, "Model none not found"},
		{"a fault at once", []*oip.ModelInferRequest{floats("fault", 1)}, nil, "", codes.InvalidArgument, "expected 4 features"},
		{"a fault in the middle", []*oip.ModelInferRequest{withID(floats("late", 1), "a")}, []float32{1}, "r", codes.InvalidArgument, "broke in the middle"},
		{"a bad first message", []*oip.ModelInferRequest{inputOf("FP32", []int64{7}, nil)}, nil, "", codes.InvalidArgument, "shape [7]"},
		{"a bad second message", []*oip.ModelInferRequest{withID(floats("running", 1), "a"), inputOf("FP32", []int64{7}, nil)}, []float32{1}, "r", codes.InvalidArgument, "shape [7]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			out, last, err := converse(t, s, test.requests...)
			wantCode(t, "end", err, test.code, test.says)
			var got []float32
			for _, r := range out {
				got = append(got, r.Outputs[0].Contents.GetFp32Contents()...)
				if r.GetId() != "a" {
					t.Errorf("id %q", r.GetId())
				}
				if len(r.GetParameters()) != 0 {
					t.Errorf("parameters %v", r.GetParameters())
				}
			}
			if len(got) != len(test.want) {
				t.Fatalf("got %v, want %v", got, test.want)
			}
			for i := range got {
				if got[i] != test.want[i] {
					t.Fatalf("got %v, want %v", got, test.want)
				}
			}
			if strings.Join(last, ",") != test.last {
				t.Errorf("x-last %q, want %q", last, test.last)
			}
		})
	}
}

// TestStreamInterleaves asks again only once there is an answer.
func TestStreamInterleaves(t *testing.T) {
	s := start(t, models{"running": "running"})
	stream, err := s.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := ""
	for i, want := range []float32{1, 3, 6} {
		if err := stream.Send(floats("running", float32(i+1))); err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Outputs[0].Contents.Fp32Contents[0]; got != want {
			t.Errorf("%v, want %v", got, want)
		}
		if id == "" {
			id = r.GetId()
		}
		if r.GetId() != id || id == "" {
			t.Errorf("id %q, first %q", r.GetId(), id)
		}
	}
}

// TestStreamRaw has the form of the first request decide.
func TestStreamRaw(t *testing.T) {
	s := start(t, models{"running": "running"})
	raw := withRaw(inputOf("FP32", []int64{1}, nil), "\x00\x00\x80\x3f")
	raw.ModelName = "running"
	out, _, err := converse(t, s, raw, floats("", 1))
	if err != nil || len(out) != 2 || len(out[0].RawOutputContents) != 1 || len(out[1].RawOutputContents) != 1 {
		t.Errorf("%v %v", out, err)
	}
}

// TestStreamLeaves has the client go away while the model sends.
func TestStreamLeaves(t *testing.T) {
	s := start(t, models{"forever": "forever", "echo": "echo"})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := s.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(floats("forever", 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := s.ModelInfer(t.Context(), floats("echo", 1)); err != nil {
		t.Error(err)
	}
	// The server's end waits for the model: see start's Cleanup.
}

// TestSlowReader: a client that takes nothing does not hold a model for ever.
func TestSlowReader(t *testing.T) {
	s := start(t, models{"m": "forever"}, func(o *options) { o.grpc.WriteTimeout = 50 * time.Millisecond })
	stream, err := s.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(floats("m", 1)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); s.metrics != nil; time.Sleep(5 * time.Millisecond) {
		w := httptest.NewRecorder()
		s.metrics.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if strings.Contains(w.Body.String(), `grpc_method="ModelStreamInfer",grpc_code="DEADLINE_EXCEEDED"} 1`) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the stream goes on")
		}
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "took no message") {
		t.Errorf("the client is told %v", err)
	}
}
