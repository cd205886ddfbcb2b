package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
)

// cached is a LocalModelCache of a model in the bucket.
func cached(name, folder, size string) string {
	return fmt.Sprintf(`---
apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelCache
metadata: {name: %s}
spec: {sourceModelUri: "s3://models/%s", modelSize: %s, nodeGroups: [here], serviceAccountName: downloader}
`, name, folder, size)
}

// TestModelCache: the model of an applied LocalModelCache is fetched ahead of its use, with
// the secrets of KServe's namespace for that, tried again where that fails, and kept until
// the cache is deleted; services of it use that copy.
func TestModelCache(t *testing.T) {
	t.Parallel()
	store := openBucket(t, map[string]string{"AKIDOWN": ownSecret})
	store.objects["large/weights.bin"], store.objects["other/weights.bin"] = bytes.Repeat([]byte("w"), 600<<10), bytes.Repeat([]byte("o"), 600<<10)
	n := newNode(t)
	n.env = append(n.env, "AWS_EC2_METADATA_DISABLED=true", "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=")
	n.up("--models-max-bytes", "1MiB")
	dir := t.TempDir()
	apply := func(text string) result { return n.run("apply", "-f", write(t, dir, "caches.yaml", text)) }
	secret := func(value string) string {
		return `---
apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: kserve-localmodel-jobs}
stringData: {AWS_ACCESS_KEY_ID: AKIDOWN, AWS_SECRET_ACCESS_KEY: ` + value + `, AWS_ENDPOINT_URL: "` + store.url + `", AWS_REGION: eu-south-9}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: downloader, namespace: kserve-localmodel-jobs}
secrets: [{name: keys}]
`
	}
	group := func(limit string) string {
		return "---\napiVersion: serving.kserve.io/v1alpha1\nkind: LocalModelNodeGroup\nmetadata: {name: here}\nspec: {storageLimit: " + limit + "}\n"
	}
	is := func(name, want string) string {
		t.Helper()
		var out string
		eventually(t, name+" is "+want, func() (bool, string) {
			out = n.do("describe", "localmodelcache", name)
			return regexp.MustCompile(want).MatchString(out), out
		})
		return out
	}

	// A wrong secret is told, and a right one is used at once.
	r := apply(secret(wrongSecret) + group("1Gi") + cached("iris", "iris", "1Mi"))
	contains(t, r.out, "localmodelcache iris created", "localmodelnodegroup here created")
	is("iris", `State: +Failed\n(.*\n)*Reason: .*the service account downloader, which lists keys\nNext try: +in \d`)
	contains(t, n.do("events"), "ModelCacheFailed")
	apply(secret(ownSecret))
	is("iris", `Name: +iris\nModel: +s3://models/iris\nState: +Downloaded\n(.*\n)*Node: +\S+ NodeDownloaded\n`)
	matches(t, n.do("get", "localmodelcaches"), `NAMESPACE +NAME +STATE +NODES +PROGRESS +URI\n- +iris +Downloaded +1/1 .* s3://models/iris\n`)
	matches(t, n.do("get", "localmodelcache", "iris", "-o", "yaml"), `(?s)sourceModelUri: "s3://models/iris".*status:\n  copies:\n    available: 1\n    total: 1\n  nodeStatus:\n    \S+: NodeDownloaded\n`)
	matches(t, n.do("get", "localmodelnodegroups"), `NAME +LIMIT\nhere +1(\.0)? GiB\n`)

	// A service uses that copy: its own namespace has no key of the store.
	n.do("apply", "--wait", "-f", write(t, dir, "iris.yaml", `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    minReplicas: 1
    model: {modelFormat: {name: xgboost}, protocolVersion: v2, storageUri: "s3://models/iris"}
`))
	n.infer("/v2/models/iris/infer", irisTensor)
	contains(t, n.do("describe", "localmodelcache", "iris"), "Used by:    default/iris")
	if copies, _ := filepath.Glob(filepath.Join(n.dir, "models", "models", "*")); len(copies) != 1 {
		t.Errorf("the model is there %d times", len(copies))
	}
	n.do("delete", "service", "iris")

	// What fits neither its group nor the disk beside others says so.
	apply(group("1Mi") + cached("large", "large", "700Ki"))
	is("large", `State: +Failed\n(.*\n)*Reason: +spec.modelSize: 700Ki do not fit into the 1Mi that LocalModelNodeGroup here has on each node`)
	apply(group("1Gi"))
	is("large", `State: +Downloaded\nProgress: +600.0 KiB of 600.0 KiB\n`)
	apply(cached("other", "other", "700Ki"))
	is("other", `State: +Failed\n(.*\n)*Reason: .*more than there is beside the models in use`)
	remove := func(folder string) string {
		return n.send(http.MethodDelete, n.admin+"/api/v1/copies", `{"uri":"s3://models/`+folder+`"}`, "Authorization", "Bearer "+n.token(), "Content-Type", "application/json").body
	}
	contains(t, remove("large"), "it is in use (by localmodelcache large)")

	// A returning up has the models, asking nobody. That of a deleted cache may go.
	n.signal(syscall.SIGTERM)
	store.mu.Lock()
	store.asked = map[string]int{}
	store.mu.Unlock()
	n.up("--models-max-bytes", "1MiB")
	is("iris", `State: +Downloaded`)
	is("large", `State: +Downloaded`)
	store.mu.Lock()
	for key, times := range store.asked {
		if times > len(store.objects) { // the model that failed is asked for again
			t.Errorf("%s has asked %d times", key, times)
		}
	}
	store.mu.Unlock()
	contains(t, n.do("delete", "localmodelcache", "large"), "localmodelcache large deleted")
	contains(t, remove("large"), "within the last minute")
	n.signal(syscall.SIGTERM)
	n.do("model", "rm", "s3://models/large")
	n.up("--models-max-bytes", "1MiB")
	apply(cached("other", "other", "701Ki"))
	is("other", `State: +Downloaded`)
	contains(t, n.do("delete", "localmodelcaches", "iris", "other"), "localmodelcache iris deleted", "localmodelcache other deleted")
	contains(t, n.do("get", "localmodelcaches"), "No localmodelcaches found")
}
