// Package epp asks endpoint pickers where requests go: it is the gateway's end
// of the endpoint picker protocol of the Gateway API Inference Extension, which
// is Envoy's external processing over gRPC. Package extproc is the other end.
//
//	the gateway                             the picker
//	request_headers                      →
//	request_body …, end_of_stream        →
//	                                     ←  request_headers: x-gateway-destination-endpoint,
//	                                        changed headers, dynamic metadata
//	                                     ←  request_body …: the body to send on
//	response_headers, and who served     →
//	                                     ←  response_headers: changed headers
//	end of the answer: end of the stream →
//
// or an immediate_response, which the client is given. A stream belongs to one
// request; those of a picker share connections. Bodies of answers are not sent.
//
// A picker is somebody else's program: what it says is bounded, and believed
// only as far as it concerns the pool that names it.
package epp

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Config bounds what a Client does. Start from DefaultConfig.
type Config struct {
	// Timeout is how long a picker may take to answer where a request goes,
	// connecting and waiting in its queue included.
	Timeout time.Duration
	// ConnectTimeout is the time to connect to one of its addresses.
	ConnectTimeout time.Duration
	// AnswerTimeout is how long the headers of an answer wait for a picker to
	// change them.
	AnswerTimeout time.Duration
	// IdleTimeout is when a connection without requests is closed.
	IdleTimeout time.Duration
	// MaxStreams is how many requests may be under way with pickers at once. A
	// namespace's pickers have no more than are left to others: one alone half of
	// them, each of two a third.
	MaxStreams int
	// MaxBodyBytes bounds the body that a picker gives a request.
	MaxBodyBytes int64
	Log          *slog.Logger
}

// DefaultConfig waits half a minute for a picker, since some have requests
// wait for a free endpoint.
func DefaultConfig() Config {
	return Config{
		Timeout:        30 * time.Second,
		ConnectTimeout: 2 * time.Second,
		AnswerTimeout:  time.Second,
		IdleTimeout:    5 * time.Minute,
		MaxStreams:     20_000,
		MaxBodyBytes:   64 << 20,
	}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"Timeout", int64(c.Timeout)}, {"ConnectTimeout", int64(c.ConnectTimeout)}, {"AnswerTimeout", int64(c.AnswerTimeout)},
		{"IdleTimeout", int64(c.IdleTimeout)}, {"MaxStreams", int64(c.MaxStreams)}, {"MaxBodyBytes", c.MaxBodyBytes},
	} {
		if f.n <= 0 {
			errs = append(errs, fmt.Errorf("epp: %s must be more than 0, is %d", f.name, f.n))
		}
	}
	return errors.Join(errs...)
}

// The bounds of the protocol.
const (
	// maxPiece is the longest piece of a body in one message.
	maxPiece = 62_000
	// maxMessage is the longest message of a picker. What one about a short body
	// may have is less: the header's changes or an answer of its own, and the body
	// twice, since what has come of a message is held until the rest is here.
	maxMessage      = 4 << 20
	maxMessageExtra = 192 << 10
	// maxMessages is how many messages a picker may send before it answers
	// where a request goes, plus one for each KiB of the body.
	maxMessages = 1_000
	// maxEndpoints is how many of the endpoints that a picker lists are tried.
	maxEndpoints = 32
	// maxChanges and maxChangedBytes bound the headers that a picker changes.
	maxChanges      = 1_000
	maxChangedBytes = 64 << 10
	// maxImmediate is the longest answer of a picker's own.
	maxImmediate = 128 << 10

	// foreignRetry is when a picker is asked again that named what is no endpoint.
	foreignRetry = 100 * time.Millisecond

	// maxMetadata bounds the metadata around a picker's messages, which HTTP/2 can
	// say again in a byte each: gRPC's own bound is 16 MiB for each request.
	maxMetadata = 16 << 10
	window      = 64 << 10 // HTTP/2 window of a stream: what nobody reads of it is held
	// pingAfter is longer than the five minutes that gRPC's servers want between
	// pings: they hang up on who asks more often. pingTime is also how long what
	// was sent may stay unacknowledged, which finds out a picker that is cut off.
	pingAfter  = 6 * time.Minute
	pingTime   = 10 * time.Second
	firstDelay = 200 * time.Millisecond // before connecting again
	lastDelay  = 5 * time.Second
)
