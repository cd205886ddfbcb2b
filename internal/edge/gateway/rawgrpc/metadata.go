package rawgrpc

import (
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"
)

const (
	keyAuthority   = ":authority"
	keyRequestID   = "x-request-id"
	keyTraceparent = "traceparent"
	keyForwarded   = "x-forwarded-for"
	keyHost        = "x-forwarded-host"
	keyRetryAfter  = "retry-after"
	keyObjective   = "x-gateway-inference-objective"
	keyFairness    = "x-gateway-inference-fairness-id"
)

// framing are the names of one connection or one message (RFC 9110 7.6.1, the
// gRPC protocol), which are not passed on.
var framing = map[string]bool{"connection": true, "keep-alive": true, "proxy-connection": true, "proxy-authenticate": true,
	"proxy-authorization": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true, "expect": true,
	"content-type": true, "content-length": true, "content-encoding": true, "accept-encoding": true, "user-agent": true, "host": true}

// passes says whether metadata of a name is the application's.
func passes(name string) bool {
	if framing[name] || strings.HasPrefix(name, ":") {
		return false
	}
	// The rest of grpc- is the library's: each side has its own.
	return !strings.HasPrefix(name, "grpc-") || name == "grpc-trace-bin" || name == "grpc-tags-bin"
}

// passed is the part of md that is passed on to a client.
func passed(md metadata.MD) metadata.MD {
	out := make(metadata.MD, len(md)+1)
	for name, values := range md {
		if passes(name) {
			out[name] = values
		}
	}
	return out
}

// outgoing is the metadata for a replica.
func (c *call) outgoing(md metadata.MD) metadata.MD {
	out := make(metadata.MD, len(md)+4)
	for name, values := range md {
		if passes(name) {
			out[name] = values
		}
	}
	out[keyRequestID] = []string{c.id}
	if len(out[keyTraceparent]) == 0 {
		// W3C trace context: version, trace, parent, not sampled.
		out[keyTraceparent] = []string{"00-" + randomHex(16) + "-" + randomHex(8) + "-00"}
	}
	if c.address != "" {
		out[keyForwarded] = []string{strings.Join(append(slices.Clone(md[keyForwarded]), c.address), ", ")}
	}
	if len(out[keyHost]) == 0 && c.host != "" {
		out[keyHost] = []string{c.host}
	}
	return out
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// validID accepts up to 128 printable ASCII characters.
func validID(id string) bool {
	return id != "" && len(id) <= 128 && strings.IndexFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// randomHex is n random bytes in hex: an identifier, not a secret.
func randomHex(n int) string {
	b := make([]byte, 0, 16)
	for len(b) < n {
		v := rand.Uint64()
		for range 8 {
			b = append(b, byte(v))
			v >>= 8
		}
	}
	return hex.EncodeToString(b[:n])
}
