package loopback_test

import (
	"errors"
	"net"
	"runtime"
	"syscall"
	"testing"

	"roundhouse.dev/roundhouse/test/loopback"
)

// TestReserve: connections are refused until the test listens, whoever asks for
// any port gets another, and the test can listen again.
func TestReserve(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux keeps the port")
	}
	address := loopback.Reserve(t)
	if other := loopback.Reserve(t); other == address {
		t.Fatalf("%s is given twice", address)
	}
	for range 2 {
		if _, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("nobody listens: %v", err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := net.Listen("tcp", address); err == nil {
			t.Error("two listen at one address")
		}
		_, _ = c.Close(), l.Close()
	}
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	for range 500 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		c, err := net.Dial("tcp", server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if l.Addr().String() == address || c.LocalAddr().String() == address {
			t.Fatalf("%s is somebody else's", address)
		}
	}
}
