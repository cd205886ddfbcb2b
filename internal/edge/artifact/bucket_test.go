package artifact

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// bucketServer is an object store in a test.
type bucketServer struct {
	scheme string
	url    string
	put    func(key string, content []byte)
	mu     sync.Mutex
	seen   []*http.Request
	edit   func(w http.ResponseWriter, r *http.Request) bool // true: answered
}

func (b *bucketServer) watch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		b.seen = append(b.seen, r.Clone(r.Context()))
		edit := b.edit
		b.mu.Unlock()
		if edit == nil || !edit(w, r) {
			next.ServeHTTP(w, r)
		}
	})
}

func (b *bucketServer) requests() []*http.Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.seen)
}

func newS3(t *testing.T) *bucketServer {
	t.Helper()
	b := &bucketServer{scheme: "s3"}
	fake := gofakes3.New(s3mem.New(), gofakes3.WithAutoBucket(true))
	srv := httptest.NewServer(b.watch(fake.Server()))
	t.Cleanup(srv.Close)
	b.url = srv.URL
	b.put = func(key string, content []byte) {
		u := srv.URL + "/bucket/" + escapeKey(key)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, u, bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.Client().Do(req)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		_ = resp.Body.Close()
	}
	t.Setenv("AWS_ENDPOINT_URL", srv.URL)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_ACCESS_KEY_ID", "AKID")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
	t.Setenv("AWS_REGION", "eu-north-1")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	return b
}

// gcsObject is one stored object of the fake.
type gcsObject struct {
	content    []byte
	generation int
	crc        uint32
}

// newGCS speaks the two calls of the JSON API that a reader needs:
// objects.list with pages and objects.get with alt=media, generation and Range.
// pageSize keys go on a page whatever maxResults says, as the API allows.
func newGCS(t *testing.T, pageSize int) (*bucketServer, map[string]*gcsObject) {
	t.Helper()
	b := &bucketServer{scheme: "gs"}
	var mu sync.Mutex
	objects := map[string]*gcsObject{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /storage/v1/b/bucket/o", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		gcsServeList(w, r.URL.Query(), objects, pageSize)
	})
	mux.HandleFunc("GET /storage/v1/b/bucket/o/{key...}", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		o := objects[r.PathValue("key")]
		mu.Unlock()
		if r.URL.Query().Get("alt") != "media" {
			http.Error(w, "metadata was not expected to be asked for", http.StatusBadRequest)
			return
		}
		if o == nil || r.URL.Query().Get("generation") != strconv.Itoa(o.generation) {
			http.Error(w, `{"error":{"message": "No such object"}}`, http.StatusNotFound)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(o.content))
	})
	mux.HandleFunc("POST /upload/storage/v1/b/bucket/o", func(w http.ResponseWriter, r *http.Request) {
		content, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Query().Get("uploadType") != "media" || r.URL.Query().Get("name") == "" {
			http.Error(w, "no upload of one object at once", http.StatusBadRequest)
			return
		}
		b.put(r.URL.Query().Get("name"), content)
		_, _ = w.Write([]byte(`{"kind":"storage#object"}`))
	})
	srv := httptest.NewServer(b.watch(mux))
	t.Cleanup(srv.Close)
	b.url = srv.URL
	generation := 1700000000
	b.put = func(key string, content []byte) {
		mu.Lock()
		defer mu.Unlock()
		generation++
		objects[key] = &gcsObject{content, generation, crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli))}
	}
	t.Setenv("STORAGE_EMULATOR_HOST", strings.TrimPrefix(srv.URL, "http://"))
	return b, objects
}

