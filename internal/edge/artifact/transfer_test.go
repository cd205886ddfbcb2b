package artifact

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"syscall"
	"testing"
)

// TestTransportErrorsStayTheSame: the port a source was asked from is another
// each time. A status that repeated it would be written at every try.
func TestTransportErrorsStayTheSame(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 443}
	for what, make := range map[string]func(port int) error{
		"a connection that ended": func(port int) error {
			return &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port}, Addr: at, Err: syscall.ECONNRESET}
		},
		"a name that was not answered": func(port int) error {
			return &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: fmt.Sprintf("read udp 10.0.0.1:%d->10.0.0.53:53: i/o timeout", port), Name: "models", Server: "10.0.0.53:53"}}
		},
	} {
		said := map[string]bool{}
		for port := 4711; port < 4714; port++ {
			err := transportError(t.Context(), "https://models/m", &url.Error{Op: "Get", URL: "https://models/m?secret", Err: make(port)})
			if !errors.Is(err, errUnreachable) {
				t.Errorf("%s: %v", what, err)
			}
			said[err.Error()] = true
		}
		if len(said) != 1 {
			t.Errorf("%s: %v", what, said)
		}
	}
}
