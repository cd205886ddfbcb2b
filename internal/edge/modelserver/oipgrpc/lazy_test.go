package oipgrpc

import (
	"log/slog"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
)

// TestFirstConnection: gRPC's server is made for the first connection, which it
// then serves, and a server that nobody asked stops at once.
func TestFirstConnection(t *testing.T) {
	for _, asked := range []bool{false, true} {
		c := DefaultConfig()
		c.Port = 0
		service, err := modelserver.New(modelserver.DefaultConfig(), models{}, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(c, service, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		address, err := s.Listen()
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve() }()
		made := func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.server != nil
		}
		if made() {
			t.Error("made before anybody asked")
		}
		if asked {
			conn, err := grpc.NewClient(address.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			if live, err := oip.NewGRPCInferenceServiceClient(conn).ServerLive(t.Context(), &oip.ServerLiveRequest{}); err != nil || !live.GetLive() {
				t.Errorf("%v %v", live, err)
			}
			_ = conn.Close()
		}
		if made() != asked {
			t.Errorf("made: %v, asked: %v", made(), asked)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		if c, err := net.Dial("tcp", address.String()); err == nil {
			_ = c.Close()
			t.Error("the port is still open")
		}
	}
}
