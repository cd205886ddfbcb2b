package kserve

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// KServe's kinds of models that are fetched ahead of their use.
const (
	KindModelCache          = "LocalModelCache"
	KindNamespaceModelCache = "LocalModelNamespaceCache"
	KindNodeGroup           = "LocalModelNodeGroup"
)

type modelCache struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            modelCacheSpec    `json:"spec"`
}

type modelCacheSpec struct {
	SourceModelURI     string             `json:"sourceModelUri"`
	ModelSize          *resource.Quantity `json:"modelSize"`
	NodeGroups         []string           `json:"nodeGroups"`
	ServiceAccountName string             `json:"serviceAccountName"`
	Storage            *cacheStorage      `json:"storage"`
}

type cacheStorage struct {
	Key        string            `json:"key"`
	Parameters map[string]string `json:"parameters"`
}

type nodeGroup struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            nodeGroupSpec     `json:"spec"`
}

type nodeGroupSpec struct {
	StorageLimit              *resource.Quantity           `json:"storageLimit"`
	PersistentVolumeSpec      *corev1.PersistentVolumeSpec `json:"persistentVolumeSpec"`
	PersistentVolumeClaimSpec any                          `json:"persistentVolumeClaimSpec"`
}

const (
	noVolume  = "has no effect: no volume is made for models"
	noFolder  = "has no effect on one machine: models are in the data directory"
	nodesOnly = "has no effect: models are kept in a folder of the nodes, which local.path or hostPath.path names"
)

// NodeGroupNotes are those of node groups: of their volumes the nodes count, and the
// folder.
var NodeGroupNotes = func() manifest.Notes {
	volume, source, local := reflect.TypeFor[corev1.PersistentVolumeSpec](), reflect.TypeFor[corev1.PersistentVolumeSource](), reflect.TypeFor[corev1.LocalVolumeSource]()
	out := manifest.Notes{
		reflect.TypeFor[nodeGroupSpec](): {"persistentVolumeClaimSpec": manifest.Never(noVolume)},
		volume:                           {"nodeAffinity": manifest.OnProcess(manifest.NoPlacement)},
		source:                           {"local": manifest.OnProcess(noFolder), "hostPath": manifest.OnProcess(noFolder)},
		local:                            {"fsType": manifest.Never(noVolume)},
		reflect.TypeFor[corev1.HostPathVolumeSource](): {"type": manifest.Never(noVolume)},
	}
	for t, why := range map[reflect.Type]string{volume: noVolume, source: nodesOnly} {
		for i := range t.NumField() {
			if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" {
				if _, has := out[t][name]; !has {
					out[t][name] = manifest.Never(why)
				}
			}
		}
	}
	return out
}()

// maxNodeGroups bounds the groups of one cache.
const maxNodeGroups = 64

// readModelCache reads a LocalModelCache, or one of a namespace.
func readModelCache(r *manifest.Reader, m *modelCache, o *manifest.Object, cluster bool) {
	spec := &m.Spec
	out := &service.ModelCache{Meta: r.Meta(m.Metadata, cluster, true), URI: fetched(spec.SourceModelURI), NodeGroups: spec.NodeGroups, Account: spec.ServiceAccountName}
	o.Kind, o.Key, o.ModelCache = manifest.KindModelCache, out.Key, out
	if out.URI == "" {
		r.Errorf("spec.sourceModelUri", "is missing: write where the model is")
	} else if _, local := service.LocalPath(out.URI); local {
		r.Refuse("spec.sourceModelUri", "is a file, which nothing fetches: write where its model is fetched from")
	} else {
		manifest.CheckURI(r.Report, "spec.sourceModelUri", out.URI, false)
	}
	out.Bytes = readBytes(r, "spec.modelSize", spec.ModelSize, "how large the model is, as 10Gi")
	switch n := len(spec.NodeGroups); {
	case n == 0:
		r.Errorf("spec.nodeGroups", "is missing: name a %s, whose nodes get the model", KindNodeGroup)
	case n > maxNodeGroups:
		r.Errorf("spec.nodeGroups", "%d are more than one may name (%d)", n, maxNodeGroups)
	}
	for i, name := range spec.NodeGroups {
		manifest.CheckName(r.Report, strict.Index("spec.nodeGroups", i), name, true)
	}
	if out.Account != "" {
		manifest.CheckName(r.Report, "spec.serviceAccountName", out.Account, true)
	}
	if st := spec.Storage; st != nil {
		out.Storage = &service.Storage{Key: st.Key, Parameters: st.Parameters}
	}
}

