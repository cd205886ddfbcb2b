// Package front is what stands before requests in every process that answers
// them: the inference port's options, the request path over a fleet's facts,
// and the servers. `roundhouse up`, `roundhouse gateway` and the gateway of a
// cluster are put together of it.
package front

import (
	"cmp"
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

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/gateway"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/rawgrpc"
	"roundhouse.dev/roundhouse/internal/edge/tracing"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/journal"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// Options are what the inference port is told by flags.
type Options struct {
	apiKeys         string
	tlsCert, tlsKey string
	corsOrigins     []string
	allowedHosts    []string
	accessLog       string
	sessionHeader   string
	tracingServer   string
	answerTimeout   time.Duration
	queue           service.QueueBounds
	waitingComments time.Duration
}

// Flags adds the options' flags.
func (o *Options) Flags(f *pflag.FlagSet) {
	f.StringVar(&o.apiKeys, "api-keys", "", "file of API keys; with it every request needs a key (see roundhouse keys)")
	f.StringVar(&o.tlsCert, "tls-cert", "", "PEM file of the certificate for TLS on the inference port; read again when it changes")
	f.StringVar(&o.tlsKey, "tls-key", "", "PEM file of the certificate's key")
	f.StringArrayVar(&o.corsOrigins, "cors-origin", nil, "origin of web pages that may send requests, such as https://chat.example.com, or * for all; may be repeated")
	f.StringVar(&o.accessLog, "access-log", "", "file for one line of JSON per request; - for standard error")
	f.StringVar(&o.sessionHeader, "session-header", "", "header whose value keeps a client's requests on one replica")
	f.DurationVar(&o.answerTimeout, "answer-timeout", gateway.DefaultConfig().AnswerTimeout, "time until a replica must begin its answer, else the client gets 504; 0 is the default")
	f.IntVar(&o.queue.MaxRequests, "queue-max-requests", admission.DefaultConfig().MaxQueue, "requests of one service that may wait for a replica, else 429; 0 is the default; a manifest may say otherwise")
	f.DurationVar(&o.queue.MaxWait, "queue-max-wait", dispatch.DefaultConfig().MaxWait, "how long a request may wait for a replica, else 429 or 503; 0 is the default; a manifest may say otherwise")
	f.DurationVar(&o.waitingComments, "waiting-comments", 0, "tell clients of event streams by comments what their requests wait for, after this time and as often; 0 tells only those that ask by the header "+gateway.HeaderWaiting+": "+gateway.WaitingComments)
	f.StringVar(&o.tracingServer, "tracing-server", "", "OTLP collector for traces of this process and of replicas it starts: host:port (gRPC) or http://host:port; default: OTEL_EXPORTER_OTLP_ENDPOINT")
}

// HostFlags adds the option for processes on a machine where people browse.
func (o *Options) HostFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.allowedHosts, "allowed-hosts", nil, "host names that requests may have, or * for all; checked only on a loopback address without API keys; this machine's own and those of services and routes are always allowed")
}

// AllowAnyHost is for processes in a cluster: no browser reaches the loopback of
// a pod.
func (o *Options) AllowAnyHost() { o.allowedHosts = []string{"*"} }

// Access is what the options opened: who may ask, and how it is noted.
type Access struct {
	// Keys is nil where there is no file of keys.
	Keys *keys.Ring
	// Requests keep the last requests; nil keeps none.
	Requests *journal.Requests
	// Queue is for TrafficConfig.
	Queue     service.QueueBounds
	tls       *tls.Config
	cors      []string
	hosts     []string
	accessLog *observe.AccessLog
	tracer    trace.Tracer
	session   string
	answer    time.Duration // 0 leaves the default
	comments  time.Duration // gateway.Config.WaitingComments
	closers   []func() error
}

// Open reads the keys and certificates; standard is the file of keys unless
// another is named, and version is the binary's, for traces. The caller closes
// what it opened.
func (o *Options) Open(ctx context.Context, standard datadir.KeyFile, version string, logs io.Writer, log *slog.Logger) (fr *Access, err error) {
	if o.tracingServer != "" {
		// The one place that this process and its replicas both read.
		if err := os.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", o.tracingServer); err != nil {
			return nil, err
		}
	}
	fr = &Access{cors: o.corsOrigins, hosts: o.allowedHosts, session: o.sessionHeader, answer: o.answerTimeout, comments: o.waitingComments, Queue: o.queue}
	defer func() {
		if err != nil {
			err = errors.Join(err, fr.Close())
		}
	}()
	if err := HeaderName("--session-header", o.sessionHeader); err != nil {
		return fr, err
	}
	if o.answerTimeout < 0 {
		return fr, command.Usagef("--answer-timeout must not be negative, is %s", o.answerTimeout)
	}
	if o.queue.MaxRequests < 0 {
		return fr, command.Usagef("--queue-max-requests must not be negative, is %d", o.queue.MaxRequests)
	}
	if o.queue.MaxWait < 0 {
		return fr, command.Usagef("--queue-max-wait must not be negative, is %s", o.queue.MaxWait)
	}
	if o.waitingComments < 0 {
		return fr, command.Usagef("--waiting-comments must not be negative, is %s", o.waitingComments)
	}
	if (o.tlsCert == "") != (o.tlsKey == "") {
		return fr, command.Usagef("--tls-cert and --tls-key go together")
	}
	if o.tlsCert != "" {
		if fr.tls, err = gateway.TLS(o.tlsCert, o.tlsKey, log); err != nil {
			return fr, err
		}
	}
	if err := fr.openKeys(o.apiKeys, standard, log); err != nil {
		return fr, err
	}
	if err := fr.openLog(o.accessLog, logs); err != nil {
		return fr, err
	}
	return fr, fr.openTracer(ctx, version, log)
}

