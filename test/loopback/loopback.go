// Package loopback gives tests addresses that stay theirs.
package loopback

import (
	"fmt"
	"net"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

// Reserve returns an address of the loopback and keeps it until the test ends.
// Connections to it are refused until the test, or a program that it starts,
// listens there, which it may do again and again.
func Reserve(t testing.TB) (address string) {
	t.Helper()
	address, release, err := Hold()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return address
}

// Hold is Reserve for who has no test, such as a TestMain: the address is kept
// until release is called.
//
// A port that is found by listening and closing may belong to another process a
// moment later: the kernel gives it to any connection that goes out. So a
// socket stays bound here that does not listen. Linux then gives the port to
// nobody who asks for any port, and to those who name it and set SO_REUSEADDR,
// as Go, Node and Python's asyncio do. Other systems refuse these as well, so
// there the socket is closed at once.
func Hold() (address string, release func(), err error) {
	syscall.ForkLock.RLock() // a child would keep the port
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return "", nil, fmt.Errorf("no socket to reserve a port with: %w", err)
	}
	release = func() { _ = syscall.Close(fd) }
	if address, err = bind(fd); err != nil || runtime.GOOS != "linux" {
		release()
		release = func() {}
	}
	return address, release, err
}

// bind binds a socket to any port of the loopback.
func bind(fd int) (address string, err error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return "", fmt.Errorf("SO_REUSEADDR: %w", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return "", fmt.Errorf("no port to reserve: %w", err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		return "", fmt.Errorf("the port that was reserved is not known: %w", err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(at.(*syscall.SockaddrInet4).Port)), nil
}
