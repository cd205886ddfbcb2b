package rawgrpc

import (
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
)

var (
	keyAuthority   = ":authority"
	keyRequestID   = strings.ToLower(observe.HeaderRequestID)
	keyTraceparent = strings.ToLower(observe.HeaderTraceparent)
	keyForwarded   = "x-forwarded-for"
	keyHost        = "x-forwarded-host"
	keyRetryAfter  = strings.ToLower(ingress.HeaderRetryAfter)
)

// routingKeys are the names in metadata of the headers that every call is asked for, by
// their canonical ones.
var routingKeys = func() map[string]string {
	out := map[string]string{}
	for _, name := range slices.Concat(routing.HeaderObjective, routing.HeaderFairness, routing.HeaderRewrite, routing.HeaderFirst, routing.HeaderEach) {
		out[name] = strings.ToLower(name)
	}
	return out
}()

// keyOf is the name in metadata of a header.
func keyOf(name string) string {
	if key, ok := routingKeys[name]; ok {
		return key
	}
	return strings.ToLower(name)
}

// framing are the names of one connection or one message (RFC 9110 7.6.1, the
// gRPC protocol), which are not passed on.
var framing = map[string]bool{"connection": true, "keep-alive": true, "proxy-connection": true, "proxy-authenticate": true,
	"proxy-authorization": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true, "expect": true,
	"content-type": true, "content-length": true, "content-encoding": true, "accept-encoding": true, "user-agent": true, "host": true}

// peers are ingress.PeerHeaders as metadata has them.
var peers = func() map[string]bool {
	out := map[string]bool{}
	for _, name := range ingress.PeerHeaders {
		out[strings.ToLower(name)] = true
	}
	return out
}()

// passes reports whether metadata of a name belongs to the application.
func passes(name string) bool {
	if framing[name] || strings.HasPrefix(name, ":") {
		return false
	}
	// Other names with grpc- belong to the library; each connection has its own.
	return !strings.HasPrefix(name, "grpc-") || name == "grpc-trace-bin" || name == "grpc-tags-bin"
}

// passed returns the part of md to pass on to a client.
func passed(md metadata.MD) metadata.MD {
	out := make(metadata.MD, len(md)+1)
	for name, values := range md {
		if passes(name) {
			out[name] = values
		}
	}
	return out
}

// outgoing returns the metadata for a replica: that of the client, which has the
// given address and called host.
func outgoing(md metadata.MD, id, address, host string) metadata.MD {
	out := make(metadata.MD, len(md)+4)
	for name, values := range md {
		if passes(name) && !peers[name] {
			out[name] = values
		}
	}
	out[keyRequestID] = []string{id}
	if len(out[keyTraceparent]) == 0 {
		out[keyTraceparent] = []string{string(observe.AppendTraceparent(nil))}
	}
	if address != "" {
		out[keyForwarded] = []string{strings.Join(append(slices.Clone(md[keyForwarded]), address), ", ")}
	}
	if len(out[keyHost]) == 0 && host != "" {
		out[keyHost] = []string{host}
	}
	return out
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}
