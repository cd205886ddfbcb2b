package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

// newHub is a Hub with the quickstart's iris model.
func newHub(t *testing.T) *hubtest.Hub {
	t.Helper()
	hub := hubtest.New()
	t.Cleanup(hub.Close)
	model, err := os.ReadFile(filepath.Join(root, "examples/quickstart/models/iris.ubj"))
	if err != nil {
		t.Fatal(err)
	}
	hub.Add("models", "org/iris").Commit("main", map[string][]byte{"iris.ubj": model}, "iris.ubj")
	return hub
}

// environ is a replica's variable of this name, read from its process.
func (n *node) variable(service, name string) string {
	n.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", n.pid(service)))
	if err != nil {
		n.t.Skipf("the environment of a process is read from /proc: %v", err)
	}
	for _, e := range bytes.Split(raw, []byte{0}) {
		if v, ok := strings.CutPrefix(string(e), name+"="); ok {
			return v
		}
	}
	return ""
}

// hub is the Hub that up says it asks: its own cache.
func (n *node) hub() (endpoint string) {
	n.t.Helper()
	eventually(n.t, "up says where its cache of the Hub is", func() (bool, string) {
		endpoint = after(n.out.String(), "Hugging Face Hub       ")
		return endpoint != "", n.out.String()
	})
	return endpoint
}

// TestHubCacheOfUp: models of the Hub come through the cache that up starts
// when it is first asked, and replicas are pointed at it.
func TestHubCacheOfUp(t *testing.T) {
	t.Parallel()
	hub := newHub(t)
	n := newNode(t)
	n.env = []string{"HF_ENDPOINT=" + hub.URL, "HF_TOKEN=", "HF_HOME=" + t.TempDir()}
	n.up("--hub-cache", "127.0.0.1:0")
	endpoint := n.hub()
	if endpoint == "" || endpoint == hub.URL {
		t.Fatalf("up says:\n%s", n.out)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "hub")); err == nil {
		t.Error("the cache is opened before anybody asks")
	}
	from := func(uri string) string {
		return strings.Replace(irisManifest("iris", "{minReplicas: 1, maxReplicas: 1}"), modelURI("iris.ubj"), uri, 1)
	}
	contains(t, n.do("apply", "--wait", "-f", write(t, t.TempDir(), "iris.yaml", from("hf://org/iris/iris.ubj"))), "ready")
	n.infer("/v2/models/iris/infer", irisTensor)
	if got := n.variable("iris", "HF_ENDPOINT"); got != endpoint {
		t.Errorf("the replica's HF_ENDPOINT is %q, want %q", got, endpoint)
	}
	if blobs, err := filepath.Glob(filepath.Join(n.dir, "hub", "blobs", "*", "*")); err != nil || len(blobs) != 1 {
		t.Errorf("in the cache: %v, %v", blobs, err)
	}
	hub.Forget()
	if a := n.get(endpoint + "/org/iris/resolve/main/iris.ubj"); a.status != http.StatusOK || hub.Sent() != 0 {
		t.Errorf("a second client: %d, and the Hub sent %d bytes", a.status, hub.Sent())
	}
	contains(t, n.get(n.admin+"/metrics").body, "roundhouse_hub_cache_upstream_bytes_total")
	// A manifest that names another Hub is believed.
	own := strings.Replace(from("hf://org/iris/iris.ubj"), "{name: iris}", "{name: own}", 1) + "  engine:\n    env: [{name: HF_ENDPOINT, value: \"http://127.0.0.1:9/own\"}]\n"
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "own.yaml", own))
	if got := n.variable("own", "HF_ENDPOINT"); got != "http://127.0.0.1:9/own" {
		t.Errorf("the replica's HF_ENDPOINT is %q", got)
	}
}

// TestHubOfTheEnvironment: where HF_ENDPOINT is set, up starts no cache.
func TestHubOfTheEnvironment(t *testing.T) {
	t.Parallel()
	hub := newHub(t)
	n := newNode(t)
	n.env = []string{"HF_ENDPOINT=" + hub.URL, "HF_TOKEN="}
	n.up("--hub-cache", "auto")
	if strings.Contains(n.out.String(), "Hugging Face Hub") {
		t.Errorf("up says:\n%s", n.out)
	}
	manifest := strings.Replace(irisManifest("iris", "{minReplicas: 1, maxReplicas: 1}"), modelURI("iris.ubj"), "hf://org/iris/iris.ubj", 1)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "iris.yaml", manifest))
	if got := n.variable("iris", "HF_ENDPOINT"); got != hub.URL {
		t.Errorf("the replica's HF_ENDPOINT is %q", got)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "hub")); err == nil {
		t.Error("there is a cache")
	}
}

