package gateway

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// keyStore keeps keys in memory.
type keyStore struct {
	mu   sync.Mutex
	keys []apikey.Key
}

func (s *keyStore) Load() ([]apikey.Key, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.keys), s.keys != nil, nil
}

func (s *keyStore) Update(f func([]apikey.Key) ([]apikey.Key, error)) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys, err = f(s.keys)
	return err
}

func (s *keyStore) Stamp() string { return "" }

// newKeyRig is a gateway that knows keys, and what makes one.
func newKeyRig(t *testing.T, mutate func(*Config, *dispatch.Config)) (*rig, func(apikey.Limits) (apikey.Key, string)) {
	t.Helper()
	ring, err := keys.Open(keys.DefaultConfig(), &keyStore{})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *Config, d *dispatch.Config) {
		c.Keys = ring
		if mutate != nil {
			mutate(c, d)
		}
	})
	return r, func(l apikey.Limits) (apikey.Key, string) {
		t.Helper()
		k, secret, err := ring.Create("test", l, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return k, secret
	}
}

// noLimits are those of a key that allows everything.
var noLimits apikey.Limits

const ask = `{"model":"chat","messages":[]}`

func TestKeys(t *testing.T) {
	r, create := newKeyRig(t, nil)
	got := make(chan http.Header, 1)
	r.d.SetPool(pool("chat", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		got <- req.Header
		echo(w, req)
	})))
	// Without keys everything passes, a client's own Authorization too.
	r.send("POST", "/v1/completions", ask, "Authorization", "Bearer upstream", "X-Api-Key", "rh-looks-like-one").want(t, 200)
	if h := <-got; h.Get("Authorization") != "Bearer upstream" || h.Get("X-Api-Key") != "rh-looks-like-one" {
		t.Errorf("replica got %v", h)
	}
	k, secret := create(apikey.Limits{})
	for _, c := range []struct{ path, form string }{
		{"/v1/chat/completions", `{"error":{"message":"`}, {"/v1/messages", `{"type":"error","error":{"type":"authentication_error","message":"`},
		{"/v2/rerank", `{"message":"`}, {"/v2/models/chat/infer", `{"error":"`}, {"/v1/models/chat:predict", `{"error":"`},
	} {
		a := r.send("POST", c.path, ask)
		a.want(t, 401, c.form, "an API key is needed")
		if a.header.Get("Www-Authenticate") != `Bearer realm="roundhouse"` {
			t.Errorf("%s: %v", c.path, a.header)
		}
		a = r.send("POST", c.path, ask, "Authorization", "Bearer sk-123")
		a.want(t, 401, c.form, "not valid")
		if !strings.Contains(a.header.Get("Www-Authenticate"), "invalid_token") || strings.Contains(a.body, "sk-123") {
			t.Errorf("%s: %v %s", c.path, a.header, a.body)
		}
	}
	for _, path := range []string{"/v1/models", "/v2", "/v2/models/chat/ready", "/nothing"} {
		r.send("GET", path, "").want(t, 401)
	}
	for _, path := range []string{"/", "/healthz", "/v2/health/live", "/v2/health/ready"} {
		r.send("GET", path, "").want(t, 200)
	}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+secret))
	for _, header := range [][]string{{"Authorization", "Bearer " + secret}, {"Authorization", "bearer  " + secret}, {"X-Api-Key", secret}, {"Api-Key", secret},
		{"Authorization", "Basic " + secret, "X-Api-Key", secret}, {"Authorization", "Token " + secret, "X-Api-Key", secret}, {"Authorization", basic, "X-Api-Key", secret},
		{"Authorization", "Bearer upstream", "X-Api-Key", secret}, {"Authorization", "Bearer " + secret, "X-Api-Key", secret}} {
		r.send("POST", "/v1/chat/completions", ask, header...).want(t, 200)
		h := <-got
		if s := fmt.Sprint(h); strings.Contains(s, secret) || strings.Contains(s, basic) {
			t.Errorf("%v: the key reached the replica: %v", header, h)
		}
		if header[1] == "Bearer upstream" && h.Get("Authorization") != "Bearer upstream" {
			t.Errorf("what is the replica's was taken: %v", h)
		}
	}
	if _, err := r.gw.cfg.Keys.Revoke(k.ID); err != nil {
		t.Fatal(err)
	}
	r.send("POST", "/v1/completions", ask, "X-Api-Key", secret).want(t, 401, "revoked")
	if s := r.series(); !strings.Contains(s, `refused_total label:{name:"reason" value:"no_key"}`) || !strings.Contains(s, `value:"bad_key"`) {
		t.Errorf("metrics: %s", s)
	}
}

