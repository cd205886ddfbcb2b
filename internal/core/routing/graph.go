package routing

import (
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Graph is KServe's InferenceGraph: a request passes through the steps of its
// nodes, from the node GraphRoot on, each of which a service, a server or another
// node answers. The nodes have no cycle.
type Graph struct {
	service.Meta `json:",inline"`
	Nodes        map[string]GraphNode `json:"nodes"`
	// Timeout bounds a request as a whole, StepTimeout each call of a server; 0 does
	// not.
	Timeout     time.Duration `json:"timeout,omitempty"`
	StepTimeout time.Duration `json:"stepTimeout,omitempty"`
	// Propagate are patterns of the names of the request's header fields that steps
	// get: "X-Tenant", "Test-*".
	Propagate []string `json:"propagate,omitempty"`
}

// GraphRoot is the node that requests begin at.
const GraphRoot = "root"

// GraphNode is one node: its kind says which of its steps run, and on what.
type GraphNode struct {
	Kind  NodeKind    `json:"kind"`
	Steps []GraphStep `json:"steps"` // never empty
}

// NodeKind is how a node runs its steps.
type NodeKind string

// The kinds of nodes.
const (
	NodeSequence NodeKind = "Sequence" // one after the other
	NodeSwitch   NodeKind = "Switch"   // the first whose condition the request meets
	NodeEnsemble NodeKind = "Ensemble" // all at once; the answers are joined
	NodeSplitter NodeKind = "Splitter" // one, drawn by weight
)

// NodeKinds lists them.
var NodeKinds = []NodeKind{NodeSequence, NodeSwitch, NodeEnsemble, NodeSplitter}

// GraphStep is one step. Exactly one of Node, Service and URL is set.
type GraphStep struct {
	Name    string `json:"name,omitempty"`
	Node    string `json:"node,omitempty"`
	Service string `json:"service,omitempty"` // of the graph's namespace
	URL     string `json:"url,omitempty"`
	// Response: the step gets the answer of the step before; otherwise the request.
	Response bool `json:"response,omitempty"`
	// MapPredictions: it gets what are predictions there as instances.
	MapPredictions bool   `json:"mapPredictions,omitempty"`
	Weight         uint32 `json:"weight,omitempty"`
	// Condition is a path of gjson that has to lead to something.
	Condition string `json:"condition,omitempty"`
	// Hard: where it fails, its answer is the node's.
	Hard bool `json:"hard,omitempty"`
}

// RoutingKind is KindGraph.
func (*Graph) RoutingKind() Kind { return KindGraph }

// Common is the metadata.
func (o *Graph) Common() *service.Meta { return &o.Meta }

// ServicePool is the pool of what a Kubernetes Service leads to at one of its ports. No
// object can have its name.
func ServicePool(k service.Key, port int32) Ref {
	k.Name += "/" + strconv.Itoa(int(port))
	return PoolRef(k)
}

// Plain reports whether a reference is of a ServicePool: its servers may be of any kind,
// and what they answer tells nothing of them.
func (r Ref) Plain() bool {
	_, port, cut := strings.Cut(r.Name, "/")
	_, err := strconv.ParseUint(port, 10, 16)
	return r.Pool && cut && err == nil
}

// RolePool is the pool of the replicas of one role of a service. No object can have
// its name.
func RolePool(k service.Key, role service.Role) Ref {
	k.Name += "/" + string(role)
	return PoolRef(k)
}
