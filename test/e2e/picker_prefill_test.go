package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"roundhouse.dev/roundhouse/test/envoy"
	"roundhouse.dev/roundhouse/test/loopback"
)

// sidecarProgram names llm-d's own pd-sidecar, to be run in the place of ours.
const sidecarProgram = "ROUNDHOUSE_LLMD_SIDECAR"

// prefillHeader names the server that computes the prompt to the sidecar of the one that
// answers.
const prefillHeader = "X-Prefiller-Host-Port"

// tokenLimits are the members by which the calls that sidecars know bound the tokens of
// an answer.
var tokenLimits = map[string][]string{
	"/v1/chat/completions": {"max_tokens", "max_completion_tokens"},
	"/v1/completions":      {"max_tokens", "max_completion_tokens"},
	"/v1/messages":         {"max_tokens", "max_completion_tokens"},
	"/v1/responses":        {"max_output_tokens"},
}

// sidecar does what llm-d's routing sidecar with its connector for NIXL does before the
// engine at an address: it has the server that a header names compute the prompt and one
// token, and the engine continue with the KV of that. What that server answers instead is
// the answer, and 502 where there is none.
func sidecar(engine string) http.Handler {
	to := func(host string) *httputil.ReverseProxy {
		proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: host})
		proxy.ErrorLog = log.New(io.Discard, "", 0) // that they fail is what is tested
		return proxy
	}
	mux := http.NewServeMux()
	mux.Handle("/", to(engine))
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	for path, limits := range tokenLimits {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			prefill := r.Header.Get(prefillHeader)
			r.Header.Del(prefillHeader)
			if prefill == "" {
				to(engine).ServeHTTP(w, r)
				return
			}
			var body map[string]any
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			ask := func(host string, w http.ResponseWriter, body map[string]any) {
				raw, _ := json.Marshal(body) // it was JSON before
				q := r.Clone(r.Context())
				q.Body, q.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
				to(host).ServeHTTP(w, q)
			}
			first := map[string]any{}
			for key, value := range body {
				first[key] = value
			}
			delete(first, "stream_options")
			first["stream"] = false
			for _, limit := range limits {
				first[limit] = 1
			}
			first["kv_transfer_params"] = map[string]any{"do_remote_decode": true, "do_remote_prefill": false,
				"remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil}
			computed := httptest.NewRecorder()
			ask(prefill, computed, first)
			if computed.Code != http.StatusOK {
				w.WriteHeader(computed.Code)
				_, _ = w.Write(computed.Body.Bytes())
				return
			}
			var said map[string]any
			_ = json.Unmarshal(computed.Body.Bytes(), &said) // without it the engine computes the prompt
			body["kv_transfer_params"] = said["kv_transfer_params"]
			ask(engine, w, body)
		})
	}
	return mux
}

// got is an inference request as an engine got it.
type got struct {
	path   string
	header http.Header
	body   map[string]any
}

// limit is how many tokens it may answer.
func (g got) limit() any { return g.body[tokenLimits[g.path][0]] }

// transfer is a member of its kv_transfer_params.
func (g got) transfer(key string) any {
	params, _ := g.body["kv_transfer_params"].(map[string]any)
	return params[key]
}

// tapped is a simulated engine, and what it got.
type tapped struct {
	t       *testing.T
	role    string
	port    string // of the engine itself
	address string // at which what it gets is seen
	cmd     *exec.Cmd

	mu   sync.Mutex
	seen []got
}

func tap(t *testing.T, role string) *tapped {
	t.Helper()
	e := &tapped{t: t, role: role}
	_, e.port, _ = net.SplitHostPort(loopback.Reserve(t))
	e.start()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:" + e.port})
	// Where the engine refuses, so does this.
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tokenLimits[r.URL.Path] != nil {
			raw, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			g := got{path: r.URL.Path, header: r.Header.Clone()}
			_ = json.Unmarshal(raw, &g.body) // the engine refuses what is none
			e.mu.Lock()
			e.seen = append(e.seen, g)
			e.mu.Unlock()
			r.Body = io.NopCloser(bytes.NewReader(raw))
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	e.address = strings.TrimPrefix(s.URL, "http://")
	return e
}

// start starts the engine, also after it was killed.
func (e *tapped) start() {
	e.t.Helper()
	_, e.cmd, _ = serving(e.t, `url=http://(\S+)`, "simulate", "engine", "--role", e.role, "--port", e.port, "--model", "chat", "--speed", "1000")
}

// kill ends the engine at once.
func (e *tapped) kill() {
	e.t.Helper()
	if err := e.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		e.t.Fatal(err)
	}
}

// take returns what the engine got since the last time.
func (e *tapped) take() []got {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.seen
	e.seen = nil
	return was
}

// takeAll is take of several.
func takeAll(all []*tapped) (seen []got) {
	for _, e := range all {
		seen = append(seen, e.take()...)
	}
	return seen
}

