package helm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// nested is a value of an object, nil when there is none.
func nested(u *unstructured.Unstructured, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	return v
}

// TestPoliciesOpen: a policy selects the pods of every workload, and opens every
// port that they declare, other than that of the kubelet's probes. Each may ask for
// names.
func TestPoliciesOpen(t *testing.T) {
	for _, set := range []string{"platform", "policies"} {
		objects := kubetest.Parse(t, render(t, values[set]))
		for _, w := range objects {
			labels, _, _ := unstructured.NestedStringMap(w.Object, "spec", "template", "metadata", "labels")
			if labels == nil {
				continue
			}
			opened, names := map[float64]bool{}, false
			for _, p := range objects {
				selector, _, _ := unstructured.NestedStringMap(p.Object, "spec", "podSelector", "matchLabels")
				if p.GetKind() != "NetworkPolicy" || p.GetNamespace() != w.GetNamespace() || !subset(selector, labels) {
					continue
				}
				for _, port := range ports(p, "ingress") {
					opened[port] = true
				}
				names = names || slices.Contains(ports(p, "egress"), 53)
				if got := fmt.Sprint(nested(p, "spec", "policyTypes")); got != "[Ingress Egress]" {
					t.Errorf("%s: the policy of %s leaves %s", set, p.GetName(), got)
				}
			}
			if !names {
				t.Errorf("%s: %s may not ask for names", set, w.GetName())
			}
			containers, _, _ := unstructured.NestedSlice(w.Object, "spec", "template", "spec", "containers")
			for _, p := range containers[0].(map[string]any)["ports"].([]any) {
				port := p.(map[string]any)
				if number := port["containerPort"].(float64); opened[number] == (port["name"] == "health") {
					t.Errorf("%s: port %v (%d) of %s is open: %v", set, port["name"], int(number), w.GetName(), opened[number])
				}
			}
		}
	}
}

func subset(of, labels map[string]string) bool {
	for k, v := range of {
		if labels[k] != v {
			return false
		}
	}
	return len(of) > 0
}

// ports are those that a policy's rules of one direction name.
func ports(policy *unstructured.Unstructured, direction string) (out []float64) {
	rules, _, _ := unstructured.NestedSlice(policy.Object, "spec", direction)
	for _, r := range rules {
		list, _ := r.(map[string]any)["ports"].([]any)
		for _, p := range list {
			number, _ := p.(map[string]any)["port"].(float64)
			out = append(out, number)
		}
	}
	return out
}

// TestMemoryLimit: Go collects at 90 % of a limit, in whichever unit it is.
func TestMemoryLimit(t *testing.T) {
	for limit, want := range map[string]string{"100": "90", "1000k": "900000", "1Ki": "921", "1M": "900000", "512Mi": "483183820", "1.5Gi": "1449551462", "2G": "1800000000", "1Ti": "989560464998", `"1073741824"`: "966367641",
		"1073741824": "966367641", "null": "", "1e9x": "", `""`: ""} {
		out := render(t, "crds: {install: false}\ngateway: {enabled: false}\ncontroller: {resources: {limits: {memory: "+limit+"}}}")
		got := ""
		if _, rest, ok := strings.Cut(out, "GOMEMLIMIT, value: \""); ok {
			got, _, _ = strings.Cut(rest, "\"")
		}
		if got != want {
			t.Errorf("limit %s: GOMEMLIMIT %q, want %q", limit, got, want)
		}
	}
}

// TestScaledGateway: a count that a HorizontalPodAutoscaler keeps is not stated.
func TestScaledGateway(t *testing.T) {
	for set, want := range map[string]any{"default": 2.0, "platform": nil} {
		for _, u := range kubetest.Parse(t, render(t, values[set])) {
			if u.GetKind() == "Deployment" && u.GetName() == "roundhouse-gateway" && nested(u, "spec", "replicas") != want {
				t.Errorf("%s: %v replicas", set, nested(u, "spec", "replicas"))
			}
		}
	}
}

// TestRouteNeedsGateway: an HTTPRoute without a Gateway is refused.
func TestRouteNeedsGateway(t *testing.T) {
	_, err := helm(t, "template", "roundhouse", "roundhouse", "--kube-version", "1.36.3", "--set", "gateway.httpRoute.enabled=true")
	if err == nil || !strings.Contains(err.Error(), "parentRefs[0].name") {
		t.Error(err)
	}
}
