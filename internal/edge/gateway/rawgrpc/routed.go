package rawgrpc

import (
	"context"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
)

// registrar registers services whose calls a route may lead to Kubernetes Services
// instead. A stream is led there by guardStream.
type registrar struct {
	*grpc.Server
	of *Server
}

// RegisterService registers a service.
func (r registrar) RegisterService(d *grpc.ServiceDesc, service any) {
	own := *d
	own.Methods = slices.Clone(d.Methods)
	for i := range own.Methods {
		m := &own.Methods[i]
		method, handle := "/"+d.ServiceName+"/"+m.MethodName, m.Handler
		m.Handler = func(service any, ctx context.Context, decode func(any) error, guard grpc.UnaryServerInterceptor) (any, error) {
			if !r.of.passes(ctx, method) {
				return handle(service, ctx, decode, guard)
			}
			c := r.of.newCall(ctx, method)
			c.raw, c.known = true, true
			return c.answer(decode)
		}
	}
	r.Server.RegisterService(&own, service)
}

// passes reports whether a route leads a call of one of the gateway's own methods to
// Kubernetes Services: then it is forwarded as it stands.
func (s *Server) passes(ctx context.Context, method string) bool {
	return s.dispatch.HasHTTPRoutes() && s.dispatch.Passes(query(ctx, method, ""), true)
}

// pass forwards a call as it stands where a route takes it, whose method need not be known
// here; known is one of the gateway's own.
func (s *Server) pass(stream grpc.ServerStream, method string, known bool) error {
	if !plainMethod(method) {
		return errorf(codes.Unimplemented, "%q is no method of a service", method)
	}
	c := s.newCall(stream.Context(), method)
	c.raw, c.known = true, known
	return s.stream(stream, c)
}

// passUnknown handles the calls of methods that are not the gateway's.
func (s *Server) passUnknown(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	return s.pass(stream, method, false)
}

// plainMethod reports whether a method is "/service/method" in characters that mean the
// same to all servers.
func plainMethod(method string) bool {
	service, name, ok := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return ok && method[0] == '/' && plainName(service) && plainName(name)
}

func plainName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`/\?#%`, r)
	})
}

// find returns an error unless a route takes a call that is forwarded as it stands.
func (c *call) find() error {
	d, q := c.server.dispatch, c.query(0)
	if c.plain = d.Passes(q, c.known); c.plain || !c.known && d.NamesPath(q) {
		return nil
	}
	if !c.known {
		if err := d.Broken(q, false); err != nil {
			return c.refused(err)
		}
	}
	return errorf(codes.Unimplemented, "no route takes calls of %s at host %s, and the gateway does not answer them itself", c.method, c.host)
}

// forwarding sets what the replica gets besides messages, as the call's route says.
func (c *call) forwarding() error {
	h := c.grant.Handling()
	forwarded := c.out[keyForwarded] // by which loops are found, and clients: it is no route's
	change(c.out, h.RequestHeader)
	if delete(c.out, keyForwarded); forwarded != nil {
		c.out[keyForwarded] = forwarded
	}
	if len(h.Mirrors) > 0 {
		c.copies = c.out.Copy()
	}
	c.target = c.method
	host := ""
	if c.plain {
		host = c.host
	}
	if w := h.Rewrite; w != nil {
		if host = w.Host; host == "" && c.plain {
			host = c.host
		}
		if w.Path != nil {
			c.target = w.Path.Apply(c.method)
		}
	}
	if host != "" {
		if !httpguts.ValidHostHeader(host) {
			return errorf(codes.InvalidArgument, "the host has characters that no host name may have")
		}
		c.options = append(c.options, grpc.CallAuthority(host))
	}
	if _, kind, ok := strings.Cut(first(c.md["content-type"]), "+"); ok && c.raw && plainName(kind) {
		c.options = append(c.options, grpc.CallContentSubtype(kind)) // what the messages are written in
	}
	return nil
}

// change makes a route's changes of metadata.
func change(md map[string][]string, changes []routing.HeaderChange) {
	for i := range changes {
		switch name := strings.ToLower(changes[i].Name); changes[i].Op {
		case routing.HeaderSet:
			md[name] = []string{changes[i].Value}
		case routing.HeaderAdd:
			md[name] = append(slices.Clip(md[name]), changes[i].Value)
		case routing.HeaderRemove:
			delete(md, name)
		}
	}
}

// checkLoop returns an error for a call that has come through many proxies: a route or a
// pool may lead back to this gateway.
func (c *call) checkLoop() error {
	if n := ingress.Forwards(c.md[keyForwarded]); n > ingress.MaxForwards {
		return errorf(codes.FailedPrecondition, "the call has come through %d proxies, as x-forwarded-for says: a route or a pool leads back to this gateway", n)
	}
	return nil
}