// HeaderName refuses what no header is called; "" names none.
func HeaderName(flag, name string) error {
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }) {
		return command.Usagef("%s is %q: want the name of a header, as X-Session-Id", flag, name)
	}
	return nil
}

func (fr *Access) openKeys(named string, standard datadir.KeyFile, log *slog.Logger) (err error) {
	file := standard
	if named != "" {
		file = datadir.KeyFile{Path: named}
	}
	if file.Path == "" {
		return nil
	}
	if fr.Keys, err = keys.Open(keys.DefaultConfig(), file); err != nil {
		return err
	}
	if named != "" && !fr.Keys.Required() {
		return fmt.Errorf("--api-keys %s: no such file: make a key with `roundhouse keys create NAME --file %s`", named, named)
	}
	if fr.Keys.Required() && len(fr.Keys.List()) == 0 {
		log.Warn("the file of API keys is lost, so every request is refused: restore it, or make a key with `roundhouse keys create NAME`; to require no keys again, delete the marker",
			"file", file.Path, "marker", file.Marker)
	}
	return nil
}

func (fr *Access) openLog(name string, logs io.Writer) error {
	switch name {
	case "":
		return nil
	case "-":
		fr.accessLog = observe.NewAccessLog(logs)
	default:
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("--access-log: %w", err)
		}
		fr.accessLog = observe.NewAccessLog(f)
		fr.closers = append(fr.closers, f.Close)
	}
	fr.closers = append([]func() error{fr.accessLog.Close}, fr.closers...)
	return nil
}

// openTracer exports spans as OpenTelemetry's variables configure.
func (fr *Access) openTracer(ctx context.Context, version string, log *slog.Logger) error {
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracing.ShutdownTimeout)
		defer cancel()
		return shutdown(ctx)
	})
	return nil
}

// ended are told of every request.
func (fr *Access) ended() observe.Sinks {
	return observe.Sinks{AccessLog: fr.accessLog, Requests: fr.Requests}
}

// Configure puts what was opened into the gateway's configuration.
func (fr *Access) Configure(c *gateway.Config) {
	c.Keys, c.TLS, c.CORSOrigins, c.Ended, c.Tracer, c.SessionHeader = fr.Keys, fr.tls, fr.cors, fr.ended(), fr.tracer, fr.session
	c.AllowedHosts, c.WaitingComments = fr.hosts, fr.comments
	c.AnswerTimeout = cmp.Or(fr.answer, c.AnswerTimeout)
}

// ConfigureGRPC does so for gRPC.
func (fr *Access) ConfigureGRPC(c *rawgrpc.Config) {
	c.Keys, c.TLS, c.Ended, c.Tracer, c.SessionKey = fr.Keys, fr.tls, fr.ended(), fr.tracer, strings.ToLower(fr.session)
	c.AnswerTimeout = cmp.Or(fr.answer, c.AnswerTimeout)
}

// Scheme is how the inference port is asked.
func (fr *Access) Scheme() string {
	if fr.tls != nil {
		return "https"
	}
	return "http"
}

// Warn logs a line if others than this machine's users can connect.
func (fr *Access) Warn(log *slog.Logger, listeners ...net.Listener) {
	for _, l := range listeners {
		if l == nil || l.Addr().(*net.TCPAddr).IP.IsLoopback() {
			continue
		}
		a := l.Addr()
		switch {
		case fr.Keys == nil || !fr.Keys.Required():
			log.Warn("anyone who reaches this address may ask every model: make an API key with `roundhouse keys create NAME`", "address", a.String())
		case fr.tls == nil:
			log.Warn("API keys travel in the clear to this address: serve TLS with --tls-cert and --tls-key", "address", a.String())
		}
	}
}

// Close ends what Open began.
func (fr *Access) Close() error {
	var errs []error
	for _, c := range fr.closers {
		errs = append(errs, c())
	}
	fr.closers = nil
	return errors.Join(errs...)
}
