package endpoints

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Lookups keeps the endpoints of pools. Set may be called at any time, from
// any goroutine; Run does the work.
type Lookups struct {
	cfg  Config
	sink Sink

	wanted struct {
		sync.Mutex
		pools map[service.Key]*routing.Pool
		anew  map[service.Key]bool // to be reported although nothing may have changed
	}
	changed chan struct{} // holds one: wanted has changed
	answers chan answer
	slots   chan struct{} // of look-ups under way
}

// answer is a look-up's.
type answer struct {
	host  string
	round *name // who asked: a name that went and came again is another
	found []netip.Addr
	err   error
}

// name is one host that pools name. The goroutine of Run owns every field but
// stop's effect.
type name struct {
	stop  context.CancelFunc
	found []netip.Addr // the last answer
	err   string       // of the last look-up
}

// maxProblems is how many of a pool's names one line tells of.
const maxProblems = 3

// published is what the sink was last told of a pool.
type published struct {
	addresses []string
	problem   string
}

// New makes Lookups of no pool.
func New(cfg Config, sink Sink) (*Lookups, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if sink == nil {
		return nil, errors.New("endpoints: a Sink is required")
	}
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l := &Lookups{cfg: cfg, sink: sink, changed: make(chan struct{}, 1), answers: make(chan answer), slots: make(chan struct{}, cfg.MaxLookups)}
	l.wanted.anew = map[service.Key]bool{}
	return l, nil
}

// Set makes these the pools whose addresses are looked up. It returns at once;
// Run reports to the sink. A pool that is new, or another object than before, is
// reported even if its endpoints are the same; a pool that goes is not reported.
func (l *Lookups) Set(pools []*routing.Pool) {
	l.wanted.Lock()
	before := l.wanted.pools
	l.wanted.pools = make(map[service.Key]*routing.Pool, len(pools))
	for _, p := range pools {
		l.wanted.pools[p.Key] = p
	}
	for k, p := range before {
		if l.wanted.pools[k] != p {
			l.wanted.anew[k] = true
		}
	}
	l.wanted.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// Run looks names up and tells the sink, until ctx ends.
func (l *Lookups) Run(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{Lookups: l, names: map[string]*name{}, published: map[service.Key]published{}}
	for {
		select {
		case <-l.changed:
			l.wanted.Lock()
			r.pools = l.wanted.pools
			for k := range l.wanted.anew {
				delete(r.published, k)
			}
			clear(l.wanted.anew)
			l.wanted.Unlock()
			r.follow(ctx, &asking)
		case a := <-l.answers:
			r.note(a)
		case <-ctx.Done():
			return
		}
		r.publish()
	}
}

// run is one Run's state, its goroutine's alone.
type run struct {
	*Lookups
	pools     map[service.Key]*routing.Pool
	names     map[string]*name
	published map[service.Key]published
}

// follow starts to ask for the names that pools have now, and stops for those
// they no longer have.
func (r *run) follow(ctx context.Context, asking *sync.WaitGroup) {
	there := map[string]bool{}
	for _, p := range r.pools {
		for _, a := range p.Addresses {
			if host, _, ok := split(a); ok {
				there[host] = true
			}
		}
	}
	for host, n := range r.names {
		if !there[host] {
			n.stop()
			delete(r.names, host)
		}
	}
	for host := range there {
		if r.names[host] != nil {
			continue
		}
		asked, stop := context.WithCancel(ctx)
		n := &name{stop: stop}
		r.names[host] = n
		asking.Go(func() { r.ask(asked, host, n) })
	}
}

// split cuts an address; ok reports whether its host is a name.
func split(address string) (host string, port uint16, ok bool) {
	if _, err := netip.ParseAddrPort(address); err == nil {
		return "", 0, false
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, false
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return host, uint16(n), err == nil && n > 0
}

// ask looks one name up until ctx ends.
func (l *Lookups) ask(ctx context.Context, host string, n *name) {
	failures := 0
	for {
		found, err := l.lookup(ctx, host)
		if ctx.Err() != nil {
			return
		}
		wait := l.cfg.Every
		if failures++; err == nil {
			failures = 0
		} else {
			wait = l.backoff(failures)
		}
		select {
		case l.answers <- answer{host, n, found, err}:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(wait - time.Duration(l.cfg.Random()*float64(wait/10))):
		case <-ctx.Done():
			return
		}
	}
}

// backoff is the wait after so many failures in a row.
func (l *Lookups) backoff(failures int) time.Duration {
	wait := l.cfg.Retry
	for ; failures > 1 && wait < l.cfg.Every; failures-- {
		wait *= 2
	}
	return min(wait, l.cfg.Every)
}

func (l *Lookups) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.LookupTimeout)
	defer cancel()
	found, err := l.cfg.Resolver.LookupNetIP(ctx, "ip", host)
	if err == nil && len(found) == 0 {
		err = errors.New("it has no address")
	}
	return found, err
}

// note keeps an answer; a failure keeps the one before.
func (r *run) note(a answer) {
	n := r.names[a.host]
	if n != a.round {
		return
	}
	if a.err != nil {
		text := reason(a.err)
		if n.err != text {
			r.cfg.Log.Warn("looking up endpoints", "host", a.host, "error", text)
		}
		n.err = text
		return
	}
	n.found, n.err = a.found, ""
}

// publish tells the sink of every pool whose endpoints or trouble changed.
func (r *run) publish() {
	for _, k := range slices.SortedFunc(maps.Keys(r.pools), func(a, b service.Key) int { return strings.Compare(a.String(), b.String()) }) {
		now := r.of(r.pools[k].Addresses)
		before, known := r.published[k]
		if known && before.problem == now.problem && slices.Equal(before.addresses, now.addresses) {
			continue
		}
		r.published[k] = now
		r.sink.Endpoints(k, now.addresses, now.problem)
	}
}

func (r *run) refused(ip netip.Addr) string {
	if r.cfg.Refuse == nil {
		return ""
	}
	return r.cfg.Refuse(ip)
}

// of is what addresses stand for, as far as it is known.
func (r *run) of(addresses []string) published {
	var out published
	var problems []string
	add := func(written string, ip netip.Addr, port uint16) {
		if why := r.refused(ip); why != "" {
			problems = append(problems, fmt.Sprintf("%s: %s", written, why))
			return
		}
		out.addresses = append(out.addresses, endpoint(ip, port))
	}
	for _, a := range addresses {
		if at, err := netip.ParseAddrPort(a); err == nil {
			add(a, at.Addr(), at.Port())
		}
		host, port, ok := split(a)
		if !ok {
			continue
		}
		n := r.names[host]
		for _, ip := range n.found {
			add(host, ip, port)
		}
		switch {
		case n.err != "" && len(n.found) > 0:
			problems = append(problems, fmt.Sprintf("%s: %s; its last answer is kept", host, n.err))
		case n.err != "":
			problems = append(problems, fmt.Sprintf("%s: %s", host, n.err))
		}
	}
	slices.Sort(out.addresses)
	out.addresses = slices.Compact(out.addresses)
	if n := len(out.addresses); n > r.cfg.MaxAddresses {
		out.addresses = out.addresses[:r.cfg.MaxAddresses]
		problems = append(problems, fmt.Sprintf("only the first %d of %d addresses are used", r.cfg.MaxAddresses, n))
	}
	slices.Sort(problems)
	problems = slices.Compact(problems)
	if n := len(problems); n > maxProblems {
		problems = append(problems[:maxProblems], fmt.Sprintf("and %d more", n-maxProblems))
	}
	out.problem = strings.Join(problems, "; ")
	return out
}
