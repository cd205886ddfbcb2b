// Package extproc lets Envoy, and every gateway that speaks its external
// processing protocol, ask where a request should go: it is the endpoint
// picker of the Gateway API Inference Extension. Envoy sends the request's
// headers and body over a gRPC stream; the picker answers with the address of
// one endpoint, Envoy forwards, and tells of the answer as it passes.
//
// The conversation, where Envoy sends bodies FULL_DUPLEX_STREAMED:
//
//	Envoy                                   the picker
//	request_headers                      →  (nothing yet)
//	request_body …, end_of_stream        →  Admit: route, queue, pick, reserve
//	                                     ←  request_headers: x-gateway-destination-endpoint,
//	                                        Content-Length, ClearRouteCache, dynamic metadata
//	                                     ←  request_body …, in pieces of at most maxPiece
//	response_headers                     →  FirstByte
//	                                     ←  response_headers: go on
//	response_body …                      →  usage is read
//	                                     ←  response_body: the same bytes
//	end of the answer, or of the stream  →  Done, exactly once
//
// With BUFFERED bodies Envoy waits for the answer to each message, so the
// address goes with the answer to the body. A request that cannot be placed is
// answered by the picker itself: 400, 404, 413, 429 or 503.
//
// One process serves many pools; see [Server] for how a stream names its own.
package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/orca"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// Admitter finds endpoints. It is implemented over dispatch.Dispatcher.
type Admitter interface {
	// Admit waits for a place on an endpoint of the pool; of the zero pool's
	// place the request's host, path and model decide. Errors are those of
	// dispatch.Dispatcher.Admit.
	Admit(ctx context.Context, pool service.Key, r dispatch.Request) (Grant, error)
}

// Grant is a place on an endpoint. Done is called exactly once, FirstByte at
// most once and before it; all from one goroutine.
type Grant interface {
	// Address is the endpoint's "ip:port".
	Address() string
	// Alternatives are where Envoy may go when that fails, best first; nil for
	// nowhere. No place is reserved there.
	Alternatives() []string
	// Prefill is the server that computes the prompt for the endpoint; "" for none.
	Prefill() string
	// Encoders are the servers that compute the request's pictures, sounds and videos,
	// in their order; nil for none.
	Encoders() []string
	// Rank is the data-parallel rank at the address that is to serve; "" for none.
	Rank() string
	// Replica is the endpoint's ID.
	Replica() string
	// Model is the name to give the endpoint; "" leaves the body's.
	Model() string
	// Served tells which endpoint answered in the end, where Envoy says.
	Served(address string)
	// Answered tells, before FirstByte, of an answer that did not do the work.
	Answered(a dispatch.Answer) (moved bool)
	FirstByte()
	// FirstToken tells that the first token of a streamed answer has come.
	FirstToken()
	// Tokenize has the endpoint's engine tell the tokens of the prompt, where
	// that is of use; parts are the body.
	Tokenize(path string, parts ...[]byte)
	Done(dispatch.Outcome)
}

// Config bounds what a Server takes. Start from DefaultConfig.
type Config struct {
	// Listen, HealthListen are "host:port".
	Listen, HealthListen string
	// TLS is for Listen; nil is plain text. Health is always plain text.
	TLS *tls.Config
	// Pool is asked for by streams that name none; zero: none.
	Pool service.Key
	// MaxBodyBytes bounds one request's body, MaxBufferedBytes those of all
	// streams.
	MaxBodyBytes, MaxBufferedBytes int64
	// MaxStreams is how many requests may be under way at once.
	MaxStreams int
	// DrainTimeout is how long requests under way may go on at the end.
	DrainTimeout time.Duration
	// SessionHeader names the header whose value keeps a client's requests on
	// one endpoint; "" for none.
	SessionHeader string
	// AllowPaths are forwarded as inference calls (route.Inference) are: a path,
	// or with "*" at its end all that begin so.
	AllowPaths []string
	// Ready reports whether requests can be placed; nil is always.
	Ready func() bool
	// Heard receives the load reports in answers' headers; it may be nil.
	Heard func(replica string, r orca.Report)
	Log   *slog.Logger
}

// DefaultConfig listens on loopback, on the ports pickers have.
func DefaultConfig() Config {
	return Config{
		Listen:           "127.0.0.1:9002",
		HealthListen:     "127.0.0.1:9003",
		MaxBodyBytes:     64 << 20,
		MaxBufferedBytes: 1 << 30,
		MaxStreams:       20_000,
		DrainTimeout:     30 * time.Second,
	}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct{ name, address string }{{"Listen", c.Listen}, {"HealthListen", c.HealthListen}} {
		if _, _, err := net.SplitHostPort(f.address); err != nil {
			errs = append(errs, fmt.Errorf("extproc: %s %q is not host:port: %w", f.name, f.address, err))
		}
	}
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"MaxBodyBytes", c.MaxBodyBytes}, {"MaxBufferedBytes", c.MaxBufferedBytes}, {"MaxStreams", int64(c.MaxStreams)}, {"DrainTimeout", int64(c.DrainTimeout)},
	} {
		if f.n <= 0 {
			errs = append(errs, fmt.Errorf("extproc: %s must be more than 0, is %d", f.name, f.n))
		}
	}
	for _, path := range c.AllowPaths {
		if !strings.HasPrefix(path, "/") || strings.Contains(strings.TrimSuffix(path, "*"), "*") {
			errs = append(errs, fmt.Errorf("extproc: AllowPaths has %q: want a path that begins with /, with * at its end for all below", path))
		}
	}
	if c.MaxBufferedBytes < c.MaxBodyBytes {
		errs = append(errs, fmt.Errorf("extproc: MaxBufferedBytes (%d) must hold one body of MaxBodyBytes (%d)", c.MaxBufferedBytes, c.MaxBodyBytes))
	}
	return errors.Join(errs...)
}

// allows reports whether a path is among AllowPaths.
func (c *Config) allows(path string) bool {
	return slices.ContainsFunc(c.AllowPaths, func(allowed string) bool {
		prefix, open := strings.CutSuffix(allowed, "*")
		return path == allowed || open && strings.HasPrefix(path, prefix)
	})
}

// The bounds of the protocol.
const (
	// maxPiece is the longest piece of a body in one message to Envoy: it
	// takes 64 KiB, and the message around the piece counts.
	maxPiece = 62_000
	// maxMessageExtra is what a message may hold beside a body.
	maxMessageExtra = 1 << 20
	// maxPromise is how much memory a body gets by its Content-Length alone.
	maxPromise = 1 << 20
	// maxUsageBody is the longest answer, no event stream, that usage is read
	// of.
	maxUsageBody = 1 << 20
	// maxSubset is how many endpoints a subset may list.
	maxSubset = 10_000

	window  = 1 << 20 // HTTP/2 window of a stream and of a connection
	workers = 16      // goroutines that take stream after stream
	// transportBuffer is what a connection collects before it writes: a long body goes
	// out in fewer system calls.
	transportBuffer = 256 << 10
	maxMetadata     = 64 << 10         // of a gRPC request
	handshakeTime   = 10 * time.Second // for a new connection to say what it is
	pingInterval    = 10 * time.Second // at which Envoy may ask whether we are there
	idlePing        = time.Minute      // after which we ask whether Envoy is
	pingTime        = 20 * time.Second // for Envoy to answer that
	connStreams     = 10_000           // streams of one connection: Envoy has one per worker
)
