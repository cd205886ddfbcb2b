package service

import "time"

// Status is what is known of a service now. It is always recomputable from
// the revision record and the replicas, and each dialect prints it in its own
// words.
type Status struct {
	Conditions []Condition   `json:"conditions,omitempty"`
	URL        string        `json:"url,omitempty"`
	Runtime    RuntimeChoice `json:"runtime,omitzero"`
	Protocol   Protocol      `json:"protocol,omitempty"`
	Revision   string        `json:"revision,omitempty"`
	Model      ModelStatus   `json:"model,omitzero"`
	// Components in the order of Roles; absent roles are left out.
	Components []ComponentStatus `json:"components,omitempty"`
	Generation int64             `json:"observedGeneration,omitempty"`
	// Canary is the revision that takes a share beside Revision; nil without
	// one.
	Canary *CanaryStatus `json:"canary,omitempty"`
	// LatestSince is since when Latest has been up to date, in progress or failed.
	LatestSince time.Time `json:"latestTransitionTime,omitzero"`
}

// Latest returns how far the manifest's revision is in serving, and its name:
// the canary's until that is up to date. KServe calls it the latest deployment.
func (s *Status) Latest() (Transition, string) {
	if c := s.Canary; c != nil && c.Transition != "" && c.Transition != UpToDate {
		return c.Transition, c.Revision
	}
	return s.Model.Transition, s.Revision
}

// CanaryStatus is what is known of a service's canary.
type CanaryStatus struct {
	Revision string `json:"revision,omitempty"` // "" before the first
	Wanted   int    `json:"wanted"`             // percent of the traffic, as the manifest says
	Percent  int    `json:"percent"`            // as it is
	Ready    int    `json:"ready"`              // replicas
	Why      string `json:"why,omitempty"`      // Percent is what it is
	// Transition is how far it is in becoming ready, "" where it is unknown.
	Transition Transition `json:"transition,omitempty"`
}

// The condition types of a service. Ready is the conjunction of the others.
const (
	ConditionReady          = "Ready"           // requests are answered, at once or after a wake
	ConditionSelected       = "RuntimeSelected" // a runtime was found, or none was needed
	ConditionPredictorReady = "PredictorReady"  // the components are ready, or asleep and able to start
	ConditionIngressReady   = "IngressReady"    // the gateway routes the name
	ConditionStopped        = "Stopped"
)

// KServe's conditions of a TrainedModel.
const (
	ConditionLoadedByParent  = "IsMMSPredictor"          // the replicas of its InferenceService load it
	ConditionMemoryAvailable = "MemoryResourceAvailable" // and have the memory for it
	ConditionFramework       = "FrameworkSupported"      // their server reads such models
	ConditionParentReady     = "InferenceServiceReady"   // they are ready, or wake at a request
)

// Condition is one fact about a service in the form Kubernetes uses.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"` // "True", "False", "Unknown"
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"lastTransitionTime,omitzero"`
}

// RuntimeChoice is the runtime a service runs on and why.
type RuntimeChoice struct {
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Scope     Scope  `json:"scope,omitempty"`
	Why       string `json:"why,omitempty"`
	// Accelerators are the classes that its roles run on.
	Accelerators RoleClasses `json:"accelerators,omitzero"`
}

// ModelState is KServe's word for where a model is in its life.
type ModelState string

// WakesAtRequest is what Ready says of a service that sleeps and has nothing
// wrong with it; BeforeServes ends what it says of a manifest whose last change
// cannot be run.
const (
	WakesAtRequest = "starts at the first request"
	BeforeServes   = "; the previous revision keeps serving"
)

// StoppedByOwner is what Ready has of a service that is switched off.
func StoppedByOwner(k Key) string {
	return "stopped by its owner; `roundhouse start " + k.Stable().Short() + "` starts it"
}

// KServe's model states.
const (
	ModelPending      ModelState = "Pending"
	ModelStandby      ModelState = "Standby" // asleep: not loaded, will be on demand
	ModelLoading      ModelState = "Loading"
	ModelLoaded       ModelState = "Loaded"
	ModelFailedToLoad ModelState = "FailedToLoad"
)

// Transition is KServe's modelStatus.transitionStatus.
type Transition string

// KServe's transition statuses.
const (
	UpToDate            Transition = "UpToDate"
	InProgress          Transition = "InProgress"
	BlockedByFailedLoad Transition = "BlockedByFailedLoad"
	InvalidSpec         Transition = "InvalidSpec"
)

// ModelStatus is what is known of the model's copies.
type ModelStatus struct {
	Transition  Transition `json:"transitionStatus,omitempty"`
	Active      ModelState `json:"activeModelState,omitempty"`
	Target      ModelState `json:"targetModelState,omitempty"`
	Copies      int        `json:"totalCopies"`
	Failed      int        `json:"failedCopies"`
	LastFailure *Failure   `json:"lastFailureInfo,omitempty"`
}

// Failure is the last thing that went wrong, with what to do about it.
// Reasons are KServe's where KServe has one: ModelLoadFailed, RuntimeUnhealthy,
// RuntimeDisabled, NoSupportingRuntime, RuntimeNotRecognized, InvalidPredictorSpec.
type Failure struct {
	Reason   string    `json:"reason,omitempty"`
	Message  string    `json:"message,omitempty"`
	ExitCode int       `json:"exitCode,omitempty"`
	Time     time.Time `json:"time,omitzero"`
	Replica  string    `json:"location,omitempty"`
}

// ComponentStatus counts one component's replicas and what they have cost.
type ComponentStatus struct {
	Role    Role `json:"role"`
	Desired int  `json:"desired"`
	Running int  `json:"running"` // started, ready or not
	Ready   int  `json:"ready"`
	// Serving is the revision that answers: the present one where a replica of
	// it is ready or none is wanted, else the one before; "" where none is.
	Serving string `json:"serving,omitempty"`
	// ReplicaSeconds is the time replicas have run, summed; IdleSeconds the
	// part of it with nothing in flight; StartupSeconds start to ready of the
	// newest replica. Since the process that keeps them started.
	ReplicaSeconds float64 `json:"replicaSeconds"`
	IdleSeconds    float64 `json:"idleSeconds"`
	StartupSeconds float64 `json:"startupSeconds"`
	Progress       string  `json:"progress,omitempty"` // of a download, "1.2 GB of 4.8 GB"
}
