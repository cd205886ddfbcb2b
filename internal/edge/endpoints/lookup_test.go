package endpoints

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// server is a DNS server on loopback that answers A and AAAA of the names it
// is given, and what it is told to fail with of others.
type server struct {
	conn net.PacketConn
	mu   struct {
		sync.Mutex
		hosts map[string][]netip.Addr
		fails map[string]byte // response code; 255: no answer at all
		asked map[string]int
	}
}

func newServer(t *testing.T) *server {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{conn: conn}
	s.mu.hosts, s.mu.fails, s.mu.asked = map[string][]netip.Addr{}, map[string]byte{}, map[string]int{}
	done := make(chan struct{})
	go func() { defer close(done); s.serve() }()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return s
}

func (s *server) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if out := s.answer(buf[:n]); out != nil {
			_, _ = s.conn.WriteTo(out, from)
		}
	}
}

// answer replies to one question (RFC 1035): the header, the question as it
// came, and a record for each address, its name a pointer to the question's.
func (s *server) answer(q []byte) []byte {
	if len(q) < 17 {
		return nil
	}
	var labels []string
	at := 12
	for at < len(q) && q[at] != 0 {
		end := at + 1 + int(q[at])
		if end >= len(q) {
			return nil
		}
		labels = append(labels, string(q[at+1:end]))
		at = end
	}
	if at+5 > len(q) {
		return nil
	}
	kind := binary.BigEndian.Uint16(q[at+1:])
	question := q[12 : at+5]
	name := strings.ToLower(strings.Join(labels, "."))

	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.asked[name]++
	code, addrs := s.mu.fails[name], s.mu.hosts[name]
	if code == 255 {
		return nil
	}
	if code == 0 && addrs == nil {
		code = 3 // no such name
	}
	var records []byte
	count := 0
	for _, a := range addrs {
		if a.Is4() != (kind == 1) {
			continue
		}
		raw := a.AsSlice()
		records = append(records, 0xc0, 12)
		records = binary.BigEndian.AppendUint16(records, kind)
		records = append(records, 0, 1, 0, 0, 0, 1, 0, byte(len(raw)))
		records = append(records, raw...)
		count++
	}
	out := append([]byte{q[0], q[1], 0x81, 0x80 | code, 0, 1, 0, byte(count), 0, 0, 0, 0}, question...)
	return append(out, records...)
}

func (s *server) set(host string, code byte, addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.hosts, host)
	s.mu.fails[host] = code
	for _, a := range addrs {
		s.mu.hosts[host] = append(s.mu.hosts[host], netip.MustParseAddr(a))
	}
}

// resolver asks the server alone.
func (s *server) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", s.conn.LocalAddr().String())
	}}
}

// told is one call of the sink.
type told struct {
	pool      service.Key
	addresses []string
	problem   string
}

type sink chan told

func (s sink) Endpoints(k service.Key, addresses []string, problem string) {
	s <- told{k, slices.Clone(addresses), problem}
}

// await reads calls until one is as wanted.
func (s sink) await(t *testing.T, what string, ok func(told) bool) told {
	t.Helper()
	var last told
	for {
		select {
		case last = <-s:
			if ok(last) {
				return last
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: the last call was %+v", what, last)
		}
	}
}

func start(t *testing.T, s *server, change func(*Config)) (*Lookups, sink) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Every, cfg.Retry, cfg.Resolver, cfg.LookupTimeout = 10*time.Millisecond, 5*time.Millisecond, s.resolver(), 2*time.Second
	if change != nil {
		change(&cfg)
	}
	calls := make(sink, 100)
	l, err := New(cfg, calls)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return l, calls
}

var pool = service.Key{Namespace: "default", Name: "llama"}

func equals(want ...string) func(told) bool {
	return func(c told) bool { return slices.Equal(c.addresses, want) && c.problem == "" }
}

