package epp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	pb "roundhouse.dev/roundhouse/api/extproc"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// stream is the fake picker's end of a conversation.
type stream struct{ grpc.ServerStream }

func (s stream) recv() (*pb.ProcessingRequest, error) {
	m := &pb.ProcessingRequest{}
	return m, s.RecvMsg(m)
}

// ask is a whole request.
func (s stream) ask() (h *pb.HttpHeaders, body []byte, err error) {
	for {
		m, err := s.recv()
		if err != nil {
			return nil, nil, err
		}
		if got := m.GetRequestHeaders(); got != nil {
			if h = got; h.EndOfStream {
				return h, nil, nil
			}
		}
		if b := m.GetRequestBody(); b != nil {
			if body = append(body, b.Body...); b.EndOfStream {
				return h, body, nil
			}
		}
	}
}

func (s stream) to(t *testing.T, address string, set ...string) {
	o := []*pb.HeaderValueOption{{Header: value(pb.Destination, address)}}
	for i := 0; i < len(set); i += 2 {
		o = append(o, &pb.HeaderValueOption{Header: value(set[i], set[i+1])})
	}
	s.say(t, &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestHeaders{RequestHeaders: &pb.HeadersResponse{
		Response: &pb.CommonResponse{HeaderMutation: &pb.HeaderMutation{SetHeaders: o}}}}})
}

func (s stream) body(t *testing.T, end bool, b string) {
	s.say(t, &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestBody{RequestBody: &pb.BodyResponse{Response: &pb.CommonResponse{
		BodyMutation: &pb.BodyMutation{Mutation: &pb.BodyMutation_StreamedResponse{StreamedResponse: &pb.StreamedBodyResponse{Body: []byte(b), EndOfStream: end}}}}}}})
}

func (s stream) say(t *testing.T, m *pb.ProcessingResponse) {
	if err := s.SendMsg(m); err != nil {
		t.Logf("picker: %v", err)
	}
}

// picker is a scripted endpoint picker.
func picker(t *testing.T, serve func(stream) error) *Target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{ServiceName: pb.ServiceName, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Process", ServerStreams: true, ClientStreams: true, Handler: func(_ any, ss grpc.ServerStream) error { return serve(stream{ss}) }}}}, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return &Target{Name: "prod/epp:9002", Authority: "epp.prod.svc:9002", Plain: true, Addresses: []string{l.Addr().String()}}
}

var pool = service.Key{Namespace: "prod", Name: "llama"}

func client(t *testing.T, target *Target, change func(*Config)) *Client {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Timeout = 20 * time.Second
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Set(pool, target); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func request(body string) Request {
	return Request{Method: "POST", Scheme: "http", Authority: "models.test", Path: "/v1/completions?x=1", Header: http.Header{"Content-Type": {"application/json"}, "Connection": {"X-Drop"}, "X-Drop": {"y"}}, Body: []byte(body)}
}

func TestAsk(t *testing.T) {
	for _, size := range []int{0, 10, maxPiece, 3 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			served := make(chan string, 1)
			target := picker(t, func(s stream) error {
				h, body, err := s.ask()
				if err != nil {
					return err
				}
				if len(body) != size || h.Headers.Headers[3].Text() != "/v1/completions?x=1" || strings.Contains(fmt.Sprint(h), "x-drop") {
					t.Errorf("the picker was told %v and %d bytes", h, len(body))
				}
				s.to(t, "10.0.0.1:8000, 10.0.0.2:8000,rubbish", "X-Prefiller-Host-Port", "10.0.0.3:1", "host", "evil", "x-bad", "a\nb")
				for len(body) > 0 {
					n := min(50_000, len(body))
					s.body(t, n == len(body), string(body[:n]))
					body = body[n:]
				}
				m, err := s.recv()
				if err != nil {
					return err
				}
				served <- m.MetadataContext.FilterMetadata["envoy.lb"].Fields["x-gateway-destination-endpoint-served"].GetStringValue()
				s.say(t, &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseHeaders{ResponseHeaders: &pb.HeadersResponse{Response: &pb.CommonResponse{
					HeaderMutation: &pb.HeaderMutation{SetHeaders: []*pb.HeaderValueOption{{Header: value("x-by", "picker")}}, RemoveHeaders: []string{"server"}}}}}})
				_, err = s.recv()
				return err
			})
			c := client(t, target, nil)
			r := request(strings.Repeat("x", size))
			v, err := c.Ask(t.Context(), pool, r)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(v.Endpoints(), " "); got != "10.0.0.1:8000 10.0.0.2:8000" {
				t.Errorf("endpoints %s", got)
			}
			if _, changed := v.Body(); changed {
				t.Error("the body was changed")
			}
			v.Change(r.Header)
			if r.Header.Get("X-Prefiller-Host-Port") != "10.0.0.3:1" || r.Header.Get("Host") != "" || r.Header.Get("X-Bad") != "" || r.Header.Get(pb.Destination) != "" {
				t.Errorf("header %v", r.Header)
			}
			h := http.Header{"Server": {"vllm"}}
			v.Answered(200, h, "10.0.0.2:8000")
			if by := <-served; by != "10.0.0.2:8000" {
				t.Errorf("served by %q", by)
			}
			if h.Get("X-By") != "picker" || h.Get("Server") != "" {
				t.Errorf("answer %v", h)
			}
			v.Close()
			if n := c.streams.Load(); n != 0 {
				t.Errorf("%d streams", n)
			}
		})
	}
}

// reason is a failure's.
func reason(err error) Reason {
	var f *Failure
	if errors.As(err, &f) {
		return f.Reason
	}
	return Reason(fmt.Sprint(err))
}

// selfSigned is a certificate as pickers make theirs.
func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

// TestMetrics: requests are counted by pool and outcome, and the series go with
// the pool.
func TestMetrics(t *testing.T) {
	at, _ := serveOne(t, "127.0.0.1:0", "10.0.0.1:1")
	reg := prometheus.NewRegistry()
	k, err := New(DefaultConfig(), reg)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	target := &Target{Name: "prod/epp:9002", Authority: "epp.prod.svc:9002", Plain: true, Addresses: []string{at}}
	if err := k.Set(pool, target); err != nil {
		t.Fatal(err)
	}
	v, err := k.Ask(t.Context(), pool, request("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r := request("{}")
	r.Within = func(string) bool { return false }
	if _, err := k.Ask(t.Context(), pool, r); reason(err) != Foreign {
		t.Error(err)
	}
	counted := func() (out []string) {
		all, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			for _, m := range f.Metric {
				labels := ""
				for _, l := range m.Label {
					labels += " " + l.GetValue()
				}
				out = append(out, fmt.Sprintf("%s%s %v", strings.TrimPrefix(f.GetName(), "roundhouse_gateway_endpoint_picker_"), labels,
					m.GetCounter().GetValue()+m.GetGauge().GetValue()+float64(m.GetHistogram().GetSampleCount())))
			}
		}
		return out
	}
	if got := strings.Join(counted(), ", "); got != "requests_total answered prod/llama 1, requests_total foreign_endpoint prod/llama 1, seconds prod/llama 1, streams 1" {
		t.Error(got)
	}
	v.Close()
	if err := k.Set(pool, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Ask(t.Context(), pool, request("{}")); reason(err) != Missing {
		t.Error(err)
	}
	if got := strings.Join(counted(), ", "); got != "streams 0" {
		t.Error(got)
	}
}
