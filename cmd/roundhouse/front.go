package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/trace"

	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/gateway"
	"roundhouse.dev/roundhouse/internal/edge/gateway/rawgrpc"
	"roundhouse.dev/roundhouse/internal/edge/tracing"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// frontOptions are what the inference port is told, by `up` and by `gateway`.
type frontOptions struct {
	apiKeys         string
	tlsCert, tlsKey string
	corsOrigins     []string
	accessLog       string
	sessionHeader   string
	upstream        string
	tracingServer   string
}

func (o *frontOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.apiKeys, "api-keys", "", "file of API keys, which requests then need; see roundhouse keys")
	f.StringVar(&o.tlsCert, "tls-cert", "", "PEM file of the certificate to serve inference over TLS with; read again when it changes")
	f.StringVar(&o.tlsKey, "tls-key", "", "PEM file of its key")
	f.StringArrayVar(&o.corsOrigins, "cors-origin", nil, "origin of web pages that may ask, as https://chat.example.com, or * for all; may be repeated")
	f.StringVar(&o.accessLog, "access-log", "", "file to write a line of JSON per request to; - for standard error")
	f.StringVar(&o.sessionHeader, "session-header", "", "header whose value keeps a client's requests on one replica")
	f.StringVar(&o.tracingServer, "tracing-server", "", "OTLP collector for traces of this process and of replicas it starts: host:port (gRPC) or http://host:port; default: OTEL_EXPORTER_OTLP_ENDPOINT")
	f.StringVar(&o.upstream, "upstream-client", gateway.UpstreamOwn, "HTTP client that asks replicas: own, or net/http, which costs more than twice the CPU time")
}

// front is what the options opened.
type front struct {
	keys      *keys.Ring
	tls       *tls.Config
	cors      gateway.CORS
	accessLog *gateway.AccessLog
	tracer    trace.Tracer
	session   string
	upstream  string
	closers   []func() error
}

// open reads the keys and certificates; standard is the file of keys unless
// another is named. The caller closes the front.
func (o *frontOptions) open(ctx context.Context, standard datadir.KeyFile, logs io.Writer, log *slog.Logger) (fr *front, err error) {
	if o.tracingServer != "" {
		// The one place that this process and its replicas both read.
		if err := os.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", o.tracingServer); err != nil {
			return nil, err
		}
	}
	fr = &front{cors: gateway.CORS{Origins: o.corsOrigins}, session: o.sessionHeader, upstream: o.upstream}
	defer func() {
		if err != nil {
			err = errors.Join(err, fr.close())
		}
	}()
	if err := headerName("--session-header", o.sessionHeader); err != nil {
		return fr, err
	}
	if (o.tlsCert == "") != (o.tlsKey == "") {
		return fr, usagef("--tls-cert and --tls-key go together")
	}
	if o.tlsCert != "" {
		if fr.tls, err = gateway.TLS(o.tlsCert, o.tlsKey, log); err != nil {
			return fr, err
		}
	}
	if err := fr.openKeys(o.apiKeys, standard); err != nil {
		return fr, err
	}
	if err := fr.openLog(o.accessLog, logs); err != nil {
		return fr, err
	}
	return fr, fr.openTracer(ctx, log)
}

// headerName refuses what no header is called; "" names none.
func headerName(flag, name string) error {
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }) {
		return usagef("%s is %q: want the name of a header, as X-Session-Id", flag, name)
	}
	return nil
}

func (fr *front) openKeys(named string, standard datadir.KeyFile) (err error) {
	file := standard
	if named != "" {
		file = datadir.KeyFile{Path: named}
	}
	if file.Path == "" {
		return nil
	}
	if fr.keys, err = keys.Open(keys.DefaultConfig(), file); err != nil {
		return err
	}
	if named != "" && !fr.keys.Required() {
		return fmt.Errorf("--api-keys %s: no such file: make a key with `roundhouse keys create NAME --file %s`", named, named)
	}
	return nil
}

func (fr *front) openLog(name string, logs io.Writer) error {
	switch name {
	case "":
		return nil
	case "-":
		fr.accessLog = gateway.NewAccessLog(logs)
	default:
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("--access-log: %w", err)
		}
		fr.accessLog = gateway.NewAccessLog(f)
		fr.closers = append(fr.closers, f.Close)
	}
	fr.closers = append([]func() error{fr.accessLog.Close}, fr.closers...)
	return nil
}

// traceShutdown is how long the last spans may take to be exported.
const traceShutdown = 3 * time.Second

// openTracer exports spans where OpenTelemetry's variables say.
func (fr *front) openTracer(ctx context.Context, log *slog.Logger) error {
	cfg := tracing.DefaultConfig()
	cfg.Version = version
	cfg, err := cfg.WithEnvironment(os.Environ())
	if err != nil || cfg.Endpoint == "" {
		return err
	}
	provider, shutdown, err := tracing.New(ctx, cfg, log)
	if err != nil {
		return err
	}
	fr.tracer = provider.Tracer("roundhouse.dev/roundhouse/gateway", trace.WithInstrumentationVersion(version))
	fr.closers = append(fr.closers, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceShutdown)
		defer cancel()
		return shutdown(ctx)
	})
	return nil
}

// configure puts what was opened into the gateway's configuration.
func (fr *front) configure(c *gateway.Config) {
	c.Keys, c.TLS, c.CORS, c.AccessLog, c.Tracer, c.SessionHeader = fr.keys, fr.tls, fr.cors, fr.accessLog, fr.tracer, fr.session
	c.Upstream = fr.upstream
}

// configureGRPC does so for gRPC.
func (fr *front) configureGRPC(c *rawgrpc.Config) {
	c.Keys, c.TLS, c.AccessLog, c.Tracer, c.SessionKey = fr.keys, fr.tls, fr.accessLog, fr.tracer, strings.ToLower(fr.session)
}

// scheme is how the inference port is asked.
func (fr *front) scheme() string {
	if fr.tls != nil {
		return "https"
	}
	return "http"
}

// warn says in one line that a door is open to others than this machine's
// users.
func (fr *front) warn(log *slog.Logger, listeners ...net.Listener) {
	for _, l := range listeners {
		if l == nil || l.Addr().(*net.TCPAddr).IP.IsLoopback() {
			continue
		}
		a := l.Addr()
		switch {
		case fr.keys == nil || !fr.keys.Required():
			log.Warn("anyone who reaches this address may ask every model: make an API key with `roundhouse keys create NAME`", "address", a.String())
		case fr.tls == nil:
			log.Warn("API keys travel in the clear to this address: serve TLS with --tls-cert and --tls-key", "address", a.String())
		}
	}
}

func (fr *front) close() error {
	var errs []error
	for _, c := range fr.closers {
		errs = append(errs, c())
	}
	fr.closers = nil
	return errors.Join(errs...)
}
