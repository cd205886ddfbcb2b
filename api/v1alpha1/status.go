package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ModelServiceStatus is the status of a service. Roundhouse writes it and
// ignores it in manifests.
type ModelServiceStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
	URL                string             `json:"url,omitempty"`
	Runtime            *RuntimeStatus     `json:"runtime,omitempty"`
	Protocol           string             `json:"protocol,omitempty"`
	Revision           string             `json:"revision,omitempty"`
	Canary             *CanaryStatus      `json:"canary,omitempty"`
	Model              *ModelStatus       `json:"model,omitempty"`
	Components         []ComponentStatus  `json:"components,omitempty"`
}

// CanaryStatus describes the canary: the revision that takes a share of the
// requests while the status's own revision takes the rest.
type CanaryStatus struct {
	Revision      string `json:"revision,omitempty"`
	WantedPercent int    `json:"wantedPercent"`
	Percent       int    `json:"percent"`
	Ready         int    `json:"ready"`
	Why           string `json:"why,omitempty"`
	// Transition is the canary's progress: UpToDate,
	// InProgress, BlockedByFailedLoad or InvalidSpec.
	Transition string `json:"transition,omitempty"`
}

// ServingRuntimeStatus reports whether a runtime could be read. Roundhouse
// writes it and ignores it in manifests.
type ServingRuntimeStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RuntimeStatus is the runtime chosen and why.
type RuntimeStatus struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	Scope     string `json:"scope,omitempty"`
	Why       string `json:"why,omitempty"`
}

// ModelStatus is the state of the model.
type ModelStatus struct {
	Transition  string   `json:"transition,omitempty"`
	State       string   `json:"state,omitempty"`
	Copies      int      `json:"copies"`
	Failed      int      `json:"failed"`
	LastFailure *Failure `json:"lastFailure,omitempty"`
}

// Failure is the last thing that went wrong.
type Failure struct {
	Reason   string       `json:"reason,omitempty"`
	Message  string       `json:"message,omitempty"`
	ExitCode int          `json:"exitCode,omitempty"`
	Replica  string       `json:"replica,omitempty"`
	Time     *metav1.Time `json:"time,omitempty"`
}

// ComponentStatus counts one component's replicas.
type ComponentStatus struct {
	Role           string  `json:"role"`
	Desired        int     `json:"desired"`
	Running        int     `json:"running"`
	Ready          int     `json:"ready"`
	ReplicaSeconds float64 `json:"replicaSeconds"`
	IdleSeconds    float64 `json:"idleSeconds"`
	StartupSeconds float64 `json:"startupSeconds"`
	Progress       string  `json:"progress,omitempty"`
	// ServingRevision is the revision that answers: the status's own, or the
	// previous one while no replica of the new one is ready.
	ServingRevision string `json:"servingRevision,omitempty"`
}
