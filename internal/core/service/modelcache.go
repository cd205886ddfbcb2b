package service

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ModelCache asks for the files of a model ahead of their use, and to keep them:
// KServe's LocalModelCache, and with a namespace its LocalModelNamespaceCache.
type ModelCache struct {
	Meta
	URI string
	// Bytes is how large the model is said to be.
	Bytes int64
	// NodeGroups names the NodeGroups whose nodes get it.
	NodeGroups []string
	// Account and Storage name what it is fetched with, as a service's do.
	Account string
	Storage *Storage
}

// NodeGroup is nodes that keep models ahead of their use: KServe's LocalModelNodeGroup.
type NodeGroup struct {
	Meta
	// Limit is how many bytes the models of the group may have on each node.
	Limit int64
	// Nodes selects them; nil is all.
	Nodes *corev1.NodeSelector
	// Folder is where they have room for models, "" where it is not said.
	Folder string
}

// AnnotationNodeGroup is KServe's annotation of services for the NodeGroup on whose nodes
// they use what a ModelCache keeps.
const AnnotationNodeGroup = "serving.kserve.io/nodegroup"

// AnnotationNoModelCache is KServe's annotation of services that do not use what a
// ModelCache keeps.
const AnnotationNoModelCache = "serving.kserve.io/disable-localmodel"

// CacheState is how far a model of a ModelCache is on a node, in KServe's words.
type CacheState string

// The states.
const (
	CacheNotReady    CacheState = "NodeNotReady" // the node is not
	CachePending     CacheState = "NodeDownloadPending"
	CacheDownloading CacheState = "NodeDownloading"
	CacheDownloaded  CacheState = "NodeDownloaded"
	CacheFailed      CacheState = "NodeDownloadError"
)

// CacheStatus is what is known of a ModelCache.
type CacheStatus struct {
	// Nodes are the states by node.
	Nodes map[string]CacheState `json:"nodes,omitempty"`
	// Reason says why it is not everywhere; "" for nothing to say.
	Reason string `json:"reason,omitempty"`
	// Services are those whose model it is.
	Services    []Key `json:"services,omitempty"`
	LLMServices []Key `json:"llmServices,omitempty"`
}

// Below reports whether a model at uri is that of the cache, or lies in it at the path
// sub, which is "" for all of it.
func (c *ModelCache) Below(uri string) (sub string, ok bool) {
	sub, ok = strings.CutPrefix(strings.TrimSuffix(uri, "/"), strings.TrimSuffix(c.URI, "/"))
	if !ok || sub == "" {
		return "", ok
	}
	sub, ok = strings.CutPrefix(sub, "/")
	return sub, ok && sub != "" && !slices.Contains(strings.Split(sub, "/"), "..")
}

// Copies counts the nodes that have the model, those that failed to fetch it, and all.
func (s CacheStatus) Copies() (available, failed, total int) {
	for _, state := range s.Nodes {
		switch state {
		case CacheDownloaded:
			available++
		case CacheFailed:
			failed++
		}
	}
	return available, failed, len(s.Nodes)
}
