package demand

import (
	"net"
	"sync"
)

// Connections that a controller keeps, of one address and of all. Whoever
// reaches the port may ask for a token to be reviewed: with so few at once a
// pod that sends wrong ones keeps no gateway waiting for long.
const (
	maxFromOne     = 16
	maxConnections = 4_096
)

// bounded closes connections beyond so many.
type bounded struct {
	net.Listener
	mu   sync.Mutex
	all  int
	from map[string]int // by address without port
}

func bound(l net.Listener) *bounded { return &bounded{Listener: l, from: map[string]int{}} }

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil || !b.enter(host) {
			_ = c.Close()
			continue
		}
		return &counted{Conn: c, leave: sync.OnceFunc(func() { b.exit(host) })}, nil
	}
}

func (b *bounded) enter(host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all >= maxConnections || b.from[host] >= maxFromOne {
		return false
	}
	b.all++
	b.from[host]++
	return true
}

func (b *bounded) exit(host string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all--
	if b.from[host]--; b.from[host] == 0 {
		delete(b.from, host)
	}
}

// counted is a connection that makes room when it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}
