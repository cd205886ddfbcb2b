package shape

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// GroupAPIVersion is that of LeaderWorkerSets, of the releases from v0.3 on.
const GroupAPIVersion = "leaderworkerset.x-k8s.io/v1"

// LabelWorkerIndex is which pod of its group one is; the leader's is "0", and
// the leader alone answers requests and counts as a replica.
const LabelWorkerIndex = "leaderworkerset.sigs.k8s.io/worker-index"

// LeaderWorkerSet is the kind of that name, as far as it is written here.
type LeaderWorkerSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              LeaderWorkerSetSpec `json:"spec"`
}

// LeaderWorkerSetSpec is the kind's spec without the number of groups.
type LeaderWorkerSetSpec struct {
	LeaderWorkerTemplate LeaderWorkerTemplate `json:"leaderWorkerTemplate"`
	RolloutStrategy      GroupRollout         `json:"rolloutStrategy"`
	StartupPolicy        string               `json:"startupPolicy"`
	NetworkConfig        GroupNetwork         `json:"networkConfig"`
}

// LeaderWorkerTemplate is one group: a leader and Size-1 workers.
type LeaderWorkerTemplate struct {
	LeaderTemplate corev1.PodTemplateSpec `json:"leaderTemplate"`
	WorkerTemplate corev1.PodTemplateSpec `json:"workerTemplate"`
	Size           int32                  `json:"size"`
	RestartPolicy  string                 `json:"restartPolicy"`
}

// GroupRollout is how groups of a new revision take over.
type GroupRollout struct {
	Type                       string                `json:"type"`
	RollingUpdateConfiguration GroupRolloutRestraint `json:"rollingUpdateConfiguration"`
}

// GroupRolloutRestraint bounds how many groups are missing, and how many are there
// beyond the count, while one revision follows another.
type GroupRolloutRestraint struct {
	MaxUnavailable intstr.IntOrString `json:"maxUnavailable"`
	MaxSurge       intstr.IntOrString `json:"maxSurge"`
}

// GroupNetwork is which Services give the pods of groups their names.
type GroupNetwork struct {
	SubdomainPolicy string `json:"subdomainPolicy"`
}

// group runs a component whose replicas span nodes. A pod that fails takes its
// whole group along, because what the others hold of the model is of no use
// without it. The pods start together: they wait for one another.
func (r *renderer) group() (LeaderWorkerSet, error) {
	if !r.o.LeaderWorkerSets {
		return LeaderWorkerSet{}, errors.New("a replica spans nodes, and this cluster has no LeaderWorkerSets: install sigs.k8s.io/lws (" + GroupAPIVersion + ")")
	}
	leading := &workload.Node{Pod: r.c.Pod, Main: r.c.Main}
	if r.c.Leader != nil {
		leading = r.c.Leader
	}
	working, size := leading, int32(1)
	if r.c.Worker != nil {
		working, size = r.c.Worker, 1+int32(min(max(r.c.Worker.Size, 1), maxWorkers))
	}
	leader, err := r.pod(leading.Pod, leading.Main, true)
	if err != nil {
		return LeaderWorkerSet{}, err
	}
	worker, err := r.pod(working.Pod, working.Main, false)
	if err != nil {
		return LeaderWorkerSet{}, err
	}
	r.ray(&leader, &worker, leading.Main, working.Main, size)
	g := LeaderWorkerSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: GroupAPIVersion, Kind: "LeaderWorkerSet"},
		ObjectMeta: r.meta(),
		Spec: LeaderWorkerSetSpec{
			LeaderWorkerTemplate: LeaderWorkerTemplate{
				LeaderTemplate: corev1.PodTemplateSpec{ObjectMeta: r.podMeta(), Spec: leader},
				WorkerTemplate: corev1.PodTemplateSpec{ObjectMeta: r.podMeta(), Spec: worker},
				Size:           size,
				RestartPolicy:  "RecreateGroupOnPodRestart",
			},
			// Whoever scales the set keeps a group beyond the count while it rolls: a
			// surge of the set's own never begins where one group is all there is.
			RolloutStrategy: GroupRollout{Type: "RollingUpdate",
				RollingUpdateConfiguration: GroupRolloutRestraint{MaxUnavailable: intstr.FromInt32(1), MaxSurge: intstr.FromInt32(0)}},
			StartupPolicy: "LeaderCreated",
			// The other policy has one Service for all groups, which takes the name
			// of the set: that is the name of ours, which knows ready leaders only.
			NetworkConfig: GroupNetwork{SubdomainPolicy: "UniquePerReplica"},
		},
	}
	r.pin(&g.ObjectMeta, strategy(nil))
	return g, nil
}

// maxWorkers bounds the size of a group.
const maxWorkers = 1023
