// Package rawgrpc is the gateway's server for the Open Inference Protocol over
// gRPC. The gateway itself answers calls for liveness, readiness and the
// repository, as it does over HTTP. It forwards inference and a model's metadata
// to a replica, which package dispatch chooses.
//
// A forwarded message is never decoded: the gateway passes on the pieces in which
// it arrived. It steps over the fields of the message to read model_name (scan.go),
// and replaces the name if the replica has another name for the model (frame.go).
//
// A call may move to another replica until the first message of its answer has
// come. A client that does not read an answer within Config.ClientTimeout is
// disconnected, since gRPC's server cannot end one answer among several on a
// connection.
package rawgrpc

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// Config bounds what the server accepts and how long it waits. Start from
// DefaultConfig.
type Config struct {
	// TLS configures TLS; nil means plain text.
	TLS *tls.Config
	// MaxMessageBytes bounds one message, decompressed, in either direction.
	MaxMessageBytes int
	// MaxBufferedBytes bounds the messages of all calls held in memory: whole
	// requests, and answers until they have left.
	MaxBufferedBytes int64
	// MaxMetadataBytes bounds the metadata of a call.
	MaxMetadataBytes uint32
	// MaxConnections is how many clients may be connected, MaxCalls how many
	// calls each may have under way, on a connection to the HTTP port too.
	MaxConnections int
	MaxCalls       uint32
	// HandshakeTimeout bounds the handshake of a new connection.
	HandshakeTimeout time.Duration
	// IdleTimeout is after how long a connection without a call is closed: a
	// client's, and the gateway's own to a replica.
	IdleTimeout time.Duration
	// RequestTimeout is the time for a unary call's message to arrive whole.
	RequestTimeout time.Duration
	// ClientTimeout is how long a client may read nothing of an answer.
	ClientTimeout time.Duration
	// AnswerTimeout is how long a replica may take to begin its answer,
	// StallTimeout how long a stream may pause in both directions.
	AnswerTimeout, StallTimeout time.Duration
	// DialTimeout is the time to connect to a replica.
	DialTimeout time.Duration
	// DrainTimeout is how long calls in flight may go on when the server stops.
	DrainTimeout time.Duration
	// SessionKey names the metadata whose value keeps a client's calls on one
	// replica; "" for none.
	SessionKey string
	// Keys are the API keys; with nil, calls need none.
	Keys *keys.Ring
	// Ended are told of every call for a model.
	Ended observe.Sinks
	// Tracer records a span of every call for a model and of its tries; nil for
	// none.
	Tracer trace.Tracer
	// Version is the version in the answers of ServerMetadata.
	Version string
}

// DefaultConfig has the same limits as the gateway's default for HTTP.
func DefaultConfig() Config {
	return Config{
		MaxMessageBytes:  64 << 20,
		MaxBufferedBytes: 1 << 30,
		MaxMetadataBytes: 64 << 10,
		MaxConnections:   1000,
		MaxCalls:         250,
		HandshakeTimeout: 10 * time.Second,
		IdleTimeout:      2 * time.Minute,
		RequestTimeout:   5 * time.Minute,
		ClientTimeout:    time.Minute,
		AnswerTimeout:    30 * time.Minute,
		StallTimeout:     10 * time.Minute,
		DialTimeout:      5 * time.Second,
		DrainTimeout:     30 * time.Second,
		Version:          "dev",
	}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"MaxMessageBytes", int64(c.MaxMessageBytes)}, {"MaxBufferedBytes", c.MaxBufferedBytes},
		{"MaxMetadataBytes", int64(c.MaxMetadataBytes)}, {"MaxConnections", int64(c.MaxConnections)},
		{"MaxCalls", int64(c.MaxCalls)}, {"HandshakeTimeout", int64(c.HandshakeTimeout)},
		{"IdleTimeout", int64(c.IdleTimeout)}, {"RequestTimeout", int64(c.RequestTimeout)},
		{"ClientTimeout", int64(c.ClientTimeout)}, {"AnswerTimeout", int64(c.AnswerTimeout)},
		{"StallTimeout", int64(c.StallTimeout)}, {"DialTimeout", int64(c.DialTimeout)},
		{"DrainTimeout", int64(c.DrainTimeout)},
	} {
		if f.n <= 0 {
			errs = append(errs, fmt.Errorf("rawgrpc: %s must be more than 0, is %d", f.name, f.n))
		}
	}
	if c.MaxBufferedBytes < int64(c.MaxMessageBytes) {
		errs = append(errs, fmt.Errorf("rawgrpc: MaxBufferedBytes (%d) must hold one message of MaxMessageBytes (%d)",
			c.MaxBufferedBytes, c.MaxMessageBytes))
	}
	return errors.Join(errs...)
}
