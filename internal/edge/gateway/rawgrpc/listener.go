package rawgrpc

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"roundhouse.dev/roundhouse/internal/core/network"
)

// connectionShare limits one address to 1/connectionShare of the connections, so
// that one client's idle connections do not lock others out.
const connectionShare = 2

// listener limits how many connections are open at once. Further connections wait
// in the system's queue. Those of an address that has its share are closed at once.
type listener struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
	by     counts // connections of each address
}

func newListener(l net.Listener, connections int) *listener {
	return &listener{Listener: l, slots: make(chan struct{}, connections), closed: make(chan struct{})}
}

// Accept waits for a slot and a connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.slots
			return nil, err
		}
		from := network.WithoutPort(c.RemoteAddr().String())
		if l.by.enter(from, max(1, cap(l.slots)/connectionShare)) {
			return &connection{Conn: c, leave: sync.OnceFunc(func() { l.leave(from) })}, nil
		}
		_ = c.Close() // the client sees it closed, whatever comes of it here
	}
}

func (l *listener) leave(from string) {
	l.by.leave(from)
	<-l.slots
}

// counts are how many of something each address has.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

// enter counts one more of an address. It reports false if the address has most of them.
func (c *counts) enter(from string, most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[from] >= most {
		return false
	}
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[from]++
	return true
}

func (c *counts) leave(from string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[from]--; c.of[from] == 0 {
		delete(c.of, from)
	}
}

// Close ends Accept.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// connection no longer counts when it is closed.
type connection struct {
	net.Conn
	leave func()
}

// Close closes the connection.
func (c *connection) Close() error {
	c.leave()
	return c.Conn.Close()
}

// RemoteAddr returns the client's address, which refers to the connection: a
// handler in gRPC gets the address but not the connection.
func (c *connection) RemoteAddr() net.Addr { return clientAddr{c.Conn.RemoteAddr(), c} }

type clientAddr struct {
	net.Addr
	*connection
}

// Network and String are the address's.
func (a clientAddr) Network() string { return a.Addr.Network() }
func (a clientAddr) String() string  { return a.Addr.String() }

// client is where a call comes from, and whether over TLS.
func client(ctx context.Context) (address string, c interface{ Close() error }, secure bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", nobody{}, false
	}
	_, secure = p.AuthInfo.(credentials.TLSInfo)
	address = p.Addr.String()
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	if a, ok := p.Addr.(clientAddr); ok {
		return address, a.connection, secure
	}
	return address, nobody{}, secure
}

// nobody stands for a connection that is not known.
type nobody struct{}

// Close does nothing.
func (nobody) Close() error { return nil }
