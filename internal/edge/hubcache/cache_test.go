package hubcache

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

// rig is a Hub and a cache of it.
type rig struct {
	t     testing.TB
	hub   *hubtest.Hub
	cache *Cache
	url   string
	cfg   Config
	reg   *prometheus.Registry
	close func()
}

func random(n int) []byte {
	out := make([]byte, n)
	src := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = src.Read(out)
	return out
}

func newRig(t testing.TB, edit func(*Config)) *rig {
	t.Helper()
	hub := hubtest.New()
	t.Cleanup(hub.Close)
	cfg := DefaultConfig()
	cfg.Dir, cfg.Upstream, cfg.RetryWait = t.TempDir(), hub.URL, time.Millisecond
	r := &rig{t: t, hub: hub, cfg: cfg}
	r.start(edit)
	t.Cleanup(func() {
		if r.close != nil {
			r.close()
		}
	})
	return r
}

// start opens the cache over the folder, as after a restart.
func (r *rig) start(edit func(*Config)) {
	r.t.Helper()
	if r.close != nil {
		r.close()
	}
	if edit != nil {
		edit(&r.cfg)
	}
	r.reg = prometheus.NewRegistry()
	c, err := New(r.cfg, r.reg)
	if err != nil {
		r.t.Fatal(err)
	}
	srv := httptest.NewServer(c)
	var once sync.Once
	r.cache, r.url = c, srv.URL
	r.close = func() {
		once.Do(func() {
			srv.CloseClientConnections()
			srv.Close()
			c.Close()
		})
	}
}

type reply struct {
	status int
	header http.Header
	body   string
	err    error // of the body
}

// ask sends a request; options are headers, as "Name: value".
func (r *rig) ask(method, path string, options ...string) reply {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, o := range options {
		k, v, _ := strings.Cut(o, ": ")
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // follows no redirect
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(body), err}
}

func (r *rig) get(path string, options ...string) reply {
	r.t.Helper()
	return r.ask("GET", path, options...)
}
func (r *rig) head(path string, options ...string) reply {
	r.t.Helper()
	return r.ask("HEAD", path, options...)
}

func bearer(token string) string { return "Authorization: Bearer " + token }

func (r *rig) wants(got reply, status int, body string) {
	r.t.Helper()
	if got.err != nil || got.status != status || got.body != body {
		r.t.Fatalf("status %d (%v), %d bytes of body %.80q, want %d and %d bytes %.80q; headers %v", got.status, got.err, len(got.body), got.body, status, len(body), body, got.header)
	}
}

// example fills the Hub with a model of a small and a large file.
func (r *rig) example() (commit string, config, weights []byte) {
	config, weights = []byte(`{"model_type":"bert"}`), random(3<<20+17)
	commit = r.hub.Add("models", "org/model").Commit("main", map[string][]byte{
		"config.json": config, "model.safetensors": weights, "sub dir/naïve+1#.txt": []byte("x"), "empty": nil,
		"a.txt": []byte("a"), "b.txt": []byte("b")}, "model.safetensors")
	return commit, config, weights
}