// TestNames follows a name through its life: found, changed, failing (the last
// answer stays and is told), found again, gone.
func TestNames(t *testing.T) {
	s := newServer(t)
	s.set("llama.test", 0, "127.0.0.9", "127.0.0.8")
	l, calls := start(t, s, nil)
	l.Set(pools(map[service.Key][]string{pool: {"llama.test:8000", "127.0.0.1:9000", "[::1]:9001"}}))
	fixed := []string{"127.0.0.1:9000", "[::1]:9001"}
	all := func(found ...string) []string {
		out := append(slices.Clone(fixed), found...)
		slices.Sort(out)
		return out
	}
	// What needs no look-up is there at once.
	calls.await(t, "literals", equals(all()...))
	calls.await(t, "found", equals(all("127.0.0.8:8000", "127.0.0.9:8000")...))
	s.set("llama.test", 0, "127.0.0.7", "::ffff:127.0.0.6", "fd00::1")
	calls.await(t, "changed", equals(all("127.0.0.6:8000", "127.0.0.7:8000", "[fd00::1]:8000")...))
	s.set("llama.test", 2) // server failure
	c := calls.await(t, "failing", func(c told) bool { return c.problem != "" })
	if !slices.Equal(c.addresses, all("127.0.0.6:8000", "127.0.0.7:8000", "[fd00::1]:8000")) ||
		!strings.Contains(c.problem, "llama.test: ") || !strings.Contains(c.problem, "its last answer is kept") {
		t.Errorf("a failing name: %+v", c)
	}
	s.set("llama.test", 0, "127.0.0.5")
	calls.await(t, "mended", equals(all("127.0.0.5:8000")...))
	l.Set(pools(map[service.Key][]string{pool: {"127.0.0.1:9000"}}))
	calls.await(t, "without the name", equals("127.0.0.1:9000"))
}

// TestRefused: an address that requests may not go to is none, also where a
// name leads there, by whatever answer; the trouble says why.
func TestRefused(t *testing.T) {
	s := newServer(t)
	s.set("inside.test", 0, "203.0.113.5")
	are := func(want ...string) func(told) bool {
		return func(c told) bool { return slices.Equal(c.addresses, want) }
	}
	l, calls := start(t, s, func(c *Config) {
		c.Refuse = func(a netip.Addr) string {
			if a.Unmap().IsLoopback() {
				return "not there"
			}
			return ""
		}
	})
	l.Set(pools(map[service.Key][]string{pool: {"inside.test:80", "127.0.0.1:9000", "[::ffff:127.0.0.1]:9000", "203.0.113.4:80"}}))
	c := calls.await(t, "found", are("203.0.113.4:80", "203.0.113.5:80"))
	if !strings.Contains(c.problem, "127.0.0.1:9000: not there") {
		t.Errorf("trouble %q", c.problem)
	}
	s.set("inside.test", 0, "127.0.0.1")
	c = calls.await(t, "turned inside", are("203.0.113.4:80"))
	if !strings.Contains(c.problem, "inside.test: not there") {
		t.Errorf("trouble %q", c.problem)
	}
}

func TestUnknownName(t *testing.T) {
	s := newServer(t)
	l, calls := start(t, s, nil)
	other := service.Key{Namespace: "a", Name: "b"}
	l.Set(pools(map[service.Key][]string{pool: {"nobody.test:80"}, other: {"nobody.test:81"}}))
	seen := map[service.Key]string{}
	for len(seen) < 2 {
		c := calls.await(t, "unknown", func(c told) bool { return c.problem != "" })
		seen[c.pool] = c.problem
		if len(c.addresses) > 0 || c.problem != "nobody.test: no such host" {
			t.Errorf("%+v", c)
		}
	}
	// Both pools are told again when it comes, each with its port.
	s.set("nobody.test", 0, "127.0.0.2")
	got := map[service.Key][]string{}
	for len(got) < 2 {
		c := calls.await(t, "it came", func(c told) bool { return len(c.addresses) > 0 })
		got[c.pool] = c.addresses
	}
	if got[pool][0] != "127.0.0.2:80" || got[other][0] != "127.0.0.2:81" {
		t.Errorf("got %v", got)
	}
}

// pools are those of addresses.
func pools(of map[service.Key][]string) (out []*routing.Pool) {
	for k, addresses := range of {
		out = append(out, &routing.Pool{Meta: service.Meta{Key: k}, Addresses: addresses})
	}
	return out
}

