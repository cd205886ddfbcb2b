package artifact

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// epoch is a modification date that says nothing.
var epoch = time.Time{}

// buffer is a log that several write to.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// TestSecretsStayInside fetches with every kind of credential, from servers
// that work and that fail in every way, and looks for what is secret in errors,
// in the log with everything on, and in every file of the store.
func TestSecretsStayInside(t *testing.T) {
	const secret = "s3cr3t-hunter2"
	key := base64.StdEncoding.EncodeToString([]byte(secret))
	model := []byte("model")
	var status int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch status {
		case 0:
			w.Header().Set("ETag", `"v"`)
			http.ServeContent(w, r, "", epoch, bytes.NewReader(model))
		case 1: // breaks off
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write(model)
		case http.StatusFound:
			http.Redirect(w, r, "http://127.0.0.1:1/there?sig="+secret, status)
		default:
			http.Error(w, "no", status)
		}
	}))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	docker := t.TempDir()
	mustWrite(t, filepath.Join(docker, "config.json"), `{"auths":{"`+host+`":{"auth":"`+base64.StdEncoding.EncodeToString([]byte("me:"+secret))+`"}}}`)
	for k, v := range map[string]string{
		"AWS_ENDPOINT_URL": srv.URL, "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": secret, "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": filepath.Join(docker, "none"), "AWS_SHARED_CREDENTIALS_FILE": filepath.Join(docker, "none"), "AWS_REGION": "eu-north-1",
		"AZURE_STORAGE_CONNECTION_STRING": "AccountName=models;BlobEndpoint=" + srv.URL + ";AccountKey=" + key, "AZURE_STORAGE_SAS_TOKEN": "", "AZURE_STORAGE_ACCOUNT": "",
		"HF_ENDPOINT": srv.URL, "HF_TOKEN": "hf_" + secret, "DOCKER_CONFIG": docker, "REGISTRY_AUTH_FILE": "",
		"127.0.0.1-headers": `{"Authorization":"Bearer ` + secret + `"}`, "STORAGE_EMULATOR_HOST": srv.URL,
	} {
		t.Setenv(k, v)
	}
	sas := "?sv=2021-08-06&sig=" + secret
	for _, status = range []int{0, 1, 301, 302, 401, 403, 404, 429, 500} {
		log := &buffer{}
		s, err := New(Config{Dir: t.TempDir(), Attempts: 2, RetryWait: time.Millisecond}, nil, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		if err != nil {
			t.Fatal(err)
		}
		for _, uri := range []string{
			srv.URL + "/m.bin" + sas, strings.Replace(srv.URL, "://", "://me:"+secret+"@", 1) + "/n.bin", srv.URL + "/p.bin" + sas + "#sha256=" + sum(nil),
			"s3://bucket/m.bin", "gs://bucket/m.bin", "hf://org/m", "oci://" + host + "/org/m", "az://c/m.bin",
			"https://models.blob.core.windows.net/c/m.bin" + sas, "s3://id:" + secret + "@bucket/x", "oci://me:" + secret + "@" + host + "/x", "unknown://me:" + secret + "@x/y" + sas,
		} {
			_, err := s.Fetch(t.Context(), Request{URI: uri}, nil)
			_, perr := s.Peek(t.Context(), Request{URI: uri})
			for _, e := range []error{err, perr} {
				if e != nil && leaks(e.Error(), secret, key) {
					t.Errorf("%d: %s: the error shows a secret: %v", status, Redact(uri), e)
				}
			}
			if leaks(Redact(uri), secret, key) {
				t.Errorf("redacted: %s", Redact(uri))
			}
		}
		if leaks(log.b.String(), secret, key) {
			t.Errorf("%d: the log shows a secret:\n%s", status, log.b.String())
		}
		err = filepath.WalkDir(s.cfg.Dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			raw, err := os.ReadFile(p)
			if leaks(p+string(raw), secret, key) {
				t.Errorf("%d: %s holds a secret", status, p)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func leaks(text string, secrets ...string) bool {
	for _, s := range secrets {
		if strings.Contains(text, s) || strings.Contains(text, url.QueryEscape(s)) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte("me:"+s))) {
			return true
		}
	}
	return false
}
