package e2e

import (
	"bytes"
	"crypto/md5" //nolint:gosec // the ETag of S3
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// bucket is a server of S3's protocol with the bucket models, which reads requests only
// if their signature is of a key that it knows.
type bucket struct {
	url string

	mu      sync.Mutex
	keys    map[string]string // secrets by key
	objects map[string][]byte
	asked   map[string]int // by key
}

func openBucket(t *testing.T, keys map[string]string) *bucket {
	t.Helper()
	model, err := os.ReadFile(filepath.Join(root, "examples", "quickstart", "models", "iris.ubj"))
	if err != nil {
		t.Fatal(err)
	}
	b := &bucket{keys: keys, objects: map[string][]byte{"iris/model.ubj": model}, asked: map[string]int{}}
	s := httptest.NewServer(b)
	t.Cleanup(s.Close)
	b.url = s.URL
	return b
}

// ServeHTTP lists the bucket, or sends an object.
func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key, ok := b.signer(r)
	if b.asked[key]++; !ok {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `<Error><Code>SignatureDoesNotMatch</Code></Error>`)
		return
	}
	name, found := strings.CutPrefix(r.URL.Path, "/models/")
	if found && name != "" {
		raw, ok := b.objects[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("ETag", etag(raw))
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(raw))
		return
	}
	_, _ = fmt.Fprint(w, `<ListBucketResult>`)
	for name, raw := range b.objects {
		if strings.HasPrefix(name, r.URL.Query().Get("prefix")) {
			_, _ = fmt.Fprintf(w, `<Contents><Key>%s</Key><ETag>%s</ETag><Size>%d</Size></Contents>`, name, etag(raw), len(raw))
		}
	}
	_, _ = fmt.Fprint(w, `</ListBucketResult>`)
}

func etag(raw []byte) string { return fmt.Sprintf(`"%x"`, md5.Sum(raw)) } //nolint:gosec // likewise

// signer returns the key that signed a request, and whether the signature is right: the
// request is signed again.
func (b *bucket) signer(r *http.Request) (key string, ok bool) {
	const begin = "AWS4-HMAC-SHA256 Credential="
	said := r.Header.Get("Authorization")
	parts := strings.Split(strings.TrimPrefix(said, begin), "/")
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if !strings.HasPrefix(said, begin) || len(parts) < 4 || err != nil {
		return "", false
	}
	key = parts[0]
	again, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+r.Host+r.URL.RequestURI(), nil)
	if err != nil {
		return key, false
	}
	_, rest, _ := strings.Cut(said, "SignedHeaders=")
	names, _, _ := strings.Cut(rest, ",")
	for _, name := range strings.Split(names, ";") {
		if v := r.Header.Values(name); len(v) > 0 {
			again.Header[http.CanonicalHeaderKey(name)] = v
		}
	}
	err = v4.NewSigner().SignHTTP(r.Context(), aws.Credentials{AccessKeyID: key, SecretAccessKey: b.keys[key]}, again,
		r.Header.Get("X-Amz-Content-Sha256"), "s3", parts[2], at, func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	return key, err == nil && b.keys[key] != "" && again.Header.Get("Authorization") == said
}

// The keys of the buckets, of which no output has a part.
const (
	ownSecret   = "s3cr3t-of-the-store-9f2c"
	teamSecret  = "s3cr3t-of-the-team-41aa"
	wrongSecret = "s3cr3t-that-is-wrong-77"
	// numberSecret is long, since figures such as those of /metrics have short ones by chance.
	numberSecret = "81214096553172"
)

// inStorage is a service whose address a secret has.
func inStorage(namespace, name, key string) string {
	return fmt.Sprintf(`---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: %s, namespace: %s}
spec:
  predictor:
    model:
      modelFormat: {name: xgboost}
      protocolVersion: v2
      storage: {key: %s, path: iris}
`, name, namespace, key)
}