func TestTimeout(t *testing.T) {
	s := newServer(t)
	s.set("mute.test", 255)
	l, calls := start(t, s, func(c *Config) { c.LookupTimeout = 20 * time.Millisecond })
	l.Set(pools(map[service.Key][]string{pool: {"mute.test:80"}}))
	calls.await(t, "timeout", func(c told) bool { return c.problem == "mute.test: no answer in time" })
}

// TestAddressesAreBounded: more than the bound are cut, and that is told; many
// failing names make one short line.
func TestAddressesAreBounded(t *testing.T) {
	s := newServer(t)
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("127.0.1.%d", i+1))
	}
	s.set("many.test", 0, many...)
	l, calls := start(t, s, func(c *Config) { c.MaxAddresses = 10 })
	l.Set(pools(map[service.Key][]string{pool: {"many.test:80"}}))
	c := calls.await(t, "bounded", func(c told) bool { return len(c.addresses) > 0 })
	if len(c.addresses) != 10 || c.problem != "only the first 10 of 40 addresses are used" {
		t.Errorf("%+v", c)
	}
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprintf("n%d.test:80", i))
	}
	l.Set(pools(map[service.Key][]string{pool: names}))
	calls.await(t, "all fail", func(c told) bool {
		return strings.Count(c.problem, "no such host") == maxProblems && strings.HasSuffix(c.problem, "and 47 more")
	})
}

// TestQuietWhileNothingChanges: look-ups go on and the sink hears nothing.
func TestQuietWhileNothingChanges(t *testing.T) {
	s := newServer(t)
	s.set("same.test", 0, "127.0.0.3", "127.0.0.4")
	l, calls := start(t, s, func(c *Config) { c.Every = time.Millisecond })
	l.Set(pools(map[service.Key][]string{pool: {"same.test:80"}}))
	calls.await(t, "found", equals("127.0.0.3:80", "127.0.0.4:80"))
	asked := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.mu.asked["same.test"]
	}
	for deadline := time.Now().Add(time.Minute); asked() < 20; {
		if time.Now().After(deadline) {
			t.Fatalf("asked %d times", asked())
		}
		time.Sleep(time.Millisecond) // the server has no event to wait for
	}
	select {
	case c := <-calls:
		t.Errorf("told again: %+v", c)
	default:
	}
}

// TestPoolComesAgain: a pool that went and came again while nobody looked is
// told of anew, since whoever is told has forgotten it.
func TestPoolComesAgain(t *testing.T) {
	calls := make(sink)
	l, err := New(DefaultConfig(), calls)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	other := service.Key{Namespace: "default", Name: "other"}
	p := &routing.Pool{Meta: service.Meta{Key: pool}, Addresses: []string{"192.0.2.1:80"}}
	q := &routing.Pool{Meta: service.Meta{Key: other}, Addresses: []string{"192.0.2.2:80"}}
	both := []*routing.Pool{p, q}
	l.Set([]*routing.Pool{p})
	calls.await(t, "the pool", equals("192.0.2.1:80"))
	l.Set(both) // Run tells of the other, and waits for who is told
	l.taken(t)
	l.Set([]*routing.Pool{q})
	l.Set(both)
	seen := map[service.Key]bool{}
	calls.await(t, "both", func(c told) bool {
		seen[c.pool] = true
		return len(seen) == 2
	})
	l.taken(t)
	applied := *p // another object, such as one that is checked in another way
	l.Set([]*routing.Pool{&applied, q})
	calls.await(t, "the pool as it is now", equals("192.0.2.1:80"))
}

// taken waits until Run has taken what was set.
func (l *Lookups) taken(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); len(l.changed) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("not taken")
		}
		time.Sleep(time.Millisecond) // a channel that is read has no event
	}
}

func TestConfig(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{}.Validate()
	for _, field := range []string{"Every", "Retry", "LookupTimeout", "MaxAddresses", "MaxLookups"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
	if _, err := New(DefaultConfig(), nil); err == nil {
		t.Error("no sink, no error")
	}
}

func TestLiterals(t *testing.T) {
	got := Literals([]string{"127.0.0.1:80", "a:80", "[::ffff:10.0.0.1]:81", "nonsense", "[::1]:82"})
	if want := []string{"127.0.0.1:80", "10.0.0.1:81", "[::1]:82"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
