package app

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

// s3Here is a store with the object models/iris/iris.ubj, and the
// Authorization of what it was asked last.
func s3Here(t *testing.T) (address string, authorization *string) {
	t.Helper()
	authorization = new(string)
	fake := gofakes3.New(s3mem.New(), gofakes3.WithAutoBucket(true)).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*authorization = r.Header.Get("Authorization")
		fake.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+"/models/iris/iris.ubj", bytes.NewReader([]byte("trees")))
	if err != nil {
		t.Fatal(err)
	}
	res, err := server.Client().Do(req)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(res, err)
	}
	_ = res.Body.Close()
	return server.URL, authorization
}

// pullTo pulls a model into a folder.
func pullTo(t *testing.T, uri, folder string, publicOnly bool) (string, error) {
	t.Helper()
	var out bytes.Buffer
	p := Pull{Out: folder, PublicOnly: publicOnly}
	err := p.Run(t.Context(), []string{uri}, &out, io.Discard)
	return out.String(), err
}

// noStorage has a test set variables as it likes.
func noStorage(t *testing.T) {
	t.Helper()
	for _, v := range credentials.MemberVariables() {
		t.Setenv(v, "")
	}
	for _, v := range []string{storageConfig, storageOverride, "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "S3_ENDPOINT"} {
		t.Setenv(v, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
}

// TestPullFromStorage: what KServe's storage names is where a model comes from,
// and by which keys.
func TestPullFromStorage(t *testing.T) {
	address, authorization := s3Here(t)
	for _, c := range []struct{ name, uri, config, override, signed string }{
		{"all in the secret", "storage://iris", `{"type":"s3","bucket":"models","endpoint_url":"ADDRESS","access_key_id":"AKID","secret_access_key":"s","region":"eu-3"}`, "", "Credential=AKID/"},
		{"parameters go before", "storage:///iris/iris.ubj", `{"type":"s3","bucket":"none","endpoint_url":"http://127.0.0.1:1","access_key_id":"AKID","secret_access_key":"s","region":"eu-3"}`,
			`{"bucket":"models","endpoint_url":"ADDRESS"}`, "/eu-3/s3/"},
		{"the bucket is known", "s3://models/iris", `{"endpoint_url":"ADDRESS","access_key_id":"AKID","secret_access_key":"s"}`, `{"type":"s3","bucket":"models"}`, "Credential=AKID/"},
		{"parameters alone", "storage://iris", "", `{"type":"s3","bucket":"models","endpoint_url":"ADDRESS","anonymous":"true"}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			noStorage(t)
			t.Setenv("AWS_SESSION_TOKEN", "of another key")
			t.Setenv(storageConfig, strings.ReplaceAll(c.config, "ADDRESS", address))
			t.Setenv(storageOverride, strings.ReplaceAll(c.override, "ADDRESS", address))
			out := filepath.Join(t.TempDir(), "models")
			if _, err := pullTo(t, c.uri, out, false); err != nil {
				t.Fatal(err)
			}
			if raw, err := os.ReadFile(filepath.Join(out, "iris.ubj")); err != nil || string(raw) != "trees" {
				t.Error(string(raw), err)
			}
			if !strings.Contains(*authorization, c.signed) || c.signed == "" && *authorization != "" {
				t.Errorf("Authorization %q, want %q", *authorization, c.signed)
			}
		})
	}
}

// TestPullSaysWhoseCredentials: a refusal names where credentials came from, as
// whoever made the pod says.
func TestPullSaysWhoseCredentials(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/denied.bin" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	noStorage(t)
	t.Setenv("ROUNDHOUSE_CREDENTIALS", "the secret s3")
	for path, want := range map[string]bool{"/denied.bin": true, "/missing.bin": false} {
		_, err := pullTo(t, server.URL+path, filepath.Join(t.TempDir(), "m"), false)
		if err == nil || strings.HasSuffix(err.Error(), "; the credentials are those of the secret s3") != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestPullLacksAuthorities: where a storage names authorities that a pod cannot have, a
// certificate that nobody vouches for is told with what to do, and without the name, which
// is the secret's.
func TestPullLacksAuthorities(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	for _, c := range []struct{ name, more, given, says string }{
		{"a ConfigMap", `"cabundle_configmap":"s3cr3t"`, "", "the storage's cabundle_configmap names authorities that this pod does not have"},
		{"and where KServe has it", `"cabundle_configmap":"s3cr3t","ca_bundle":"/s3cr3t/ca.crt"`, "", "the storage's cabundle_configmap names"},
		{"a file of another container", `"ca_bundle":"/s3cr3t/ca.crt"`, "", "the storage's ca_bundle names"},
		{"the annotation's besides", `"cabundle_configmap":"s3cr3t","ca_bundle":"/s3cr3t/ca.crt"`, "/etc/ssl/custom-certs/cabundle.crt", ""},
		{"none", `"region":"eu-1"`, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			noStorage(t)
			t.Setenv("SSL_CERT_FILE", c.given)
			t.Setenv(storageConfig, `{"type":"s3","bucket":"models","endpoint_url":"`+server.URL+`","access_key_id":"AKID","secret_access_key":"s",`+c.more+`}`)
			_, err := pullTo(t, "storage://iris", filepath.Join(t.TempDir(), "m"), false)
			if err == nil || !strings.Contains(err.Error(), "certificate") || strings.Contains(err.Error(), "s3cr3t") {
				t.Fatal(err)
			}
			if told := strings.Contains(err.Error(), "serving.kserve.io/s3-cabundle-configmap"); told != (c.says != "") || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
			if at := os.Getenv("SSL_CERT_FILE"); at != c.given {
				t.Errorf("the authorities are those of %q, want %q", at, c.given)
			}
		})
	}
}

func TestStorageThatCannotBeRead(t *testing.T) {
	for _, c := range []struct{ uri, config, override, says string }{
		{"storage://iris", "", "", `"type"`},
		{"storage://iris", `{"type":"s3"}`, "", `"bucket"`},
		{"storage://iris", `{"type":"hdfs"}`, "", `"hdfs" are not supported, only s3 and gs`},
		{"s3://models/iris", `{"type":"webhdfs"}`, "", `"webhdfs" are not supported`},
		{"storage://iris", `not json s3cr3t`, "", "STORAGE_CONFIG is not a JSON object"},
		{"storage://iris", "", `{"bucket": 7}`, "STORAGE_OVERRIDE_CONFIG is not a JSON object"},
	} {
		noStorage(t)
		t.Setenv(storageConfig, c.config)
		t.Setenv(storageOverride, c.override)
		_, err := pullTo(t, c.uri, filepath.Join(t.TempDir(), "m"), false)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s %s: %v, want %q", c.config, c.override, err, c.says)
		}
	}
}

// TestPullPublicOnly: a URI may not lead inside, an endpoint may.
func TestPullPublicOnly(t *testing.T) {
	address, _ := s3Here(t)
	noStorage(t)
	t.Setenv("AWS_ENDPOINT_URL", address)
	if _, err := pullTo(t, "s3://models/iris", filepath.Join(t.TempDir(), "m"), true); err != nil {
		t.Error(err)
	}
	for _, uri := range []string{address + "/models/iris/iris.ubj", "http://localhost:1/m", "oci://127.0.0.1:1/m", "http://169.254.169.254/latest/meta-data"} {
		_, err := pullTo(t, uri, filepath.Join(t.TempDir(), "m"), true)
		if err == nil || !strings.Contains(err.Error(), "is an internal address") {
			t.Errorf("%s: %v", uri, err)
		}
	}
	if _, err := pullTo(t, address+"/models/iris/iris.ubj", filepath.Join(t.TempDir(), "m"), false); err != nil {
		t.Error(err)
	}
}

// TestFetchedSchemes: manifests are checked against the schemes that are read.
func TestFetchedSchemes(t *testing.T) {
	store, err := artifact.New(artifact.Config{Dir: t.TempDir()}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := slices.DeleteFunc(store.Schemes(), func(s string) bool { return s == "file" || s == "upload" })
	if !slices.Equal(service.FetchedSchemes, want) {
		t.Errorf("service.FetchedSchemes are %v, read are %v", service.FetchedSchemes, want)
	}
	_, err = store.Fetch(t.Context(), artifact.Request{URI: "foo://x"}, nil)
	if want := "foo://x: nothing is fetched from foo://: use one of file://, " + strings.Join(want, "://, ") + "://"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestPullStays: a model that is put into a shared store stays there for whoever
// reads it while the command stays, which says when the model is there.
func TestPullStays(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "model") }))
	t.Cleanup(server.Close)
	store, stay := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(stay, arrivedName), nil, 0o600); err != nil { // of an earlier run
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	link := filepath.Join(store, "places", "pod", "model")
	ended := make(chan error, 1)
	out, printed := io.Pipe()
	p := Pull{Store: store, Place: "pod", StoreBytes: "50%", Stay: stay}
	go func() { ended <- p.Run(ctx, []string{server.URL + "/m.bin"}, printed, io.Discard) }()
	line := make([]byte, 4096)
	n, err := out.Read(line)
	if err != nil || string(line[:n]) != link+"\n" {
		t.Fatalf("%q, %v", line[:n], err)
	}
	for look := time.NewTicker(10 * time.Millisecond); ; <-look.C {
		if info, err := os.Stat(filepath.Join(stay, arrivedName)); err == nil && info.Mode().Perm() == 0o644 {
			break
		}
		select {
		case err := <-ended:
			t.Fatal("it did not stay:", err)
		default:
		}
	}
	if got, err := os.ReadFile(filepath.Join(link, "m.bin")); err != nil || string(got) != "model" {
		t.Fatal(string(got), err)
	}
	f, err := os.Open(filepath.Dir(link))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		t.Error("nobody holds the place")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Error("the place is still held:", err)
	}
}

// TestPullStoreSize refuses what is no size.
func TestPullStoreSize(t *testing.T) {
	p := Pull{Store: t.TempDir(), Place: "pod", StoreBytes: "much"}
	if err := p.Run(t.Context(), []string{"https://example.com/m"}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "--store-max-bytes") {
		t.Error(err)
	}
}