// TestPullThroughUp: pull fills the cache of the up that runs.
func TestPullThroughUp(t *testing.T) {
	t.Parallel()
	hub := newHub(t)
	n := newNode(t)
	n.env = []string{"HF_ENDPOINT=" + hub.URL, "HF_TOKEN=", "HF_HOME=" + t.TempDir()}
	n.up("--hub-cache", "127.0.0.1:0")
	n.env[0] = "HF_ENDPOINT=" // what pull sees
	path := strings.TrimSpace(n.do("pull", "hf://org/iris/iris.ubj"))
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	if blobs, err := filepath.Glob(filepath.Join(n.dir, "hub", "blobs", "*", "*")); err != nil || len(blobs) != 1 {
		t.Errorf("in the cache: %v, %v", blobs, err)
	}
}

// TestOneCopyOfHub: what is pulled, served and downloaded by clients lies on the
// disk once, and comes from the Hub once.
func TestOneCopyOfHub(t *testing.T) {
	t.Parallel()
	hub := newHub(t)
	model, err := os.ReadFile(filepath.Join(root, "examples/quickstart/models/iris.ubj"))
	if err != nil {
		t.Fatal(err)
	}
	notes := bytes.Repeat([]byte("note "), 4<<20)
	hub.Add("models", "org/large").Commit("main", map[string][]byte{"model.ubj": model, "notes.txt": notes}, "model.ubj", "notes.txt")
	n := newNode(t)
	n.env = []string{"HF_ENDPOINT=" + hub.URL, "HF_TOKEN=", "HF_HOME=" + t.TempDir()}
	n.up("--hub-cache", "127.0.0.1:0")
	endpoint := n.hub()
	n.env[0] = "HF_ENDPOINT=" // what pull sees
	path := strings.TrimSpace(n.do("pull", "hf://org/large"))
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "large.yaml",
		strings.Replace(irisManifest("large", "{minReplicas: 1, maxReplicas: 1}"), modelURI("iris.ubj"), "hf://org/large", 1)))
	n.infer("/v2/models/large/infer", irisTensor)
	if a := n.get(endpoint + "/org/large/resolve/main/notes.txt"); a.status != http.StatusOK || a.body != string(notes) {
		t.Errorf("a client of the cache: %d, %d bytes", a.status, len(a.body))
	}
	if want := int64(len(model) + len(notes)); hub.Sent() != want {
		t.Errorf("the Hub sent %d bytes, want %d", hub.Sent(), want)
	}
	pulled, err := os.Stat(filepath.Join(path, "notes.txt"))
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := filepath.Glob(filepath.Join(n.dir, "hub", "blobs", "*", "*"))
	if err != nil || len(blobs) != 2 {
		t.Fatal(blobs, err)
	}
	once := false
	for _, b := range blobs {
		info, err := os.Stat(b)
		if err != nil {
			t.Fatal(err)
		}
		once = once || os.SameFile(info, pulled)
	}
	if !once {
		t.Error("the model's file is another one than the cache's")
	}
	if used, most := diskUse(t, n.dir), int64(len(notes))*3/2; used > most {
		t.Errorf("the data directory takes %d bytes of the disk, want less than %d", used, most)
	}
	contains(t, n.do("hub-cache", "stats", "--dir", filepath.Join(n.dir, "hub")), "Models        use 2 files")
}

// diskUse adds up the blocks of a folder's files, each file once.
func diskUse(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil //nolint:nilerr // what goes meanwhile takes nothing
		}
		info, err := e.Info()
		if err != nil {
			return nil //nolint:nilerr // likewise
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && !seen[st.Ino] {
			seen[st.Ino] = true
			bytes += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// TestHubOfEarlierVersion: a data directory in which models and the cache's blobs
// are two files goes on without the Hub.
func TestHubOfEarlierVersion(t *testing.T) {
	t.Parallel()
	hub := newHub(t)
	n := newNode(t)
	n.env = []string{"HF_ENDPOINT=" + hub.URL, "HF_TOKEN=", "HF_HOME=" + t.TempDir()}
	n.up("--hub-cache", "127.0.0.1:0")
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "iris.yaml",
		strings.Replace(irisManifest("iris", "{minReplicas: 1, maxReplicas: 1}"), modelURI("iris.ubj"), "hf://org/iris/iris.ubj", 1)))
	n.signal(syscall.SIGTERM)
	models, err := filepath.Glob(filepath.Join(n.dir, "models", "models", "*", "*", "iris.ubj"))
	if err != nil || len(models) != 1 {
		t.Fatal(models, err)
	}
	// As the last version left it: a second file, and both may be written to.
	raw, err := os.ReadFile(models[0])
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := filepath.Glob(filepath.Join(n.dir, "hub", "blobs", "*", "*"))
	if err != nil || len(blobs) != 1 {
		t.Fatal(blobs, err)
	}
	if err := errors.Join(os.Remove(models[0]), os.WriteFile(models[0], raw, 0o600), os.Chmod(blobs[0], 0o600)); err != nil {
		t.Fatal(err)
	}
	hub.Forget()
	n.up("--hub-cache", "127.0.0.1:0")
	eventually(t, "iris is ready", func() (bool, string) {
		s := n.run("get", "iris").out
		return strings.Contains(s, "True"), s
	})
	n.infer("/v2/models/iris/infer", irisTensor)
	endpoint := n.hub()
	if a := n.get(endpoint + "/org/iris/resolve/main/iris.ubj"); a.status != http.StatusOK || a.body != string(raw) {
		t.Errorf("a client of the cache: %d, %d bytes", a.status, len(a.body))
	}
	if hub.Sent() != 0 {
		t.Errorf("the Hub sent %d bytes for what was here", hub.Sent())
	}
}

