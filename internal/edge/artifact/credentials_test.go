package artifact

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// TestCredentials: a request that brings its own is made with these alone, and its copy
// is for those of its scope.
func TestCredentials(t *testing.T) {
	b := newS3(t)
	b.put("m", []byte("x"))
	s := newStore(t, nil)
	signed := func(c *Credentials) (path, auth string) {
		t.Helper()
		before := len(b.requests())
		path, err := s.Fetch(t.Context(), Request{URI: "s3://bucket/m", Credentials: c}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range b.requests()[before:] {
			auth = r.Header.Get("Authorization")
		}
		return path, auth
	}
	of := func(scope string, variables map[string]string) *Credentials {
		return &Credentials{Scope: scope, Variables: variables}
	}
	env, auth := signed(nil)
	if !strings.Contains(auth, "Credential=AKID/") {
		t.Errorf("of the environment: %q", auth)
	}
	keys := map[string]string{"AWS_ENDPOINT_URL_S3": b.url, "AWS_ACCESS_KEY_ID": "OTHER", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "eu-9"}
	one, auth := signed(of("a", keys))
	if !strings.Contains(auth, "Credential=OTHER/") || !strings.Contains(auth, "/eu-9/s3/") {
		t.Errorf("of its own: %q", auth)
	}
	two, auth := signed(of("b", map[string]string{"AWS_ENDPOINT_URL_S3": b.url}))
	if auth != "" {
		t.Errorf("without keys: %q, want none of the environment's", auth)
	}
	if one == env || two == env || one == two {
		t.Errorf("copies are shared: %s, %s, %s", env, one, two)
	}
	if path, ok := s.Lookup(Request{URI: "s3://bucket/m", Credentials: of("a", nil)}); !ok || path != one {
		t.Errorf("its scope's copy: %s, %v", path, ok)
	}
	if _, ok := s.Lookup(Request{URI: "s3://bucket/m", Credentials: of("c", nil)}); ok {
		t.Error("another scope has a copy that it has not fetched")
	}
	if (Request{URI: "s3://bucket/m"}).Key() == (Request{URI: "s3://bucket/m", Credentials: of("a", nil)}).Key() {
		t.Error("one key is of two copies")
	}
}

// TestCredentialsInUse: a copy that is named by its request's key stays.
func TestCredentialsInUse(t *testing.T) {
	b := newS3(t)
	b.put("m", make([]byte, 100))
	b.put("n", make([]byte, 100))
	c := &Credentials{Scope: "a", Variables: map[string]string{"AWS_ENDPOINT_URL_S3": b.url}}
	held := Request{URI: "s3://bucket/m", Credentials: c}
	s := newStore(t, func(cfg *Config) {
		cfg.StoreBytes, cfg.InUse = 150, func() []string { return []string{held.URI, held.Key()} }
	})
	if _, err := s.Fetch(t.Context(), held, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Fetch(t.Context(), Request{URI: "s3://bucket/n"}, nil); err == nil || !strings.Contains(err.Error(), "more than there is") {
		t.Errorf("room was made: %v", err)
	}
}

// TestKeysOf: copies are found by what the manifest writes, of whatever scope and where
// the secret has the address.
func TestKeysOf(t *testing.T) {
	b := newS3(t)
	b.put("m", make([]byte, 10))
	s := newStore(t, nil)
	fetch := func(scope, shown string) string {
		r := Request{URI: "s3://bucket/m", Credentials: &Credentials{Scope: scope, Shown: shown, Variables: map[string]string{"AWS_ENDPOINT_URL_S3": b.url}}}
		if _, err := s.Fetch(t.Context(), r, nil); err != nil {
			t.Fatal(err)
		}
		return r.Key()
	}
	plain := []string{fetch("a", ""), fetch("b", "")}
	hidden := []string{fetch("c", "storage://m")}
	slices.Sort(plain)
	for uri, want := range map[string][]string{"s3://bucket/m": plain, "storage://m": hidden, "s3://bucket/other": nil} {
		if got := s.KeysOf(uri); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", uri, got, want)
		}
	}
}

// TestCredentialsRegion: a region alone is signed for with this process's own keys.
func TestCredentialsRegion(t *testing.T) {
	b := newS3(t)
	b.put("m", make([]byte, 10))
	var asked atomic.Value
	b.edit = func(_ http.ResponseWriter, r *http.Request) bool {
		asked.Store(r.Header.Get("Authorization"))
		return false
	}
	s := newStore(t, nil)
	for want, c := range map[string]*Credentials{"/eu-north-1/s3/": nil, "/eu-central-7/s3/": {Region: "eu-central-7"}} {
		if _, err := s.Peek(t.Context(), Request{URI: "s3://bucket/m", Credentials: c}); err != nil {
			t.Fatal(err)
		}
		if got, _ := asked.Load().(string); !strings.Contains(got, "Credential=AKID/") || !strings.Contains(got, want) {
			t.Errorf("signed by %q, want %s", got, want)
		}
	}
}

// TestCredentialsRefused: a refusal says whose credentials they were, and what the secret
// has of the address is not shown.
func TestCredentialsRefused(t *testing.T) {
	b := newS3(t)
	status := http.StatusForbidden
	b.edit = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(status); return true }
	req := Request{URI: "s3://hidden-bucket/m", Credentials: &Credentials{Shown: "storage://m", From: "the secret s, key k", Variables: map[string]string{"AWS_ENDPOINT_URL_S3": b.url}}}
	_, fetched := newStore(t, nil).Fetch(t.Context(), req, nil)
	_, peeked := newStore(t, nil).Peek(t.Context(), req)
	for _, err := range []error{fetched, peeked} {
		wantError(t, err, "storage://m: ")
		wantError(t, err, "; the credentials are those of the secret s, key k")
		if strings.Contains(err.Error(), "hidden-bucket") {
			t.Error(err)
		}
	}
	status = http.StatusNotFound
	_, err := newStore(t, nil).Fetch(t.Context(), req, nil)
	wantError(t, err, "; bucket and endpoint are those of the secret s, key k")
}

