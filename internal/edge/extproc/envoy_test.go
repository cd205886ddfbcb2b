package extproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// These tests play Envoy with Envoy's own generated API, so that what is on
// the wire is what Envoy reads.

// serve runs a Server and returns connections to its two ports.
func serve(t testing.TB, a Admitter, change func(*Config)) (s *Server, main, health *grpc.ClientConn, stop func() error) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Listen, cfg.HealthListen = "127.0.0.1:0", "127.0.0.1:0"
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg, a, nil)
	if err != nil {
		t.Fatal(err)
	}
	at, healthAt, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	var once sync.Once
	var result error
	stop = func() error {
		once.Do(func() { cancel(); result = <-ended })
		return result
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	dial := func(at string) *grpc.ClientConn {
		conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	return s, dial(at.String()), dial(healthAt.String()), stop
}

// duplex is what Envoy says of its modes.
var duplex = &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED}

// envoy is one stream, as Envoy leads it.
type envoy struct {
	t      testing.TB
	stream extprocv3.ExternalProcessor_ProcessClient
}

func begin(t testing.TB, ctx context.Context, conn *grpc.ClientConn) *envoy {
	t.Helper()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &envoy{t, stream}
}

func (e *envoy) send(r *extprocv3.ProcessingRequest) {
	e.t.Helper()
	if err := e.stream.Send(r); err != nil && !errors.Is(err, io.EOF) { // the reason comes with Recv
		e.t.Fatal(err)
	}
}

func (e *envoy) recv() *extprocv3.ProcessingResponse {
	e.t.Helper()
	r, err := e.stream.Recv()
	if err != nil {
		e.t.Fatal(err)
	}
	return r
}

// headersOf builds Envoy's header map, from pairs.
func headersOf(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

func requestHeaders(end bool, pairs ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{ProtocolConfig: duplex,
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headersOf(pairs...), EndOfStream: end}}}
}

func requestBody(body []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: end}}}
}

func responseHeaders(pairs ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: headersOf(pairs...)}}}
}

func responseBody(body []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: body, EndOfStream: end}}}
}

// directed checks what sends a request to its endpoint.
func (e *envoy) directed(r *extprocv3.ProcessingResponse, address string, length int) {
	e.t.Helper()
	h := r.GetRequestHeaders().GetResponse()
	got := map[string]string{}
	for _, o := range h.GetHeaderMutation().GetSetHeaders() {
		got[o.Header.Key] = string(o.Header.RawValue)
		if o.AppendAction != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			e.t.Errorf("%s is not replaced: %v", o.Header.Key, o.AppendAction)
		}
	}
	inner := r.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"].GetStringValue()
	if got["x-gateway-destination-endpoint"] != address || inner != address || !h.GetClearRouteCache() || got["content-length"] != fmt.Sprint(length) {
		e.t.Errorf("headers %v, metadata %q, clear %v; want %s and %d bytes", got, inner, h.GetClearRouteCache(), address, length)
	}
}

// body reads the pieces of a body up to its end.
func (e *envoy) body(of func(*extprocv3.ProcessingResponse) *extprocv3.BodyResponse) []byte {
	e.t.Helper()
	var all []byte
	for {
		r := e.recv()
		p := of(r).GetResponse().GetBodyMutation().GetStreamedResponse()
		if p == nil || len(p.Body) > 62_000 {
			e.t.Fatalf("not a piece of a body: %.200v", r)
		}
		all = append(all, p.Body...)
		if p.EndOfStream {
			return all
		}
	}
}

// TestWholeConversation leads one from headers to the end of a stream.
func TestWholeConversation(t *testing.T) {
	f := newFake()
	f.answer = func(service.Key, dispatch.Request) (*grant, error) {
		return &grant{address: "10.0.0.1:8000", alternatives: []string{"10.0.0.2:8000"}, model: "llama-v2"}, nil
	}
	_, conn, _, _ := serve(t, f, nil)
	e := begin(t, t.Context(), conn)
	h := requestHeaders(false, ":method", "POST", ":path", "/v1/completions", ":authority", "gw")
	list, err := structpb.NewStruct(map[string]any{"x-gateway-destination-endpoint-subset": []any{"10.0.0.1:8000", "10.0.0.2:8000"}})
	if err != nil {
		t.Fatal(err)
	}
	h.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb.subset_hint": list}}
	e.send(h)
	prompt := strings.Repeat("Once upon a time. ", 12_000) // 216 KB
	sent := []byte(`{"model":"llama","seed":9007199254740993,"prompt":"` + prompt + `"}`)
	for at := 0; at < len(sent); at += 16 << 10 {
		to := min(len(sent), at+16<<10)
		e.send(requestBody(sent[at:to], to == len(sent)))
	}
	want := bytes.Replace(sent, []byte(`"llama"`), []byte(`"llama-v2"`), 1)
	e.directed(e.recv(), "10.0.0.1:8000,10.0.0.2:8000", len(want))
	if got := e.body((*extprocv3.ProcessingResponse).GetRequestBody); !bytes.Equal(got, want) {
		t.Errorf("the body has changed: %d bytes, want %d", len(got), len(want))
	}
	if log := f.taken(); len(log) != 1 || !strings.Contains(log[0], "subset=10.0.0.1:8000,10.0.0.2:8000") {
		t.Errorf("%q", log)
	}

	r := responseHeaders(":status", "200", "content-type", "text/event-stream")
	by, err := structpb.NewStruct(map[string]any{"x-gateway-destination-endpoint-served": "10.0.0.2:8000"})
	if err != nil {
		t.Fatal(err)
	}
	r.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": by}}
	e.send(r)
	if e.recv().GetResponseHeaders() == nil {
		t.Error("no answer to the answer's headers")
	}
	events := []byte("data: {\"choices\":[]}\n\ndata: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":10}}\n\ndata: [DONE]\n\n")
	for i, b := range events {
		e.send(responseBody([]byte{b}, i == len(events)-1))
	}
	if got := e.body((*extprocv3.ProcessingResponse).GetResponseBody); !bytes.Equal(got, events) {
		t.Errorf("the answer has changed: %q", got)
	}
	g := f.settled(t)
	if g.outcome.Usage != (dispatch.Usage{Prompt: 7, Completion: 10}) || g.firstBytes != 1 || g.servedBy != "10.0.0.2:8000" {
		t.Errorf("%+v", g)
	}
	if err := e.stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := e.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
}

