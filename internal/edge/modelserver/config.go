package modelserver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// NoPort in place of a port turns a listener off.
const NoPort = -1

// Config is how a Server runs.
type Config struct {
	ServerName    string
	ServerVersion string
	Extensions    []string // named besides the server's own
	Host          string   // of all listeners
	// AllowedHosts are the hosts that requests may give besides this machine's own,
	// where Host is loopback; * is any.
	AllowedHosts []string

	HTTP    HTTPConfig
	GRPC    GRPCConfig
	Metrics MetricsConfig
	TLS     TLSConfig
	Cache   CacheConfig
	Limits  Limits

	// Tracer records spans; nil: none are.
	Tracer trace.Tracer

	// Aliases are further names by which models are asked, and the models' own.
	Aliases map[string]string

	// SharedMemory is what the names of POSIX shared memory begin with, / or longer, in
	// which clients of this machine may pass tensors; "": they may in none.
	SharedMemory string

	// LoadAtStartup loads every model of the repository when Run begins.
	LoadAtStartup bool
	// StrictShapes refuses tensors whose data do not fill their shape, of requests
	// and of answers. Without it those that only code reads are passed on.
	StrictShapes bool
	// Strict ends Run when a model cannot be loaded at the start.
	Strict bool
	// Standby, where it is set, offers two calls that unload all models, and load
	// them again. It is called before the one and after the other.
	Standby func(asleep bool)
}

// HTTPConfig is the HTTP interface.
type HTTPConfig struct {
	Port int // 0: any free port
	// RootPath is the path below which a proxy shows the server: requests may
	// come with it or without, and the docs name it.
	RootPath string
	// Gzip compresses answers for clients that ask for it.
	Gzip bool
	CORS *CORS // nil: no cross-origin requests
}

// CORS allows pages of other origins to send requests.
type CORS struct {
	AllowOrigins     []string `json:"allow_origins"`
	AllowOriginRegex *string  `json:"allow_origin_regex"` // matches the whole origin
	AllowCredentials bool     `json:"allow_credentials"`
	AllowMethods     []string `json:"allow_methods"`
	AllowHeaders     []string `json:"allow_headers"`
	ExposeHeaders    []string `json:"expose_headers"`
	MaxAge           int      `json:"max_age"` // seconds
}

// GRPCConfig is the gRPC interface.
type GRPCConfig struct {
	Port int // 0: any free port; NoPort: none
	// MaxMessageBytes bounds a message in either direction.
	MaxMessageBytes int
}

// MetricsConfig is where metrics are served and how some are called.
type MetricsConfig struct {
	Path string // "": nowhere
	// Port is that of a listener of its own; NoPort: beside the HTTP
	// interface.
	Port       int
	RESTPrefix string // of the metrics of the HTTP interface
	// Registry has further metrics, as those of models; nil: one of its own.
	Registry *metrics.Registry
}

// TLSConfig makes all listeners but the metrics' speak TLS, if it names files.
type TLSConfig struct {
	CertFile, KeyFile string // PEM
}

// Limits bound what requests may use.
type Limits struct {
	// MaxBodyBytes bounds a request's body, decompressed.
	MaxBodyBytes int64
	// MaxConcurrency bounds the inference requests under way; more are
	// answered 429. 0: no bound.
	MaxConcurrency int
	// ReadTimeout bounds reading a request.
	ReadTimeout time.Duration
	// WriteTimeout bounds sending an answer, or one event of a stream, to a
	// client that reads slowly.
	WriteTimeout time.Duration
	// DrainTimeout bounds how long requests under way are waited for, at the
	// end of the server and of an instance of a model.
	DrainTimeout time.Duration
}

