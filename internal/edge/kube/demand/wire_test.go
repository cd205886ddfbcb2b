package demand

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/test/loopback"
)

// tokens are whose they are.
type tokens map[string]Identity

func (t tokens) Review(_ context.Context, token string) (Identity, error) {
	if who, ok := t[token]; ok {
		return who, nil
	}
	return Identity{}, ErrUnauthenticated
}

const account = "system:serviceaccount:rh:gateway"

// controller is one controller pod, listening.
type controller struct {
	*Server
	address string
	stop    func()
	mu      sync.Mutex
	heard   map[string]int
	changed chan struct{}
}

func secrets(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	data, err := renew(nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(data[keyLeaf], data[keyLeafKey])
	if err != nil {
		t.Fatal(err)
	}
	return cert, pool(data[keyAuthorities])
}

func serve(t *testing.T, cert tls.Certificate, address string, change ...func(*Config)) *controller {
	t.Helper()
	c := &controller{heard: map[string]int{}, changed: make(chan struct{}, 1)}
	cfg := DefaultConfig()
	cfg.Reviewer, cfg.Accounts = tokens{"good": {User: account, Pod: "gw"}, "free": {User: account}, "other": {User: "system:serviceaccount:x:y"}}, []string{account}
	cfg.Demanded = func(k service.Key) {
		c.mu.Lock()
		c.heard[k.String()]++
		c.mu.Unlock()
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if c.Server, err = NewServer(cfg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c.address = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.Serve(ctx, l, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil })
	}()
	var once sync.Once
	c.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(c.stop)
	return c
}

// until waits for a demand that satisfies.
func (c *controller) until(t *testing.T, k service.Key, what string, ok func(autoscale.Demand) bool) time.Time {
	t.Helper()
	limit := time.After(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if ok(c.Demand(k)) {
			return time.Now()
		}
		select {
		case <-c.changed:
		case <-tick.C: // what is spread comes without an event
		case <-limit:
			t.Fatalf("%s: never; %+v", what, c.Demand(k))
		}
	}
}

func reporter(t *testing.T, roots *x509.CertPool, change func(*ClientConfig)) *Client {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("good\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultClientConfig()
	cfg.Pod, cfg.Token = "gw", file
	cfg.Roots = func(context.Context) (*x509.CertPool, error) { return roots, nil }
	cfg.InFlight = func(string) map[string]int { return map[string]int{"iris-engine-1": 2} }
	if change != nil {
		change(&cfg)
	}
	c, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

// TestFallsBusyAtOnce: a service that falls busy waits for no round of reports.
func TestFallsBusyAtOnce(t *testing.T) {
	cert, roots := secrets(t)
	s := serve(t, cert, "127.0.0.1:0")
	c := reporter(t, roots, func(cfg *ClientConfig) { cfg.Every, cfg.Heartbeat = time.Hour, time.Hour })
	c.SetTargets([]string{s.address})
	iris := service.ParseKey("ml/iris")
	s.SetLive([]string{"gw"})
	s.until(t, iris, "the first report", func(d autoscale.Demand) bool { return !d.Unknown })
	began := time.Now()
	c.Report("ml/iris", autoscale.Demand{Queued: 1, Arrived: 1})
	at := s.until(t, iris, "a request waits", func(d autoscale.Demand) bool { return d.Queued == 1 })
	t.Logf("known %s after the request", at.Sub(began).Round(100*time.Microsecond))
}

// TestEveryControllerKnows: two controller pods hear of a service that falls
// busy, one that comes later hears all, and one that restarts asks.
func TestEveryControllerKnows(t *testing.T) {
	cert, roots := secrets(t)
	a, b := serve(t, cert, loopback.Reserve(t)), serve(t, cert, "127.0.0.1:0")
	c := reporter(t, roots, nil)
	c.SetTargets([]string{a.address, b.address})
	iris := service.ParseKey("ml/iris")
	for _, s := range []*controller{a, b} {
		s.SetLive([]string{"gw"})
		s.until(t, iris, "the first report", func(d autoscale.Demand) bool { return !d.Unknown })
	}
	c.Report("ml/iris", autoscale.Demand{Queued: 1, Arrived: 1})
	for _, s := range []*controller{a, b} {
		s.until(t, iris, "a request waits", func(d autoscale.Demand) bool { return d.Queued == 1 })
	}
	c.Report("ml/iris", autoscale.Demand{Running: 2, Arrived: 2, LoadSeconds: 3})
	a.until(t, iris, "in flight", func(d autoscale.Demand) bool { return d.Running == 2 && d.Arrived == 2 && d.LoadSeconds == 3 })
	if n := a.InFlight("iris-engine-1"); n != 2 {
		t.Errorf("%d in flight on the pod", n)
	}

	third := serve(t, cert, "127.0.0.1:0")
	third.SetLive([]string{"gw"})
	c.SetTargets([]string{a.address, third.address})
	third.until(t, iris, "a controller that came later", func(d autoscale.Demand) bool { return d.Running == 2 && !d.Unknown })

	c.SetTargets([]string{third.address}) // for a moment the first is not ready
	c.Report("ml/iris", autoscale.Demand{Running: 3, Arrived: 3, LoadSeconds: 3})
	third.until(t, iris, "a third request", func(d autoscale.Demand) bool { return d.Running == 3 })
	c.SetTargets([]string{a.address, third.address})
	a.until(t, iris, "a target once more", func(d autoscale.Demand) bool { return d.Running == 3 })

	a.stop()
	again := serve(t, cert, a.address)
	again.SetLive([]string{"gw"})
	if d := again.Demand(iris); !d.Unknown {
		t.Errorf("right after the restart: %+v", d)
	}
	c.Report("ml/iris", autoscale.Demand{Running: 1, Arrived: 2, Done: 1, LoadSeconds: 4, LastDone: time.Now()})
	again.until(t, iris, "after the restart", func(d autoscale.Demand) bool { return d.Running == 1 && !d.Unknown && !d.LastDone.IsZero() })

	c.Forget("ml/iris")
	again.until(t, iris, "the service went", func(d autoscale.Demand) bool { return d.Running == 0 && d.LastDone.IsZero() })
	third.Publish(viewOf(iris))
	third.Withdraw(iris)
	if d := third.Demand(iris); d.Arrived != 0 || d.Running != 0 {
		t.Errorf("withdrawn: %+v", d)
	}
}

// TestIdleIsQuiet: nothing is sent but heartbeats while nothing changes.
func TestIdleIsQuiet(t *testing.T) {
	cert, roots := secrets(t)
	s := serve(t, cert, "127.0.0.1:0")
	c := reporter(t, roots, func(cfg *ClientConfig) { cfg.Every, cfg.Heartbeat = 10*time.Millisecond, 100*time.Millisecond })
	began := time.Now()
	c.SetTargets([]string{s.address})
	x := service.ParseKey("a/x")
	s.SetLive([]string{"gw"})
	s.until(t, x, "the first report", func(d autoscale.Demand) bool { return !d.Unknown })
	number := func() uint64 {
		s.Server.mu.Lock()
		defer s.Server.mu.Unlock()
		return s.Server.mu.book.gateways["gw"].number
	}
	for limit := time.Now().Add(time.Minute); number() < 5; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("no heartbeats")
		}
	}
	if gone := time.Since(began); gone < 4*c.cfg.Heartbeat {
		t.Errorf("5 reports in %s, though nothing changed", gone)
	}
}

// TestManyServices: a full report of several thousand fits, and is fast.
func TestManyServices(t *testing.T) {
	cert, roots := secrets(t)
	s := serve(t, cert, "127.0.0.1:0")
	c := reporter(t, roots, nil)
	const n = 5000
	for i := range n {
		c.Report(fmt.Sprintf("team-%d/a-model-with-a-name-%d", i%50, i), autoscale.Demand{Running: 1, Arrived: uint64(i + 1), LoadSeconds: 1.5})
	}
	began := time.Now()
	c.SetTargets([]string{s.address})
	at := s.until(t, service.ParseKey(fmt.Sprintf("team-%d/a-model-with-a-name-%d", (n-1)%50, n-1)), "the last service", func(d autoscale.Demand) bool { return d.Running == 1 })
	r, _, _ := c.compose(&target{full: true, dirty: map[string]struct{}{}})
	body, err := json.Marshal(r)
	if err != nil || len(body) > maxReportBytes/4 {
		t.Fatalf("%d bytes, %v", len(body), err)
	}
	t.Logf("%d services: %d bytes, known after %s", n, len(body), at.Sub(began).Round(time.Millisecond))
}

// TestRefusals: who may not report, and what is no report.
func TestRefusals(t *testing.T) {
	cert, roots := secrets(t)
	s := serve(t, cert, "127.0.0.1:0")
	h := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: ServerName}}}
	defer h.CloseIdleConnections()
	ask := func(token string, body []byte) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+s.address+Path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := h.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var text bytes.Buffer
		_, _ = text.ReadFrom(resp.Body)
		return resp.StatusCode, text.String()
	}
	good := []byte(`{"pod":"gw","instance":5,"number":1,"full":true,"services":[{"s":"a/x","q":1}]}`)
	for _, c := range []struct {
		token  string
		body   []byte
		status int
		says   string
	}{
		{"", good, 401, "needs a ServiceAccount's token"},
		{"forged", good, 401, "not valid"},
		{"other", good, 403, "system:serviceaccount:x:y may not report"},
		{"good", bytes.Replace(good, []byte(`"gw"`), []byte(`"gw-2"`), 1), 403, `with the token of pod "gw"`},
		{"good", []byte(`{`), 400, "report:"},
		{"good", []byte(`{"pod":"gw","instance":5,"number":1,"services":[{"s":"a/x","q":-1}]}`), 400, "out of range"},
		{"good", bytes.Repeat([]byte(" "), maxReportBytes+1), 413, "too large"},
		{"free", bytes.Replace(good, []byte(`"gw"`), []byte(`"gw-3"`), 1), 200, "{}"},
		{"good", good, 200, "{}"},
	} {
		if status, text := ask(c.token, c.body); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("token %q, %.60s: %d %s, want %d %s", c.token, c.body, status, text, c.status, c.says)
		}
	}
	if d := s.Demand(service.ParseKey("a/x")); d.Queued != 2 {
		t.Errorf("what was refused counts: %+v", d)
	}
	got := counts(t, s.Server)
	for result, n := range map[string]float64{"taken": 2, "refused": 4, "invalid": 3} {
		if got["roundhouse_controller_demand_reports_total "+result] != n {
			t.Errorf("%v reports were %s, want %v", got["roundhouse_controller_demand_reports_total "+result], result, n)
		}
	}
	// A certificate of somebody else's authority is no controller's.
	stranger, _ := secrets(t)
	fake := serve(t, stranger, "127.0.0.1:0")
	c := reporter(t, roots, nil)
	if _, err := c.post(t.Context(), fake.address, Report{Pod: "gw", Instance: 1, Number: 1}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("reported to a stranger: %v", err)
	}
}

