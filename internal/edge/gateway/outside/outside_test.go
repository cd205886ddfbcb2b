package outside

import (
	"net/http"
	"testing"
)

// TestProxy: what is sent to pods, and to public addresses alone, goes by no proxy, which
// would be who connects.
func TestProxy(t *testing.T) {
	proxied := func(c *http.Client) bool { return c.Transport.(*http.Transport).Proxy != nil }
	c := New(Config{Reach: func(string, string) (string, error) { return "", nil }})
	if proxied(c.inside) || proxied(c.named) {
		t.Error("a guarded client asks a proxy")
	}
	if open := New(Config{}); !proxied(open.named) {
		t.Error("a client that reaches everything asks no proxy")
	}
}