// TestBodySplitAnywhere: wherever Envoy cuts a body, the same comes out.
func TestBodySplitAnywhere(t *testing.T) {
	f := newFake()
	f.answer = func(service.Key, dispatch.Request) (*grant, error) {
		return &grant{address: "10.0.0.1:8000", model: "llama-v2"}, nil
	}
	_, conn, _, _ := serve(t, f, nil)
	sent := []byte(`{"model":"ll\u0061ma","prompt":"h\"i","n":1.0}`)
	want := `{"model":"llama-v2","prompt":"h\"i","n":1.0}`
	for cut := range len(sent) + 1 {
		e := begin(t, t.Context(), conn)
		e.send(requestHeaders(false, ":method", "POST", ":path", "/v1/completions"))
		e.send(requestBody(sent[:cut], false))
		e.send(requestBody(sent[cut:], true))
		e.directed(e.recv(), "10.0.0.1:8000", len(want))
		if got := e.body((*extprocv3.ProcessingResponse).GetRequestBody); string(got) != want {
			t.Errorf("cut at %d: %q", cut, got)
		}
		_ = e.stream.CloseSend()
		f.settled(t)
		if log := f.taken(); !strings.Contains(log[0], "model=llama ") {
			t.Errorf("cut at %d: %q", cut, log)
		}
	}
}

func TestPieces(t *testing.T) {
	whole := make([]byte, 3*maxPiece+5)
	for i := range whole {
		whole[i] = byte(rand.Uint32())
	}
	for _, head := range []int{0, 1, 20, maxPiece - 1, maxPiece, maxPiece + 1, 2 * maxPiece, len(whole)} {
		for _, tail := range []int{0, 1, maxPiece - 20, maxPiece, maxPiece + 1, 2*maxPiece + 3} {
			if head+tail > len(whole) {
				continue
			}
			var got []byte
			ends := 0
			err := pieces(bytes.Clone(whole[:head]), whole[head:head+tail], func(p []byte, last bool) error {
				if len(p) > maxPiece || (len(p) == 0 && !last) || ends > 0 {
					t.Errorf("%d+%d: a piece of %d", head, tail, len(p))
				}
				if got = append(got, p...); last {
					ends++
				}
				return nil
			})
			if err != nil || ends != 1 || !bytes.Equal(got, whole[:head+tail]) {
				t.Errorf("%d+%d: %d bytes in the end, %d ends", head, tail, len(got), ends)
			}
		}
	}
}

// TestCancelled: whenever Envoy leaves, the place is given back once and the
// memory is free.
func TestCancelled(t *testing.T) {
	steps := []*extprocv3.ProcessingRequest{
		requestHeaders(false, ":method", "POST", ":path", "/v1/completions"),
		requestBody([]byte(`{"model":"llama"`), false), requestBody([]byte(`}`), true),
		responseHeaders(":status", "200", "content-type", "text/event-stream"),
		responseBody([]byte("data: {}\n\n"), false), responseBody(nil, true),
	}
	f := newFake()
	s, conn, _, _ := serve(t, f, nil)
	for n := range len(steps) + 1 {
		ctx, cancel := context.WithCancel(t.Context())
		e := begin(t, ctx, conn)
		for _, r := range steps[:n] {
			e.send(r)
		}
		if n >= 3 {
			e.recv() // it has a place
		}
		cancel()
		if n >= 3 {
			f.settled(t)
		}
	}
	wait(t, func() bool { return s.streams.Load() == 0 && s.buffered.Load() == 0 })
	if f.open != 0 {
		t.Errorf("%d places are not given back", f.open)
	}
}

// wait waits until something is so.
func wait(t testing.TB, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); {
		if time.Now().After(end) {
			t.Fatal("it never came to be")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestCancelledInQueue: Envoy leaves while the request waits for a place.
func TestCancelledInQueue(t *testing.T) {
	waits := make(chan struct{})
	left := make(chan struct{})
	a := admitFunc(func(ctx context.Context) (Grant, error) {
		close(waits)
		<-ctx.Done()
		close(left)
		return nil, ctx.Err()
	})
	s, conn, _, _ := serve(t, a, nil)
	ctx, cancel := context.WithCancel(t.Context())
	e := begin(t, ctx, conn)
	e.send(requestHeaders(true, ":method", "GET", ":path", "/v1/models"))
	<-waits
	cancel()
	<-left
	wait(t, func() bool { return s.streams.Load() == 0 })
}

type admitFunc func(context.Context) (Grant, error)

func (f admitFunc) Admit(ctx context.Context, _ service.Key, _ dispatch.Request) (Grant, error) {
	return f(ctx)
}
