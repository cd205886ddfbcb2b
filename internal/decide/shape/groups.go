package shape

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const labelWorkerIndex = "leaderworkerset.sigs.k8s.io/worker-index"

// LeaderWorkerSet is leaderworkerset.x-k8s.io/v1's, as far as it is written here.
type LeaderWorkerSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              LeaderWorkerSetSpec `json:"spec"`
}

// LeaderWorkerSetSpec is the kind's spec without the number of groups.
type LeaderWorkerSetSpec struct {
	LeaderWorkerTemplate LeaderWorkerTemplate `json:"leaderWorkerTemplate"`
}

// LeaderWorkerTemplate is one group: a leader and Size-1 workers.
type LeaderWorkerTemplate struct {
	LeaderTemplate *corev1.PodTemplateSpec `json:"leaderTemplate,omitempty"`
	WorkerTemplate corev1.PodTemplateSpec  `json:"workerTemplate"`
	Size           int32                   `json:"size"`
	RestartPolicy  string                  `json:"restartPolicy,omitempty"`
}

func (r *renderer) group() (LeaderWorkerSet, error) {
	return LeaderWorkerSet{}, fmt.Errorf("it spans several nodes: install LeaderWorkerSet (leaderworkerset.x-k8s.io/v1)")
}
