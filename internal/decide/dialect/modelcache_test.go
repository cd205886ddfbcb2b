package dialect

import (
	"path/filepath"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

const someCaches = `apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelNodeGroup
metadata: {name: gpus}
spec:
  storageLimit: 1Ti
  persistentVolumeClaimSpec: {accessModes: [ReadWriteOnce], storageClassName: local, resources: {requests: {storage: 1Ti}}}
  persistentVolumeSpec:
    accessModes: [ReadWriteOnce]
    capacity: {storage: 1Ti}
    local: {path: /srv/models}
    storageClassName: local
    nodeAffinity:
      required:
        nodeSelectorTerms:
        - matchExpressions: [{key: gpu, operator: In, values: [h100]}]
---
apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelCache
metadata: {name: llama}
spec:
  sourceModelUri: hf://meta-llama/Llama-3.1-8B-Instruct
  modelSize: 16Gi
  nodeGroups: [gpus]
  serviceAccountName: downloader
---
apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelNamespaceCache
metadata: {name: iris, namespace: team}
spec:
  sourceModelUri: oci+fetch://registry.example.com/iris:1
  modelSize: 1Mi
  nodeGroups: [gpus, cpus]
  storage: {key: own, parameters: {region: eu-south-9}}
`

// TestModelCaches: KServe's kinds of models that are fetched ahead of their use, and what
// is said of each of their fields that has no effect.
func TestModelCaches(t *testing.T) {
	read := Read("caches.yaml", []byte(someCaches))
	var got struct {
		Problems []string
		Caches   []*service.ModelCache
		Groups   []*service.NodeGroup
	}
	for _, p := range read.Problems {
		got.Problems = append(got.Problems, string(p.Platform)+" "+p.String())
	}
	for _, o := range read.Objects {
		if o.ModelCache != nil {
			got.Caches = append(got.Caches, o.ModelCache)
		}
		if o.NodeGroup != nil {
			got.Groups = append(got.Groups, o.NodeGroup)
		}
	}
	golden(t, filepath.Join("testdata", "model-caches.golden.json"), got)
}

// TestModelCacheStatus: the status is in KServe's words.
func TestModelCacheStatus(t *testing.T) {
	read := Read("caches.yaml", []byte(someCaches))
	text, err := RenderCache(read.Objects[1], service.CacheStatus{Nodes: map[string]service.CacheState{"a": service.CacheDownloaded, "b": service.CacheFailed, "c": service.CachePending},
		Reason: "no room", Services: []service.Key{{Namespace: "team", Name: "chat"}}})
	if err != nil {
		t.Fatal(err)
	}
	const want = `status:
  copies:
    available: 1
    failed: 1
    total: 3
  inferenceServices:
    - name: chat
      namespace: team
  nodeStatus:
    a: NodeDownloaded
    b: NodeDownloadError
    c: NodeDownloadPending
`
	if !strings.HasSuffix(string(text), want) {
		t.Errorf("%s\nwant\n%s", text, want)
	}
	if again := Read("again.yaml", text); len(again.Errors(Process)) > 0 {
		t.Errorf("what was printed is not read: %v", again.Problems)
	}
}

// TestModelCacheProblems: each says where it is and what to write.
func TestModelCacheProblems(t *testing.T) {
	const head = "apiVersion: serving.kserve.io/v1alpha1\nkind: "
	for text, want := range map[string]string{
		"LocalModelCache\nmetadata: {name: a}\nspec: {modelSize: 1Gi, nodeGroups: [g]}":                                                                     "spec.sourceModelUri: is missing: write where the model is",
		"LocalModelCache\nmetadata: {name: a}\nspec: {sourceModelUri: file:///srv/a, modelSize: 1Gi, nodeGroups: [g]}":                                      "spec.sourceModelUri: is a file, which nothing fetches",
		"LocalModelCache\nmetadata: {name: a}\nspec: {sourceModelUri: 's3://a', nodeGroups: [g]}":                                                           "spec.modelSize: is missing: write how large the model is, as 10Gi",
		"LocalModelCache\nmetadata: {name: a}\nspec: {sourceModelUri: 's3://a', modelSize: '0', nodeGroups: [g]}":                                           "spec.modelSize: 0 is no size",
		"LocalModelCache\nmetadata: {name: a}\nspec: {sourceModelUri: 's3://a', modelSize: much, nodeGroups: [g]}":                                          "spec.modelSize: ",
		"LocalModelCache\nmetadata: {name: a}\nspec: {sourceModelUri: 's3://a', modelSize: 1Gi}":                                                            "spec.nodeGroups: is missing: name a LocalModelNodeGroup",
		"LocalModelCache\nmetadata: {name: a}\nspec: {sourceModelUri: 's3://a', modelSize: 1Gi, nodeGroups: [G!]}":                                          "spec.nodeGroups[0]",
		"LocalModelNamespaceCache\nmetadata: {name: a}\nspec: {sourceModelUri: 's3://a', modelSize: 1Gi, nodeGroups: [g], nodegroup: g}":                    "spec.nodegroup: unknown field; did you mean \"nodeGroups\"?",
		"LocalModelNodeGroup\nmetadata: {name: a}\nspec: {}":                                                                                                "spec.storageLimit: is missing",
		"LocalModelNodeGroup\nmetadata: {name: a}\nspec: {storageLimit: 1Gi, persistentVolumeSpec: {nodeAffinity: {preferred: 1}}}":                         "spec.persistentVolumeSpec.nodeAffinity.preferred: unknown field",
		"LocalModelCache\nmetadata: {name: a}\nspec: {sourceModelUri: 's3://a', modelSize: 1Gi, nodeGroups: [" + strings.Repeat("g, ", maxGroups+1) + "g]}": "spec.nodeGroups: 66 are more than one may name (64)",
	} {
		var said []string
		for _, p := range Read("a.yaml", []byte(head+text+"\n")).Errors(Process) {
			said = append(said, p.Path+": "+p.Message)
		}
		if !strings.Contains(strings.Join(said, "\n"), want) {
			t.Errorf("%s\n%q, want %q", text, said, want)
		}
	}
}

const maxGroups = 64
