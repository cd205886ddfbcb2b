package tracing

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// The protocols of OTLP.
const (
	ProtocolGRPC = "grpc"
	ProtocolHTTP = "http/protobuf"
)

// ShutdownTimeout is how long the last spans may take to be exported.
const ShutdownTimeout = 3 * time.Second

// Config configures which spans are recorded and where they are sent.
type Config struct {
	// Endpoint is the collector: "host:port" means OTLP over gRPC without TLS,
	// as MLServer's tracing_server; a URL of http or https means OTLP over HTTP
	// (at /v1/traces unless it has a path), or over gRPC if Protocol is "grpc"
	// or the port is 4317. "" records nothing.
	Endpoint string
	Protocol string // "": as Endpoint says
	// Headers are sent with every export.
	Headers map[string]string
	Gzip    bool // compress exports
	TLS     TLSConfig

	// Service, Version and Attributes describe this program in the resource of
	// the spans.
	Service, Version string
	Attributes       map[string]string

	Sampler Sampler
	Batch   BatchConfig
	Limits  Limits
}

// TLSConfig names the PEM files for TLS to the collector. "" means the system's
// authorities, and no client certificate.
type TLSConfig struct {
	CAFile, CertFile, KeyFile string
}

// Sampler chooses the traces that are recorded.
type Sampler struct {
	// Parent makes a span follow its caller's decision, if there is one.
	Parent bool
	// Ratio is the part of the other traces that are recorded, 0 to 1, chosen
	// by their ids as OpenTelemetry's TraceIdRatioBased does.
	Ratio float64
}

// BatchConfig bounds the export.
type BatchConfig struct {
	// MaxQueue is how many ended spans wait; more are dropped and counted.
	MaxQueue int
	MaxSize  int           // spans in one export
	Delay    time.Duration // from a span's end to its export, at most, while the collector takes them
	Timeout  time.Duration // of one try
	// RetryFor is how long a failed batch is sent again, with growing pauses,
	// before it is dropped.
	RetryFor time.Duration
}

// Limits bounds one span. What exceeds them is dropped and counted in the span.
type Limits struct {
	MaxAttributes, MaxEvents, MaxLinks int
	MaxValueBytes                      int // of a text, which is cut
}

// DefaultConfig records every trace, once it has an endpoint, unless a caller
// decided otherwise.
func DefaultConfig() Config {
	return Config{
		Service: "roundhouse",
		Sampler: Sampler{Parent: true, Ratio: 1},
		Batch:   BatchConfig{MaxQueue: 2048, MaxSize: 512, Delay: 5 * time.Second, Timeout: 10 * time.Second, RetryFor: time.Minute},
		Limits:  Limits{MaxAttributes: 64, MaxEvents: 32, MaxLinks: 128, MaxValueBytes: 4096},
	}
}

// Validate reports everything that is wrong with c.
func (c Config) Validate() error {
	if c.Endpoint == "" {
		return nil
	}
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf("tracing: "+format, args...)) }
	if _, err := c.target(); err != nil {
		errs = append(errs, err)
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		wrong("client certificate %q, key %q: give both or none", c.TLS.CertFile, c.TLS.KeyFile)
	}
	if !(c.Sampler.Ratio >= 0 && c.Sampler.Ratio <= 1) {
		wrong("sampler's ratio is %v; 0 to 1", c.Sampler.Ratio)
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"batch.maxQueue", c.Batch.MaxQueue}, {"batch.maxSize", c.Batch.MaxSize}, {"limits.maxAttributes", c.Limits.MaxAttributes},
		{"limits.maxEvents", c.Limits.MaxEvents}, {"limits.maxLinks", c.Limits.MaxLinks}, {"limits.maxValueBytes", c.Limits.MaxValueBytes}} {
		if n.value <= 0 || n.value > 1<<20 {
			wrong("%s is %d; 1 to %d", n.name, n.value, 1<<20)
		}
	}
	for name, d := range map[string]time.Duration{"delay": c.Batch.Delay, "timeout": c.Batch.Timeout, "retryFor": c.Batch.RetryFor} {
		if d <= 0 {
			wrong("batch.%s is %s; it must be above 0", name, d)
		}
	}
	return errors.Join(errs...)
}

// target is a parsed endpoint.
type target struct {
	protocol string
	secure   bool
	address  string // host:port, for gRPC
	url      string // for HTTP
}

// grpcPort is the one registered for OTLP over gRPC.
const grpcPort = "4317"

// tracesPath is where collectors take spans over HTTP.
const tracesPath = "/v1/traces"

// target parses the endpoint.
func (c Config) target() (target, error) {
	if c.Protocol != "" && c.Protocol != ProtocolGRPC && c.Protocol != ProtocolHTTP {
		return target{}, fmt.Errorf("tracing: protocol %q is not spoken; have %s and %s", c.Protocol, ProtocolGRPC, ProtocolHTTP)
	}
	read := c.addressTarget
	if strings.Contains(c.Endpoint, "://") {
		read = c.urlTarget
	}
	t, wrong := read()
	if wrong != "" {
		return target{}, fmt.Errorf("tracing: endpoint %q: %s; write host:port for gRPC or http://host:port", c.Endpoint, wrong)
	}
	return t, nil
}

// addressTarget parses an endpoint of host and port; wrong is the problem, ""
// for none.
func (c Config) addressTarget() (t target, wrong string) {
	u, err := url.Parse("//" + c.Endpoint)
	if err != nil || u.Hostname() == "" || u.User != nil || u.Path+u.RawQuery+u.Fragment != "" {
		return t, "not an address"
	}
	if u.Port() == "" {
		return t, "no port"
	}
	if c.Protocol == ProtocolHTTP {
		return target{protocol: ProtocolHTTP, url: "http://" + u.Host + tracesPath}, ""
	}
	return target{protocol: ProtocolGRPC, address: u.Host}, ""
}

// urlTarget parses an endpoint that is a URL.
func (c Config) urlTarget() (t target, wrong string) {
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Hostname() == "" {
		return t, "not a URL"
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return t, "scheme " + u.Scheme + " is not spoken"
	}
	t.protocol, t.secure = ProtocolHTTP, u.Scheme == "https"
	bare := strings.Trim(u.Path, "/") == ""
	if c.Protocol == ProtocolGRPC || c.Protocol == "" && bare && u.Port() == grpcPort {
		t.protocol, t.address = ProtocolGRPC, u.Host
		if u.Port() == "" {
			t.address += ":" + grpcPort
		}
		return t, ""
	}
	if bare {
		u.Path = tracesPath
	}
	t.url = u.String()
	return t, ""
}
