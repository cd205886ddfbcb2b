package hubcache

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/peers"
)

// Config is a cache's folder, its upstream and its limits. Start from
// DefaultConfig; Dir must be set.
type Config struct {
	// Dir is the cache's folder, created with mode 0700.
	Dir string
	// Upstream is the origin of the Hub.
	Upstream string
	// PublicURL is the origin that clients reach the cache at, for links to
	// further pages. Empty: the Host of each request, over http.
	PublicURL string
	// Offline sends the Hub no requests: what is cached is served, the rest is
	// 504.
	Offline bool
	// OfflinePrivate lets everybody read, while Offline, cached repositories
	// that are not known to be public: gated and private ones.
	OfflinePrivate bool

	// MaxBytes bounds the blobs and partial downloads together; the least
	// recently used go first.
	MaxBytes int64
	// MinFree is how much of the disk is left to others.
	MinFree int64
	// MaxRecords bounds the files of metadata; beyond it answers are passed on
	// and not kept.
	MaxRecords int
	// RefLife is how long a branch's commit, and an answer about a branch, are
	// used without asking the Hub.
	RefLife time.Duration
	// GrantLife is how long the Hub's permission for a caller to read counts.
	GrantLife time.Duration
	// MaxGrants bounds how many of those are remembered.
	MaxGrants int
	// MaxDownloads is how many files are fetched at a time; more wait.
	MaxDownloads int
	// MaxAnswer bounds an answer of the Hub's API that is kept.
	MaxAnswer int64
	// MaxRequestBody bounds the body of a request.
	MaxRequestBody int64
	// MetadataTimeout bounds one metadata request to the Hub.
	MetadataTimeout time.Duration
	// StallTimeout ends a download that receives no byte for this long.
	StallTimeout time.Duration
	// ClientTimeout is how long a client may take for one part of a body.
	ClientTimeout time.Duration
	// Attempts is how often a download that receives nothing is tried,
	// RetryWait the pause before the second try; it doubles.
	Attempts  int
	RetryWait time.Duration
	// Linger is how long a download continues without readers.
	Linger time.Duration

	// Ring are the other nodes, if there are any: each blob of at least
	// RingMinBytes is kept by one of them. Its Log and Changed are the cache's.
	Ring         peers.Config
	RingMinBytes int64

	Transport http.RoundTripper // nil: connections of its own
	Log       *slog.Logger      // nil: silent
}

// DefaultConfig is a cache of huggingface.co.
func DefaultConfig() Config {
	return Config{
		Upstream:        "https://huggingface.co",
		MaxBytes:        1 << 40,
		MinFree:         1 << 30,
		MaxRecords:      2000000,
		RefLife:         time.Minute,
		GrantLife:       5 * time.Minute,
		MaxGrants:       100000,
		MaxDownloads:    32,
		MaxAnswer:       32 << 20,
		MaxRequestBody:  64 << 20,
		MetadataTimeout: 8 * time.Second,
		StallTimeout:    time.Minute,
		ClientTimeout:   2 * time.Minute,
		Attempts:        5,
		RetryWait:       200 * time.Millisecond,
		Linger:          10 * time.Second,
		Ring:            peers.DefaultConfig(),
		RingMinBytes:    1 << 20,
	}
}

// Validate reports every field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("hubcache: "+field+": "+format, args...))
	}
	if c.Dir == "" {
		bad("dir", "is empty; name a folder")
	}
	if _, err := origin(c.Upstream); err != nil {
		bad("upstream", "%w", err)
	}
	if c.PublicURL != "" {
		if _, err := origin(c.PublicURL); err != nil {
			bad("publicURL", "%w", err)
		}
	}
	for field, v := range map[string]int64{
		"maxBytes": c.MaxBytes, "maxRecords": int64(c.MaxRecords), "refLife": int64(c.RefLife), "grantLife": int64(c.GrantLife),
		"maxGrants": int64(c.MaxGrants), "maxDownloads": int64(c.MaxDownloads), "maxAnswer": c.MaxAnswer,
		"maxRequestBody": c.MaxRequestBody, "metadataTimeout": int64(c.MetadataTimeout), "stallTimeout": int64(c.StallTimeout),
		"clientTimeout": int64(c.ClientTimeout), "attempts": int64(c.Attempts), "retryWait": int64(c.RetryWait), "linger": int64(c.Linger),
	} {
		if v <= 0 {
			bad(field, "is %d; it must be above 0", v)
		}
	}
	if c.Ring.Enabled() {
		if err := c.Ring.Validate(); err != nil {
			bad("ring", "%w", err)
		}
	}
	if c.RingMinBytes < 0 {
		bad("ringMinBytes", "is %d; it must not be negative", c.RingMinBytes)
	}
	if c.MinFree < 0 {
		bad("minFree", "is %d; it must not be negative", c.MinFree)
	}
	return errors.Join(errs...)
}

// origin reads "https://host[:port]", with nothing after it.
func origin(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
		u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is no origin: want https://HOST[:PORT]", s)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}
