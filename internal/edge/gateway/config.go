// Package gateway is the HTTP door to every model: it finds the model a
// request names, has package dispatch find a replica, and forwards bytes. It
// never translates a protocol and never re-encodes a body; the one change it
// makes is the model's name, where the replica knows the model by another.
//
// The surfaces served on one port:
//
//   - OpenAI: POST /v1/… with a "model" in the body, GET /v1/models; the prefix
//     /openai of KServe's own servers is accepted before /v1.
//   - Anthropic: POST /v1/messages and /v1/messages/count_tokens.
//   - Cohere: POST /v1/chat, /v1/embed, /v2/chat, /v2/embed, /v2/rerank.
//   - KServe v1: POST /v1/models/{name}:predict and :explain,
//     GET /v1/models and /v1/models/{name}.
//   - Open Inference Protocol: /v2/models/{name}/…, /v2, /v2/health/…, and
//     the repository extension over all services.
//
// A name is bare while it is unique, else "namespace/name" ("namespace%2Fname"
// within a path), or the Host of the service's URL decides.
//
// What is asked of a service with no replica: readiness (GET
// /v2/models/{name}/ready, GET /v1/models/{name}) starts nothing and says
// ready, since the next request is answered; the repository index says
// UNAVAILABLE with the reason "asleep", since nothing is loaded. Every other
// request for the model, its metadata too, wakes it. POST
// /v2/repository/models/{name}/load wakes it and waits until it is ready;
// /unload puts it to sleep until the next request.
package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/trace"

	"roundhouse.dev/roundhouse/internal/core/orca"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/outside"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// Config bounds what the gateway accepts and for how long it waits. Start from
// DefaultConfig.
type Config struct {
	// Listen is "host:port".
	Listen string
	// MaxHeaderBytes and MaxBodyBytes bound one request. Bodies in which the
	// model is looked for are held in memory whole; of others the first
	// MaxReplayBytes are, and only requests that fit can be sent again.
	MaxHeaderBytes int
	MaxBodyBytes   int64
	MaxReplayBytes int64
	// MaxBufferedBytes bounds the bodies of all requests held in memory.
	MaxBufferedBytes int64
	// HeaderTimeout is the time to send a request's header, IdleTimeout the
	// time between two requests on a connection.
	HeaderTimeout, IdleTimeout time.Duration
	// ClientTimeout is how long one read of a request's body, or one write of
	// an answer, may make no progress.
	ClientTimeout time.Duration
	// AnswerTimeout is how long a replica may take to begin its answer,
	// StallTimeout how long it may pause within it.
	AnswerTimeout, StallTimeout time.Duration
	// PrefillTimeout is how long a prefill replica may take where the gateway
	// asks it; the decode replica then computes the prompt.
	PrefillTimeout time.Duration
	// WaitingComments is after how long of waiting, and how often from then on, a
	// client of an event stream is told by a comment what its request waits for. 0
	// tells those alone that ask for it by HeaderWaiting.
	WaitingComments time.Duration
	// DialTimeout is the time to connect to a replica.
	DialTimeout time.Duration
	// MaxIdleConns is how many idle connections are kept per replica.
	MaxIdleConns int
	// DrainTimeout is how long requests in flight may go on when the gateway
	// stops.
	DrainTimeout time.Duration
	// GRPC answers calls over gRPC that come to the gateway's ports, over HTTP/2; nil has
	// them answered as any request.
	GRPC http.Handler
	// SessionHeader names the header whose value keeps a client's requests on
	// one replica; "" for none.
	SessionHeader string
	// TLS serves HTTPS; nil serves plain HTTP. Both serve HTTP/2.
	TLS *tls.Config
	// CORSOrigins are the origins of web pages that may send requests and read
	// answers ("https://chat.example.com"), or "*" for all. Keys travel in a header,
	// so no page may use a browser's cookies.
	CORSOrigins []string
	// AllowedHosts are hosts that requests may name, "*" for all, besides this
	// machine's own and those that services and routes name. They count where
	// Listen is on loopback and no API key is needed.
	AllowedHosts []string
	// Keys are the API keys; nil needs none.
	Keys *keys.Ring
	// Heard is told what replicas say of their load in answers' headers; nil
	// tells nobody.
	Heard func(replica string, r orca.Report)
	// Picker asks the endpoint pickers that pools name; nil asks none.
	Picker Picker
	// Reach returns where servers are reached that manifests name for loggers and steps of
	// graphs, where their authors may not reach all that the gateway can: steps then ask
	// services of the graph's namespace alone. nil reaches everything.
	Reach outside.Reach
	// Ended are told of every request.
	Ended observe.Sinks
	// Tracer records spans; nil records none.
	Tracer trace.Tracer
	// Version is told by GET /v2.
	Version string
}

// DefaultConfig listens on loopback and takes bodies up to 64 MiB.
func DefaultConfig() Config {
	return Config{
		Listen:           "127.0.0.1:8080",
		MaxHeaderBytes:   64 << 10,
		MaxBodyBytes:     64 << 20,
		MaxReplayBytes:   1 << 20,
		MaxBufferedBytes: 1 << 30,
		HeaderTimeout:    10 * time.Second,
		IdleTimeout:      2 * time.Minute,
		ClientTimeout:    time.Minute,
		AnswerTimeout:    30 * time.Minute,
		StallTimeout:     10 * time.Minute,
		PrefillTimeout:   2 * time.Minute,
		DialTimeout:      5 * time.Second,
		MaxIdleConns:     256,
		DrainTimeout:     30 * time.Second,
		Version:          "dev",
	}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("gateway: Listen %q is not host:port: %w", c.Listen, err))
	}
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"MaxHeaderBytes", int64(c.MaxHeaderBytes)}, {"MaxBodyBytes", c.MaxBodyBytes},
		{"MaxReplayBytes", c.MaxReplayBytes}, {"MaxBufferedBytes", c.MaxBufferedBytes},
		{"HeaderTimeout", int64(c.HeaderTimeout)}, {"IdleTimeout", int64(c.IdleTimeout)},
		{"ClientTimeout", int64(c.ClientTimeout)}, {"AnswerTimeout", int64(c.AnswerTimeout)},
		{"StallTimeout", int64(c.StallTimeout)}, {"DialTimeout", int64(c.DialTimeout)}, {"PrefillTimeout", int64(c.PrefillTimeout)},
		{"MaxIdleConns", int64(c.MaxIdleConns)}, {"DrainTimeout", int64(c.DrainTimeout)},
	} {
		if f.n <= 0 {
			errs = append(errs, fmt.Errorf("gateway: %s must be more than 0, is %d", f.name, f.n))
		}
	}
	if c.WaitingComments < 0 {
		errs = append(errs, fmt.Errorf("gateway: WaitingComments must not be negative, is %v", c.WaitingComments))
	}
	if c.MaxBufferedBytes < c.MaxBodyBytes {
		errs = append(errs, fmt.Errorf("gateway: MaxBufferedBytes (%d) must hold one body of MaxBodyBytes (%d)",
			c.MaxBufferedBytes, c.MaxBodyBytes))
	}
	for _, o := range c.CORSOrigins {
		u, err := url.Parse(o)
		if o != "*" && (err != nil || u.Host == "" || u.Scheme+"://"+u.Host != o) {
			errs = append(errs, fmt.Errorf("gateway: CORS origin %q is not valid: write scheme://host[:port] or *", o))
		}
	}
	return errors.Join(errs...)
}