// behindSidecars are servers that answer, each behind a sidecar, and the addresses of
// those.
func behindSidecars(t *testing.T, n int) (engines []*tapped, addresses []string) {
	t.Helper()
	for range n {
		e := tap(t, "decode")
		engines = append(engines, e)
		program := os.Getenv(sidecarProgram)
		if program == "" {
			s := httptest.NewServer(sidecar(e.address))
			t.Cleanup(s.Close)
			addresses = append(addresses, strings.TrimPrefix(s.URL, "http://"))
			continue
		}
		_, engine, _ := net.SplitHostPort(e.address)
		at := loopback.Reserve(t)
		_, port, _ := net.SplitHostPort(at)
		envoy.Run(t, exec.Command(program, "--port", port, "--model-server-port", engine, "--secure-proxy=false", "--kv-connector=nixlv2"))
		eventually(t, "llm-d's sidecar answers", func() (bool, string) {
			a, err := try("GET", "http://"+at+"/health", "")
			return err == nil && ok(a), fmt.Sprint(a, err)
		})
		addresses = append(addresses, at)
	}
	return engines, addresses
}

// wayIn asks a pool of servers.
type wayIn func(path, body string, header ...string) (answer, error)

// waysIn are the ways to a pool of a manifest: by the endpoint picker as Envoy asks it, by
// a real Envoy where there is one, and by the gateway. Each starts its own process.
func waysIn(t *testing.T) map[string]func(*testing.T, string) wayIn {
	picker := func(t *testing.T, file string) (at string) {
		at, _, _ = serving(t, `Roundhouse picks endpoints at +(\S+)`, "endpoint-picker", "-f", file, "--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
		return at
	}
	all := map[string]func(*testing.T, string) wayIn{
		"endpoint-picker": func(t *testing.T, file string) wayIn {
			conn, err := grpc.NewClient(picker(t, file), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-gateway-inference-pool", "default/llama")
			return func(path, body string, header ...string) (answer, error) {
				h := http.Header{}
				for i := 0; i < len(header); i += 2 {
					h.Set(header[i], header[i+1])
				}
				return converse(ctx, conn, path, body, h, client.Do)
			}
		},
		"gateway": func(t *testing.T, file string) wayIn {
			at, _, _ := serving(t, `Roundhouse answers at +(\S+)`, "gateway", "-f", file, "--listen", "127.0.0.1:0", "--grpc-listen", "", "--metrics-listen", "127.0.0.1:0")
			return func(path, body string, header ...string) (answer, error) {
				return try("POST", at+path, body, header...)
			}
		},
	}
	program, err := envoy.Program()
	if err != nil {
		t.Log("without Envoy itself: ", err)
		return all
	}
	all["envoy"] = func(t *testing.T, file string) wayIn {
		at := envoy.Start(t, program, envoy.Configuration(t, root, picker(t, file), [2]string{"FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"}))
		return func(path, body string, header ...string) (answer, error) {
			return try("POST", at+path, body, append([]string{"Content-Type", "application/json"}, header...)...)
		}
	}
	return all
}

// asks are requests of each call that sidecars know, for so many tokens of a prompt.
var asks = map[string]string{
	"/v1/chat/completions": `{"model":"chat","stream":%t,"stream_options":{"include_usage":true},"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`,
	"/v1/completions":      `{"model":"chat","stream":%t,"stream_options":{"include_usage":true},"max_tokens":%d,"prompt":%q}`,
	"/v1/messages":         `{"model":"chat","stream":%t,"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`,
	"/v1/responses":        `{"model":"chat","stream":%t,"max_output_tokens":%d,"input":%q}`,
}

// unseen is a prompt of that many bytes that nobody has seen.
func unseen(bytes int) string {
	text := fmt.Sprintf("%08d", prompts.Add(1))
	return strings.Repeat(text, bytes/len(text))
}

// TestPrefillBySidecars: servers that run already are told by the endpoint picker, and by
// the gateway, which other one computes a long prompt, whatever the call and whatever the
// client says; what each engine gets is what llm-d's sidecar makes of it.
func TestPrefillBySidecars(t *testing.T) {
	t.Parallel()
	for name, start := range waysIn(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			decoders, addresses := behindSidecars(t, 2)
			prefills := []*tapped{tap(t, "prefill"), tap(t, "prefill")}
			ask := start(t, write(t, t.TempDir(), "pool.yaml", apartPool(addresses, prefills)))
			for path, form := range asks {
				for _, stream := range []bool{false, true} {
					what := fmt.Sprintf("%s, stream %t", path, stream)
					prompt := unseen(4000)
					a, err := ask(path, fmt.Sprintf(form, stream, 7, prompt), prefillHeader, "10.6.6.6:80", "X-Encoder-Hosts-Ports", "10.6.6.6:81")
					if err != nil || !ok(a) || !strings.Contains(a.body, `_tokens":7`) || strings.Contains(a.header.Get("Content-Type"), "event-stream") != stream {
						t.Fatalf("%s: %v %s", what, err, a)
					}
					first, then := takeAll(prefills), takeAll(decoders)
					if len(first) != 1 || len(then) != 1 {
						t.Fatalf("%s: the prompt was computed %d times, and answered %d times", what, len(first), len(then))
					}
					f, d := first[0], then[0]
					if f.path != path || f.limit() != 1. || f.body["stream"] != false || f.transfer("do_remote_decode") != true {
						t.Errorf("%s: who computes the prompt got %s %v", what, f.path, f.body)
					}
					ports := []string{prefills[0].port, prefills[1].port}
					if port, _ := d.transfer("remote_port").(float64); d.path != path || d.limit() != 7. || d.body["stream"] != stream ||
						d.transfer("do_remote_prefill") != true || !slices.Contains(ports, strconv.Itoa(int(port))) {
						t.Errorf("%s: who answers got %s %v; prompts are computed at %v", what, d.path, d.body, ports)
					}
					for _, g := range []got{f, d} {
						if g.header.Get(prefillHeader)+g.header.Get("X-Encoder-Hosts-Ports") != "" {
							t.Errorf("%s: an engine got the headers %v", what, g.header)
						}
					}
					// Who answered knows the prompt now, so that what follows is short.
					a, err = ask(path, fmt.Sprintf(form, stream, 7, prompt+" and then?"))
					if first, then = takeAll(prefills), takeAll(decoders); err != nil || !ok(a) || len(first) != 0 || len(then) != 1 || then[0].transfer("do_remote_prefill") != nil {
						t.Errorf("%s, the next turn: %v %s; the prompt was computed %d times elsewhere", what, err, a, len(first))
					}
				}
			}
		})
	}
}

