package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"roundhouse.dev/roundhouse/test/loopback"
)

const secret = "a secret of all the nodes"

func config(self string, all ...string) Config {
	cfg := DefaultConfig()
	cfg.Self, cfg.Peers, cfg.Secrets = self, all, []string{secret}
	cfg.AnswerTimeout, cfg.FirstPause, cfg.LookupEvery = 20*time.Second, 10*time.Millisecond, 5*time.Millisecond
	return cfg
}

func group(t *testing.T, cfg Config) *Group {
	t.Helper()
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// serve starts a node that sends what it is asked about, and returns its origin.
func serve(t *testing.T, blob func(*Request, http.ResponseWriter, *http.Request, Question), edit func(*Config)) (string, *Group) {
	t.Helper()
	var g *Group
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.Serve(w, r, blob, func(string) {}) }))
	t.Cleanup(srv.Close)
	cfg := config(srv.URL, srv.URL)
	if edit != nil {
		edit(&cfg)
	}
	g = group(t, cfg)
	return srv.URL, g
}

func send(v *Request, w http.ResponseWriter, _ *http.Request, q Question) {
	w.Header().Set("Etag", `"`+q.Hash+`"`)
	w.Header().Set("Content-Length", "5")
	v.Sign(w.Header(), 200)
	_, _ = w.Write([]byte("bytes"))
}

func TestOrigin(t *testing.T) {
	for in, want := range map[string]string{
		"http://A.example:8083/": "http://a.example:8083", "http://h:80": "http://h", "https://h:443": "https://h", "https://h:80": "https://h:80",
		"http://[::1]:8083": "http://[::1]:8083", "http://[::ffff:10.0.0.1]:80": "http://10.0.0.1", "http://[::1]": "http://[::1]", "HTTP://h": "http://h",
		"": "", "h:8083": "", "http://": "", "http://:8083": "", "http://u@h": "", "http://h/x": "", "http://h?x": "", "http://h#x": "", "ftp://h": "", "http://h:x": "",
	} {
		got, err := Origin(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q %v", in, got, err)
		}
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*Config)
		want string
	}{
		"in order":       {func(*Config) {}, ""},
		"no self":        {func(c *Config) { c.Self = "" }, "self"},
		"bad peer":       {func(c *Config) { c.Peers = []string{"http://a", "b"} }, "peers[1]"},
		"nobody":         {func(c *Config) { c.Peers = nil }, "DNS name"},
		"name":           {func(c *Config) { c.Peers, c.DNS, c.Self = nil, "ring:8083", "http://10.0.0.1:8083" }, ""},
		"name, no port":  {func(c *Config) { c.DNS, c.Self = "ring", "http://10.0.0.1:8083" }, "HOST:PORT"},
		"self by name":   {func(c *Config) { c.DNS = "ring:8083" }, "must be the address"},
		"no secret":      {func(c *Config) { c.Secrets = nil }, "secrets"},
		"short secret":   {func(c *Config) { c.Secrets = []string{secret, "short"} }, "secrets[1]: has 5 bytes"},
		"no time":        {func(c *Config) { c.AnswerTimeout = 0 }, "answerTimeout"},
		"many mistakes":  {func(c *Config) { c.Self, c.MaxSkew = "x", -1 }, "maxSkew"},
		"many mistakes.": {func(c *Config) { c.Self, c.MaxSkew = "x", -1 }, "self"},
	} {
		cfg := config("http://self", "http://a")
		c.edit(&cfg)
		err := cfg.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err2 := New(cfg); (err2 == nil) != (err == nil) {
			t.Errorf("%s: %v", name, err2)
		}
	}
}

func TestGet(t *testing.T) {
	url, _ := serve(t, send, nil)
	g := group(t, config("http://self", url))
	answer, err := g.Get(t.Context(), url, Question{Hash: "h", Size: 5, To: 5})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil || string(body) != "bytes" {
		t.Errorf("%q %v", body, err)
	}
	if err := answer.Body.Close(); err != nil {
		t.Error(err)
	}
	if err := g.ping(t.Context(), url); err != nil {
		t.Error(err)
	}
}

