package containers

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const fetches = `apiVersion: serving.kserve.io/v1alpha1
kind: ClusterStorageContainer
metadata: {name: registry}
spec:
  container:
    name: storage-initializer
    image: IMAGE
    imagePullPolicy: Never
    env: [{name: CONTENT, value: "CONTENTS"}]
    resources: {limits: {cpu: "1", memory: 256Mi}}
  supportedUriFormats: [{prefix: "registry://"}]
`

const fetchedIris = `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    minReplicas: 1
    serviceAccountName: registry
    model: {modelFormat: {name: xgboost}, protocolVersion: v2, storageUri: "registry://models/iris.ubj"}
`

func registryToken(token string) string {
	return "apiVersion: v1\nkind: Secret\nmetadata: {name: registry}\nstringData: {TOKEN: " + token + "}\n---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: registry}\nsecrets: [{name: registry}]\n"
}

// TestFetchedByContainer: the model of a service whose URI nothing here fetches is fetched by
// the container of a ClusterStorageContainer, with the secrets of the service, once; what
// no service names is gone after the next start.
func TestFetchedByContainer(t *testing.T) {
	iris, err := os.ReadFile("../../examples/quickstart/models/iris.ubj")
	if err != nil {
		t.Fatal(err)
	}
	container := strings.NewReplacer("IMAGE", made(t, "fetch", "roundhouse.dev/roundhouse/test/containers/fetch"), "CONTENTS", base64.StdEncoding.EncodeToString(iris)).Replace(fetches)
	u := &up{t: t, dir: t.TempDir()}
	u.start()
	defer func() { u.end(syscall.SIGTERM) }()
	apply := func(text string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "m.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out := u.cli("apply", "-f", file); strings.Contains(out, "(exit status") {
			t.Fatal(out)
		}
	}
	says := func(want string) {
		t.Helper()
		eventually(t, want, func() (bool, string) {
			out := u.cli("describe", "iris")
			return strings.Contains(strings.Join(strings.Fields(out), " "), want), out
		})
	}
	apply(fetchedIris)
	says("nothing fetches from registry://: apply a ClusterStorageContainer that supports it")
	apply(registryToken("wrong") + "---\n" + container)
	says("exit code 1: fetch: registry://models/iris.ubj: the token is refused")
	apply(registryToken("right"))
	const input = `{"inputs":[{"name":"predict","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`
	u.answers("/v2/models/iris/infer", input, `"outputs"`)
	kept := func() []string {
		all, _ := filepath.Glob(filepath.Join(u.dir, "models", "brought", "*", "files", "iris.ubj"))
		return all
	}
	before := kept()
	if len(before) != 1 {
		t.Fatalf("%v", before)
	}
	first, err := os.Stat(before[0])
	if err != nil {
		t.Fatal(err)
	}
	if left := ask(t, "ps", "--all", "--filter", "label=roundhouse.dev/fetches", "--format", "{{.Names}}"); left != "" {
		t.Errorf("containers are left: %s", left)
	}

	// A returning up has it, and asks nobody.
	u.end(syscall.SIGTERM)
	u.start()
	u.answers("/v2/models/iris/infer", input, `"outputs"`)
	if again, err := os.Stat(before[0]); err != nil || !again.ModTime().Equal(first.ModTime()) {
		t.Errorf("it was fetched again: %v", err)
	}
	if out := u.cli("delete", "service", "iris"); !strings.Contains(out, "deleted") {
		t.Fatal(out)
	}
	u.end(syscall.SIGTERM)
	u.start()
	eventually(t, "no model", func() (bool, string) { return len(kept()) == 0, strings.Join(kept(), " ") })
}
