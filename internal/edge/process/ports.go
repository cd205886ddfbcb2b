package process

import (
	"errors"
	"fmt"
	"net"
	"sync"
)

// ports finds free ports. A port is found by listening on it and letting go
// again, so another program may take it before the replica does; the replica
// then fails to bind and is started anew with others. Those given out here and
// not given back are not given twice.
type ports struct {
	host string

	mu    sync.Mutex
	given map[int]bool
}

// take gives n different ports.
func (p *ports) take(n int) ([]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	var out []int
	for len(out) < n {
		if len(held) > n+len(p.given) {
			return nil, errors.New("no free port: the kernel offers only ports that are given out")
		}
		l, err := net.Listen("tcp", net.JoinHostPort(p.host, "0"))
		if err != nil {
			return nil, fmt.Errorf("no free port: %w", err)
		}
		held = append(held, l)
		if port := l.Addr().(*net.TCPAddr).Port; !p.given[port] {
			out = append(out, port)
		}
	}
	p.mark(out)
	return out, nil
}

// hold marks the ports of a process that runs as given.
func (p *ports) hold(ports ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mark(ports)
}

func (p *ports) mark(ports []int) {
	if p.given == nil {
		p.given = map[int]bool{}
	}
	for _, port := range ports {
		p.given[port] = true
	}
}

func (p *ports) free(ports ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, port := range ports {
		delete(p.given, port)
	}
}
