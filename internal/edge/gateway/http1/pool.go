package http1

import (
	"sync"
	"time"
)

// pool keeps connections that are not in use, newest last. One timer closes
// those that were idle too long.
type pool struct {
	cfg   Config
	mu    sync.Mutex
	hosts map[string][]*conn
	n     int // in all
	timer *time.Timer
	armed bool // the timer runs
}

// take removes the connection to address that was used last; nil if there is
// none.
func (p *pool) take(address string) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.hosts[address]
	if len(idle) == 0 {
		return nil
	}
	c := idle[len(idle)-1]
	idle[len(idle)-1] = nil
	p.hosts[address] = idle[:len(idle)-1]
	p.n--
	return c
}

// put keeps c, or closes it when as many are kept as may.
func (p *pool) put(c *conn, now time.Time) {
	c.idleSince = now
	p.mu.Lock()
	idle := p.hosts[c.address]
	if p.n >= p.cfg.MaxIdle || len(idle) >= p.cfg.MaxIdlePerHost {
		p.mu.Unlock()
		c.close()
		return
	}
	p.hosts[c.address] = append(idle, c)
	p.n++
	if !p.armed {
		p.armed = true
		if p.timer == nil {
			p.timer = time.AfterFunc(p.cfg.IdleTimeout, p.sweep)
		} else {
			p.timer.Reset(p.cfg.IdleTimeout)
		}
	}
	p.mu.Unlock()
}

// sweep closes what is idle for IdleTimeout and comes again when the next will
// be.
func (p *pool) sweep() {
	now := time.Now()
	p.mu.Lock()
	var old []*conn
	oldest := now
	for address, idle := range p.hosts {
		expired := 0
		for expired < len(idle) && now.Sub(idle[expired].idleSince) >= p.cfg.IdleTimeout {
			expired++
		}
		old = append(old, idle[:expired]...)
		if expired == len(idle) {
			delete(p.hosts, address)
			continue
		}
		rest := append([]*conn(nil), idle[expired:]...)
		p.hosts[address] = rest
		if rest[0].idleSince.Before(oldest) {
			oldest = rest[0].idleSince
		}
	}
	p.n -= len(old)
	p.armed = p.n > 0
	if p.armed {
		p.timer.Reset(p.cfg.IdleTimeout - now.Sub(oldest) + time.Millisecond)
	}
	p.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

// clear closes all.
func (p *pool) clear() {
	p.mu.Lock()
	hosts := p.hosts
	p.hosts, p.n = map[string][]*conn{}, 0
	p.mu.Unlock()
	for _, idle := range hosts {
		for _, c := range idle {
			c.close()
		}
	}
}
