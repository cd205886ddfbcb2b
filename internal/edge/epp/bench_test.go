package epp

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"

	pb "roundhouse.dev/roundhouse/api/extproc"
)

// BenchmarkAsk asks a picker on this machine and hears of the answer.
func BenchmarkAsk(b *testing.B) {
	for _, size := range []int{800, 10_000, 220_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			t := &testing.T{}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			s := grpc.NewServer()
			s.RegisterService(&grpc.ServiceDesc{ServiceName: pb.ServiceName, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
				StreamName: "Process", ServerStreams: true, ClientStreams: true, Handler: func(_ any, ss grpc.ServerStream) error {
					s := stream{ss}
					_, body, err := s.ask()
					if err != nil {
						return err
					}
					s.to(t, "10.0.0.1:1")
					for len(body) > 0 {
						n := min(maxPiece, len(body))
						s.body(t, n == len(body), string(body[:n]))
						body = body[n:]
					}
					if _, err := s.recv(); err != nil {
						return err
					}
					s.say(t, &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseHeaders{ResponseHeaders: &pb.HeadersResponse{}}})
					return s.rest()
				}}}}, s)
			go func() { _ = s.Serve(l) }()
			defer s.Stop()
			k, err := New(DefaultConfig(), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer k.Close()
			if err := k.Set(pool, &Target{Name: "a", Authority: "a", Plain: true, Addresses: []string{l.Addr().String()}}); err != nil {
				b.Fatal(err)
			}
			r := request(strings.Repeat("x", size))
			b.ReportAllocs()
			for b.Loop() {
				v, err := k.Ask(b.Context(), pool, r)
				if err != nil {
					b.Fatal(err)
				}
				v.Answered(200, http.Header{}, "10.0.0.1:1")
				v.Close()
			}
		})
	}
}
