package e2e

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStorageURIs: the files of a model come from several URIs, each fetched with the
// service's credentials, and its process has each where the manifest says.
func TestStorageURIs(t *testing.T) {
	t.Parallel()
	store := openBucket(t, map[string]string{"AKIDOWN": ownSecret})
	notes := t.TempDir()
	write(t, notes, "notes.txt", "iris of 1936")
	n := newNode(t)
	n.env = append(n.env, "AWS_EC2_METADATA_DISABLED=true", "AWS_ACCESS_KEY_ID=AKIDOWN", "AWS_SECRET_ACCESS_KEY="+ownSecret, "AWS_ENDPOINT_URL="+store.url, "AWS_REGION=eu-south-9")
	n.up()
	file := write(t, t.TempDir(), "parts.yaml", `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    minReplicas: 1
    model:
      modelFormat: {name: xgboost}
      protocolVersion: v2
      env: [{name: NOTES, value: /mnt/models/notes/notes.txt}]
    storageUris:
    - {uri: "s3://models/iris"}
    - {uri: "file://`+notes+`", mountPath: /mnt/models/notes}
`)
	n.do("validate", file)
	n.do("apply", "-f", file, "--wait")
	n.infer("/v2/models/iris/infer", irisTensor)
	matches, err := filepath.Glob(filepath.Join(n.dir, "processes", "models", "*", "notes", "notes.txt"))
	if err != nil || len(matches) != 1 {
		t.Fatalf("the notes are at %v, %v", matches, err)
	}
	if got := read(t, matches[0]); got != "iris of 1936" {
		t.Errorf("the notes say %q", got)
	}
	models := filepath.Dir(filepath.Dir(matches[0]))
	if _, err := os.Stat(filepath.Join(models, "model.ubj")); err != nil {
		t.Error(err)
	}

	// Both URIs bring the same file: nobody knows which one is meant.
	again := strings.Replace(read(t, file), `"file://`+notes+`", mountPath: /mnt/models/notes`, `"s3://models/iris"`, 1)
	n.do("apply", "-f", write(t, t.TempDir(), "same.yaml", again))
	eventually(t, "the file that both bring is named", func() (bool, string) {
		d := n.do("describe", "iris")
		return strings.Contains(d, "both have model.ubj: give each URI a mountPath of its own"), d
	})

	// The model in a folder of its own, which an argument names as in KServe.
	within := strings.NewReplacer(`{uri: "s3://models/iris"}`, `{uri: "s3://models/iris", mountPath: /mnt/models/base}`,
		"      env:", "      args: [--model_dir=/mnt/models/base]\n      env:").Replace(read(t, file))
	n.do("apply", "-f", write(t, t.TempDir(), "within.yaml", within), "--wait")
	n.infer("/v2/models/iris/infer", irisTensor)
	n.do("delete", "service", "iris")
	eventually(t, "the folders of links are gone", func() (bool, string) {
		left, _ := filepath.Glob(filepath.Join(n.dir, "processes", "models", "*"))
		return len(left) == 0, strings.Join(left, " ")
	})
}