// TestStorageSecrets: KServe's secrets of stores open them on one machine, each for the
// services of its own namespace, and nothing shows what is in them.
func TestStorageSecrets(t *testing.T) {
	t.Parallel()
	store := openBucket(t, map[string]string{"AKIDOWN": ownSecret, "AKIDTEAM": teamSecret})
	n := newNode(t)
	n.env = append(n.env, "AWS_EC2_METADATA_DISABLED=true", "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=")
	n.up()
	config := func(secret, bucket string) string {
		return `apiVersion: v1
kind: Secret
metadata: {name: storage-config}
stringData:
  localMinIO: |
    {"type": "s3", "access_key_id": "AKIDOWN", "secret_access_key": "` + secret + `",
     "endpoint_url": "` + store.url + `", "bucket": "` + bucket + `", "region": "eu-south-9"}
`
	}
	file := write(t, t.TempDir(), "storage.yaml", config(ownSecret, "models")+inStorage("default", "iris", "localMinIO"))
	shown := n.do("apply", "-f", file, "--wait")
	n.infer("/v2/models/iris/infer", irisTensor)

	// Another namespace has no part in it, and is told so.
	other := n.run("apply", "-f", write(t, t.TempDir(), "other.yaml", inStorage("other", "iris2", "localMinIO")), "--wait", "--timeout", "5s")
	contains(t, other.out+other.err, `there is no secret "storage-config" in namespace "other"`)
	shown += other.out + other.err

	// A service account's secret, which says where the store is by its annotations: wrong
	// at first, then corrected.
	account := func(secret string) string {
		return `apiVersion: v1
kind: Secret
metadata:
  name: s3creds
  namespace: team
  annotations:
    serving.kserve.io/s3-endpoint: ` + strings.TrimPrefix(store.url, "http://") + `
    serving.kserve.io/s3-usehttps: "0"
    serving.kserve.io/s3-region: us-east-2
    kubectl.kubernetes.io/last-applied-configuration: '{"stringData": {"AWS_SECRET_ACCESS_KEY": "` + secret + `"}}'
type: Opaque
stringData: {AWS_ACCESS_KEY_ID: AKIDTEAM, AWS_SECRET_ACCESS_KEY: ` + secret + `}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: sa, namespace: team}
secrets: [{name: s3creds}]
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: flowers, namespace: team}
spec:
  predictor:
    serviceAccountName: sa
    model: {modelFormat: {name: xgboost}, protocolVersion: v2, storageUri: "s3://models/iris"}
`
	}
	wrong := n.run("apply", "-f", write(t, t.TempDir(), "team.yaml", account(wrongSecret)), "--wait", "--timeout", "5s")
	shown += wrong.out + wrong.err
	eventually(t, "the store refuses the secret", func() (bool, string) {
		d := n.do("describe", "team/flowers")
		return strings.Contains(d, "the credentials are those of the service account sa, which lists s3creds"), d
	})
	shown += n.do("describe", "team/flowers") + n.do("get", "-A", "-o", "wide")
	shown += n.do("apply", "-f", write(t, t.TempDir(), "team.yaml", account(teamSecret)))
	eventually(t, "the corrected secret opens the store", func() (bool, string) {
		a := n.post("/v2/models/flowers/infer", irisTensor)
		return a.status == http.StatusOK, a.String()
	})
	store.mu.Lock()
	if store.asked["AKIDOWN"] == 0 || store.asked["AKIDTEAM"] == 0 || store.asked[""] > 0 {
		t.Errorf("the store was asked by %v", store.asked)
	}
	store.mu.Unlock()

	// What is there is listed, and written without the values.
	contains(t, n.do("get", "secrets"), "storage-config", "localMinIO", "AWS_ACCESS_KEY_ID,AWS_SECRET_ACCESS_KEY")
	contains(t, n.do("get", "serviceaccounts"), "sa", "s3creds")
	contains(t, n.do("get", "secret", "storage-config", "-o", "yaml"), "kind: Secret", "localMinIO: (hidden)")
	token := n.token()
	for _, args := range [][]string{{"get", "secrets"}, {"get", "secrets", "-o", "yaml"}, {"get", "secrets", "-o", "json"}, {"get", "serviceaccounts", "-o", "yaml"}, {"get", "-A", "-o", "yaml"},
		{"describe", "iris"}, {"explain", "iris"}, {"events"}, {"logs", "iris"}, {"model", "list"}} {
		r := n.run(args...)
		if r.code != 0 {
			t.Errorf("%v: %s", args, r)
		}
		shown += r.out + r.err
	}
	draft, err := json.Marshal(map[string]any{"files": []map[string]string{{"name": "again.yaml", "data": config("another-"+ownSecret, "models")}}})
	if err != nil {
		t.Fatal(err)
	}
	would := n.send(http.MethodPost, n.admin+"/api/v1/apply?dry-run", string(draft), "Authorization", "Bearer "+token, "Content-Type", "application/json")
	contains(t, would.body, `"action":"configured"`)
	shown += would.body
	for _, path := range []string{"/api/v1/secrets", "/api/v1/serviceaccounts", "/api/v1/services?rendered", "/api/v1/events", "/api/v1/requests", "/api/v1/usage", "/metrics"} {
		shown += n.get(n.admin+path, "Authorization", "Bearer "+token).body
	}
	bad := n.run("validate", write(t, t.TempDir(), "bad.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata: {password: "+wrongSecret+"!, n: "+numberSecret+"}\nstringData: [{x: "+teamSecret+"}]\n"))
	contains(t, bad.out+bad.err, "data", "base64")
	shown += bad.out + bad.err + n.logs.String() + n.out.String()
	for _, secret := range []string{ownSecret, teamSecret, wrongSecret, numberSecret} {
		if at := strings.Index(shown, secret); at >= 0 {
			t.Errorf("an output has a value: %q", shown[max(0, at-300):at])
		}
	}

	// Only their own files have them, for the owner's eyes.
	kept := filepath.Join(n.dir, "objects", "secrets")
	if err := filepath.WalkDir(n.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		raw, readErr := os.ReadFile(path)
		if err != nil || readErr != nil {
			return nil //nolint:nilerr // it went meanwhile
		}
		holds := bytes.Contains(raw, []byte(ownSecret)) || bytes.Contains(raw, []byte(teamSecret))
		if own := strings.HasPrefix(path, kept); own && info.Mode().Perm() != 0o600 || holds && !own {
			t.Errorf("%s, of mode %v, has a secret", path, info.Mode())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	// A returning up has them; a deleted one is gone, and what runs goes on.
	n.signal(syscall.SIGTERM)
	n.up()
	contains(t, n.do("get", "secrets"), "storage-config", "s3creds")
	contains(t, n.do("delete", "secret", "storage-config"), "deleted")
	if _, err := os.Stat(filepath.Join(kept, "default", "storage-config.yaml")); !os.IsNotExist(err) {
		t.Errorf("the file of a deleted secret: %v", err)
	}
	n.infer("/v2/models/iris/infer", irisTensor)
}
