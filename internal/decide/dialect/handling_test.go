package dialect

import (
	"reflect"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestRouteHandling reads what routes do with their requests, and the same of a rule and
// of one of its backends, whose filters come after the rule's.
func TestRouteHandling(t *testing.T) {
	set := func(name, value string) routing.HeaderChange {
		return routing.HeaderChange{Op: routing.HeaderSet, Name: name, Value: value}
	}
	read := Read("f.yaml", []byte(`apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: r}
spec:
  targets: [{service: s}]
  requestHeaders: {set: {x-b: "2", x-a: "1"}, remove: [x-c]}
  responseHeaders: {add: {x-d: "4"}}
  retry: {codes: [503], attempts: 3, backoff: 50ms}
  hedge: {percentile: 95}
  retryBudget: {percent: 5, perSecond: 0}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: h}
spec:
  rules:
  - matches: [{path: {value: /a}}]
    retry: {codes: [502]}
    filters:
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-a, value: "1"}]}}
    - {type: URLRewrite, urlRewrite: {hostname: Inside.test, path: {type: ReplacePrefixMatch, replacePrefixMatch: ""}}}
    backendRefs:
    - {name: s}
    - {name: t, filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-a, value: "2"}]}}]}
    - {name: u, filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-a, value: "3"}]}}]}
`))
	if len(read.Problems) > 0 || len(read.Objects) != 2 {
		t.Fatal(read.Problems)
	}
	budget := routing.RetryBudget{Percent: 5}
	if got, want := read.Objects[0].Routing.(*routing.Route).Handling, (routing.Handling{
		RequestHeader:  []routing.HeaderChange{set("X-A", "1"), set("X-B", "2"), {Op: routing.HeaderRemove, Name: "X-C"}},
		ResponseHeader: []routing.HeaderChange{{Op: routing.HeaderAdd, Name: "X-D", Value: "4"}},
		Retry:          &routing.Retry{Codes: []int{503}, Attempts: 3, Backoff: 50 * time.Millisecond, Budget: budget},
		Hedge:          &routing.Hedge{Percentile: 95, Budget: budget},
	}); !reflect.DeepEqual(got, want) {
		t.Errorf("the Route is read as %+v, want %+v", got, want)
	}
	rule := read.Objects[1].Routing.(*routing.HTTPRoute).Rules[0]
	want := routing.Handling{
		RequestHeader: []routing.HeaderChange{set("X-A", "1")},
		Rewrite:       &routing.URLRewrite{Host: "inside.test", Path: &routing.PathRewrite{Prefix: "/a"}},
		Retry:         &routing.Retry{Codes: []int{502}, Attempts: -1, Budget: routing.DefaultRetryBudget},
	}
	if !reflect.DeepEqual(rule.Handling, want) || rule.Backends[0].Handling != nil {
		t.Errorf("the rule is read as %+v, want %+v", rule.Handling, want)
	}
	for i, value := range map[int]string{1: "2", 2: "3"} {
		want.RequestHeader = []routing.HeaderChange{set("X-A", "1"), set("X-A", value)}
		if got := rule.Backends[i].Handling; got == nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("backend %d is read as %+v, want %+v", i, got, want)
		}
	}
}

// TestUnsupportedFilters: on one machine such a route is refused; in a cluster its rule
// is there, with the fault that its requests are told.
func TestUnsupportedFilters(t *testing.T) {
	read := Read("f.yaml", []byte(`apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: h}
spec:
  rules:
  - filters: [{type: ExtensionRef, extensionRef: {group: example.com, kind: Filter, name: f}}]
    backendRefs: [{name: s}]
  - backendRefs: [{name: s}, {name: t, filters: [{type: CORS, cors: {allowOrigins: ["*"]}}]}]
`))
	if got := len(read.Errors(Process)); got != 2 {
		t.Errorf("%d errors on one machine: %v", got, read.Problems)
	}
	if got := read.Errors(Kubernetes); len(got) > 0 || len(read.Objects) != 1 {
		t.Fatalf("in a cluster: %v", got)
	}
	rules := read.Objects[0].Routing.(*routing.HTTPRoute).Rules
	if f := rules[0]; f.Fault == "" || f.FaultReason != routing.ReasonInvalidKind || rules[1].Fault != "" {
		t.Errorf("the rules are read as %+v", rules)
	}
	if b := rules[1].Backends[1]; b.FaultReason != routing.ReasonUnsupported || b.Ref != routing.Service(service.Key{Namespace: "default", Name: "t"}) {
		t.Errorf("the backend is read as %+v", b)
	}
}