// DefaultConfig is MLServer's, but on loopback, and with bounds.
func DefaultConfig() Config {
	return Config{
		ServerName:    "mlserver",
		Host:          "127.0.0.1",
		HTTP:          HTTPConfig{Port: 8080, Gzip: true},
		GRPC:          GRPCConfig{Port: 8081, MaxMessageBytes: 4 << 20},
		Metrics:       MetricsConfig{Path: "/metrics", Port: 8082, RESTPrefix: "rest_server"},
		Cache:         CacheConfig{Bytes: 64 << 20},
		LoadAtStartup: true,
		Limits: Limits{
			MaxBodyBytes: 64 << 20,
			ReadTimeout:  time.Minute,
			WriteTimeout: time.Minute,
			DrainTimeout: 30 * time.Second,
		},
	}
}

// prefixPattern is what may begin a metric's name.
var prefixPattern = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)

// Validate reports everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, port := range []struct {
		name    string
		value   int
		mayBeNo bool
	}{{"http_port", c.HTTP.Port, false}, {"grpc_port", c.GRPC.Port, true}, {"metrics_port", c.Metrics.Port, true}} {
		if port.value > 65535 || port.value < 0 && (port.value != NoPort || !port.mayBeNo) {
			wrong("%s %d: must be 0 to 65535", port.name, port.value)
		}
	}
	if c.GRPC.MaxMessageBytes <= 0 {
		wrong("grpc_max_message_length %d: must be above 0", c.GRPC.MaxMessageBytes)
	}
	if c.Metrics.Path != "" && c.Metrics.Path[0] != '/' {
		wrong("metrics_endpoint %q: must begin with /", c.Metrics.Path)
	}
	if !prefixPattern.MatchString(c.Metrics.RESTPrefix) {
		wrong("metrics_rest_server_prefix %q: must be letters, digits and underscores", c.Metrics.RESTPrefix)
	}
	if p := c.HTTP.RootPath; p != "" && (p[0] != '/' || strings.ContainsAny(p, "{}?#")) {
		wrong("root_path %q: must be a path that begins with /", p)
	}
	if c.HTTP.CORS != nil {
		errs = append(errs, c.HTTP.CORS.validate())
	}
	if c.Cache.Entries < 0 {
		wrong("cache_size %d: must be 0 (no cache) or above", c.Cache.Entries)
	}
	if c.Cache.Bytes <= 0 {
		wrong("cache of %d bytes: must be above 0", c.Cache.Bytes)
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		wrong("tls_cert_file %q, tls_key_file %q: TLS needs both", c.TLS.CertFile, c.TLS.KeyFile)
	}
	return errors.Join(append(errs, c.Limits.validate(), validSharedPrefix(c.SharedMemory))...)
}

func (c *CORS) validate() error {
	if c.AllowOriginRegex == nil {
		return nil
	}
	if _, err := regexp.Compile(*c.AllowOriginRegex); err != nil {
		return fmt.Errorf("cors_settings: allow_origin_regex: %w", err)
	}
	return nil
}

func (l Limits) validate() error {
	var errs []error
	if l.MaxBodyBytes <= 0 {
		errs = append(errs, fmt.Errorf("maximum body of %d bytes: must be above 0", l.MaxBodyBytes))
	}
	if l.MaxConcurrency < 0 {
		errs = append(errs, fmt.Errorf("maximum concurrency %d: must be 0 (none) or above", l.MaxConcurrency))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"read", l.ReadTimeout}, {"write", l.WriteTimeout}, {"drain", l.DrainTimeout}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s timeout %v: must be above 0", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}

// load reads the certificate; nil if none is named. The files are read again
// for connections that come after they changed, so that a renewed certificate
// needs no restart.
func (c TLSConfig) load() (*tls.Config, error) {
	if c.CertFile == "" {
		return nil, nil
	}
	pair := &keyPair{files: c}
	if _, err := pair.get(nil); err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}, nil
}

// changed is when the newer of the two files was written.
func (c TLSConfig) changed() (time.Time, error) {
	cert, err := os.Stat(c.CertFile)
	if err != nil {
		return time.Time{}, err
	}
	key, err := os.Stat(c.KeyFile)
	if err != nil {
		return time.Time{}, err
	}
	if key.ModTime().After(cert.ModTime()) {
		return key.ModTime(), nil
	}
	return cert.ModTime(), nil
}
