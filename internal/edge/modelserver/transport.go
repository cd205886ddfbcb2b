package modelserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// transport is a protocol that the server speaks on a port of its own.
type transport interface {
	// listen binds the port; at most once.
	listen() (net.Addr, error)
	// serve answers calls until shutdown; listen came before.
	serve() error
	// shutdown accepts no new calls and waits for those under way; when ctx
	// ends first it cuts them off and is an error.
	shutdown(ctx context.Context) error
	protocol() string
}

// httpTransport is an HTTP server.
type httpTransport struct {
	name     string // of the protocol, for errors
	host     string
	port     int
	server   *http.Server
	tls      *tls.Config // nil: plain text
	listener net.Listener
}

func (t *httpTransport) protocol() string { return t.name }

func (t *httpTransport) listen() (net.Addr, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(t.host, strconv.Itoa(t.port)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.name, err)
	}
	t.listener = l
	return l.Addr(), nil
}

func (t *httpTransport) serve() error {
	var err error
	if t.tls != nil {
		t.server.TLSConfig = t.tls.Clone() // net/http changes it
		err = t.server.ServeTLS(t.listener, "", "")
	} else {
		err = t.server.Serve(t.listener)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (t *httpTransport) shutdown(ctx context.Context) error {
	err := t.server.Shutdown(ctx)
	if err != nil {
		_ = t.server.Close() // what matters is said by the caller
		_ = t.listener.Close()
	}
	return err
}

// newHTTPServer is a server with bounds on what a slow client may hold.
func newHTTPServer(handler http.Handler, l Limits, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       l.ReadTimeout,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// Transport is a protocol spoken on a port of its own, or on none.
type Transport interface {
	// Listen binds the port; at most once. The address is nil where there is
	// none.
	Listen() (net.Addr, error)
	// Serve answers calls until Shutdown; Listen came before.
	Serve() error
	// Shutdown accepts no new calls and waits for those under way; when ctx
	// ends first it cuts them off and is an error. It is called without Serve
	// too, to give back the port.
	Shutdown(ctx context.Context) error
	// Protocol names it, for people.
	Protocol() string
}

// AddTransport has the server speak another protocol, from Listen to the end of
// Run. It is called before Listen.
func (s *Server) AddTransport(t Transport) { s.transports = append(s.transports, added{t}) }

// added is a Transport among the server's own.
type added struct{ t Transport }

func (a added) listen() (net.Addr, error)          { return a.t.Listen() }
func (a added) serve() error                       { return a.t.Serve() }
func (a added) shutdown(ctx context.Context) error { return a.t.Shutdown(ctx) }

func (a added) protocol() string { return a.t.Protocol() }

// TLS is the configuration for listeners; nil without a certificate.
func (s *Server) TLS() *tls.Config { return s.tls.Clone() }

// keyPair is a certificate that is read again when its files change.
type keyPair struct {
	files TLSConfig

	mu struct {
		sync.Mutex
		cert    *tls.Certificate
		changed time.Time
	}
}

// get is tls.Config.GetCertificate. Files that cannot be read, as in the
// middle of a renewal, leave the certificate as it is.
func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed, err := k.files.changed()
	if err == nil && k.mu.cert != nil && changed.Equal(k.mu.changed) {
		return k.mu.cert, nil
	}
	if err == nil {
		var cert tls.Certificate
		if cert, err = tls.LoadX509KeyPair(k.files.CertFile, k.files.KeyFile); err == nil {
			k.mu.cert, k.mu.changed = &cert, changed
		}
	}
	if k.mu.cert != nil {
		return k.mu.cert, nil
	}
	return nil, err
}
