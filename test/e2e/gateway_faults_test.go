package e2e

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"roundhouse.dev/roundhouse/test/loopback"
)

// server is a server written in the test: serve gets every connection, and
// ends it by returning.
func server(t *testing.T, serve func(c *net.TCPConn, r *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				serve(c.(*net.TCPConn), bufio.NewReader(c))
			}()
		}
	}()
	return l.Addr().String()
}

// inference reads requests off a connection until one for inference comes;
// any other (for metrics) gets a 404. nil: the connection ended.
func inference(c net.Conn, r *bufio.Reader) *http.Request {
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return nil
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil
		}
		if req.Method == http.MethodPost {
			return req
		}
		_, _ = io.WriteString(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
	}
}

// counting is a server that answers every completion and counts them.
func counting(t *testing.T) (address string, asked *atomic.Int64) {
	asked = &atomic.Int64{}
	const body = `{"object":"text_completion","choices":[]}`
	return server(t, func(c *net.TCPConn, r *bufio.Reader) {
		for inference(c, r) != nil {
			asked.Add(1)
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
	}), asked
}

// simulated starts an engine that asks for no more than a port.
func simulated(t *testing.T, args ...string) (address string, cmd *exec.Cmd) {
	t.Helper()
	address, cmd, _ = serving(t, `url=http://(\S+)`, append([]string{"simulate", "engine", "--port", "0", "--model", "chat"}, args...)...)
	return address, cmd
}

// front is a `roundhouse gateway` of its own whose model chat is a pool of the
// addresses; admin is the address of its metrics.
func front(t *testing.T, addresses ...string) (n *node, cmd *exec.Cmd) {
	t.Helper()
	file := write(t, t.TempDir(), "pool.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: chat}
spec: {addresses: ["`+strings.Join(addresses, `", "`)+`"]}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: chat}
spec: {targets: [{pool: chat}]}
`)
	n = newNode(t)
	var out *capture
	n.gateway, cmd, out = serving(t, `Roundhouse answers at +(\S+)`, "gateway", "-f", file, "--listen", "127.0.0.1:0", "--grpc-listen", "", "--metrics-listen", "127.0.0.1:0")
	eventually(t, "the metrics have an address", func() (bool, string) {
		n.admin = after(out.String(), "Metrics                ")
		return n.admin != "", out.String()
	})
	return n, cmd
}

const shortAsk = `{"model":"chat","prompt":"hello","max_tokens":4}`

// load asks in so many goroutines until stop is called, which returns how many
// requests were answered and those that failed the check.
func (n *node) load(workers int, ask func(worker int) (answer, error), fine func(answer) bool) (answered *atomic.Int64, stop func() []string) {
	var wg sync.WaitGroup
	answered, done := &atomic.Int64{}, make(chan struct{})
	var mu sync.Mutex
	var bad []string
	for w := range workers {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				a, err := ask(w)
				if err != nil || !fine(a) {
					mu.Lock()
					bad = append(bad, fmt.Sprintf("%s (%v)", strings.TrimSpace(a.String()), err))
					mu.Unlock()
				}
				answered.Add(1)
			}
		})
	}
	var once sync.Once
	stop = func() []string {
		once.Do(func() { close(done); wg.Wait() })
		return bad
	}
	n.t.Cleanup(func() { stop() })
	return answered, stop
}

func (n *node) reach(answered *atomic.Int64, more int64) {
	n.t.Helper()
	want := answered.Load() + more
	eventually(n.t, fmt.Sprintf("%d more answers", more), func() (bool, string) {
		return answered.Load() >= want, fmt.Sprint(answered.Load()-want, " of them")
	})
}

func ok(a answer) bool { return a.status == 200 }

// TestEngineKilledWithinAnAnswer: the events that came are passed on, then the
// stream ends with an error event. An answer with a length ends with a cut
// connection.
func TestEngineKilledWithinAnAnswer(t *testing.T) {
	t.Parallel()
	address, cmd := simulated(t, "--speed", "1") // 60 tokens a second
	n, _ := front(t, address)
	resp, err := client.Post(n.gateway+"/v1/completions", "application/json", strings.NewReader(`{"model":"chat","prompt":"hello","stream":true,"max_tokens":4000,"ignore_eos":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	from := bufio.NewReader(resp.Body)
	first, err := from.ReadString('\n')
	if err != nil || !strings.HasPrefix(first, `data: {"id":"cmpl-`) {
		t.Fatalf("the stream begins with %q (%v)", first, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(from)
	if err != nil {
		t.Errorf("the stream is cut: %v", err)
	}
	events := strings.Split(strings.TrimSuffix(string(rest), "\n\n"), "\n\n")
	last := events[len(events)-1]
	contains(t, last, "event: error\ndata: {\"error\":{", `"type":"server_error"`, `"code":"replica_failed"`)
	for _, e := range events[:len(events)-1] {
		if e = strings.TrimPrefix(e, "\n"); !strings.HasPrefix(e, "data: {") || !strings.HasSuffix(e, "}") {
			t.Errorf("half an event: %q", e)
		}
	}
	eventually(t, "the cut is counted", func() (bool, string) {
		c := n.figure(n.admin, "roundhouse_gateway_answers_cut_total")
		return c == 1, fmt.Sprint(c)
	})
	a := n.post("/v1/completions", shortAsk)
	if a.status != 502 && a.status != 503 {
		t.Errorf("with no engine left: %s", a)
	}

	half := server(t, func(c *net.TCPConn, r *bufio.Reader) {
		if inference(c, r) != nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"choices\":")
		}
	})
	n, _ = front(t, half)
	if a, err := try("POST", n.gateway+"/v1/completions", shortAsk); err == nil {
		t.Errorf("half an answer comes as %s, want a cut connection", a)
	}
}

// TestFailuresBeforeTheAnswer: of five servers one refuses connections, one
// closes them, one resets them, one breaks off its header and one answers.
// Every request is answered; the failures are retries.
func TestFailuresBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	good, asked := counting(t)
	closes := server(t, func(c *net.TCPConn, r *bufio.Reader) { inference(c, r) })
	resets := server(t, func(c *net.TCPConn, r *bufio.Reader) {
		inference(c, r)
		_ = c.SetLinger(0)
	})
	breaks := server(t, func(c *net.TCPConn, r *bufio.Reader) {
		if inference(c, r) != nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Ty")
		}
	})
	n, _ := front(t, good, loopback.Reserve(t), closes)
	for range 30 {
		if a := n.post("/v1/completions", shortAsk); a.status != 200 {
			t.Errorf("not answered: %s", a)
		}
	}
	// A request that was sent goes to one other server, so there is one of these
	// in a pool.
	second, _ := front(t, good, resets)
	third, _ := front(t, good, breaks)
	for range 30 {
		for _, n := range []*node{second, third} {
			if a := n.post("/v1/completions", shortAsk); a.status != 200 {
				t.Errorf("not answered: %s", a)
			}
		}
	}
	if got := asked.Load(); got != 90 {
		t.Errorf("the server that works was asked %d times, want 90", got)
	}
	for _, n := range []*node{n, second, third} {
		if r := n.figure(n.admin, "roundhouse_gateway_retries_total"); r == 0 {
			t.Error("no retry is counted")
		}
	}
}

