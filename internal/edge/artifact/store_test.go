package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// newStore makes a store that retries without waiting.
func newStore(t *testing.T, edit func(*Config)) *Store {
	t.Helper()
	cfg := Config{Dir: filepath.Join(t.TempDir(), "store"), RetryWait: time.Millisecond, StallTimeout: 5 * time.Second}
	if edit != nil {
		edit(&cfg)
	}
	s, err := New(cfg, &http.Client{Transport: &http.Transport{}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.requests.client.CloseIdleConnections)
	return s
}

// again makes a second store over the same folder, as a restarted process
// would.
func again(t *testing.T, s *Store) *Store {
	t.Helper()
	return newStore(t, func(c *Config) { c.Dir = s.cfg.Dir })
}

func randomBytes(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func mustRead(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func mustWrite(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// wantError checks that err says every one of the words.
func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one that says %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func TestFetchInPlace(t *testing.T) {
	base := t.TempDir()
	file := filepath.Join(base, "models", "iris.ubj")
	mustWrite(t, file, "model")
	s := newStore(t, nil)
	pin := "#sha256=" + sum([]byte("model"))
	for _, tc := range []struct{ uri, base, want string }{
		{"file://models/iris.ubj", base, file},
		{"models/iris.ubj", base, file},
		{"./models/../models/iris.ubj", base, file},
		{"file://" + file, "/elsewhere", file},
		{file, "", file},
		{"FILE://models", base, filepath.Dir(file)},
		{"file://models/iris.ubj" + pin, base, file},
	} {
		got, err := s.Fetch(t.Context(), Request{URI: tc.uri, Base: tc.base}, nil)
		if err != nil || got != tc.want {
			t.Errorf("Fetch(%q) = %q, %v; want %q", tc.uri, got, err, tc.want)
		}
	}
	_, err := s.Fetch(t.Context(), Request{URI: "file://models/none.ubj", Base: base}, nil)
	wantError(t, err, filepath.Join(base, "models/none.ubj"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
	_, err = s.Fetch(t.Context(), Request{URI: file + "#sha256=" + sum([]byte("other"))}, nil)
	wantError(t, err, sum([]byte("model")), sum([]byte("other")))
	_, err = s.Fetch(t.Context(), Request{URI: base + pin}, nil)
	wantError(t, err, "folder")
}

func TestFetchRefusesURIs(t *testing.T) {
	s := newStore(t, nil)
	for uri, words := range map[string][]string{
		"":                               {"empty"},
		"ftp://org/model":                {"ftp://", "file://, az://, gs://, hf://, http://, https://, oci://, s3://"},
		"pvc://claim/model":              {"pvc://claim/model", "file://PATH"},
		"https://":                       {"names no host"},
		"s3:///key":                      {"names no host or bucket"},
		"s3://id:hunter2@bucket/x":       {"environment", "s3://bucket/x"},
		"https://h/x#sha256=12":          {"64 hex digits"},
		"https://h/":                     {"names no file"},
		"http://u:hunter2@[bad/x":        {"not a URL"},
		"upload://12/x":                  {"not a sha256"},
		"upload://" + sum(nil) + "/../x": {"not a file name"},
		"upload://" + sum(nil) + "/x":    {"not uploaded"},
	} {
		_, err := s.Fetch(t.Context(), Request{URI: uri}, nil)
		wantError(t, err, words...)
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: the error shows a secret: %v", uri, err)
		}
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"https://u:p@h/x?X-Amz-Signature=s#sha256=1": "https://h/x?…",
		"https://h/a@b":       "https://h/a@b",
		"https://a:b@c@h/x":   "https://h/x",
		"s3://bucket/key":     "s3://bucket/key",
		"/plain/path":         "/plain/path",
		"https://u:p@h?q=://": "https://h?…",
	} {
		if got := Redact(in); got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	wantError(t, Config{}.WithDefaults().Validate(), "dir")
	bad := Config{Dir: "x", MaxBytes: -1, Concurrency: -2}.WithDefaults()
	wantError(t, bad.Validate(), "maxBytes", "concurrency")
	if err := (Config{Dir: "x"}).WithDefaults().Validate(); err != nil {
		t.Error(err)
	}
}

func TestStoreFolderIsPrivate(t *testing.T) {
	s := newStore(t, nil)
	info, err := os.Stat(s.cfg.Dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("mode %v, %v; want 0700", info.Mode(), err)
	}
}

// cancelled reports whether err is the caller's own cancellation.
func cancelled(err error) bool { return errors.Is(err, context.Canceled) }

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

var _ io.Reader = zeros{}