func gcsServeList(w http.ResponseWriter, q url.Values, objects map[string]*gcsObject, pageSize int) {
	var keys []string
	for k := range objects {
		if strings.HasPrefix(k, q.Get("prefix")) && k > q.Get("pageToken") {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	answer := map[string]any{"kind": "storage#objects"}
	if len(keys) > pageSize {
		keys = keys[:pageSize]
		answer["nextPageToken"] = keys[pageSize-1]
	}
	var items []map[string]string
	for _, k := range keys {
		o := objects[k]
		items = append(items, map[string]string{
			"name": k, "size": strconv.Itoa(len(o.content)), "generation": strconv.Itoa(o.generation),
			"crc32c": base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, o.crc)),
		})
	}
	if items != nil {
		answer["items"] = items
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// eachBucket runs a test against both kinds of object store.
func eachBucket(t *testing.T, test func(t *testing.T, b *bucketServer)) {
	t.Run("s3", func(t *testing.T) { test(t, newS3(t)) })
	t.Run("gs", func(t *testing.T) {
		b, _ := newGCS(t, 2)
		test(t, b)
	})
}

func TestFetchBucketFolder(t *testing.T) {
	eachBucket(t, func(t *testing.T, b *bucketServer) {
		files := map[string]string{
			"config.json": "{}", "model-1.safetensors": "one", "a b+c=d&é.txt": "odd name",
			"sub/deep/tokens.txt": "t", "empty": "",
		}
		for name, content := range files {
			b.put("llm/small/"+name, []byte(content))
		}
		b.put("llm/small-other/no.txt", []byte("not of this model"))
		b.put("llm/small.txt", []byte("not of this model"))
		s := newStore(t, nil)
		req := Request{URI: b.scheme + "://bucket/llm/small"}
		var last Progress
		dir, err := s.Fetch(t.Context(), req, func(p Progress) { last = p })
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range files {
			if got := mustRead(t, filepath.Join(dir, name)); got != want {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
		if n, _, _ := measure(dir); n != len(files) {
			t.Errorf("%d files, want %d", n, len(files))
		}
		if last != (Progress{14, 14}) {
			t.Errorf("last progress %+v", last)
		}
		before := len(b.requests())
		if second, err := s.Fetch(t.Context(), req, nil); second != dir || err != nil {
			t.Errorf("again: %q, %v", second, err)
		}
		for _, r := range b.requests()[before:] {
			if r.URL.Query().Get("prefix") == "" {
				t.Errorf("an unchanged folder was downloaded again: %s", r.URL)
			}
		}
		b.put("llm/small/config.json", []byte(`{"a":1}`))
		third, err := s.Fetch(t.Context(), req, nil)
		if err != nil || third == dir || mustRead(t, filepath.Join(third, "config.json")) != `{"a":1}` {
			t.Errorf("changed: %q, %v", third, err)
		}
	})
}

func TestFetchBucketFile(t *testing.T) {
	eachBucket(t, func(t *testing.T, b *bucketServer) {
		data := randomBytes(100_000, 30)
		b.put("m/iris.ubj", data)
		b.put("m/iris.ubj.bak", []byte("x"))
		b.put("m/model.tar.gz", gzipOf(t, tarOf(t, tarFile("config.json", "{}"))))
		s := newStore(t, nil)
		path, err := s.Fetch(t.Context(), Request{URI: b.scheme + "://bucket/m/iris.ubj#sha256=" + sum(data)}, nil)
		if err != nil || mustRead(t, path) != string(data) || filepath.Base(path) != "iris.ubj" {
			t.Fatal(path, err)
		}
		dir, err := s.Fetch(t.Context(), Request{URI: b.scheme + "://bucket/m/model.tar.gz"}, nil)
		if err != nil || mustRead(t, filepath.Join(dir, "config.json")) != "{}" {
			t.Error(dir, err)
		}
		_, err = s.Fetch(t.Context(), Request{URI: b.scheme + "://bucket/m/none"}, nil)
		wantError(t, err, b.scheme+"://bucket/m/none", "no object")
		_, err = s.Fetch(t.Context(), Request{URI: b.scheme + "://bucket/m#sha256=" + sum(data)}, nil)
		wantError(t, err, "folder of 3")
	})
}

func TestBucketResume(t *testing.T) {
	eachBucket(t, func(t *testing.T, b *bucketServer) {
		data := randomBytes(200_000, 31)
		b.put("m/weights.bin", data)
		b.put("m/config.json", []byte("{}"))
		cut := true
		b.edit = func(w http.ResponseWriter, r *http.Request) bool {
			if !cut || !strings.HasSuffix(r.URL.Path, "weights.bin") {
				return false
			}
			w.Header().Set("Content-Length", "200000")
			_, _ = w.Write(data[:1000])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		s := newStore(t, func(c *Config) { c.Attempts, c.Concurrency = 1, 1 })
		req := Request{URI: b.scheme + "://bucket/m"}
		_, err := s.Fetch(t.Context(), req, nil)
		wantError(t, err, "unreachable")
		cut = false
		before := len(b.requests())
		dir, err := again(t, s).Fetch(t.Context(), req, nil)
		if err != nil || mustRead(t, filepath.Join(dir, "weights.bin")) != string(data) {
			t.Fatal(err)
		}
		for _, r := range b.requests()[before:] {
			switch {
			case strings.HasSuffix(r.URL.Path, "config.json"):
				t.Error("a finished file was downloaded again")
			case strings.HasSuffix(r.URL.Path, "weights.bin") && r.Header.Get("Range") != "bytes=1000-":
				t.Errorf("resumed with Range %q", r.Header.Get("Range"))
			}
		}
	})
}

func TestBucketErrors(t *testing.T) {
	eachBucket(t, func(t *testing.T, b *bucketServer) {
		b.put("evil/../../x", []byte("x"))
		b.put("many/1", nil)
		b.put("many/2", nil)
		b.put("many/3", nil)
		s := newStore(t, func(c *Config) { c.MaxFiles, c.Attempts = 2, 2 })
		_, err := s.Fetch(t.Context(), Request{URI: b.scheme + "://bucket/many"}, nil)
		wantError(t, err, "more than 2 files", "maxFiles")
		b.edit = func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `<Error><Code>AccessDenied</Code></Error> {"error":{"message": "AccessDenied"}}`)
			return true
		}
		_, err = s.Fetch(t.Context(), Request{URI: b.scheme + "://bucket/m"}, nil)
		wantError(t, err, "403", "AccessDenied", "public bucket")
		b.edit = func(w http.ResponseWriter, r *http.Request) bool {
			_, _ = fmt.Fprint(w, "<html>not a listing")
			return true
		}
		_, err = s.Fetch(t.Context(), Request{URI: b.scheme + "://bucket/m"}, nil)
		wantError(t, err, "listing")
	})
}

func TestHostileObjectNames(t *testing.T) {
	b, _ := newGCS(t, 100)
	for i, name := range []string{"../x", "a/../../x", "/abs", "a//b", `a\b`, "a\x00b"} {
		prefix := "p" + strconv.Itoa(i)
		b.put(prefix+"/"+name, []byte("x"))
		_, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "gs://bucket/" + prefix}, nil)
		wantError(t, err, "would leave the model's folder")
	}
	b.put("clash/a", []byte("x"))
	b.put("clash/a/b", []byte("x"))
	_, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "gs://bucket/clash"}, nil)
	wantError(t, err, "both a file and a folder")
}

