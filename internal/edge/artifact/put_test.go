package artifact

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What is put can be fetched, at each store, and what is there is replaced.
func TestPut(t *testing.T) {
	const name = "results/a b+ä/report.json"
	newS3(t)
	newGCS(t, 10)
	azure := newAzure(t)
	azure.auth = "key"
	t.Setenv("AZURE_STORAGE_KEY", base64.StdEncoding.EncodeToString(azureKey))
	dir := t.TempDir()
	for _, uri := range []string{"s3://bucket/" + name, "gs://bucket/" + name, "az://c/" + name, "https://models.blob.core.windows.net/c/report.json", "file://" + dir + "/" + name} {
		for _, content := range []string{`{"points":[]}`, `{"points":[1]}`} {
			if err := Put(t.Context(), Request{URI: uri}, []byte(content), Config{}, nil, nil); err != nil {
				t.Fatalf("%s: %v", uri, err)
			}
			path, err := newStore(t, nil).Fetch(t.Context(), Request{URI: uri}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); string(got) != content || err != nil {
				t.Errorf("%s: %q %v, want %q", uri, got, err, content)
			}
		}
	}
	left, err := os.ReadDir(filepath.Dir(filepath.Join(dir, name)))
	if err != nil || len(left) != 1 {
		t.Errorf("beside the file: %v %v", left, err)
	}
}

// A body is signed with its own digest, and sent again where a store learns late of it:
// to another region, or after a failure.
func TestPutIsTriedAgain(t *testing.T) {
	b := newS3(t)
	failed := false
	b.edit = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case !strings.Contains(r.Header.Get("Authorization"), "/ap-south-1/"):
			w.Header().Set("X-Amz-Bucket-Region", "ap-south-1")
			w.WriteHeader(http.StatusBadRequest)
			return true
		case !failed:
			failed = true
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	}
	content := []byte("hello")
	if err := Put(t.Context(), Request{URI: "s3://bucket/o"}, content, Config{RetryWait: time.Millisecond}, nil, nil); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	for _, r := range b.requests() {
		if r.Method != http.MethodPut || r.ContentLength != 5 || r.Header.Get(s3Sum) != hex.EncodeToString(sum[:]) || !strings.Contains(r.Header.Get("Authorization"), "content-length") {
			t.Errorf("%s %d %v", r.Method, r.ContentLength, r.Header)
		}
	}
	if len(b.requests()) != 3 {
		t.Errorf("%d requests, want 3", len(b.requests()))
	}
}

// A store that the credentials name takes the place of the environment's.
func TestPutElsewhere(t *testing.T) {
	b := newS3(t)
	t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
	if err := Put(t.Context(), Request{URI: "s3://bucket/o", Credentials: &Credentials{Endpoint: b.url, Region: "eu-frankfurt-1"}}, []byte("x"), Config{}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if r := b.requests(); len(r) != 1 || r[0].URL.Path != "/bucket/o" || !strings.Contains(r[0].Header.Get("Authorization"), "/eu-frankfurt-1/s3/") {
		t.Errorf("%d requests", len(r))
	}
}

// What cannot be written says why, without what is secret.
func TestPutRefuses(t *testing.T) {
	b := newS3(t)
	newAzure(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.edit = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte("<Error><Code>SignatureDoesNotMatch</Code></Error>"))
		return true
	}
	for uri, word := range map[string]string{
		"":                           "the URI is empty",
		"s3://bucket":                "names no object",
		"s3://bucket/folder/":        "names no object",
		"az://c/folder/":             "names no object",
		"hf://a/b":                   "nothing is written to hf://: use one of file://, az://, gs://, s3://",
		"https://me:hunter2@host/x":  "https://host/x: nothing is written to https://",
		"s3://bucket/o":              "AWS_SECRET_ACCESS_KEY is not the secret",
		"file://" + file + "/report": "not a directory",
		"s3://bucket/o#sha256=" + strings.Repeat("0", 64): "remove it",
	} {
		err := Put(t.Context(), Request{URI: uri}, []byte("x"), Config{}, nil, nil)
		if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", uri, err, word)
		}
	}
}