// TestCredentialsOfOtherStores: tokens, headers and logins come from the request's own.
func TestCredentialsOfOtherStores(t *testing.T) {
	for _, name := range []string{"HF_TOKEN", "headers", "https-host", "AZURE_STORAGE_KEY", "AZURE_CLIENT_SECRET"} {
		t.Setenv(name, "of the environment")
	}
	e := environment{"HF_TOKEN": "hf_own", "https-host": "models.example", "headers": `{"X-Key": "own"}`,
		dockerVariable: `{"auths": {"registry.example": {"auth": "` + base64.StdEncoding.EncodeToString([]byte("me:pass")) + `"}}, "credsStore": "of-this-machine"}`}
	if got := e.hfToken(); got != "hf_own" {
		t.Errorf("the Hub's token is %q", got)
	}
	if got := (environment{}).hfToken(); got != "" {
		t.Errorf("without one it is %q", got)
	}
	loc, err := parse(Request{URI: "https://models.example/m.bin"})
	if err != nil {
		t.Fatal(err)
	}
	if req, err := e.webRequest(t.Context(), loc); err != nil || req.Header.Get("X-Key") != "own" {
		t.Errorf("%v, %v", req, err)
	}
	login, err := e.dockerCredentials(t.Context(), ociRef{host: "registry.example", name: "org/m"})
	if err != nil || login != (registryLogin{user: "me", password: "pass"}) {
		t.Errorf("a registry's login: %+v, %v", login, err)
	}
	if login, err := (environment{}).dockerCredentials(t.Context(), ociRef{host: "registry.example", name: "org/m"}); err != nil || login != (registryLogin{}) {
		t.Errorf("without one: %+v, %v", login, err)
	}
	if l := (environment{}).azureLogin(); l.key != nil || l.sas != nil {
		t.Error("Azure's key is of the environment")
	}
	a := &azureSource{env: environment{}}
	if id, err := a.identify(); err != nil || id.cred != nil {
		t.Errorf("the machine's identity is used: %+v, %v", id, err)
	}
}

// TestSourceSetsAreBounded: credentials that change do not pile up.
func TestSourceSetsAreBounded(t *testing.T) {
	made := 0
	s := sourceSets{make: func(environment) map[string]source { made++; return map[string]source{} }, sets: map[string]map[string]source{}}
	s.of(nil)
	for i := range 3 * maxSourceSets {
		s.of(environment{"k": strings.Repeat("x", i)})
		if len(s.sets) > maxSourceSets {
			t.Fatalf("%d sets are kept", len(s.sets))
		}
	}
	before := made
	if s.of(nil); made != before {
		t.Error("the environment's own was dropped")
	}
}