func TestGCSChecksum(t *testing.T) {
	b, objects := newGCS(t, 100)
	b.put("m.bin", []byte("content"))
	objects["m.bin"].crc++
	_, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "gs://bucket/m.bin"}, nil)
	wantError(t, err, "crc32c")
}

func TestChangeDuringDownload(t *testing.T) {
	eachBucket(t, func(t *testing.T, b *bucketServer) {
		b.put("m/w.bin", []byte("first version"))
		changed := false
		b.edit = func(w http.ResponseWriter, r *http.Request) bool {
			if !changed && strings.HasSuffix(r.URL.Path, "w.bin") {
				changed = true
				w.WriteHeader(http.StatusPreconditionFailed)
				return true
			}
			return false
		}
		path, err := newStore(t, nil).Fetch(t.Context(), Request{URI: b.scheme + "://bucket/m/w.bin"}, nil)
		if err != nil || mustRead(t, path) != "first version" {
			t.Error(path, err)
		}
	})
}

func TestS3Signing(t *testing.T) {
	b := newS3(t)
	b.put("m", []byte("x"))
	if _, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "s3://bucket/m"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, r := range b.requests()[1:] {
		auth := r.Header.Get("Authorization")
		if !strings.HasPrefix(auth, "AWS4-HMAC-SHA256 Credential=AKID/") || !strings.Contains(auth, "/eu-north-1/s3/aws4_request") {
			t.Errorf("%s: Authorization %q", r.URL, auth)
		}
	}
	t.Setenv("awsAnonymousCredential", "true")
	before := len(b.requests())
	if _, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "s3://bucket/m"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, r := range b.requests()[before:] {
		if r.Header.Get("Authorization") != "" {
			t.Error("an anonymous request is signed")
		}
	}
}

