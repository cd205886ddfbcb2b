package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KindReserve is the kind that keeps a cluster's nodes ready for pods to come.
const KindReserve = "Reserve"

// Reserve keeps capacity ready on a cluster's nodes: placeholder pods hold
// resources until a real pod needs them, and images are pulled before a pod
// needs them. On one machine it has no effect.
type Reserve struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            ReserveSpec       `json:"spec"`
	Status          ReserveStatus     `json:"status,omitzero"`
}

// ReserveSpec is what is kept ready, and on which nodes: placeholders, images
// or both.
type ReserveSpec struct {
	// NodeSelector selects the nodes by their labels; default: every Linux node.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Tolerations of the placeholders. A node with a taint that they do not
	// tolerate is not selected.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// ImagePullSecrets name Secrets of the namespace for the registries.
	ImagePullSecrets []string      `json:"imagePullSecrets,omitempty"`
	Placeholders     *Placeholders `json:"placeholders,omitempty"`
	// Images are pulled onto each selected node.
	Images *ReserveImages `json:"images,omitempty"`
}

// Placeholders are pods that do nothing but hold resources. Their priority is
// negative: a real pod preempts them, and they come back when there is room, for
// which a cluster autoscaler adds a node. Exactly one of Count, Percent and
// Ladder states how many there are.
type Placeholders struct {
	// Count is a fixed number, 0 to 1000.
	Count *int `json:"count,omitempty"`
	// Percent of the selected nodes, 1 to 100, rounded up.
	Percent *int `json:"percent,omitempty"`
	// Ladder is a number that grows with the selected nodes: the last step that
	// they reach counts, and below the first step there are none. At most 32
	// steps.
	Ladder []LadderStep `json:"ladder,omitempty"`
	// Max bounds the number, 1 to 1000; default: 1000.
	Max *int `json:"max,omitempty"`
	// Resources that one placeholder holds, such as nvidia.com/gpu: 1.
	Resources map[string]resource.Quantity `json:"resources"`
}

// LadderStep is a number of placeholders from a number of nodes on.
type LadderStep struct {
	FromNodes int `json:"fromNodes"`
	Count     int `json:"count"`
}

// ReserveImages are the images to pull.
type ReserveImages struct {
	// From are where the names of images are taken from: services are the
	// services of the namespace, asleep or not; runtimes are the runtimes of the
	// namespace and of the cluster that are not disabled. A Reserve in the
	// controller's namespace takes those of every namespace.
	From []string `json:"from,omitempty"`
	// Names are further images, pulled before the others; at most 64.
	Names []string `json:"names,omitempty"`
	// NodesAtOnce is on how many nodes images are pulled at the same time, one
	// on each, 1 to 100; default: 2.
	NodesAtOnce *int `json:"nodesAtOnce,omitempty"`
}

// ReserveStatus is what is kept ready now. Roundhouse writes it and ignores it
// in manifests.
type ReserveStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
	// Nodes is how many nodes are selected.
	Nodes        int                `json:"nodes"`
	Placeholders *PlaceholderStatus `json:"placeholders,omitempty"`
	Images       *ReserveImageState `json:"images,omitempty"`
}

// PlaceholderStatus counts placeholders: Running ones hold their resources,
// Pending ones wait for a node.
type PlaceholderStatus struct {
	Wanted  int    `json:"wanted"`
	Running int    `json:"running"`
	Pending int    `json:"pending"`
	Why     string `json:"why,omitempty"`
}

// ReserveImageState counts images on nodes: three images on two nodes are six.
type ReserveImageState struct {
	Wanted  int `json:"wanted"`
	Present int `json:"present"`
	Pulling int `json:"pulling"`
	Failed  int `json:"failed"`
	// Names are the images that are wanted on each node.
	Names []string `json:"names,omitempty"`
	// LastFailure is the last image that could not be pulled.
	LastFailure *ImageFailure `json:"lastFailure,omitempty"`
}

// ImageFailure is an image that a node could not pull.
type ImageFailure struct {
	Image   string `json:"image"`
	Node    string `json:"node"`
	Message string `json:"message,omitempty"`
}