// TestKeyNamespaces: two tenants' models of one name never meet.
func TestKeyNamespaces(t *testing.T) {
	r, create := newKeyRig(t, nil)
	who := func(name string) string {
		return replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("X-Answered-By", name)
			echo(w, req)
		})
	}
	r.d.SetPools([]dispatch.PoolConfig{pool("a/iris", who("a")), pool("b/iris", who("b")), pool("b/secret", who("b"))})
	_, a := create(apikey.Limits{Namespaces: []string{"a"}})
	_, b := create(apikey.Limits{Namespaces: []string{"b"}})
	_, all := create(apikey.Limits{})
	for _, c := range []struct{ key, model, host, by string }{
		{a, "iris", "", "a"}, {b, "iris", "", "b"}, {a, "a/iris", "", "a"}, {a, "b/iris", "", ""}, {a, "secret", "", ""}, {all, "iris", "", ""}, {all, "b/secret", "", "b"},
	} {
		got := r.send("POST", "/v1/completions", `{"model":"`+c.model+`"}`, "X-Api-Key", c.key)
		if c.by == "" {
			got.want(t, 404)
		} else if got.want(t, 200); got.header.Get("X-Answered-By") != c.by {
			t.Errorf("%+v: answered by %q", c, got.header.Get("X-Answered-By"))
		}
		if c.key == a && c.model != "secret" && strings.Contains(got.body, "secret") {
			t.Errorf("%+v tells of another's model: %s", c, got.body)
		}
	}
	for key, models := range map[string]string{a: `"models":["iris"]`, b: `"models":["iris","secret"]`, all: `"models":["a/iris","b/iris","secret"]`} {
		r.send("GET", "/v1/models", "", "X-Api-Key", key).want(t, 200, models)
	}
	if got := r.send("POST", "/v2/repository/index", "", "X-Api-Key", a); strings.Contains(got.body, "secret") {
		t.Errorf("the repository tells of another's model: %s", got.body)
	}
}

func TestKeyModels(t *testing.T) {
	r, create := newKeyRig(t, nil)
	addr := replicaServer(t, echo)
	r.d.SetPools([]dispatch.PoolConfig{pool("chat", addr), pool("team/iris", addr), pool("secret", addr)})
	_, secret := create(apikey.Limits{Models: []string{"chat", "iris"}})
	auth := []string{"X-Api-Key", secret}
	r.send("POST", "/v1/completions", ask, auth...).want(t, 200)
	r.send("POST", "/v1/completions", `{"model":"default/chat"}`, auth...).want(t, 200)
	r.send("POST", "/v2/models/iris/infer", "{}", auth...).want(t, 200)
	r.send("POST", "/v1/completions", `{"model":"adapter"}`, append(auth, "Host", "chat.default.localhost")...).want(t, 200)
	r.send("POST", "/v1/completions", `{"model":"secret"}`, auth...).want(t, 403, "permission_error", "model_not_allowed", "is not for model")
	r.send("POST", "/v1/messages", `{"model":"secret"}`, auth...).want(t, 403, `"type":"permission_error"`)
	// A Host that decides does not let a name through that it would not serve.
	r.send("POST", "/v1/completions", ask, append(auth, "Host", "secret.default.localhost")...).want(t, 403)
	for _, c := range []struct{ method, path string }{{"GET", "/v1/models/secret"}, {"GET", "/v2/models/secret/ready"}, {"GET", "/v2/models/secret"},
		{"POST", "/v2/models/secret/infer"}, {"POST", "/v1/models/secret:predict"}, {"POST", "/v2/repository/models/secret/load"},
		{"POST", "/v2/repository/models/secret/unload"}, {"PUT", "/v2/models/secret/anything"}} {
		r.send(c.method, c.path, "{}", auth...).want(t, 403)
	}
	for _, unknown := range []string{"nope", "secre", "secrets"} {
		a := r.send("POST", "/v1/completions", `{"model":"`+unknown+`"}`, auth...)
		if a.want(t, 403, unknown, "model_not_allowed"); strings.Contains(strings.ReplaceAll(a.body, unknown, ""), "secret") {
			t.Errorf("the error names what the key is not for: %s", a.body)
		}
	}
	for _, a := range []answer{r.send("GET", "/v1/models", "", auth...), r.send("POST", "/v2/repository/index", "", auth...)} {
		if a.want(t, 200, "chat", "iris"); strings.Contains(a.body, "secret") {
			t.Errorf("lists what the key is not for: %s", a.body)
		}
	}
	if r.demand.slept.Load() != 0 {
		t.Error("a key put a model to sleep that it is not for")
	}
}