// TestEngineKilledUnderLoad: one of three engines is killed while requests are
// sent to it and picked for it. None fails: nothing of an answer had come.
func TestEngineKilledUnderLoad(t *testing.T) {
	t.Parallel()
	var addresses []string
	var first *exec.Cmd
	for i := range 3 {
		address, cmd := simulated(t, "--speed", "200")
		if addresses = append(addresses, address); i == 0 {
			first = cmd
		}
	}
	n, _ := front(t, addresses...)
	answered, stop := n.load(8, func(int) (answer, error) { return try("POST", n.gateway+"/v1/completions", fresh(64)) }, ok)
	n.reach(answered, 50)
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	n.reach(answered, 100)
	if bad := stop(); len(bad) > 0 {
		t.Errorf("%d of %d requests failed, as %s", len(bad), answered.Load(), bad[0])
	}
}

// TestHalfAPoolIsGone: two of four servers refuse connections. They are left
// alone for a while after each failure, and the others share the requests.
func TestHalfAPoolIsGone(t *testing.T) {
	t.Parallel()
	a, gotA := counting(t)
	b, gotB := counting(t)
	n, _ := front(t, loopback.Reserve(t), a, loopback.Reserve(t), b)
	answered, stop := n.load(4, func(int) (answer, error) { return try("POST", n.gateway+"/v1/completions", fresh(64)) }, ok)
	n.reach(answered, 200)
	if bad := stop(); len(bad) > 0 {
		t.Errorf("%d requests failed, as %s", len(bad), bad[0])
	}
	if x, y := gotA.Load(), gotB.Load(); x+y != answered.Load() || x < y/3 || y < x/3 {
		t.Errorf("the two that are left got %d and %d of %d", x, y, answered.Load())
	}
}

// TestMetricsDead: servers whose metrics hang are balanced over all the same,
// by what is in flight.
func TestMetricsDead(t *testing.T) {
	t.Parallel()
	var addresses []string
	counts := make([]atomic.Int64, 4)
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	for i := range counts {
		addresses = append(addresses, server(t, func(c *net.TCPConn, r *bufio.Reader) {
			for {
				req, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				if req.URL.Path == "/health" {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					continue
				}
				if req.Method != http.MethodPost {
					<-over
					return
				}
				counts[i].Add(1)
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
			}
		}))
	}
	n, _ := front(t, addresses...)
	answered, stop := n.load(8, func(int) (answer, error) { return try("POST", n.gateway+"/v1/completions", fresh(64)) }, ok)
	n.reach(answered, 400)
	if bad := stop(); len(bad) > 0 {
		t.Errorf("%d requests failed, as %s", len(bad), bad[0])
	}
	for i := range counts {
		if c := counts[i].Load(); c*4 < answered.Load()/3 {
			t.Errorf("server %d got %d of %d requests", i, c, answered.Load())
		}
	}
}

