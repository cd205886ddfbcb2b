package front

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/spf13/pflag"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/edge/externalscaler"
	"roundhouse.dev/roundhouse/internal/edge/gateway"
)

// ScalerOptions are where and how KEDA's external scaler protocol is answered.
type ScalerOptions struct {
	listen, cert, key, clients string
}

// Flags adds the flags.
func (o *ScalerOptions) Flags(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "external-scaler-listen", "", "address of KEDA's external scaler protocol (gRPC), which tells the desired replicas; empty for none. Other addresses than loopback need the three flags below")
	f.StringVar(&o.cert, "external-scaler-tls-cert", "", "PEM file of its certificate; read again when it changes")
	f.StringVar(&o.key, "external-scaler-tls-key", "", "PEM file of the certificate's key")
	f.StringVar(&o.clients, "external-scaler-client-ca", "", "PEM file of the authorities of client certificates: only clients with one are answered")
}

// Scaler answers KEDA.
type Scaler struct {
	server   *externalscaler.Server
	listener net.Listener
}

// Open listens, and returns nil where nothing is to be answered. Errors are of wrong
// usage, or of an address that cannot be listened on.
func (o *ScalerOptions) Open(desired externalscaler.Desired, log *slog.Logger) (*Scaler, error) {
	secure := 0
	for _, s := range []string{o.cert, o.key, o.clients} {
		if s != "" {
			secure++
		}
	}
	switch {
	case secure != 0 && secure != 3:
		return nil, command.Usagef("--external-scaler-tls-cert, --external-scaler-tls-key and --external-scaler-client-ca go together")
	case o.listen == "" && secure > 0:
		return nil, command.Usagef("--external-scaler-tls-cert has no effect without --external-scaler-listen")
	case o.listen == "":
		return nil, nil
	}
	cfg := externalscaler.DefaultConfig()
	cfg.Desired = desired
	if secure > 0 {
		var err error
		if cfg.TLS, err = o.tls(log); err != nil {
			return nil, err
		}
	}
	server, err := externalscaler.New(cfg)
	if err != nil {
		return nil, err
	}
	l, err := Listen(o.listen, "--external-scaler-listen")
	if err != nil {
		return nil, err
	}
	if a, ok := l.Addr().(*net.TCPAddr); secure == 0 && (!ok || !a.IP.IsLoopback()) {
		_ = l.Close()
		return nil, command.Usagef("--external-scaler-listen %s: on a network it needs --external-scaler-tls-cert, --external-scaler-tls-key and --external-scaler-client-ca; without them name a loopback address", o.listen)
	}
	log.Info("answers KEDA's external scaler protocol", "address", l.Addr().String(), "tls", secure > 0)
	return &Scaler{server, l}, nil
}

// tls asks clients for certificates.
func (o *ScalerOptions) tls(log *slog.Logger) (*tls.Config, error) {
	cfg, err := gateway.TLS(o.cert, o.key, log)
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(o.clients)
	if err != nil {
		return nil, fmt.Errorf("--external-scaler-client-ca: %w", err)
	}
	cfg = cfg.Clone()
	cfg.ClientCAs, cfg.ClientAuth, cfg.NextProtos = x509.NewCertPool(), tls.RequireAndVerifyClientCert, []string{"h2"}
	if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, command.Usagef("--external-scaler-client-ca %s: has no certificate in PEM form", o.clients)
	}
	return cfg, nil
}

// Serve answers until ctx ends; at once on a nil Scaler.
func (s *Scaler) Serve(ctx context.Context) error {
	if s == nil {
		return nil
	}
	return s.server.Serve(ctx, s.listener)
}

// Close stops listening, where Serve was not called.
func (s *Scaler) Close() {
	if s != nil {
		_ = s.listener.Close()
	}
}