// TestKeyModelsInFull: what a key may ask by a bare name it may ask by the full
// one, and by the host, and nothing else of that name.
func TestKeyModelsInFull(t *testing.T) {
	r, create := newKeyRig(t, nil)
	addr := replicaServer(t, echo)
	r.d.SetPools([]dispatch.PoolConfig{pool("apps/iris", addr), pool("apps/both", addr), pool("other/both", addr), pool("third/both", addr), pool("other/wine", addr)})
	_, anywhere := create(apikey.Limits{Models: []string{"iris", "both"}})
	_, within := create(apikey.Limits{Models: []string{"iris", "both"}, Namespaces: []string{"apps", "other"}})
	_, one := create(apikey.Limits{Models: []string{"apps/both"}})
	for _, c := range []struct {
		key, host, model string
		status           int
	}{
		{anywhere, "", "iris", 200}, {anywhere, "", "apps/iris", 200}, {anywhere, "iris.apps.localhost", "iris", 200},
		{anywhere, "", "apps/both", 403}, {anywhere, "", "other/both", 403}, {anywhere, "both.apps.localhost", "x", 403}, // nobody said which is meant
		{within, "", "apps/iris", 200}, {within, "", "apps/both", 200}, {within, "", "other/both", 200}, {within, "both.other.localhost", "x", 200},
		{within, "", "third/both", 403}, {within, "", "other/wine", 403}, {within, "", "wine", 403},
		{one, "", "apps/both", 200}, {one, "", "other/both", 403}, {one, "", "apps/iris", 403},
	} {
		header := []string{"X-Api-Key", c.key}
		if c.host != "" {
			header = append(header, "Host", c.host)
		}
		if a := r.send("POST", "/v1/completions", `{"model":"`+c.model+`"}`, header...); a.code != c.status {
			t.Errorf("%s at %q: %d, want %d: %s", c.model, c.host, a.code, c.status, a.body)
		}
	}
	if a := r.send("GET", "/v1/models", "", "X-Api-Key", within); !strings.Contains(a.body, `"apps/both"`) || !strings.Contains(a.body, `"other/both"`) || strings.Contains(a.body, "wine") {
		t.Errorf("the list is not what the key is for: %s", a.body)
	}
}

