package clustercli

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestModelCaches: a model that nodes keep ahead of its use is applied, shown as its status
// tells, and deleted; and so is a group of nodes.
func TestModelCaches(t *testing.T) {
	c, api, ns := newCLI(t, "kserve")
	const manifests = `apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelNodeGroup
metadata: {name: NS}
spec: {storageLimit: 1Gi, persistentVolumeSpec: {local: {path: /models}}}
---
apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelCache
metadata: {name: NS}
spec: {sourceModelUri: "s3://models/oak", modelSize: 1Mi, nodeGroups: [NS]}
---
apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelNamespaceCache
metadata: {name: elm}
spec: {sourceModelUri: "s3://models/elm", modelSize: 1Mi, nodeGroups: [NS]}
`
	file := c.file(strings.ReplaceAll(manifests, "NS", ns))
	c.run("validate", "--context", "test", file).want(0, "localmodelcache "+ns+" is valid")
	c.run("apply", "-f", file).want(0, "localmodelnodegroup "+ns+" created", "localmodelcache "+ns+" created", "localmodelcache "+ns+"/elm created")
	c.run("get", "localmodelcache", ns).want(0, "Pending", "0/0", "s3://models/oak")
	live := &unstructured.Unstructured{}
	live.SetAPIVersion("serving.kserve.io/v1alpha1")
	live.SetKind("LocalModelCache")
	if err := api.Get(t.Context(), client.ObjectKey{Name: ns}, live); err != nil {
		t.Fatal(err)
	}
	live.Object["status"] = map[string]any{"copies": map[string]any{"available": int64(1), "failed": int64(1), "total": int64(2)},
		"nodeStatus":        map[string]any{"a": "NodeDownloaded", "b": "NodeDownloadError"},
		"inferenceServices": []any{map[string]any{"namespace": "team", "name": "oak"}}}
	if err := api.Status().Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	c.run("get", "localmodelcaches", "-A").want(0, "Failed", "1/2", ns+" ", "elm")
	c.run("describe", "localmodelcache", ns).want(0, "Failed", "a NodeDownloaded", "b NodeDownloadError", "team/oak")
	c.run("get", "localmodelcache", ns, "-o", "yaml").want(0, "sourceModelUri: s3://models/oak", "a: NodeDownloaded")
	c.run("get", "localmodelnodegroups").want(0, ns, "1.0 GiB")
	c.run("delete", "localmodelcache", "elm").want(0, "localmodelcache "+ns+"/elm deleted")
	c.run("delete", "localmodelcache", ns).want(0, "localmodelcache "+ns+" deleted")
	c.run("delete", "localmodelnodegroup", ns).want(0, "localmodelnodegroup "+ns+" deleted")
}