// TestFlood: who sends wrong tokens over as many connections as it can neither
// keeps a gateway from reporting nor fills the log.
func TestFlood(t *testing.T) {
	cert, roots := secrets(t)
	var lines bytes.Buffer
	s := serve(t, cert, "127.0.0.1:0", func(cfg *Config) {
		cfg.Log, cfg.Reviewer = slog.New(slog.NewTextHandler(&lines, nil)), slow{cfg.Reviewer, make(chan struct{}, atOnce)}
	})
	var flood []net.Conn
	refused := 0
	for range 4 * maxFromOne {
		// Linux takes connections from every address of 127/8.
		d := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}, Config: &tls.Config{RootCAs: roots, ServerName: ServerName}}
		c, err := d.DialContext(t.Context(), "tcp", s.address)
		if err != nil {
			refused++
			continue
		}
		defer c.Close()
		flood = append(flood, c)
		if _, err := io.WriteString(c, "POST "+Path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
			t.Fatal(err)
		}
	}
	if len(flood) != maxFromOne || refused != 3*maxFromOne {
		t.Errorf("%d connections were taken, %d not", len(flood), refused)
	}
	g := reporter(t, roots, nil)
	g.SetTargets([]string{s.address})
	g.Report("ml/iris", autoscale.Demand{Queued: 3})
	s.until(t, service.ParseKey("ml/iris"), "told meanwhile", func(d autoscale.Demand) bool { return d.Queued == 3 })
	for _, c := range flood { // one that goes makes room
		answer := make([]byte, 12)
		if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "HTTP/1.1 401" {
			t.Errorf("%q, %v", answer, err)
		}
		_ = c.Close()
	}
	kept := &tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}, Config: &tls.Config{RootCAs: roots, ServerName: ServerName}}
	for limit := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		c, err := kept.DialContext(t.Context(), "tcp", s.address)
		if err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(limit) {
			t.Fatal("connections that ended make no room")
		}
	}
	s.stop()
	if n := strings.Count(lines.String(), "was refused"); n != 1 {
		t.Errorf("%d lines of %d refusals:\n%s", n, maxFromOne, lines.String())
	}
}