// held is a request that an engine has and answers when it is told to.
type held struct {
	engine int
	answer chan struct{}
}

// holding is n engines whose metrics say that they are idle, and the requests
// that they hold.
func holding(t *testing.T, n int) (addresses []string, arrived chan held) {
	t.Helper()
	arrived = make(chan held)
	over := make(chan struct{})
	for i := range n {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost {
				_, _ = io.WriteString(w, "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n")
				return
			}
			h := held{i, make(chan struct{})}
			select {
			case arrived <- h:
			case <-over:
				return
			}
			select {
			case <-h.answer:
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"choices":[]}`)
			case <-over:
			}
		}))
		t.Cleanup(s.Close)
		addresses = append(addresses, strings.TrimPrefix(s.URL, "http://"))
	}
	t.Cleanup(func() { close(over) })
	return addresses, arrived
}

// TestBurstOfOnePrompt: 1,000 identical prompts, 8 at a time, over 4 idle
// engines. The prefix draws them to one, what is in flight there drives them
// away: no engine gets more than 40 %. Requests end in any order and not before
// 8 are in flight, however slow the machine is: of fewer, more may stay where
// the prompt is known.
func TestBurstOfOnePrompt(t *testing.T) {
	t.Parallel()
	const total, atOnce = 1000, 8
	addresses, arrived := holding(t, 4)
	n, _ := front(t, addresses...)
	body := fmt.Sprintf(`{"model":"chat","max_tokens":4,"prompt":%q}`, strings.Repeat("the same for all ", 100))
	ended := make(chan struct{}, atOnce)
	var flying []held
	end := func(k int) {
		close(flying[k].answer)
		flying = slices.Delete(flying, k, k+1)
		<-ended
	}
	dice, counts := rand.New(rand.NewPCG(1, 1)), make([]int, len(addresses))
	for range total {
		if len(flying) == atOnce {
			end(dice.IntN(atOnce))
		}
		go func() {
			if a, err := try("POST", n.gateway+"/v1/completions", body); err != nil || a.status != 200 {
				t.Errorf("%s (%v)", a, err)
			}
			ended <- struct{}{}
		}()
		select {
		case h := <-arrived:
			counts[h.engine]++
			flying = append(flying, h)
		case <-ended:
			t.Fatal("a request came to no engine")
		}
	}
	for len(flying) > 0 {
		end(0)
	}
	for i, c := range counts {
		if c > total*4/10 {
			t.Errorf("engine %d got %d of %d requests", i, c, total)
		}
	}
	t.Logf("shares: %d", counts)
}

// raiseFiles asks for as many open files as the system lets a process have,
// for this process and those it starts from here on, and returns how many.
func raiseFiles(t *testing.T) int {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Logf("RLIMIT_NOFILE stays as it is: %v", err)
	}
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	return int(min(limit.Cur, 1<<20))
}

// resident is a process's memory in bytes; 0 where there is no /proc.
func resident(pid int) (bytes int64) {
	raw, _ := os.ReadFile("/proc/" + itoa(pid) + "/status")
	_, _ = fmt.Sscan(after(string(raw), "VmRSS:"), &bytes)
	return bytes << 10
}

// TestIdleConnections: 10,000 connections that have asked once and stay cost
// bounded memory, and others are answered.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	count := 10_000
	if limit := raiseFiles(t); limit < count+2000 {
		count = limit / 2
		t.Logf("RLIMIT_NOFILE is %d: only %d connections", limit, count)
	}
	good, _ := counting(t)
	n, cmd := front(t, good)
	if a := n.post("/v1/completions", shortAsk); a.status != 200 {
		t.Fatalf("at first: %s", a)
	}
	before := resident(cmd.Process.Pid)
	address := strings.TrimPrefix(n.gateway, "http://")
	connections := make([]net.Conn, count)
	t.Cleanup(func() {
		for _, c := range connections {
			if c != nil {
				_ = c.Close()
			}
		}
	})
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(count); i = next.Add(1) - 1 {
				c, err := net.Dial("tcp", address)
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				connections[i] = c
				_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
				var answer [512]byte
				if k, err := c.Read(answer[:]); err != nil || !strings.HasPrefix(string(answer[:k]), "HTTP/1.1 200 OK\r\n") {
					t.Errorf("connection %d: %q %v", i, answer[:k], err)
					return
				}
			}
		})
	}
	wg.Wait()
	for range 20 {
		if a := n.post("/v1/completions", shortAsk); a.status != 200 {
			t.Errorf("beside them: %s", a)
		}
	}
	each := (resident(cmd.Process.Pid) - before) / int64(count)
	t.Logf("%d idle connections cost %d KiB each", count, each>>10)
	if each > 32<<10 {
		t.Errorf("an idle connection costs %d bytes, want at most 32 KiB", each)
	}
}