// readNodeGroup reads a LocalModelNodeGroup.
func readNodeGroup(r *manifest.Reader, m *nodeGroup, o *manifest.Object) {
	out := &service.NodeGroup{Meta: r.Meta(m.Metadata, true, true)}
	o.Kind, o.Key, o.NodeGroup = manifest.KindNodeGroup, out.Key, out
	out.Limit = readBytes(r, "spec.storageLimit", m.Spec.StorageLimit, "how much the models may have on each node, as 100Gi")
	v := m.Spec.PersistentVolumeSpec
	if v == nil {
		return
	}
	if v.NodeAffinity != nil {
		out.Nodes = v.NodeAffinity.Required
	}
	at := ""
	switch {
	case v.Local != nil:
		out.Folder, at = v.Local.Path, "local.path"
	case v.HostPath != nil:
		out.Folder, at = v.HostPath.Path, "hostPath.path"
	}
	if bad := service.ModelStoreError(out.Folder); at != "" && (bad != "" || out.Folder == service.NoModelStore) {
		p := r.Problem("spec.persistentVolumeSpec."+at, fmt.Sprintf("%q is no folder of the nodes: write its absolute path, such as /models", manifest.Clip(out.Folder)))
		p.Platform, out.Folder = manifest.Kubernetes, ""
	}
}

// readBytes reads a size that must be stated.
func readBytes(r *manifest.Reader, at string, q *resource.Quantity, what string) int64 {
	switch {
	case q == nil:
		r.Errorf(at, "is missing: write %s", what)
	case q.Sign() <= 0:
		r.Errorf(at, "%s is no size: write %s", q, what)
	default:
		manifest.CheckQuantity(r.Report, at, *q)
		return q.Value()
	}
	return 0
}

// CacheStatus is the status of a ModelCache in KServe's words.
func CacheStatus(st service.CacheStatus) map[string]any {
	nodes := map[string]any{}
	for name, state := range st.Nodes {
		nodes[name] = string(state)
	}
	copies := map[string]any{}
	available, failed, total := st.Copies()
	for name, n := range map[string]int{"available": available, "failed": failed, "total": total} {
		if n > 0 { // KServe leaves out a zero
			copies[name] = int64(n)
		}
	}
	out := map[string]any{"copies": copies}
	if len(nodes) > 0 {
		out["nodeStatus"] = nodes
	}
	for name, keys := range map[string][]service.Key{"inferenceServices": st.Services, "llmInferenceServices": st.LLMServices} {
		var list []any
		for _, k := range keys {
			list = append(list, map[string]any{"namespace": k.Namespace, "name": k.Name})
		}
		if list != nil {
			out[name] = list
		}
	}
	return out
}

// ReadCacheStatus is the other way of CacheStatus. Of anything else it reads nothing.
func ReadCacheStatus(status any) (out service.CacheStatus) {
	var in struct {
		NodeStatus           map[string]service.CacheState `json:"nodeStatus"`
		InferenceServices    []service.Key                 `json:"inferenceServices"`
		LLMInferenceServices []service.Key                 `json:"llmInferenceServices"`
	}
	raw, err := json.Marshal(status)
	if err != nil || json.Unmarshal(raw, &in) != nil {
		return service.CacheStatus{}
	}
	out.Nodes, out.Services, out.LLMServices = in.NodeStatus, in.InferenceServices, in.LLMInferenceServices
	return out
}