func TestS3WithoutCredentialsAsksAnonymously(t *testing.T) {
	b := newS3(t)
	b.put("m", []byte("x"))
	_ = os.Unsetenv("AWS_ACCESS_KEY_ID") // newS3's t.Setenv restores it
	_ = os.Unsetenv("AWS_SECRET_ACCESS_KEY")
	if _, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "s3://bucket/m"}, nil); err != nil {
		t.Fatal(err)
	}
}

func TestS3BucketRegion(t *testing.T) {
	b := newS3(t)
	b.put("m", []byte("x"))
	b.edit = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.Header.Get("Authorization"), "/ap-south-1/") {
			return false
		}
		w.Header().Set("X-Amz-Bucket-Region", "ap-south-1")
		w.WriteHeader(http.StatusBadRequest)
		return true
	}
	if _, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "s3://bucket/m"}, nil); err != nil {
		t.Fatal(err)
	}
}

func TestS3Addresses(t *testing.T) {
	base, _ := url.Parse("http://minio:9000")
	for want, e := range map[string]s3Endpoint{
		"https://b.s3.eu-west-1.amazonaws.com/k%2B1/x": {virtual: true},
		"http://minio:9000/b/k%2B1/x":                  {base: base},
		"http://b.minio:9000/k%2B1/x":                  {base: base, virtual: true},
	} {
		if got := e.url("b", "k+1/x", "eu-west-1").String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	e := s3Endpoint{virtual: true}
	if got := e.url("a.b", "k", "eu-west-1").String(); got != "https://s3.eu-west-1.amazonaws.com/a.b/k" {
		t.Error(got)
	}
	if got := e.url("b", "", "eu-west-1").String(); got != "https://b.s3.eu-west-1.amazonaws.com/" {
		t.Error(got)
	}
}

func TestS3EndpointVariables(t *testing.T) {
	for _, tc := range []struct{ name, value, https, want string }{
		{"S3_ENDPOINT", "minio:9000", "", "https://minio:9000"},
		{"S3_ENDPOINT", "minio:9000", "0", "http://minio:9000"},
		{"S3_ENDPOINT", "http://minio:9000", "1", "http://minio:9000"},
		{"AWS_ENDPOINT_URL_S3", "http://a:1", "", "http://a:1"},
	} {
		t.Run(tc.value+tc.https, func(t *testing.T) {
			t.Setenv("AWS_ENDPOINT_URL_S3", "")
			t.Setenv("S3_USE_HTTPS", tc.https)
			t.Setenv(tc.name, tc.value)
			if got := environment(nil).s3Address(aws.Config{}); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// TestGoogleCredentials follows application default credentials to a token
// endpoint and on to the request.
func TestGoogleCredentials(t *testing.T) {
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"access_token":"tok","token_type":"Bearer","expires_in":3600}`)
	}))
	defer tokens.Close()
	file := filepath.Join(t.TempDir(), "adc.json")
	mustWrite(t, file, `{"type":"authorized_user","client_id":"c","client_secret":"s","refresh_token":"r"}`)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	t.Setenv("STORAGE_EMULATOR_HOST", "")
	s := newStore(t, nil)
	// Google's token address is fixed for this kind of file; send it home.
	home, _ := url.Parse(tokens.URL)
	s.requests.client.Transport = redirected{home}
	g := &gcsSource{requests: s.requests, limits: s.limits(), log: s.log}
	loc, err := parse(Request{URI: "gs://bucket/key"})
	if err != nil {
		t.Fatal(err)
	}
	req, err := g.authorised(t.Context(), loc, "a/b c", url.Values{"alt": {"media"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := req.Header.Get("Authorization"); got != "Bearer tok" {
		t.Errorf("Authorization %q", got)
	}
	if got := req.URL.String(); got != "https://storage.googleapis.com/storage/v1/b/bucket/o/a%2Fb%20c?alt=media" {
		t.Error(got)
	}
}

// redirected sends every request to one server, so that no test leaves
// loopback.
type redirected struct{ to *url.URL }

func (r redirected) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Scheme, req.URL.Host = r.to.Scheme, r.to.Host
	return http.DefaultTransport.RoundTrip(req)
}