// TestSecrets: a secret is replaced node by node, and another is not believed,
// whoever has it.
func TestSecrets(t *testing.T) {
	const next = "the secret that comes next"
	for _, c := range []struct {
		server, client []string
		err            error
	}{
		{[]string{secret}, []string{secret}, nil},
		{[]string{secret, next}, []string{secret}, nil},
		{[]string{secret, next}, []string{next, secret}, nil},
		{[]string{next, secret}, []string{secret, next}, nil},
		{[]string{secret}, []string{next}, ErrRefused},
		{[]string{secret}, []string{next, secret}, ErrRefused},
	} {
		url, _ := serve(t, send, func(cfg *Config) { cfg.Secrets = c.server })
		cfg := config("http://self", url)
		cfg.Secrets = c.client
		if err := group(t, cfg).ping(t.Context(), url); !errors.Is(err, c.err) || c.err == nil && err != nil {
			t.Errorf("%v asks %v: %v", c.client, c.server, err)
		}
	}
	// One who answers everything with 200 is no node.
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	if err := group(t, config("http://self", srv.URL)).ping(t.Context(), srv.URL); !errors.Is(err, ErrForged) {
		t.Error(err)
	}
	// Nor one who sends back what another node answered another time.
	url, _ := serve(t, send, nil)
	var old http.Header
	replay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for k, v := range old {
			w.Header()[k] = v
		}
	}))
	defer replay.Close()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url+Prefix+"ping", nil)
	if err != nil {
		t.Fatal(err)
	}
	g := group(t, config("http://self", url))
	resp, err := g.send(req, url)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	old = resp.Header
	if err := g.ping(t.Context(), replay.URL); !errors.Is(err, ErrForged) {
		t.Errorf("an old answer: %v", err)
	}
}

// TestClock: a request is good once, and for a while.
func TestClock(t *testing.T) {
	now := time.Unix(1e9, 0)
	server := signer{self: "http://b", secrets: [][]byte{[]byte(secret)}, skew: time.Minute, seen: nonces{max: 3}}
	client := signer{self: "http://a", secrets: server.secrets}
	request := func(at time.Time) *http.Request {
		r := httptest.NewRequest("GET", "http://b"+Prefix+"ping", nil)
		client.sign(r, "http://b", at)
		return r
	}
	for _, off := range []time.Duration{0, time.Minute, -time.Minute} {
		if _, _, err := server.check(request(now.Add(off)), now); err != nil {
			t.Errorf("%v: %v", off, err)
		}
	}
	for _, off := range []time.Duration{2 * time.Minute, -2 * time.Minute, -time.Hour} {
		if _, _, err := server.check(request(now.Add(off)), now); !errors.Is(err, errClock) {
			t.Errorf("%v: %v", off, err)
		}
	}
	if _, _, err := server.check(request(now), now); !errors.Is(err, errMany) {
		t.Errorf("beyond the bound: %v", err)
	}
	// A request is remembered for as long as its time is good.
	r := request(now.Add(59 * time.Second))
	server.seen = nonces{max: 1000}
	if _, _, err := server.check(r, now); err != nil {
		t.Fatal(err)
	}
	for after := time.Duration(0); after < 10*time.Minute; after += time.Second {
		if _, _, err := server.check(r, now.Add(after)); err == nil {
			t.Fatalf("good again after %v", after)
		}
		if _, _, err := server.check(request(now.Add(after)), now.Add(after)); err != nil {
			t.Fatalf("a new one after %v: %v", after, err)
		}
	}
	if n := len(server.seen.now) + len(server.seen.old); n > 300 {
		t.Errorf("%d requests are remembered", n)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add("t=1000000000, n=AAAAAAAAAAAAAAAAAAAAAA, m=00")
	f.Add("")
	f.Add("t=, n=, m=")
	s := signer{self: "http://b", secrets: [][]byte{[]byte(secret)}, skew: time.Minute, seen: nonces{max: 10}}
	f.Fuzz(func(t *testing.T, auth string) {
		r := httptest.NewRequest("GET", "http://b"+Prefix+"ping", nil)
		r.Header[authHeader] = []string{auth}
		if _, _, err := s.check(r, time.Unix(1e9, 0)); err == nil {
			t.Errorf("%q is believed", auth)
		}
	})
}

// TestBack: a node that failed is left alone, tried, and asked again.
func TestBack(t *testing.T) {
	name := "http://" + loopback.Reserve(t)
	states := make(chan State, 100)
	cfg := config("http://self", name)
	cfg.Changed = func(st State) { states <- st }
	var logs bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&logs, nil))
	g := group(t, cfg)
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { g.Run(ctx) })
	defer run.Wait()
	defer stop()
	key := "k"
	for ; len(g.Owners(key)) == 0; key += "k" {
	}
	_, err := g.Get(t.Context(), name, Question{Hash: "h", Size: 5, To: 5})
	if !errors.Is(err, ErrDead) {
		t.Fatal(err)
	}
	g.Failed(name, err)
	if got := g.Owners(key); len(got) != 0 {
		t.Error(got)
	}
	wait := func(asked bool) State {
		t.Helper()
		for {
			select {
			case st := <-states:
				if st.Nodes[0].Asked == asked {
					return st
				}
			case <-time.After(time.Minute):
				t.Fatal("nothing changes")
			}
		}
	}
	if st := wait(false); st.Nodes[0].Why == "" || st.Self != "http://self" {
		t.Errorf("%+v", st)
	}
	l, err := net.Listen("tcp", strings.TrimPrefix(name, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	server := group(t, config(name, name))
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { server.Serve(w, r, send, func(string) {}) })}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	wait(true)
	if got := g.Owners(key); len(got) != 1 {
		t.Error(got)
	}
	stop()
	run.Wait()
	if !strings.Contains(logs.String(), "is ejected") || !strings.Contains(logs.String(), "is back") {
		t.Error(logs.String())
	}
}