// slow takes its time, as an API server does, for some at a time.
type slow struct {
	Reviewer
	turn chan struct{}
}

func (s slow) Review(ctx context.Context, token string) (Identity, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	time.Sleep(50 * time.Millisecond)
	return s.Reviewer.Review(ctx, token)
}

// api answers TokenReviews.
type api struct {
	mu     sync.Mutex
	asked  int
	status authenticationv1.TokenReviewStatus
	err    error
}

func (a *api) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	o.(*authenticationv1.TokenReview).Status = a.status
	return a.err
}

// TestReviewsAreRememberedForAMinute, wrong ones for less, failures not.
func TestReviewsAreRememberedForAMinute(t *testing.T) {
	a := &api{status: authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{Audience},
		User: authenticationv1.UserInfo{Username: account, Extra: map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/pod-name": {"gw"}}}}}
	now := t0
	r := NewReviewer(a, func() time.Time { return now })
	ask := func(token string, want Identity, wrong error, asked int) {
		t.Helper()
		who, err := r.Review(t.Context(), token)
		if who != want || !errors.Is(err, wrong) || a.asked != asked {
			t.Errorf("%s: %+v, %v, asked %d times; want %+v, %v, %d", token, who, err, a.asked, want, wrong, asked)
		}
	}
	me := Identity{User: account, Pod: "gw"}
	ask("t", me, nil, 1)
	now = now.Add(59 * time.Second)
	ask("t", me, nil, 1)
	now = now.Add(time.Second)
	a.status = authenticationv1.TokenReviewStatus{Error: "token has expired"}
	ask("t", Identity{}, ErrUnauthenticated, 2)
	ask("t", Identity{}, ErrUnauthenticated, 2)
	now = now.Add(refused)
	a.status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"https://kubernetes.default.svc"}, User: authenticationv1.UserInfo{Username: account}}
	ask("t", Identity{}, ErrUnauthenticated, 3) // of another audience
	a.err = errors.New("no API server")
	ask("u", Identity{}, a.err, 4)
	a.err = nil
	ask(strings.Repeat("x", maxTokens+1), Identity{}, ErrUnauthenticated, 4)
	for i := range maxReviews + 10 {
		_, _ = r.Review(t.Context(), fmt.Sprint(i))
	}
	if n := len(r.(*reviews).mu.known); n > maxReviews {
		t.Errorf("%d reviews are remembered", n)
	}
}