// TestProgressOfHub: get and a terminal say how far a model of the Hub is.
func TestProgressOfHub(t *testing.T) {
	t.Parallel()
	hub := newHub(t)
	model, err := os.ReadFile(filepath.Join(root, "examples/quickstart/models/iris.ubj"))
	if err != nil {
		t.Fatal(err)
	}
	hub.Add("models", "org/large").Commit("main", map[string][]byte{"model.ubj": model, "notes.txt": bytes.Repeat([]byte("note "), 4<<20)}, "notes.txt")
	hold := make(chan struct{})
	hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: 8 << 20})
	n := newNode(t)
	n.env = []string{"HF_ENDPOINT=" + hub.URL, "HF_TOKEN="}
	n.up("--hub-cache", "127.0.0.1:0")
	manifest := strings.Replace(irisManifest("far", "{minReplicas: 1, maxReplicas: 1}"), modelURI("iris.ubj"), "hf://org/large", 1)
	cmd := exec.Command(binary, "apply", "--wait", "-f", write(t, t.TempDir(), "far.yaml", manifest))
	cmd.Env = n.environ()
	screen := onTerminal(t, cmd)
	eventually(t, "the bar is drawn", func() (bool, string) {
		return bar.MatchString(screen.String()), screen.String() + n.run("get").out
	})
	matches(t, n.status("far"), `Fetching: fetching the model: [1-9][.\d]* MiB of 20.1 MiB`)
	matches(t, n.run("logs", "far").err, `fetching the model: [1-9][.\d]* MiB of 20.1 MiB`)
	close(hold)
	hub.Fail(hubtest.Faults{})
	if err := cmd.Wait(); err != nil {
		t.Fatalf("apply --wait: %v\n%s", err, screen)
	}
}

// TestModelsBound: what no service needs goes when the models exceed their
// bound.
func TestModelsBound(t *testing.T) {
	t.Parallel()
	models := httptest.NewServer(http.FileServer(http.Dir(filepath.Join(root, "examples/quickstart/models"))))
	t.Cleanup(models.Close)
	info, err := os.Stat(filepath.Join(root, "examples/quickstart/models/iris.ubj"))
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	n.up("--models-max-bytes", fmt.Sprint(info.Size()*3/2))
	manifest := func(name string) string {
		uri := fmt.Sprintf("%s/iris.ubj?%s", models.URL, name)
		return write(t, t.TempDir(), name+".yaml", strings.Replace(irisManifest(name, "{minReplicas: 1, maxReplicas: 1}"), modelURI("iris.ubj"), uri, 1))
	}
	n.do("apply", "--wait", "-f", manifest("one"))
	n.do("apply", "-f", manifest("two"))
	eventually(t, "two has no room beside one", func() (bool, string) {
		s := n.status("two")
		return strings.Contains(s, "--models-max-bytes"), s
	})
	n.do("delete", "one")
	// What was in use a moment ago stays for a minute: make it look older.
	records, err := filepath.Glob(filepath.Join(n.dir, "models", "models", "*", "record.json"))
	if err != nil || len(records) != 1 {
		t.Fatal(records, err)
	}
	touch(t, records[0])
	eventually(t, "two is ready", func() (bool, string) {
		s := n.run("get", "two").out
		return strings.Contains(s, "True"), s
	})
	n.infer("/v2/models/two/infer", irisTensor)
}

// touch makes a file look old.
func touch(t *testing.T, path string) {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
}

// TestClaimOnOneMachine: a volume of a cluster is not here, and the status says
// what to do.
func TestClaimOnOneMachine(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.run("apply", "-f", write(t, t.TempDir(), "claimed.yaml", `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: claimed}
spec:
  predictor:
    minReplicas: 1
    model: {modelFormat: {name: xgboost}, storageUri: "pvc://models/iris"}
`))
	eventually(t, "the status says what to do", func() (bool, string) {
		s := n.run("describe", "claimed").out
		return strings.Contains(s, "pvc://models/iris") && strings.Contains(s, "file://PATH"), s
	})
}
