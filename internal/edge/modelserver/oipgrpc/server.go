// Package oipgrpc serves the Open Inference Protocol over gRPC: the inference
// service, MLServer's deprecated repository service, gRPC's health service and
// reflection. What is asked for is answered by a Service, which
// *modelserver.Server is; this package knows the protocol alone.
//
// Inference requests and responses are nearly all of the bytes, so they are
// read into tensors and written from them directly (decode.go, encode.go); the
// messages of package oip are what that is tested against. All else goes
// through the generated code.
package oipgrpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/api/oip/modelrepository"
	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// Service is what is served. Its errors are those that modelserver.StatusOf
// knows.
type Service interface {
	Ready() bool
	Metadata() modelserver.ServerMetadata
	ModelMetadata(name, version string) (tensor.ModelMetadata, error)
	ModelReady(name, version string) (bool, error)
	Infer(ctx context.Context, name, version string, r *tensor.Request) (*tensor.Response, error)
	InferStream(ctx context.Context, name, version string, in modelserver.Requests, send func(*tensor.Response) error) error
	AddCloudEvents(metadata map[string][]string, r *tensor.Response)
	Index(readyOnly bool) []modelserver.ModelStatus
	Load(ctx context.Context, name string) error
	Unload(ctx context.Context, name string) error
	Statistics(name, version string) ([]modelserver.ModelStatistics, error)
	ModelConfig(name, version string) (modelserver.ModelConfig, error)
	TraceSettings() map[string][]string
	LogSettings() modelserver.LogSettings
	SharedMemory(client, name string) ([]modelserver.SharedRegion, error)
	RegisterSharedMemory(client string, r modelserver.SharedRegion) error
	UnregisterSharedMemory(client, name string) error
	TakeShared(client string, r *tensor.Request) (*modelserver.SharedOutputs, error)
}

// Config is how a Server runs.
type Config struct {
	Host string
	Port int // 0: any free port
	// MaxMessageBytes bounds a request's message, decompressed.
	MaxMessageBytes int
	// WriteTimeout bounds sending one message of a stream to a client that
	// reads slowly.
	WriteTimeout time.Duration
	TLS          *tls.Config       // nil: plain text
	Metrics      *metrics.Registry // nil: none
	Tracer       trace.Tracer      // nil: no spans
}

// DefaultConfig is MLServer's, on loopback.
func DefaultConfig() Config {
	return Config{Host: "127.0.0.1", Port: 8081, MaxMessageBytes: 4 << 20, WriteTimeout: time.Minute}
}

// Validate reports everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if c.Port < 0 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("grpc_port %d: must be 0 to 65535", c.Port))
	}
	if c.MaxMessageBytes <= 0 {
		errs = append(errs, fmt.Errorf("grpc_max_message_length %d: must be above 0", c.MaxMessageBytes))
	}
	if c.WriteTimeout <= 0 {
		errs = append(errs, fmt.Errorf("gRPC's write timeout %v: must be above 0", c.WriteTimeout))
	}
	return errors.Join(errs...)
}

// The bounds of a connection.
const (
	maxCalls       = 1000             // under way at once
	maxHeaderBytes = 64 << 10         // of a request
	handshakeTime  = 10 * time.Second // for a new connection to say what it is
	pingInterval   = 10 * time.Second // at which a client may ask whether the server is there
	idlePing       = time.Minute      // after which the server asks whether the client is
	pingTime       = 20 * time.Second // for the client to answer that
	// window is what a client may send ahead of being read, in bytes, of a call
	// and of a connection. It is larger than HTTP/2's 64 KiB so that tensors do
	// not wait for permission, and fixed, which costs no probing.
	window = 1 << 20
	// workers are the goroutines that answer call after call, with stacks that
	// have grown already; calls beyond them get one of their own.
	workers = 16
)

// Server speaks gRPC. It is a modelserver.Transport.
type Server struct {
	config   Config
	service  Service
	log      *slog.Logger
	listener net.Listener
	ending   chan struct{} // closed when shutdown begins
	mu       sync.Mutex
	server   *grpc.Server // nil before the first connection; mu guards it
	meters   meters
}

// New makes a server of a service.
func New(c Config, service Service, log *slog.Logger) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Server{config: c, service: service, log: log, ending: make(chan struct{})}
	if c.Metrics != nil {
		var err error
		if s.meters, err = newMeters(c.Metrics); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// build makes gRPC's own server.
func (s *Server) build() *grpc.Server {
	c := s.config
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(encodingproto.Name)}),
		grpc.MaxRecvMsgSize(c.MaxMessageBytes),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.NumStreamWorkers(workers),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
		grpc.MaxConcurrentStreams(maxCalls),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingInterval, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: idlePing, Timeout: pingTime}),
	}
	if c.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(c.TLS)))
	}
	server := grpc.NewServer(options...)
	server.RegisterService(inferenceService(), &inference{server: s})
	modelrepository.RegisterModelRepositoryServiceServer(server, &repository{server: s})
	grpc_health_v1.RegisterHealthServer(server, &health{server: s})
	reflection.Register(server)
	return server
}

// inferenceService is the generated description of the service with the two
// calls that carry tensors replaced by our own.
func inferenceService() *grpc.ServiceDesc {
	d := oip.GRPCInferenceService_ServiceDesc
	d.Methods = append([]grpc.MethodDesc(nil), d.Methods...)
	for i := range d.Methods {
		if d.Methods[i].MethodName == "ModelInfer" {
			d.Methods[i].Handler = handleInfer
		}
	}
	d.Streams = append([]grpc.StreamDesc(nil), d.Streams...)
	for i := range d.Streams {
		if d.Streams[i].StreamName == "ModelStreamInfer" {
			d.Streams[i].Handler = handleStream
		}
	}
	return &d
}

// Protocol is gRPC.
func (s *Server) Protocol() string { return "gRPC" }

// Listen binds the port.
func (s *Server) Listen() (net.Addr, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(s.config.Host, fmt.Sprint(s.config.Port)))
	if err != nil {
		return nil, fmt.Errorf("gRPC: %w", err)
	}
	s.listener = l
	return l.Addr(), nil
}

// Serve answers calls until Shutdown. gRPC's server is made for the first
// connection: without one, a replica that is asked over HTTP alone keeps the
// memory.
func (s *Server) Serve() error {
	first, err := s.listener.Accept()
	if err != nil {
		select {
		case <-s.ending:
			return nil
		default:
			return err
		}
	}
	server := s.build()
	s.mu.Lock()
	select {
	case <-s.ending:
		s.mu.Unlock()
		return first.Close()
	default:
	}
	s.server = server
	s.mu.Unlock()
	l := &accepted{Listener: s.listener, first: first}
	err = server.Serve(l)
	if l.first != nil {
		_ = l.first.Close() // the server was stopped before it began
	}
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// accepted is a listener of which one connection was accepted before. Accept is
// for one goroutine.
type accepted struct {
	net.Listener
	first net.Conn // nil once it is handed over
}

// Accept hands the first connection over, then accepts.
func (a *accepted) Accept() (net.Conn, error) {
	if c := a.first; c != nil {
		a.first = nil
		return c, nil
	}
	return a.Listener.Accept()
}

// Shutdown accepts no new calls and waits for those under way; when ctx ends
// first it cuts them off and is an error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	close(s.ending)
	server := s.server
	s.mu.Unlock()
	if server == nil {
		if s.listener != nil {
			_ = s.listener.Close() // nobody is connected
		}
		return nil
	}
	done := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		server.Stop()
		<-done
		return ctx.Err()
	}
}