// TestStorageURIsBeside: a transformer and an explainer get files of their own, each with
// the secrets of its own service account, and no others.
func TestStorageURIsBeside(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	store := openBucket(t, map[string]string{"AKIDOWN": ownSecret})
	store.objects["words/words.txt"], store.objects["more/more.txt"], store.objects["same/words.txt"] = []byte("resized "), []byte("by one"), []byte("another")
	notes := t.TempDir()
	write(t, notes, "notes.txt", "explained")
	n := newNode(t)
	n.env = append(n.env, "AWS_EC2_METADATA_DISABLED=true", "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_ENDPOINT_URL="+store.url, "AWS_REGION=eu-south-9")
	n.up()
	beside := func(role, account, files, uris string) string {
		return fmt.Sprintf("  %s:\n    minReplicas: 0\n    containers:\n    - {name: kserve-container, image: example/x:1, command: [sh, -c, %q, sh], args: [--says_files, %q]}\n%s    storageUris: [%s]\n",
			role, "exec "+self+` beside "$@"`, files, account, uris)
	}
	manifest := func(account, second, at string) string {
		return `apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {AWS_ACCESS_KEY_ID: AKIDOWN, AWS_SECRET_ACCESS_KEY: ` + ownSecret + `, AWS_ENDPOINT_URL: "` + store.url + `", AWS_REGION: eu-south-9}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: own}
secrets: [{name: keys}]
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: full}
spec:
  predictor:
    minReplicas: 0
    model: {modelFormat: {name: xgboost}, storageUri: "` + modelURI("iris.ubj") + `"}
` + beside("transformer", account, "/mnt/models/words.txt,/mnt/models/more/more.txt", `{uri: "s3://models/words"}, {uri: "`+second+`", mountPath: `+at+`}`) +
			beside("explainer", "", "/opt/notes/notes.txt", `{uri: "file://`+notes+`", mountPath: /opt/notes}`)
	}
	apply := func(text string) { n.do("apply", "-f", write(t, t.TempDir(), "beside.yaml", text)) }
	const own, body = "    serviceAccountName: own\n", `{"instances":[[5.1,3.5,1.4,0.2]]}`
	says := func(verb, want string) {
		t.Helper()
		eventually(t, verb+" says "+want, func() (bool, string) {
			a := n.post("/v1/models/full:"+verb, body)
			return a.status == http.StatusOK && strings.Contains(a.body, `"by":"`+want+`"`) && strings.Contains(a.body, `"predictions"`), a.String() + n.do("describe", "full")
		})
	}
	more := manifest(own, "s3://models/more", "/mnt/models/more")
	apply(more)
	says("predict", "resized by one")
	says("explain", "explained")

	// Other files of the same path are another revision's.
	write(t, notes, "notes.txt", "explained anew")
	apply(more)
	says("explain", "explained anew")

	// What two of them bring is told.
	refused := func(what, want string) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			d := n.do("describe", "full")
			return strings.Contains(d, want), d
		})
	}
	apply(strings.Replace(manifest(own, "s3://models/same", "/mnt/models"), "minReplicas: 0\n    containers", "minReplicas: 1\n    containers", 1))
	refused("the file that both bring is named", "s3://models/words and s3://models/same both have words.txt: give each URI a mountPath of its own")
	store.mu.Lock()
	asked := len(store.asked)
	store.mu.Unlock()
	if asked != 1 {
		t.Errorf("the store was asked with %d keys, want those of the transformer's account alone", asked)
	}

	// Without that account its keys do not count.
	n.do("delete", "service", "full")
	apply(strings.Replace(manifest("", "s3://models/else", "/mnt/models/else"), "minReplicas: 0\n    containers", "minReplicas: 1\n    containers", 1))
	refused("it has no keys", "s3://models/words: 403 Forbidden")
	if shown := n.do("get", "full", "-o", "yaml") + n.do("describe", "full") + n.logs.String() + n.out.String(); strings.Contains(shown, ownSecret) {
		t.Error("a secret is shown")
	}
}

