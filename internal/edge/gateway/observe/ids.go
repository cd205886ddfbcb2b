package observe

import "math/rand/v2"

// The headers that identify a request; gRPC's metadata has them in lower case.
const (
	HeaderRequestID   = "X-Request-Id"
	HeaderTraceparent = "Traceparent"
)

// RequestID is the client's id of a request if it is one, and otherwise a new
// one.
func RequestID(client string) string {
	if validID(client) {
		return client
	}
	return string(appendRandomHex(make([]byte, 0, 32), 16))
}

// validID accepts up to 128 printable ASCII characters.
func validID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// AppendTraceparent appends a new W3C trace context: version, trace, parent,
// not sampled.
func AppendTraceparent(b []byte) []byte {
	b = append(b, "00-"...)
	b = appendRandomHex(b, 16)
	b = append(b, '-')
	b = appendRandomHex(b, 8)
	return append(b, "-00"...)
}

// appendRandomHex appends n random bytes in hex, n a multiple of 8: an
// identifier, not a secret.
func appendRandomHex(b []byte, n int) []byte {
	const digits = "0123456789abcdef"
	for ; n > 0; n -= 8 {
		v := rand.Uint64()
		for range 16 {
			b = append(b, digits[v&15])
			v >>= 4
		}
	}
	return b
}