// metric is the sum of a metric's values; labels must be among its labels' values.
func (r *rig) metric(name string, labels ...string) (sum float64) {
	r.t.Helper()
	all, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			matching := f.GetName() == prefix+name
			for _, want := range labels {
				found := false
				for _, l := range m.GetLabel() {
					found = found || l.GetValue() == want
				}
				matching = matching && found
			}
			if matching {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// settle waits for the downloads to be installed.
func (r *rig) settle() {
	r.t.Helper()
	for {
		r.cache.downloads.mu.Lock()
		var f *flight
		for _, f = range r.cache.downloads.byHash {
			break
		}
		r.cache.downloads.mu.Unlock()
		if f == nil {
			return
		}
		<-f.ended
	}
}

func TestFiles(t *testing.T) {
	r := newRig(t, nil)
	commit, config, weights := r.example()
	for _, rev := range []string{"main", commit} {
		h := r.head("/org/model/resolve/" + rev + "/config.json")
		r.wants(h, 200, "")
		if h.header.Get("X-Repo-Commit") != commit || len(normalETag(h.header.Get("Etag"))) != 40 || h.header.Get("Content-Length") != "21" || h.header.Get("Location") != "" {
			t.Fatalf("headers %v", h.header)
		}
		r.wants(r.get("/org/model/resolve/"+rev+"/config.json"), 200, string(config))
		h = r.head("/org/model/resolve/" + rev + "/model.safetensors")
		r.wants(h, 200, "")
		if len(normalETag(h.header.Get("X-Linked-Etag"))) != 64 || h.header.Get("X-Linked-Size") != h.header.Get("Content-Length") || h.header.Get("Link") != "" {
			t.Fatalf("headers %v", h.header)
		}
		for k := range h.header {
			if isXet(k) {
				t.Errorf("%s got through", k)
			}
		}
		r.wants(r.get("/org/model/resolve/"+rev+"/model.safetensors"), 200, string(weights))
		r.settle()
		r.wants(r.get("/org/model/resolve/"+rev+"/model.safetensors?download=true"), 200, string(weights))
		r.wants(r.get("/org/model/resolve/"+rev+"/sub%20dir/na%C3%AFve%2B1%23.txt"), 200, "x")
		r.wants(r.get("/org/model/resolve/"+rev+"/empty"), 200, "")
	}
	if got := r.metric("upstream_bytes_total"); got != float64(len(weights)+len(config)+1) {
		t.Errorf("%v bytes came from the Hub", got)
	}
	// The same content elsewhere is not fetched again.
	r.hub.Add("datasets", "single").Commit("refs/pr/1", map[string][]byte{"copy.bin": weights}, "copy.bin")
	r.hub.Forget()
	r.wants(r.get("/datasets/single/resolve/refs%2Fpr%2F1/copy.bin"), 200, string(weights))
	if r.hub.Sent() != 0 {
		t.Errorf("%d bytes were sent for content that was here", r.hub.Sent())
	}
	// Known files of a commit whose reading was just allowed need nobody.
	r.hub.Forget()
	r.head("/org/model/resolve/" + commit + "/config.json")
	r.get("/org/model/resolve/" + commit + "/config.json")
	if got := r.hub.Requests(); len(got) != 0 {
		t.Errorf("asked again: %v", got)
	}
}

func TestRenamed(t *testing.T) {
	r := newRig(t, nil)
	_, config, weights := r.example()
	r.hub.Rename("models", "org/model", "org/other")
	r.wants(r.get("/org/model/resolve/main/config.json"), 200, string(config))
	r.wants(r.get("/org/model/resolve/main/model.safetensors"), 200, string(weights))
	if got := r.get("/api/models/org/model/revision/main"); got.status != 200 || !strings.Contains(got.body, `"org/other"`) {
		t.Errorf("info of a renamed repository: %v", got)
	}
}

func TestRanges(t *testing.T) {
	r := newRig(t, nil)
	_, _, weights := r.example()
	path := "/org/model/resolve/main/model.safetensors"
	size := len(weights)
	check := func() {
		t.Helper()
		for spec, want := range map[string]span{"bytes=0-9": {0, 10}, "bytes=1000-": {1000, int64(size)}, "bytes=-5": {int64(size - 5), int64(size)},
			"bytes=5-99999999": {5, int64(size)}, "bytes=-99999999": {0, int64(size)}} {
			got := r.get(path, "Range: "+spec)
			r.wants(got, 206, string(weights[want.from:want.to]))
			if from, total := parseContentRange(got.header.Get("Content-Range")); from != want.from || total != int64(size) {
				t.Errorf("%s: %v", spec, got.header)
			}
		}
		for _, spec := range []string{"bytes=5-4", "bytes=0-1,4-5", "lines=1-2", "bytes=x-"} {
			r.wants(r.get(path, "Range: "+spec), 200, string(weights))
		}
		if got := r.get(path, "Range: bytes=99999999-"); got.status != 416 || !strings.HasSuffix(got.header.Get("Content-Range"), "/3145745") {
			t.Errorf("beyond the end: %v", got)
		}
		if got := r.get("/org/model/resolve/main/empty", "Range: bytes=0-"); got.status != 416 {
			t.Errorf("of an empty file: %v", got)
		}
		r.wants(r.get(path, "Range: bytes=1-2", `If-Range: "other"`), 200, string(weights))
	}
	check()
	r.settle()
	check()
	if got := r.head(path); r.get(path, "If-None-Match: "+got.header.Get("Etag")).status != 304 {
		t.Error("If-None-Match is not looked at")
	}
}

func TestAPI(t *testing.T) {
	r := newRig(t, nil)
	commit, _, _ := r.example()
	got := r.get("/api/models/org/model/revision/main")
	var info struct{ SHA string }
	if err := json.Unmarshal([]byte(got.body), &info); err != nil || info.SHA != commit {
		t.Fatal(got)
	}
	names := 0
	for next := "/api/models/org/model/tree/" + commit + "?recursive=True&expand=False"; next != ""; {
		got := r.get(next)
		var page []map[string]any
		if err := json.Unmarshal([]byte(got.body), &page); err != nil || got.status != 200 {
			t.Fatal(err, got)
		}
		names += len(page)
		if strings.Contains(got.body, "xetHash") {
			t.Error("xetHash got through")
		}
		links := parseLinks(got.header.Values("Link"))
		next = ""
		if len(links) == 1 {
			var ours bool
			if next, ours = strings.CutPrefix(links[0].to, r.url); !ours {
				t.Fatalf("the next page is at %s, not at ours", links[0].to)
			}
		}
	}
	if names != 6 {
		t.Errorf("%d files", names)
	}
	r.hub.Forget()
	r.get("/api/models/org/model/tree/" + commit + "?recursive=True&expand=False")
	if len(r.hub.Requests()) != 0 {
		t.Error("a tree of a commit was asked for again")
	}
	resp, err := http.Post(r.url+"/api/models/org/model/paths-info/main", "application/x-www-form-urlencoded", strings.NewReader("paths=config.json&paths=model.safetensors&expand=False"))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 || bytes.Contains(body, []byte("xetHash")) || !bytes.Contains(body, []byte("model.safetensors")) {
		t.Errorf("paths-info: %d %s", resp.StatusCode, body)
	}
	if got := r.get("/api/models/org/model/refs"); !strings.Contains(got.body, commit) {
		t.Errorf("refs: %v", got)
	}
	r.hub.Token("hf_me")
	r.wants(r.get("/api/whoami-v2", bearer("hf_me")), 200, `{"type":"user","name":"somebody","orgs":[]}`)
	if got := r.get("/api/whoami-v2"); got.status != 401 {
		t.Error(got)
	}
}

func TestErrors(t *testing.T) {
	r := newRig(t, nil)
	commit, _, _ := r.example()
	for path, want := range map[string][3]any{
		"/org/model/resolve/main/none.json":       {404, "EntryNotFound", commit},
		"/org/model/resolve/nowhere/config.json":  {404, "RevisionNotFound", ""},
		"/org/nothing/resolve/main/config.json":   {401, "RepoNotFound", ""},
		"/api/models/org/nothing/revision/main":   {401, "RepoNotFound", ""},
		"/api/models/org/model/revision/nowhere":  {404, "RevisionNotFound", ""},
		"/api/models/org/model/tree/nowhere":      {404, "RevisionNotFound", ""},
		"/datasets/org/model/resolve/main/x.json": {401, "RepoNotFound", ""},
	} {
		for _, method := range []string{"HEAD", "GET"} {
			got := r.ask(method, path)
			if got.status != want[0] || got.header.Get("X-Error-Code") != want[1] || got.header.Get("X-Repo-Commit") != want[2] || got.header.Get("X-Error-Message") == "" {
				t.Errorf("%s %s: %v", method, path, got)
			}
		}
	}
	if got := r.get("/org/nothing/resolve/main/config.json", bearer("hf_unknown")); got.status != 401 || got.header.Get("X-Error-Message") != "Invalid credentials in Authorization header" {
		t.Errorf("an unknown token: %v", got)
	}
	r.hub.Forget()
	r.head("/org/model/resolve/main/config.json")
	r.hub.Forget()
	if got := r.head("/org/model/resolve/main/none.json"); got.header.Get("X-Error-Code") != "EntryNotFound" || len(r.hub.Requests()) != 0 {
		t.Errorf("that there is no such file is asked again: %v", got)
	}
	r.hub.Fail(hubtest.Faults{Status: 429, Header: http.Header{"Retry-After": {"30"}, "Ratelimit": {`"api";r=0;t=30`}}})
	for _, path := range []string{"/org/model/resolve/v2/config.json", "/api/models/org/model/revision/v2"} {
		if got := r.get(path); got.status != 429 || got.header.Get("Retry-After") != "30" || got.header.Get("Ratelimit") != `"api";r=0;t=30` {
			t.Errorf("%s: %v", path, got)
		}
	}
	for _, status := range []int{500, 502, 503} {
		r.hub.Fail(hubtest.Faults{Status: status})
		if got := r.get("/org/model/resolve/v2/config.json"); got.status != status || got.header.Get("X-Error-Code") != "" {
			t.Errorf("%d: %v", status, got)
		}
	}
	r.hub.Close()
	for _, path := range []string{"/org/model/resolve/v2/config.json", "/api/models/org/model/revision/v2", "/api/whoami-v2"} {
		if got := r.get(path); got.status != 502 || got.header.Get("X-Error-Code") != "" {
			t.Errorf("unreachable: %s: %v", path, got)
		}
	}
}

// TestAccess: what is here goes only to whom the Hub lets read it.
func TestAccess(t *testing.T) {
	r := newRig(t, nil)
	commit, config, weights := r.example()
	repo := r.hub.Add("models", "org/gated")
	repo.Commit("main", map[string][]byte{"w.bin": weights, "config.json": config}, "w.bin")
	repo.Gate("hf_reader")
	r.hub.Token("hf_stranger")
	path := "/org/gated/resolve/main/w.bin"
	r.wants(r.get(path, bearer("hf_reader")), 200, string(weights))
	r.settle()
	refused := func(options ...string) {
		t.Helper()
		for _, method := range []string{"HEAD", "GET"} {
			got := r.ask(method, path, options...)
			want := 401
			if len(options) > 0 {
				want = 403
			}
			if got.status != want || got.header.Get("X-Error-Code") != "GatedRepo" || strings.Contains(got.body, string(weights[:100])) {
				t.Errorf("%s by somebody else: %v", method, got)
			}
		}
	}
	refused()
	refused(bearer("hf_stranger"))
	// That everybody may see the repository does not let them read it.
	if got := r.get("/api/models/org/gated/revision/main"); got.status != 200 {
		t.Error(got)
	}
	refused()
	// One who loses access loses it here when what was allowed has run out.
	repo.Gate("hf_other")
	r.cache.grants.revoke(r.cache.grants.caller("Bearer hf_reader"), mustTarget(t, path).repo)
	refused(bearer("hf_reader"))
	// When nobody can be asked, nobody may who was not just allowed.
	repo.Gate("hf_reader")
	r.wants(r.get(path, bearer("hf_reader")), 200, string(weights))
	r.hub.Fail(hubtest.Faults{Status: 503})
	r.wants(r.get(path, bearer("hf_reader")), 200, string(weights))
	if got := r.get(path); got.status != 503 || got.header.Get("X-Error-Code") != "" {
		t.Error(got)
	}
	_ = commit
	r.hub.Fail(hubtest.Faults{})
	repo.Hide("hf_reader")
	if got := r.get("/api/models/org/gated/revision/main", bearer("hf_stranger")); got.status != 404 || got.header.Get("X-Error-Code") != "RepoNotFound" {
		t.Errorf("a private repository is shown: %v", got)
	}
	for _, q := range r.hub.Requests() {
		if q.Storage && (q.Authorization != "" || strings.Contains(q.URI, "hf_")) {
			t.Errorf("a token went to the storage: %v", q)
		}
	}
	tokenless(t, r.cfg.Dir, "hf_reader", "hf_stranger")
}

// tokenless looks for tokens in every file of a folder, and in names.
func tokenless(t *testing.T, dir string, tokens ...string) {
	t.Helper()
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, token := range tokens {
			if bytes.Contains(raw, []byte(token)) || strings.Contains(path, token) {
				t.Errorf("%s holds a token", path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func mustTarget(t *testing.T, path string) target {
	t.Helper()
	got, err := parseTarget(path, "")
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func mustListen() net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	return l
}

// TestPassed: what is not cached goes to the Hub as it came, and back.
func TestPassed(t *testing.T) {
	got := make(chan *http.Request, 1)
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		q.Header.Set("X-Body", string(body))
		got <- q
		w.Header().Set("Location", "/api/elsewhere?x=1")
		w.Header().Set("Link", `<http://`+q.Host+`/api/models?cursor=2>; rel="next", <https://evil.example/>; rel="next"`)
		w.WriteHeader(http.StatusFound)
	}))
	defer hub.Close()
	r := newRig(t, func(c *Config) { c.Upstream = hub.URL })
	req, err := http.NewRequest("POST", r.url+"/api/repos/create%2Fx?a=b", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer hf_me")
	req.Header.Set("Connection", "X-Hop")
	req.Header.Set("X-Hop", "x")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	q := <-got
	if q.Method != "POST" || q.RequestURI != "/api/repos/create%2Fx?a=b" || q.Header.Get("X-Body") != "body" || q.Header.Get("Authorization") != "Bearer hf_me" || q.Header.Get("X-Hop") != "" {
		t.Errorf("%s %s %v", q.Method, q.RequestURI, q.Header)
	}
	if resp.StatusCode != 302 || resp.Header.Get("Location") != r.url+"/api/elsewhere?x=1" || resp.Header.Get("Link") != "<"+r.url+`/api/models?cursor=2>; rel="next"` {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}

// readerFrom is a server's writer, as far as sendfile needs one: it notes what
// it is given to copy from.
type readerFrom struct {
	*httptest.ResponseRecorder
	files int
}

func (w *readerFrom) ReadFrom(src io.Reader) (int64, error) {
	if l, ok := src.(*io.LimitedReader); ok {
		if _, ok := l.R.(*os.File); ok {
			w.files++
		}
	}
	return io.Copy(w.ResponseRecorder, src)
}

// TestSendfile: nothing stands between a file and the server's writer, so that
// the kernel copies; neither for a hit nor while a file is downloaded.
func TestSendfile(t *testing.T) {
	r := newRig(t, nil)
	_, _, weights := r.example()
	for range 2 {
		w := &readerFrom{ResponseRecorder: httptest.NewRecorder()}
		r.cache.ServeHTTP(w, httptest.NewRequest("GET", "/org/model/resolve/main/model.safetensors", nil))
		if w.files == 0 || w.Body.String() != string(weights) {
			t.Errorf("%d copies from a file, %d bytes", w.files, w.Body.Len())
		}
		r.settle()
	}
}

// TestKeep: stats, gc and verify, beside a cache that runs.
func TestKeep(t *testing.T) {
	r := newRig(t, nil)
	_, config, weights := r.example()
	r.get(weightsPath)
	r.get("/org/model/resolve/main/config.json")
	r.settle()
	store, err := OpenStore(r.cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	etag := normalETag(r.head(weightsPath).header.Get("Etag"))
	small := normalETag(r.head("/org/model/resolve/main/config.json").header.Get("Etag"))
	path := store.blobs.Path(etag)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	// Spoilt behind everybody's back: the time says that it is verified.
	if err := os.WriteFile(path, append(random(len(weights))[1:], 0), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if st, err := store.Stats(); err != nil || st.Blobs != 2 || st.Bytes != int64(len(weights)+len(config)) || st.Unverified != 0 || st.Repositories != 1 {
		t.Errorf("%+v %v", st, err)
	}
	var wrong []string
	if n, _, removed, err := store.Verify(t.Context(), func(h string) { wrong = append(wrong, h) }); err != nil || n != 2 || removed != 1 || len(wrong) != 1 || wrong[0] != etag {
		t.Errorf("verified %d, removed %d, %v (%v)", n, removed, wrong, err)
	}
	r.wants(r.get(weightsPath), 200, string(weights))
	r.settle()
	// A download left off long ago goes, and with no room everything that is not pinned.
	old := time.Now().Add(-abandoned - time.Hour)
	part := store.blobs.PartPath(strings.Repeat("a", 64))
	if err := os.WriteFile(part, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(part, old, old); err != nil {
		t.Fatal(err)
	}
	if files, freed, err := store.GC(1<<40, time.Now()); err != nil || files != 1 || freed != 1 {
		t.Errorf("gc: %d files, %d bytes, %v", files, freed, err)
	}
	if _, err := store.SetPin(Pin{Kind: "models", Repo: "org/model", Revision: "main"}, true); err != nil {
		t.Fatal(err)
	}
	if files, _, err := store.GC(0, time.Now()); err != nil || files != 0 {
		t.Errorf("gc took %d pinned files (%v)", files, err)
	}
	if _, err := store.SetPin(Pin{Kind: "models", Repo: "org/model", Revision: "main"}, false); err != nil {
		t.Fatal(err)
	}
	if files, _, err := store.GC(0, time.Now().Add(forgotten+time.Hour)); err != nil || files != 2 {
		t.Errorf("gc: %d files (%v)", files, err)
	}
	if _, err := os.Stat(store.blobs.Path(small)); err == nil {
		t.Error("gc left a file")
	}
	if n, err := store.records.count(); err != nil || n != 0 {
		t.Errorf("gc left %d files of old metadata (%v)", n, err)
	}
	r.wants(r.get(weightsPath), 200, string(weights))
}

// TestPinsOfManyAreKept: processes that pin at the same time lose nothing.
func TestPinsOfManyAreKept(t *testing.T) {
	s := &Store{dir: t.TempDir()}
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			if _, err := s.SetPin(Pin{Kind: "models", Repo: "o/m" + string(rune('a'+i))}, true); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if pins, err := s.Pins(); err != nil || len(pins) != 24 {
		t.Errorf("%d pins are kept of 24, %v", len(pins), err)
	}
}