// nameServer is a DNS server on loopback for one name.
type nameServer struct {
	conn net.PacketConn
	mu   sync.Mutex
	has  []netip.Addr
	code dnsmessage.RCode
}

func (s *nameServer) set(code dnsmessage.RCode, has ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code, s.has = code, nil
	for _, a := range has {
		s.has = append(s.has, netip.MustParseAddr(a))
	}
}

func (s *nameServer) run() {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var q dnsmessage.Message
		if q.Unpack(buf[:n]) != nil || len(q.Questions) != 1 {
			continue
		}
		s.mu.Lock()
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true, RCode: s.code}, Questions: q.Questions}
		for _, a := range s.has {
			h := dnsmessage.ResourceHeader{Name: q.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 1}
			if a.Is4() && q.Questions[0].Type == dnsmessage.TypeA {
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
			}
			if a.Is6() && q.Questions[0].Type == dnsmessage.TypeAAAA {
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
			}
		}
		s.mu.Unlock()
		if out, err := m.Pack(); err == nil {
			_, _ = s.conn.WriteTo(out, from)
		}
	}
}

// TestDNS: nodes are those of a name, as it is now, over a DNS server.
func TestDNS(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := &nameServer{conn: conn}
	go s.run()
	s.set(dnsmessage.RCodeNameError)
	cfg := config("http://10.0.0.1:8083")
	cfg.Peers, cfg.DNS = nil, "ring.example.:8083"
	cfg.LookupEvery = 50 * time.Millisecond
	cfg.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	states := make(chan State, 100)
	cfg.Changed = func(st State) { states <- st }
	g := group(t, cfg)
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { g.Run(ctx) })
	defer run.Wait()
	defer stop()
	wait := func(want ...string) {
		t.Helper()
		for {
			select {
			case st := <-states:
				got := []string{}
				for _, n := range st.Nodes {
					got = append(got, n.Name)
				}
				if slices.Equal(got, want) || len(got)+len(want) == 0 {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("the nodes are %+v, want %v", g.State(), want)
			}
		}
	}
	wait()
	s.set(dnsmessage.RCodeSuccess, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	wait("http://10.0.0.2:8083", "http://10.0.0.3:8083")
	g.Failed("http://10.0.0.3:8083", ErrDead)
	s.set(dnsmessage.RCodeSuccess, "10.0.0.3", "10.0.0.1", "fd00::1")
	wait("http://10.0.0.3:8083", "http://[fd00::1]:8083")
	if g.State().Nodes[0].Asked {
		t.Error("what was known of a node that stays is lost")
	}
	// No answer, and none that the name is gone: the nodes are those of before.
	s.set(dnsmessage.RCodeServerFailure)
	time.Sleep(4 * cfg.LookupEvery) // nothing tells that nothing happened
	s.set(dnsmessage.RCodeNameError)
	time.Sleep(4 * cfg.LookupEvery)
	if st := g.State(); len(st.Nodes) != 2 {
		t.Errorf("%+v", st)
	}
}

func TestTooManyNodes(t *testing.T) {
	all := []string{}
	for i := range 20 {
		all = append(all, fmt.Sprintf("http://10.0.0.%d:8083", i))
	}
	cfg := config("http://self", all...)
	cfg.MaxNodes = 5
	if st := group(t, cfg).State(); len(st.Nodes) != 4 {
		t.Errorf("%+v", st)
	}
}