// TestRenewal follows a Secret over twenty years: at every moment the
// certificate is of an authority that gateways knew before, and far from its
// end.
func TestRenewal(t *testing.T) {
	data, err := renew(map[string][]byte{keyLeaf: []byte("nonsense")}, t0)
	if err != nil || data == nil {
		t.Fatal(err)
	}
	known := data[keyAuthorities]
	leaves, authorities := 1, 1
	const step = 10
	for day := 0; day < 20*365; day += step {
		now := t0.Add(time.Duration(day) * 24 * time.Hour)
		next, err := renew(data, now)
		if err != nil {
			t.Fatal(err)
		}
		if next != nil {
			if !bytes.Equal(next[keyLeaf], data[keyLeaf]) {
				leaves++
			}
			if !bytes.Equal(next[keyAuthorities], data[keyAuthorities]) {
				authorities++
			}
			data = next
		}
		leaf, _, err := pair(data[keyLeaf], data[keyLeafKey])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool(known), DNSName: ServerName, CurrentTime: now}); err != nil {
			t.Fatalf("day %d: gateways that read before: %v", day, err)
		}
		if leaf.NotAfter.Sub(now) < leafRenew-step*24*time.Hour {
			t.Fatalf("day %d: %s left", day, leaf.NotAfter.Sub(now))
		}
		known = data[keyAuthorities]
	}
	if authorities != 3 || leaves < 100 || leaves > 140 {
		t.Errorf("%d authorities and %d certificates in twenty years", authorities, leaves)
	}
	if _, err := Pool([]byte("nothing")); err == nil {
		t.Error("authorities of nothing")
	}
}
