// Package http1 is a client of cleartext HTTP/1.1 for a proxy. A request runs
// on the goroutine that sends it: no goroutine reads or writes on its behalf,
// but one for a body too long to be written at once. That is what it is for:
// net/http's transport needs two goroutines a connection and four hand-overs a
// request, more than half of a proxy's CPU time.
//
// Answers are parsed strictly: where readers are known to disagree on where an
// answer ends (Content-Length with Transfer-Encoding, folded lines, lengths
// that are no plain number) the answer is refused. Everything that is accepted
// means what it means to net/http; tests compare the two.
//
// TLS, HTTP/2, proxies, redirects, cookies, compression and upgrades are not
// its business.
package http1

import (
	"errors"
	"fmt"
	"time"
)

// Config bounds a Client. Start from DefaultConfig.
type Config struct {
	// DialTimeout is the time to connect.
	DialTimeout time.Duration
	// IdleTimeout is how long a connection is kept that is not in use.
	IdleTimeout time.Duration
	// MaxIdlePerHost and MaxIdle are how many of those are kept per address
	// and in all.
	MaxIdlePerHost, MaxIdle int
	// MaxHeaderBytes bounds an answer's header.
	MaxHeaderBytes int
}

// DefaultConfig keeps a connection for 4 s: less than the 5 s after which
// uvicorn, behind most Python servers, closes it.
func DefaultConfig() Config {
	return Config{
		DialTimeout:    5 * time.Second,
		IdleTimeout:    4 * time.Second,
		MaxIdlePerHost: 256,
		MaxIdle:        4096,
		MaxHeaderBytes: 256 << 10,
	}
}

// Bounds that are no settings.
const (
	// maxInterim is how many 1xx answers may come before the answer.
	maxInterim = 5
	// maxChunkLine bounds the line before a chunk, its extension included, and
	// maxTrailerBytes all of a trailer, in bytes.
	maxChunkLine    = 512
	maxTrailerBytes = 16 << 10
	// maxFields is how many fields a header may have, and a trailer.
	maxFields = 1000
	// inlineBytes is the longest body that is written before anything of the
	// answer is read. A server that answers before it has read a longer one
	// would wait for us while we wait for it, so a goroutine writes those.
	inlineBytes = 64 << 10
	// bufferSize is the size of the buffer answers are read through, in bytes.
	bufferSize = 4 << 10
	// pieceSize is what is read of a streamed body at once, in bytes.
	pieceSize = 32 << 10
)

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"DialTimeout", int64(c.DialTimeout)}, {"IdleTimeout", int64(c.IdleTimeout)},
		{"MaxIdlePerHost", int64(c.MaxIdlePerHost)}, {"MaxIdle", int64(c.MaxIdle)},
		{"MaxHeaderBytes", int64(c.MaxHeaderBytes)},
	} {
		if f.n <= 0 {
			errs = append(errs, fmt.Errorf("http1: %s must be more than 0, is %d", f.name, f.n))
		}
	}
	return errors.Join(errs...)
}