// TestStoreAuthorities: a store whose certificate an authority of its own signed is read
// with KServe's ways to name that authority, and with nothing else.
func TestStoreAuthorities(t *testing.T) {
	t.Parallel()
	plain := openBucket(t, map[string]string{"AKIDOWN": ownSecret})
	secure := httptest.NewUnstartedServer(http.HandlerFunc(plain.ServeHTTP))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	n := newNode(t)
	n.env = append(n.env, "AWS_EC2_METADATA_DISABLED=true", "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=")
	n.up()
	config := func(namespace, key, value string) string {
		said := map[string]string{"type": "s3", "bucket": "models", "endpoint_url": secure.URL, "region": "eu-south-9", "access_key_id": "AKIDOWN", "secret_access_key": ownSecret}
		if key != "" {
			said[key] = value
		}
		raw, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]string{"name": "storage-config", "namespace": namespace},
			"stringData": map[string]string{"store": marshalled(t, said)}})
		if err != nil {
			t.Fatal(err)
		}
		return string(raw) + "\n"
	}
	configMap := func(namespace string) string {
		return "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: ca, namespace: " + namespace + "}\ndata:\n  cabundle.crt: |\n    " + strings.ReplaceAll(strings.TrimSpace(authority), "\n", "\n    ") + "\n"
	}
	annotated := strings.Replace(inStorage("annotated", "annotated", "store"), "{name: annotated, namespace: annotated}",
		"{name: annotated, namespace: annotated, annotations: {serving.kserve.io/s3-cabundle-configmap: ca}}", 1)
	for name, text := range map[string]string{
		"inline":    config("inline", "ca_bundle", authority) + inStorage("inline", "inline", "store"),
		"named":     config("named", "cabundle_configmap", "ca") + configMap("named") + inStorage("named", "named", "store"),
		"annotated": config("annotated", "", "") + configMap("annotated") + annotated,
	} {
		n.do("apply", "-f", write(t, t.TempDir(), name+".yaml", text), "--wait")
		n.infer("/v2/models/"+name+"/infer", irisTensor)
	}
	for name, c := range map[string]struct{ text, says string }{
		"none":       {config("none", "", ""), "or in the storage's ca_bundle or cabundle_configmap"},
		"unverified": {config("unverified", "verify_ssl", "0"), "verify_ssl has no effect: certificates are always checked"},
		"missing":    {config("missing", "cabundle_configmap", "ca"), `there is no ConfigMap with a cabundle.crt in namespace "missing"`},
	} {
		n.run("apply", "-f", write(t, t.TempDir(), name+".yaml", c.text+inStorage(name, name, "store")))
		eventually(t, name+": what lacks is said", func() (bool, string) {
			n.post("/v2/models/"+name+"/infer", irisTensor)
			d := n.do("describe", name+"/"+name)
			return strings.Contains(d, c.says), d
		})
	}
	for _, shown := range []string{n.do("get", "-A", "-o", "yaml"), n.do("get", "secrets", "-A", "-o", "yaml"), n.logs.String(), n.out.String()} {
		if strings.Contains(shown, ownSecret) {
			t.Error("a secret is shown")
		}
	}
	// Corrected, it is fetched.
	n.do("apply", "-f", write(t, t.TempDir(), "ca.yaml", configMap("missing")))
	eventually(t, "a ConfigMap that comes later counts", func() (bool, string) {
		a := n.post("/v2/models/missing/infer", irisTensor)
		return a.status == http.StatusOK, a.String()
	})
}

func marshalled(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestModelSecret: a model object of OME's names the secret that its files are fetched
// with: one of its own namespace, or of ome where it is of the whole cluster.
func TestModelSecret(t *testing.T) {
	t.Parallel()
	store := openBucket(t, map[string]string{"AKIDOWN": ownSecret})
	n := newNode(t)
	n.env = append(n.env, "AWS_EC2_METADATA_DISABLED=true", "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=")
	n.up()
	manifest := func(kind, model, namespace string) string {
		return `apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: ` + namespace + `}
stringData: {AWS_ACCESS_KEY_ID: AKIDOWN, AWS_SECRET_ACCESS_KEY: ` + ownSecret + `, AWS_ENDPOINT_URL: "` + store.url + `", AWS_REGION: eu-south-9}
---
apiVersion: ome.io/v1beta1
kind: ` + kind + `
metadata: {name: ` + model + `}
spec:
  modelFormat: {name: xgboost}
  storage: {storageUri: "s3://models/iris", key: keys}
---
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: of-` + model + `}
spec:
  model: {name: ` + model + `, kind: ` + kind + `}
  runtime: {name: roundhouse-xgboost}
  engine: {minReplicas: 0, maxReplicas: 1}
`
	}
	shown := n.do("apply", "-f", write(t, t.TempDir(), "own.yaml", manifest("BaseModel", "own", "default")))
	shown += n.do("apply", "-f", write(t, t.TempDir(), "all.yaml", manifest("ClusterBaseModel", "all", "ome")))
	for _, name := range []string{"of-own", "of-all"} {
		n.infer("/v2/models/"+name+"/infer", irisTensor)
		shown += n.do("describe", name) + n.do("get", name, "-o", "yaml")
	}
	if strings.Contains(shown+n.logs.String()+n.out.String(), ownSecret) {
		t.Error("a secret is shown")
	}
}
