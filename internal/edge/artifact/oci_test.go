package artifact

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/klauspost/compress/zstd"
)

// ociRegistry is a registry that may want tokens or passwords.
type ociRegistry struct {
	*httptest.Server
	t    *testing.T
	host string

	mu     sync.Mutex
	auth   string // "", "token", "basic"
	user   string // that may pull; empty: everybody
	spoil  string // digest whose blob comes wrong
	asked  []string
	tokens int
}

func newRegistry(t *testing.T) *ociRegistry {
	r := &ociRegistry{t: t}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.serve(inner, w, req) }))
	t.Cleanup(r.Close)
	r.host = strings.TrimPrefix(r.URL, "http://")
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("REGISTRY_AUTH_FILE", "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	return r
}

const registryToken = "eyJhbGciOi.secret-token"

func (r *ociRegistry) serve(inner http.Handler, w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	auth, user, spoil := r.auth, r.user, r.spoil
	if req.Method == http.MethodGet {
		r.asked = append(r.asked, req.URL.Path+" "+req.Header.Get("Range"))
	}
	r.mu.Unlock()
	given := req.Header.Get("Authorization")
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":hunter2"))
	if req.URL.Path == "/token" {
		r.token(w, req, user, basic)
		return
	}
	if req.Method == http.MethodGet {
		switch {
		case auth == "token" && given != "Bearer "+registryToken:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="registry, of tests"`, r.URL))
			w.WriteHeader(http.StatusUnauthorized)
			return
		case auth == "basic" && given != basic:
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if spoil != "" && strings.HasSuffix(req.URL.Path, spoil) {
			_, _ = io.WriteString(w, "spoilt")
			return
		}
	}
	inner.ServeHTTP(w, req)
}

func (r *ociRegistry) token(w http.ResponseWriter, req *http.Request, user, basic string) {
	r.mu.Lock()
	r.tokens++
	r.mu.Unlock()
	_ = req.ParseForm()
	if req.Form.Get("service") != "registry, of tests" || !strings.HasPrefix(req.Form.Get("scope"), "repository:") || !strings.HasSuffix(req.Form.Get("scope"), ":pull") {
		http.Error(w, "bad question: "+req.Form.Encode(), http.StatusBadRequest)
		return
	}
	identity := req.Method == http.MethodPost && req.Form.Get("refresh_token") == "refresh-me"
	if user != "" && req.Header.Get("Authorization") != basic && !identity {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"token": registryToken, "expires_in": 300})
}

func (r *ociRegistry) set(edit func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	edit()
}

// push puts a blob and describes it.
func (r *ociRegistry) push(repository, mediaType string, content []byte, annotations map[string]string) ociDescriptor {
	r.t.Helper()
	d := ociDescriptor{MediaType: mediaType, Digest: "sha256:" + sum(content), Size: int64(len(content)), Annotations: annotations}
	r.put(http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+d.Digest, "application/octet-stream", content)
	return d
}

// manifest puts a manifest under a tag and describes it.
func (r *ociRegistry) manifest(repository, tag, mediaType string, v any) ociDescriptor {
	r.t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		r.t.Fatal(err)
	}
	d := ociDescriptor{MediaType: mediaType, Digest: "sha256:" + sum(raw), Size: int64(len(raw))}
	if tag == "" {
		tag = d.Digest
	}
	r.put(http.MethodPut, "/v2/"+repository+"/manifests/"+tag, mediaType, raw)
	return d
}

func (r *ociRegistry) put(method, at, mediaType string, content []byte) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, r.URL+at, bytes.NewReader(content))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", mediaType)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		raw, _ := io.ReadAll(resp.Body)
		r.t.Fatalf("%s %s: %s %s", method, at, resp.Status, raw)
	}
}

const (
	ociManifestType = "application/vnd.oci.image.manifest.v1+json"
	ociIndexType    = "application/vnd.oci.image.index.v1+json"
	ociLayerType    = "application/vnd.oci.image.layer.v1.tar"
)

type manifestBody struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     string          `json:"mediaType"`
	Config        ociDescriptor   `json:"config"`
	Layers        []ociDescriptor `json:"layers"`
}

// pushImage puts an image of these layers.
func (r *ociRegistry) pushImage(repository, tag string, layers ...ociDescriptor) ociDescriptor {
	r.t.Helper()
	config := r.push(repository, "application/vnd.oci.image.config.v1+json", []byte(`{"os":"linux"}`), nil)
	return r.manifest(repository, tag, ociManifestType, manifestBody{2, ociManifestType, config, layers})
}

// layerTar is an archive: "name" → content; a name that ends in / is a folder,
// content that begins with -> a link and => a hard link.
func layerTar(t *testing.T, pairs ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(pairs); i += 2 {
		h := &tar.Header{Name: pairs[i], Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(pairs[i+1]))}
		content := pairs[i+1]
		if to, ok := strings.CutPrefix(content, "->"); ok {
			h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, to, 0, ""
		} else if to, ok := strings.CutPrefix(content, "=>"); ok {
			h.Typeflag, h.Linkname, h.Size, content = tar.TypeLink, to, 0, ""
		} else if strings.HasSuffix(h.Name, "/") {
			h.Typeflag, h.Size, content = tar.TypeDir, 0, ""
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(raw []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(raw)
	_ = w.Close()
	return b.Bytes()
}

func zstandard(t *testing.T, raw []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(raw, nil)
}

// contents are the files below a folder.
func contents(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		raw, err := os.ReadFile(p)
		out = append(out, rel+"="+string(raw))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// TestFetchImage lays the layers of one of KServe's images over each other.
func TestFetchImage(t *testing.T) {
	r := newRegistry(t)
	base := r.push("org/m", ociLayerType+"+gzip", gzipped(layerTar(t, "etc/", "", "etc/passwd", "root", "models/", "", "models/a", "old a", "models/b", "old b",
		"models/dir/", "", "models/dir/x", "old x", "models/dir/y", "old y", "models/swap", "was a file", "models/gone/", "", "models/gone/z", "z")), nil)
	upper := r.push("org/m", ociLayerType+"+zstd", zstandard(t, layerTar(t, "./models/a", "new a", "models/.wh.b", "", "models/dir/new", "new", "models/dir/.wh..wh..opq", "",
		"models/swap/", "", "models/swap/in", "now a folder", "models/.wh.gone", "", "models/link", "->a", "models/abs", "->/models/dir/new", "models/hard", "=>models/a")), nil)
	last := r.push("org/m", ociLayerType, layerTar(t, "usr/.wh.lib", "", "models/plain", "plain"), nil)
	r.pushImage("org/m", "v1", base, upper, last)
	s := newStore(t, nil)
	uri := "oci://" + r.host + "/org/m:v1"
	path, err := s.Fetch(t.Context(), Request{URI: uri}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a=new a", "abs=new", "dir/new=new", "hard=new a", "link=new a", "plain=plain", "swap/in=now a folder"}
	if got := contents(t, path); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	before := len(r.asked)
	if again, err := s.Fetch(t.Context(), Request{URI: uri}, nil); err != nil || again != path {
		t.Error(again, err)
	}
	for _, a := range r.asked[before:] {
		if strings.Contains(a, "/blobs/") {
			t.Errorf("asked for %s though nothing has changed", a)
		}
	}
	r.pushImage("org/m", "v1", base)
	if path, err = s.Fetch(t.Context(), Request{URI: uri}, nil); err != nil || mustRead(t, filepath.Join(path, "a")) != "old a" {
		t.Error("a tag that moved:", path, err)
	}
	r.Close()
	if again, err := s.Fetch(t.Context(), Request{URI: uri}, nil); err != nil || again != path {
		t.Error("with the registry gone:", again, err)
	}
}

// TestFetchImageIndex takes this machine's platform.
func TestFetchImageIndex(t *testing.T) {
	r := newRegistry(t)
	var all []any
	for _, arch := range []string{"s390x", runtime.GOARCH, "unknown"} {
		layer := r.push("m", ociLayerType, layerTar(t, "models/arch", arch), nil)
		d := r.pushImage("m", "", layer)
		all = append(all, map[string]any{"mediaType": d.MediaType, "digest": d.Digest, "size": d.Size, "platform": map[string]string{"os": "linux", "architecture": arch}})
	}
	index := r.manifest("m", "latest", ociIndexType, map[string]any{"schemaVersion": 2, "mediaType": ociIndexType, "manifests": all})
	for _, uri := range []string{"oci://" + r.host + "/m", "oci://" + r.host + "/m@" + index.Digest, "oci://" + r.host + "/m:latest@" + index.Digest} {
		path, err := newStore(t, nil).Fetch(t.Context(), Request{URI: uri}, nil)
		if err != nil || mustRead(t, filepath.Join(path, "arch")) != runtime.GOARCH {
			t.Error(uri, path, err)
		}
	}
	r.manifest("m", "other", ociIndexType, map[string]any{"schemaVersion": 2, "mediaType": ociIndexType, "manifests": all[:1]})
	_, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "oci://" + r.host + "/m:other"}, nil)
	wantError(t, err, "linux/"+runtime.GOARCH, "linux/s390x")
}

// TestFetchArtifact reads files as ORAS and CNCF's model format have them.
func TestFetchArtifact(t *testing.T) {
	r := newRegistry(t)
	title := func(name string) map[string]string { return map[string]string{ociTitle: name} }
	weights := randomBytes(3*testPiece+5, 80)
	r.pushImage("art", "1", r.push("art", "application/vnd.example", []byte(llama), title("config.json")),
		r.push("art", "application/octet-stream", weights, title("sub/model.safetensors")),
		r.push("art", ociLayerType+"+gzip", gzipped(layerTar(t, "data/a", "A", "data/b", "B")), map[string]string{ociTitle: "data", ociUnpackThis: "true"}))
	s := newStore(t, inTestPieces)
	path, err := s.Fetch(t.Context(), Request{URI: "oci://" + r.host + "/art:1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"config.json=" + llama, "data/a=A", "data/b=B", "sub/model.safetensors=" + string(weights)}
	if got := contents(t, path); !slices.Equal(got, want) {
		t.Errorf("got %.200q", got)
	}
	files := r.pushImage("art", "2", r.push("art", "application/vnd.cncf.model.weight.v1.raw", []byte(safetensorsOf(`{"w":{"dtype":"BF16","shape":[1000],"data_offsets":[0,2000]}}`, 2000)), map[string]string{ociModelPath: "model.safetensors"}),
		r.push("art", "application/vnd.cncf.model.weight.config.v1.raw", []byte(llama), map[string]string{ociModelPath: "config.json"}))
	facts, err := newStore(t, nil).Peek(t.Context(), Request{URI: "oci://" + r.host + "/art@" + files.Digest})
	if err != nil || facts.Architecture != "LlamaForCausalLM" {
		t.Errorf("%+v, %v", facts, err)
	}
}

// TestImageRefused lists what no image may do.
func TestImageRefused(t *testing.T) {
	r := newRegistry(t)
	for name, c := range map[string]struct {
		entries []string
		words   []string
	}{
		"no models":           {[]string{"etc/passwd", "x"}, []string{"/models"}},
		"models is a link":    {[]string{"models", "->/etc"}, []string{"no folder"}},
		"path out":            {[]string{"models/../../out", "x"}, []string{"/models"}}, // cleaned: not below /models
		"link out":            {[]string{"models/a", "->../../etc/passwd"}, []string{"outside"}},
		"absolute link":       {[]string{"models/a", "->/etc/passwd"}, []string{"outside"}},
		"hard link out":       {[]string{"models/a", "=>etc/passwd"}, []string{"outside"}},
		"through a link":      {[]string{"models/d", "->sub", "models/sub/", "", "models/d/x", "x", "models/e", "->d/../../.."}, []string{"outside"}},
		"whiteout going out":  {[]string{"models/ok", "x", "models/../../.wh.x", "", "models/a", "->/etc"}, []string{"outside"}},
		"backslash in a name": {[]string{`models/a\b`, "x"}, []string{"outside"}},
	} {
		t.Run(name, func(t *testing.T) {
			r.pushImage("bad", "1", r.push("bad", ociLayerType, layerTar(t, c.entries...), nil))
			s := newStore(t, nil)
			_, err := s.Fetch(t.Context(), Request{URI: "oci://" + r.host + "/bad:1"}, nil)
			wantError(t, err, c.words...)
			if _, err := os.Stat(filepath.Join(s.cfg.Dir, "out")); err == nil {
				t.Error("written outside")
			}
		})
	}
	bomb := r.push("bad", ociLayerType+"+gzip", gzipped(layerTar(t, "elsewhere", strings.Repeat("\x00", 4<<20))), nil)
	r.pushImage("bad", "bomb", bomb)
	_, err := newStore(t, func(c *Config) { c.MaxBytes = 1 << 20 }).Fetch(t.Context(), Request{URI: "oci://" + r.host + "/bad:bomb"}, nil)
	wantError(t, err, "maxExpansion")
	ok := r.push("bad", ociLayerType, layerTar(t, "models/a", "a"), nil)
	r.pushImage("bad", "spoilt", ok)
	r.set(func() { r.spoil = ok.Digest })
	_, err = newStore(t, func(c *Config) { c.Attempts = 1 }).Fetch(t.Context(), Request{URI: "oci://" + r.host + "/bad:spoilt"}, nil)
	if err == nil {
		t.Error("wrong bytes were taken")
	}
	for uri, word := range map[string]string{"oci://" + r.host + "/none:1": "404", "oci://" + r.host + "/Bad": "write oci://", "oci://n/tenancy/b/bucket/o/model": "Oracle",
		"oci://" + r.host + "/bad@sha512:1": "write oci://"} {
		_, err := newStore(t, nil).Fetch(t.Context(), Request{URI: uri}, nil)
		wantError(t, err, word)
	}
}

// TestRegistryLogins: anonymous tokens, passwords, identity tokens and a
// credential helper; none shows in an error or a log.
func TestRegistryLogins(t *testing.T) {
	r := newRegistry(t)
	r.pushImage("private", "1", r.push("private", ociLayerType, layerTar(t, "models/a", "a"), nil))
	uri := "oci://" + r.host + "/private:1"
	config := func(v any) {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), string(raw))
	}
	fetch := func() error {
		_, err := newStore(t, nil).Fetch(t.Context(), Request{URI: uri}, nil)
		if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), registryToken)) {
			t.Errorf("the error shows a secret: %v", err)
		}
		return err
	}
	r.set(func() { r.auth = "token" })
	if err := fetch(); err != nil {
		t.Error("anonymous token:", err)
	}
	r.set(func() { r.user = "me" })
	wantError(t, fetch(), "docker login", "401")
	basic := base64.StdEncoding.EncodeToString([]byte("me:hunter2"))
	config(map[string]any{"auths": map[string]any{r.host: map[string]string{"auth": basic}}})
	if err := fetch(); err != nil {
		t.Error("token for a password:", err)
	}
	r.set(func() { r.auth = "basic" })
	if err := fetch(); err != nil {
		t.Error("password:", err)
	}
	r.set(func() { r.auth = "token" })
	config(map[string]any{"auths": map[string]any{"https://" + r.host: map[string]string{"identitytoken": "refresh-me"}}})
	if err := fetch(); err != nil {
		t.Error("identity token:", err)
	}
	bin := t.TempDir()
	mustWrite(t, filepath.Join(bin, "docker-credential-tests"), "#!/bin/sh\ntest \"$1\" = get && at=$(cat) && test \"$at\" = "+r.host+" && echo '{\"Username\":\"me\",\"Secret\":\"hunter2\"}'\n")
	if err := os.Chmod(filepath.Join(bin, "docker-credential-tests"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for _, v := range []map[string]any{{"credHelpers": map[string]string{r.host: "tests"}}, {"credsStore": "tests"}} {
		config(v)
		if err := fetch(); err != nil {
			t.Error("credential helper:", err)
		}
	}
	config(map[string]any{"credsStore": "missing"})
	wantError(t, fetch(), "docker-credential-missing", "PATH")
	mustWrite(t, filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), "nonsense")
	wantError(t, fetch(), "credentials")
}

// TestPodmanLogins: the files of podman login are read after Docker's, where
// that has no login to the registry; REGISTRY_AUTH_FILE takes the place of all;
// a login to a namespace counts for its repositories alone.
func TestPodmanLogins(t *testing.T) {
	r := newRegistry(t)
	layer := func(name string) ociDescriptor {
		return r.push(name, ociLayerType, layerTar(t, "models/a", "a"), nil)
	}
	r.pushImage("team/private", "1", layer("team/private"))
	r.pushImage("other", "1", layer("other"))
	r.set(func() { r.auth, r.user = "basic", "me" })
	login := func(key string) string {
		return `{"auths":{"` + key + `":{"auth":"` + base64.StdEncoding.EncodeToString([]byte("me:hunter2")) + `"}}}`
	}
	fetch := func(name string) error {
		_, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "oci://" + r.host + "/" + name + ":1"}, nil)
		return err
	}
	runtime := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", runtime)
	docker := filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json")
	mustWrite(t, docker, login("registry.example"))
	wantError(t, fetch("other"), "401")
	for name, file := range map[string]string{
		"runtime": filepath.Join(runtime, "containers", "auth.json"),
		"lasting": filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "containers", "auth.json"),
	} {
		mustWrite(t, file, login(r.host))
		if err := fetch("other"); err != nil {
			t.Error(name, err)
		}
		mustWrite(t, file, login(r.host+"/team"))
		if err := fetch("team/private"); err != nil {
			t.Error(name, "namespace:", err)
		}
		wantError(t, fetch("other"), "401")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	named := filepath.Join(t.TempDir(), "auth.json")
	mustWrite(t, named, login(r.host))
	t.Setenv("REGISTRY_AUTH_FILE", named)
	if err := fetch("other"); err != nil {
		t.Error("REGISTRY_AUTH_FILE:", err)
	}
	mustWrite(t, named, login("registry.example"))
	mustWrite(t, docker, login(r.host))
	wantError(t, fetch("other"), "401")
}

func TestParseOCI(t *testing.T) {
	sha := "sha256:" + sum(nil)
	for uri, want := range map[string]ociRef{
		"oci://busybox":                        {"docker.io", "library/busybox", "latest"},
		"oci://user/model:v1":                  {"docker.io", "user/model", "v1"},
		"oci://quay.io/a/b/c":                  {"quay.io", "a/b/c", "latest"},
		"oci://localhost:5000/a:1":             {"localhost:5000", "a", "1"},
		"oci://localhost/a@" + sha:             {"localhost", "a", sha},
		"oci://busybox@" + sha:                 {"docker.io", "library/busybox", sha},
		"oci://ghcr.io/a/b__c.d-e:1@" + sha:    {"ghcr.io", "a/b__c.d-e", sha},
		"oci://registry.example:8443/a:v1.2-3": {"registry.example:8443", "a", "v1.2-3"},
	} {
		loc, err := parse(Request{URI: uri})
		if err != nil {
			t.Error(uri, err)
			continue
		}
		if got, err := parseOCI(loc); err != nil || got != want {
			t.Errorf("%s: %+v, %v", uri, got, err)
		}
	}
	if _, err := parse(Request{URI: "oci://me:hunter2@host/x"}); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}

func FuzzChallenge(f *testing.F) {
	f.Add(`Bearer realm="https://x/token",service="a, b",scope=pull`)
	f.Add(`Basic`)
	f.Fuzz(func(t *testing.T, h string) {
		scheme, parameters := parseChallenge(h)
		if scheme != strings.ToLower(scheme) || len(parameters) > len(h) {
			t.Error(scheme, parameters)
		}
	})
}
