package artifact

import (
	"errors"
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// Config bounds a [Store]. The zero value of every field but Dir means its
// default, see [Config.WithDefaults].
type Config struct {
	// Dir is the folder of the store, created with mode 0700.
	Dir string
	// HubEndpoint is the Hugging Face Hub that hf:// is read from. Empty: what
	// HF_ENDPOINT names, else https://huggingface.co.
	HubEndpoint string
	// Blobs are the files of the cache that HubEndpoint is: what is there is
	// linked to, not copied. Nil where the endpoint is the Hub itself, or a
	// cache elsewhere.
	Blobs *blobs.Store
	// PublicOnly refuses internal addresses (loopback, link-local, private) to
	// hosts that a URI names and to what they lead to. Endpoints that the
	// environment names, and proxies, are asked wherever they are: they are the
	// choice of who runs this. It is [New]'s own client that heeds it.
	PublicOnly bool
	// StoreBytes bounds everything in the store together; the least recently
	// used goes when there is more. 0 is no bound.
	StoreBytes int64
	// BoundName names StoreBytes in errors. Default --models-max-bytes.
	BoundName string
	// Confirmed: a copy is used only once its source has said to this process
	// that it is current. Others may have fetched it, from another endpoint or
	// with rights that this one lacks.
	Confirmed bool
	// InUse lists what must stay: URIs and keys of Requests, whose present copies it
	// means, and paths that Fetch or Lookup returned. A store without it removes nothing.
	InUse func() []string
	// MaxBytes bounds one artifact, all its files together. Default 1 TiB.
	MaxBytes int64
	// MaxFiles bounds the files of one artifact. Default 10000.
	MaxFiles int
	// MaxExpansion bounds how many times larger than itself an archive may
	// unpack; archives may always unpack to 1 GiB. Default 50.
	MaxExpansion int
	// Concurrency is the number of connections that bring bytes at a time, over
	// all fetches. Default 16.
	Concurrency int
	// Connections is how many of them one large file may have. Default 8.
	Connections int
	// PieceBytes is what such a connection asks for at a time. Files of less
	// than two pieces come over one. Default 16 MiB.
	PieceBytes int64
	// Attempts is how often a request is tried when the network or the server
	// fails. Attempts that brought bytes are not counted. Default 5.
	Attempts int
	// RetryWait is the wait before the second attempt; it doubles up to 30 s.
	// Default 500 ms.
	RetryWait time.Duration
	// StallTimeout ends a request that brings no byte for this long. Default
	// 60 s.
	StallTimeout time.Duration
}

// WithDefaults returns c with every zero field replaced by its default.
func (c Config) WithDefaults() Config {
	orDefault(&c.BoundName, "--models-max-bytes")
	orDefault(&c.MaxBytes, 1<<40)
	orDefault(&c.MaxFiles, 10_000)
	orDefault(&c.MaxExpansion, 50)
	orDefault(&c.Concurrency, 16)
	orDefault(&c.Connections, 8)
	orDefault(&c.PieceBytes, 16<<20)
	orDefault(&c.Attempts, 5)
	orDefault(&c.RetryWait, 500*time.Millisecond)
	orDefault(&c.StallTimeout, time.Minute)
	return c
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Validate reports every field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("artifact: dir: is empty; name a folder for downloads"))
	}
	positive := func(field string, v int64) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("artifact: %s: is %d; it must be above 0", field, v))
		}
	}
	if c.StoreBytes < 0 {
		errs = append(errs, fmt.Errorf("artifact: storeBytes: is %d; it must not be negative", c.StoreBytes))
	}
	positive("maxBytes", c.MaxBytes)
	positive("maxFiles", int64(c.MaxFiles))
	positive("maxExpansion", int64(c.MaxExpansion))
	positive("concurrency", int64(c.Concurrency))
	positive("connections", int64(c.Connections))
	positive("pieceBytes", c.PieceBytes)
	positive("attempts", int64(c.Attempts))
	positive("retryWait", int64(c.RetryWait))
	positive("stallTimeout", int64(c.StallTimeout))
	return errors.Join(errs...)
}