// apartPool is a manifest of servers with sidecars and of those that compute prompts.
func apartPool(addresses []string, prefills []*tapped) string {
	var others []string
	for _, p := range prefills {
		others = append(others, p.address)
	}
	return `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: llama}
spec:
  addresses: ["` + strings.Join(addresses, `", "`) + `"]
  prefillAddresses: ["` + strings.Join(others, `", "`) + `"]
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: chat}
spec: {targets: [{pool: llama}]}
`
}

// TestPrefillDiesBehindSidecars: a server that computes prompts is killed. Few requests
// fail, none where the gateway may send them again; who answers is not ejected for it,
// and computes the prompts when nobody else is left, until one is back.
func TestPrefillDiesBehindSidecars(t *testing.T) {
	t.Parallel()
	for name, start := range waysIn(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			decoders, addresses := behindSidecars(t, 2)
			prefills := []*tapped{tap(t, "prefill"), tap(t, "prefill")}
			ask := start(t, write(t, t.TempDir(), "pool.yaml", apartPool(addresses, prefills)))
			// long sends new prompts, by all calls in turn, and returns how many failed.
			long := func(n int) (failed int) {
				t.Helper()
				for range n {
					for path, form := range asks {
						a, err := ask(path, fmt.Sprintf(form, false, 2, unseen(4000)))
						if err != nil {
							t.Fatal(err)
						}
						switch {
						case a.status == http.StatusBadGateway && name != "gateway":
							failed++
						case !ok(a):
							t.Errorf("%s: %s", path, a)
						}
					}
				}
				return failed
			}
			eventually(t, "both compute prompts", func() (bool, string) {
				long(1)
				a, b := len(prefills[0].take()), len(prefills[1].take())
				return a > 0 && b > 0, fmt.Sprint(a, b)
			})
			prefills[0].kill()
			takeAll(decoders)
			if failed := long(10); failed > 8 {
				t.Errorf("%d of 40 requests fail with one of two killed", failed)
			}
			if n := len(prefills[1].take()); n < 20 {
				t.Errorf("of 40 prompts the one that lives has computed %d", n)
			}
			for i, d := range decoders {
				if n := len(d.take()); n < 5 {
					t.Errorf("of 40 requests decoder %d answered %d", i, n)
				}
			}
			prefills[1].kill()
			if failed := long(10); failed > 12 {
				t.Errorf("%d of 40 requests fail with both killed", failed)
			}
			for i, d := range decoders {
				if n := len(d.take()); n < 5 {
					t.Errorf("of 40 requests that nobody helps with decoder %d answered %d", i, n)
				}
			}
			prefills[0].start()
			prefills[0].take()
			eventually(t, "the one that is back computes prompts", func() (bool, string) {
				failed := long(1)
				n := 0
				for _, g := range takeAll(decoders) {
					if port, _ := g.transfer("remote_port").(float64); strconv.Itoa(int(port)) == prefills[0].port {
						n++
					}
				}
				return n == len(asks), fmt.Sprintf("%d of %d, %d failed", n, len(asks), failed)
			})
		})
	}
}