// TestKeyOfASplitRoute: what is drawn among a route's targets decides nothing about
// access. A key is for the route's name, or for all services that it leads to.
func TestKeyOfASplitRoute(t *testing.T) {
	r, create := newKeyRig(t, nil)
	addr := replicaServer(t, echo)
	r.d.SetPools([]dispatch.PoolConfig{pool("team/a", addr), pool("team/b", addr)})
	target := func(name string, weight uint32) routing.Target {
		return routing.Target{Ref: routing.Service(service.Key{Namespace: "team", Name: name}), Weight: weight}
	}
	split := func(name string, targets ...routing.Target) *routing.Route {
		return &routing.Route{Meta: service.Meta{Key: service.Key{Namespace: "team", Name: name}}, Models: []string{name}, Targets: targets}
	}
	r.d.SetObjects([]routing.Object{split("half", target("a", 1), target("b", 1)), split("all", target("a", 1), target("b", 0)),
		split("gap", target("a", 1), target("gone", 0))})
	for _, c := range []struct {
		models []string
		model  string
		status int
	}{
		{[]string{"a"}, "half", 403}, {[]string{"a"}, "team/half", 403}, {[]string{"a"}, "all", 200}, {[]string{"a"}, "gap", 200},
		{[]string{"a", "b"}, "half", 200}, {[]string{"team/a", "team/b"}, "half", 200},
		{[]string{"half"}, "half", 200}, {[]string{"half"}, "team/half", 200}, {[]string{"team/half"}, "half", 200},
		{[]string{"half"}, "all", 403}, {[]string{"half"}, "a", 403},
	} {
		_, secret := create(apikey.Limits{Models: c.models})
		for range 20 { // a fair draw gives the same twenty times once in a million
			if a := r.send("POST", "/v1/completions", `{"model":"`+c.model+`"}`, "X-Api-Key", secret); a.code != c.status {
				t.Errorf("a key for %v asks for %s: %d, want %d: %s", c.models, c.model, a.code, c.status, a.body)
				break
			}
			if a := r.send("GET", "/v1/models/"+strings.ReplaceAll(c.model, "/", "%2F"), "", "X-Api-Key", secret); a.code != c.status {
				t.Errorf("a key for %v looks at %s: %d, want %d: %s", c.models, c.model, a.code, c.status, a.body)
				break
			}
		}
	}
}

func TestKeyLimits(t *testing.T) {
	r, create := newKeyRig(t, nil)
	inside, release := make(chan struct{}, 9), make(chan struct{})
	r.d.SetPools([]dispatch.PoolConfig{pool("chat", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":60,"completion_tokens":40}}`)
	})), pool("slow", replicaServer(t, func(http.ResponseWriter, *http.Request) { inside <- struct{}{}; <-release })),
		pool("silent", replicaServer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, strings.Repeat("data: {}\n\n", 50)+"data: [DONE]\n\n")
		}))})
	limited := func(a answer, want, seconds string) {
		t.Helper()
		a.want(t, 429, want, "rate_limit_error", "rate_limit_exceeded")
		if a.header.Get("Retry-After") != seconds {
			t.Errorf("Retry-After %q, want %q", a.header.Get("Retry-After"), seconds)
		}
	}
	_, secret := create(apikey.Limits{RequestsPerMinute: 1})
	r.send("POST", "/v1/completions", ask, "X-Api-Key", secret).want(t, 200)
	limited(r.send("POST", "/v1/completions", ask, "X-Api-Key", secret), "1 requests per minute", "60")

	// Requests for models that the key is not for do not count, by whatever API.
	_, secret = create(apikey.Limits{RequestsPerMinute: 2, Models: []string{"chat", "gone"}})
	for range 2 {
		r.send("POST", "/v1/completions", `{"model":"slow"}`, "X-Api-Key", secret).want(t, 403)
		r.send("POST", "/v2/models/nope/infer", "{}", "X-Api-Key", secret).want(t, 403)
		r.send("GET", "/v2/models/slow/ready", "", "X-Api-Key", secret).want(t, 403)
	}
	r.send("POST", "/v1/completions", ask, "X-Api-Key", secret).want(t, 200)
	r.send("POST", "/v1/completions", `{"model":"gone"}`, "X-Api-Key", secret).want(t, 404)
	limited(r.send("POST", "/v1/completions", ask, "X-Api-Key", secret), "2 requests per minute", "30")

	// Tokens: the answer's usage settles; an answer that says nothing costs an
	// estimate.
	_, secret = create(apikey.Limits{TokensPerMinute: 150})
	r.send("POST", "/v1/completions", ask, "X-Api-Key", secret).want(t, 200)
	r.waitSettled()
	r.send("POST", "/v1/completions", ask, "X-Api-Key", secret).want(t, 200)
	r.waitSettled()
	limited(r.send("POST", "/v1/completions", ask, "X-Api-Key", secret), "150 tokens per minute", "21") // overdrawn by 50, and one: 51/150 of a minute
	_, secret = create(apikey.Limits{TokensPerMinute: 60})
	r.send("POST", "/v1/completions", `{"model":"silent","stream":true,"prompt":"`+strings.Repeat("word", 60)+`"}`, "X-Api-Key", secret).want(t, 200, "[DONE]")
	r.waitSettled()
	limited(r.send("POST", "/v1/completions", ask, "X-Api-Key", secret), "60 tokens per minute", "51") // 60 for the prompt, 50 events

	_, secret = create(apikey.Limits{Concurrent: 1})
	done := make(chan answer)
	go func() { done <- r.send("POST", "/v1/completions", `{"model":"slow"}`, "X-Api-Key", secret) }()
	<-inside
	limited(r.send("POST", "/v1/completions", ask, "X-Api-Key", secret), "1 requests in flight", "1")
	close(release)
	(<-done).want(t, 200)
	r.waitSettled()
	r.send("POST", "/v1/completions", ask, "X-Api-Key", secret).want(t, 200)
}

