package dialect

import (
	"encoding/json"
	"slices"
	"time"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// ReadStatus is the other way of Status: what a status in the words of a
// dialect says. Our own says all; the others' leave out what they have no words
// for. What cannot be read, or was written by others in other shapes, is left
// out too: nothing is decided by a status.
func ReadStatus(origin service.Origin, status any) service.Status {
	switch origin.Dialect() {
	case service.DialectKServe, service.DialectOME:
		return readForeign(origin.Dialect(), status)
	case service.DialectSeldon:
		return readSeldonStatus(status)
	}
	return readOwnStatus(status)
}

// decoded fills what it can of a T.
func decoded[T any](v any) (out T) {
	raw, err := json.Marshal(v)
	if err != nil {
		return out
	}
	_ = json.Unmarshal(raw, &out) // what does not fit stays out
	return out
}

// told is a condition as every dialect writes it.
type told struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"lastTransitionTime"`
}

// hub reads conditions, whose types rename maps to the hub's; others are left
// out.
func hub(in []told, rename map[string]string) []service.Condition {
	var out []service.Condition
	for _, c := range in {
		if r, ok := rename[c.Type]; ok {
			c.Type = r
		}
		if slices.Contains(conditionTypes, c.Type) {
			out = append(out, service.Condition(c))
		}
	}
	return out
}

var conditionTypes = []string{service.ConditionReady, service.ConditionSelected, service.ConditionPredictorReady,
	service.ConditionIngressReady, service.ConditionStopped}

func readOwnStatus(status any) service.Status {
	in := decoded[struct {
		api.ModelServiceStatus
		Conditions []told `json:"conditions"`
	}](status)
	out := service.Status{Generation: in.ObservedGeneration, Conditions: hub(in.Conditions, nil), URL: in.URL,
		Protocol: service.Protocol(in.Protocol), Revision: in.Revision}
	if rt := in.Runtime; rt != nil {
		out.Runtime = service.RuntimeChoice{Name: rt.Name, Namespace: rt.Namespace, Scope: service.Scope(rt.Scope), Why: rt.Why}
	}
	if c := in.Canary; c != nil {
		out.Canary = &service.CanaryStatus{Revision: c.Revision, Wanted: c.WantedPercent, Percent: c.Percent, Ready: c.Ready, Why: c.Why,
			Transition: service.Transition(c.Transition)}
	}
	if m := in.Model; m != nil {
		out.Model = service.ModelStatus{Transition: service.Transition(m.Transition), Active: service.ModelState(m.State), Copies: m.Copies, Failed: m.Failed}
		if f := m.LastFailure; f != nil {
			out.Model.LastFailure = &service.Failure{Reason: f.Reason, Message: f.Message, ExitCode: f.ExitCode, Replica: f.Replica}
			if f.Time != nil {
				out.Model.LastFailure.Time = f.Time.UTC()
			}
		}
	}
	for _, c := range in.Components {
		out.Components = append(out.Components, service.ComponentStatus{Role: service.Role(c.Role), Desired: c.Desired, Running: c.Running, Ready: c.Ready, Serving: c.ServingRevision,
			ReplicaSeconds: c.ReplicaSeconds, IdleSeconds: c.IdleSeconds, StartupSeconds: c.StartupSeconds, Progress: c.Progress})
	}
	return out
}

// foreignStatus is KServe's and OME's, with either's names for the same.
type foreignStatus struct {
	Generation     int64  `json:"observedGeneration"`
	Conditions     []told `json:"conditions"`
	URL            string `json:"url"`
	Runtime        string `json:"servingRuntimeName"`
	ClusterRuntime string `json:"clusterServingRuntimeName"`
	Model          struct {
		Transition string        `json:"transitionStatus"`
		States     foreignStates `json:"states"`
		OMEStates  foreignStates `json:"modelRevisionStates"`
		Copies     foreignCopies `json:"copies"`
		OMECopies  foreignCopies `json:"modelCopies"`
		Failure    *struct {
			Location string    `json:"location"`
			Reason   string    `json:"reason"`
			Message  string    `json:"message"`
			ExitCode int       `json:"exitCode"`
			Time     time.Time `json:"time"`
		} `json:"lastFailureInfo"`
	} `json:"modelStatus"`
	Components map[string]struct {
		Created   string `json:"latestCreatedRevision"`
		RolledOut string `json:"latestRolledoutRevision"`
		Traffic   []struct {
			Revision string `json:"revisionName"`
			Latest   bool   `json:"latestRevision"`
			Percent  int    `json:"percent"`
		} `json:"traffic"`
	} `json:"components"`
}

type foreignStates struct {
	Active string `json:"activeModelState"`
	Target string `json:"targetModelState"`
}

type foreignCopies struct {
	Failed int `json:"failedCopies"`
	Total  int `json:"totalCopies"`
}

func readForeign(d service.Dialect, status any) service.Status {
	in := decoded[foreignStatus](status)
	engine, rename, states, copies := "predictor", map[string]string(nil), in.Model.States, in.Model.Copies
	if d == service.DialectOME {
		engine, rename, states, copies = "engine", map[string]string{"EngineReady": service.ConditionPredictorReady}, in.Model.OMEStates, in.Model.OMECopies
	}
	out := service.Status{Generation: in.Generation, Conditions: hub(in.Conditions, rename), URL: in.URL,
		Model: service.ModelStatus{Transition: service.Transition(in.Model.Transition), Active: service.ModelState(states.Active),
			Target: service.ModelState(states.Target), Copies: copies.Total, Failed: copies.Failed}}
	switch {
	case in.Runtime != "":
		out.Runtime = service.RuntimeChoice{Name: in.Runtime, Scope: service.ScopeNamespace}
	case in.ClusterRuntime != "":
		out.Runtime = service.RuntimeChoice{Name: in.ClusterRuntime, Scope: service.ScopeCluster}
	}
	if f := in.Model.Failure; f != nil {
		out.Model.LastFailure = &service.Failure{Reason: f.Reason, Message: f.Message, ExitCode: f.ExitCode, Time: f.Time, Replica: f.Location}
	}
	part := in.Components[engine]
	out.Revision = part.Created
	for _, t := range part.Traffic {
		if t.Latest && t.Revision != part.RolledOut {
			out.Revision = part.RolledOut
			out.Canary = &service.CanaryStatus{Revision: t.Revision, Percent: t.Percent, Transition: out.Model.Transition}
		}
	}
	return out
}

func readSeldonStatus(status any) service.Status {
	in := decoded[struct {
		Generation  int64  `json:"observedGeneration"`
		State       string `json:"state"`
		Description string `json:"description"`
		Conditions  []told `json:"conditions"`
		Address     struct {
			URL string `json:"url"`
		} `json:"address"`
		Replicas    int `json:"replicas"`
		Deployments map[string]struct {
			Available int `json:"availableReplicas"`
		} `json:"deploymentStatus"`
	}](status)
	out := service.Status{Generation: in.Generation, URL: in.Address.URL, Conditions: hub(in.Conditions, map[string]string{
		"DeploymentsReady": service.ConditionPredictorReady, "ServicesReady": service.ConditionIngressReady})}
	if in.State != "" && !slices.ContainsFunc(out.Conditions, func(c service.Condition) bool { return c.Type == service.ConditionReady }) {
		c := service.Condition{Type: service.ConditionReady, Status: "False", Reason: in.State, Message: in.Description}
		if in.State == seldonAvailable {
			c.Status = "True"
		}
		out.Conditions = append([]service.Condition{c}, out.Conditions...)
	}
	if len(in.Deployments) == 1 {
		for name, d := range in.Deployments {
			out.Revision = name
			out.Components = []service.ComponentStatus{{Role: service.RoleEngine, Desired: in.Replicas, Running: in.Replicas, Ready: d.Available}}
		}
	}
	return out
}

// ReadRoutingStatus is the other way of RoutingStatus. A status that several
// gateways write is read where it is ours, else where it is the first's.
func ReadRoutingStatus(o routing.Object, status any) routing.Status {
	type parent struct {
		Controller string `json:"controllerName"`
		Ref        struct {
			Group     string `json:"group"`
			Kind      string `json:"kind"`
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			Section   string `json:"sectionName"`
			Port      int32  `json:"port"`
		} `json:"parentRef"`
		Conditions []told `json:"conditions"`
	}
	in := decoded[struct {
		Conditions []told   `json:"conditions"`
		Parents    []parent `json:"parents"`
		Parent     []parent `json:"parent"`
	}](status)
	var out routing.Status
	list, parents := in.Conditions, append(in.Parents, in.Parent...)
	for i, p := range parents {
		if i == 0 || p.Controller == GatewayController {
			list = p.Conditions
		}
		if p.Ref.Kind == "Status" { // how v1alpha2 says that there is none
			continue
		}
		out.Parents = append(out.Parents, routing.Parent{Group: p.Ref.Group, Kind: p.Ref.Kind, Namespace: p.Ref.Namespace, Name: p.Ref.Name,
			SectionName: p.Ref.Section, Port: p.Ref.Port})
	}
	for _, c := range list {
		out.Conditions = append(out.Conditions, service.Condition(c))
	}
	if len(list) > 0 && list[0].Type != routing.ConditionReady {
		out.Conditions = append([]service.Condition{summedUp(out.Conditions)}, out.Conditions...)
	}
	return out
}

// summedUp is Ready of conditions that have none: the first that is not true.
func summedUp(list []service.Condition) service.Condition {
	ready := service.Condition{Type: routing.ConditionReady, Status: "True", Reason: "Accepted"}
	for _, c := range list {
		ready.Since = c.Since
		if c.Status != "True" {
			ready.Status, ready.Reason, ready.Message = c.Status, c.Reason, c.Message
			break
		}
	}
	return ready
}
