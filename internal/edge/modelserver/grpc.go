package modelserver

import (
	"context"
	"crypto/tls"
	"net"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// This file is what a protocol needs that another package speaks for the
// server: oipgrpc and kafka. They are apart so that the packages which know HTTP
// alone need not carry gRPC.

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

// AddCloudEvents adds the CloudEvents headers of a response to metadata. The
// values are shared and not to be changed.
func (s *Server) AddCloudEvents(metadata map[string][]string, r *tensor.Response) {
	e := &s.events
	models := []string{r.ModelName}
	metadata["ce-specversion"], metadata["ce-source"], metadata["ce-type"] = e.specVersion, e.source, e.kind
	metadata["ce-modelid"], metadata["ce-inferenceservicename"], metadata["ce-endpoint"] = models, e.service, models
	if id, ok := HeaderValue(r.ID); ok {
		ids := []string{id}
		metadata["ce-id"], metadata["ce-requestid"] = ids, ids
	}
	if e.namespace != nil {
		metadata["ce-namespace"] = e.namespace
	}
}

// StatusOf is the HTTP status of an error that a method of Server gave.
func StatusOf(err error) int { return statusOf(err) }