func FuzzTakeSecret(f *testing.F) {
	f.Add("Bearer rh-a", "rh-b", "x")
	f.Add("Basic eA==", "", "rh-")
	f.Add("bearer", "  ", " rh-x")
	f.Fuzz(func(t *testing.T, auth, x, y string) {
		h := http.Header{"Authorization": {auth}, "X-Api-Key": {x, y}, "Api-Key": {y}, "Other": {"rh-mine"}}
		secret := ingress.TakeSecret(h, ingress.SecretHeaders)
		for _, name := range ingress.SecretHeaders {
			for _, v := range h[name] {
				if strings.HasPrefix(v, apikey.Prefix) || secret != "" && strings.HasPrefix(secret, apikey.Prefix) && v == secret {
					t.Fatalf("%q stays in %v", v, h)
				}
			}
		}
		if h.Get("Other") != "rh-mine" {
			t.Fatal("took what is no key's header")
		}
	})
}

// TestPrefill: a decode replica is told who computes a long prompt, also where a graph
// asks it, and no client can name anybody.
func TestPrefill(t *testing.T) {
	r := newRig(t, nil)
	told := make(chan []string, 1)
	p := pool("chat", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		told <- slices.Concat(req.Header["X-Prefiller-Host-Port"], req.Header["X-Encoder-Hosts-Ports"], req.Header["X-Data-Parallel-Host-Port"])
		echo(w, req)
	}))
	p.Protocol = service.ProtocolOpenAI
	r.d.SetPool(p)
	to := routing.Service(p.Key)
	r.d.SetObjects([]routing.Object{
		&routing.Graph{Meta: service.Meta{Key: service.ParseKey("g")}, Nodes: root(node(routing.NodeSequence, routing.GraphStep{Service: "chat"})), Propagate: []string{"x-*"}},
		&routing.HTTPRoute{Meta: service.Meta{Key: service.ParseKey("paths")}, Hostnames: []string{"a.test"}, Rules: []routing.HTTPRule{
			{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/own"}}}, Backends: []routing.Backend{{Ref: to, Weight: 1}}}}},
	})
	check := func(path, host, prompt string, want ...string) {
		t.Helper()
		const evil = "169.254.169.254:80"
		r.send("POST", path, `{"model":"chat","prompt":"`+prompt+`"}`, "Host", host, "X-Prefiller-Host-Port", evil, "X-Encoder-Hosts-Ports", evil, "X-Data-Parallel-Host-Port", evil).want(t, 200)
		if got := <-told; !slices.Equal(got, want) {
			t.Errorf("%s%s: the replica is told %v, want %v", host, path, got, want)
		}
	}
	check("/v1/completions", "", "hi")
	check("/own/path", "a.test", "hi") // as it stands
	check("/", atGraph, "hi")
	p.Entry = service.RoleDecoder
	p.Replicas[0].Role = service.RoleDecoder
	p.Replicas = append(p.Replicas, replica.Replica{ID: "prefill", Service: p.Key, Role: service.RoleEngine, Phase: replica.Ready, HTTP: "127.0.0.1:9"})
	r.d.SetPool(p)
	check("/v1/completions", "", strings.Repeat("word ", 2000), "127.0.0.1:9")
	check("/v1/completions", atGraph, strings.Repeat("other ", 2000), "127.0.0.1:9")
}
