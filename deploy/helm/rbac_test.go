package helm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
)

// call is one request to the API server.
type call struct{ verb, group, resource, namespace, name string }

func (c call) String() string {
	return strings.Join([]string{c.verb, c.resource + "." + c.group, c.namespace + "/" + c.name}, " ")
}

// spread is every verb on every resource ("group/resource").
func spread(namespace string, verbs string, resources ...string) (out []call) {
	for _, r := range resources {
		group, resource, _ := strings.Cut(r, ":")
		for _, v := range strings.Fields(verbs) {
			out = append(out, call{v, group, resource, namespace, ""})
		}
	}
	return out
}

// reads are those that both make in a namespace: of manifests that requests
// depend on, of what tells of replicas and of decisions.
func reads(namespace string) []call {
	out := spread(namespace, "list watch", "discovery.k8s.io:endpointslices", "apps:controllerrevisions", "gateway.networking.k8s.io:gateways", "gateway.networking.k8s.io:referencegrants")
	out = append(out, spread("", "list watch", "gateway.networking.k8s.io:gatewayclasses")...)
	return append(out, manifests(namespace, true)...)
}

// manifests are the reads of manifests: of those that requests depend on, or of
// the runtimes and models that services are run with.
func manifests(namespace string, requests bool) (out []call) {
	for _, k := range objects.Kinds {
		in := namespace
		if strings.HasPrefix(k.Kind, "Cluster") || k.Kind == "FineTunedWeight" || k.Kind == "AcceleratorClass" {
			in = ""
		}
		if k.Requests() == requests {
			out = append(out, spread(in, "get list watch", k.Group+":"+k.Plural)...)
		}
	}
	return out
}

// controllerCalls are those of the controller for services of a namespace.
func controllerCalls(ns string) []call {
	out := append(append(reads(ns), manifests(ns, false)...), spread(ns, "get list watch create patch delete", "apps:deployments", ":services", "policy:poddisruptionbudgets", "leaderworkerset.x-k8s.io:leaderworkersets")...)
	out = append(out, spread(ns, "get patch", "apps:deployments/scale", "leaderworkerset.x-k8s.io:leaderworkersets/scale")...)
	out = append(out, spread(ns, "create update delete", "apps:controllerrevisions")...)
	out = append(out, spread(ns, "list watch patch", ":pods")...)
	out = append(out, spread(ns, "get", ":pods/log")...)
	out = append(out, spread(ns, "list watch", "autoscaling:horizontalpodautoscalers")...)
	out = append(out, spread(ns, "list", "metrics.k8s.io:pods")...)
	out = append(out, spread(ns, "get list watch create patch delete", ":serviceaccounts", "rbac.authorization.k8s.io:roles", "rbac.authorization.k8s.io:rolebindings")...)
	out = append(out, spread(ns, "create patch", "events.k8s.io:events")...)
	out = append(out, spread(ns, "patch", "gateway.networking.k8s.io:gateways/status", "roundhouse.dev:reserves/status")...)
	out = append(out, spread(ns, "list watch", "roundhouse.dev:reserves")...)
	out = append(out, spread(ns, "list watch create delete", "batch:jobs")...)
	out = append(out, spread(ns, "get list watch create patch delete", ":configmaps")...)
	for _, k := range objects.Kinds {
		if k.Status != objects.NoStatus {
			out = append(out, spread(ns, "patch", k.Group+":"+k.Plural+"/status")...)
		}
		if k.Status == objects.ServiceStatus {
			out = append(out, spread(ns, "update", k.Group+":"+k.Plural+"/finalizers")...)
		}
	}
	return out
}

// frontCalls read the Service of the gateway, which Gateways have the ports of.
func frontCalls(name string) (out []call) {
	for _, verb := range []string{"get", "list", "watch"} {
		out = append(out, call{verb, "", "services", namespace, name})
	}
	return out
}

// ownCalls are the controller's in the release's namespace, and about what no
// namespace holds.
func ownCalls(name string) []call {
	out := append([]call{{"create", "authentication.k8s.io", "tokenreviews", "", ""}}, frontCalls("roundhouse-gateway")...)
	out = append(out, spread("", "list watch", "apiextensions.k8s.io:customresourcedefinitions")...)
	out = append(out, spread("", "patch", "gateway.networking.k8s.io:gatewayclasses/status")...)
	out = append(out, spread("", "list watch", ":nodes")...)
	out = append(out, spread(namespace, "list watch", "discovery.k8s.io:endpointslices")...)
	out = append(out, spread(namespace, "create patch", ":events", "events.k8s.io:events")...)
	for _, r := range []string{"coordination.k8s.io:leases", ":secrets", ":configmaps"} {
		group, resource, _ := strings.Cut(r, ":")
		out = append(out, call{"create", group, resource, namespace, ""})
		for _, verb := range []string{"get", "update"} {
			out = append(out, call{verb, group, resource, namespace, name})
		}
	}
	return append(out, spread(namespace, "get list update delete", ":configmaps")...) // what services used
}

func gatewayCalls(ns string) []call {
	out := append(reads(ns), frontCalls("roundhouse-gateway")...)
	out = append(out, spread(ns, "list watch", ":pods", ":services")...) // endpoint pickers are Services
	return append(out, spread(ns, "get patch", "apps:deployments/scale", "leaderworkerset.x-k8s.io:leaderworkersets/scale")...)
}

// TestRBAC asks an API server, of the chart's accounts, for every call that the
// programs make, and for those that they must not make.
func TestRBAC(t *testing.T) {
	c := kubetest.Client(t)
	place(t, c, namespace, "team-a", "team-b", "elsewhere")
	const controller, gateway = "roundhouse-controller", "roundhouse-gateway"
	never := func(ns string) []call {
		out := spread(ns, "get list watch create update patch delete", ":secrets",
			"rbac.authorization.k8s.io:clusterroles", "rbac.authorization.k8s.io:clusterrolebindings")
		out = append(out, spread(ns, "update deletecollection", ":configmaps")...)
		out = append(out, spread(ns, "bind escalate", "rbac.authorization.k8s.io:roles", "rbac.authorization.k8s.io:clusterroles")...)
		out = append(out, spread(ns, "create", ":serviceaccounts/token")...)
		out = append(out, spread(ns, "impersonate", ":serviceaccounts", ":users", ":groups")...)
		out = append(out, spread(ns, "update patch delete", "roundhouse.dev:reserves", "scheduling.k8s.io:priorityclasses")...)
		out = append(out, spread(ns, "patch update", "batch:jobs", ":nodes")...)
		out = append(out, spread(ns, "create delete deletecollection", ":pods", ":pods/exec", ":nodes", ":persistentvolumes")...)
		out = append(out, spread(ns, "deletecollection", "apps:deployments", ":services")...)
		return append(out, spread("", "delete update patch", "apiextensions.k8s.io:customresourcedefinitions", ":namespaces", "roundhouse.dev:modelservices")...)
	}
	// The controller alone reads ConfigMaps, those of schedulers, and writes those that
	// list the models of TrainedModels.
	configs := func(ns string) []call { return spread(ns, "get list watch create update patch delete", ":configmaps") }
	own := spread(namespace, "list watch", ":secrets")
	own = append(own, call{"get", "", "secrets", namespace, "somebody-elses"}, call{"update", "coordination.k8s.io", "leases", namespace, "somebody-elses"})
	writes := spread("team-a", "create patch update delete", "apps:deployments", ":services", "apps:controllerrevisions", "policy:poddisruptionbudgets", ":pods",
		":serviceaccounts", "rbac.authorization.k8s.io:roles", "rbac.authorization.k8s.io:rolebindings")
	writes = append(writes, spread("team-a", "patch", "roundhouse.dev:modelservices/status")...)
	writes = append(writes, spread("team-a", "get list", ":pods/log", ":secrets", "apps:deployments")...)
	writes = append(writes, spread("team-a", "get", ":pods")...)
	writes = append(writes, spread("team-a", "patch", "gateway.networking.k8s.io:httproutes/status", "gateway.networking.k8s.io:grpcroutes/status", "gateway.networking.k8s.io:gateways/status")...)
	for _, set := range []struct {
		name    string
		values  string
		allowed map[string][]call
		denied  map[string][]call
	}{
		{"everywhere", "default",
			map[string][]call{
				controller: append(append(controllerCalls("elsewhere"), ownCalls(controller)...), spread("", "list watch", ":namespaces")...),
				gateway:    append(gatewayCalls("elsewhere"), call{"get", "", "configmaps", namespace, controller}, call{"list", "", "namespaces", "", ""}),
			},
			map[string][]call{
				controller: append(append(never("elsewhere"), own...), call{"create", "apiextensions.k8s.io", "customresourcedefinitions", "", ""}),
				gateway:    append(append(append(append(never("elsewhere"), configs("elsewhere")...), writes...), manifests("elsewhere", false)...), append(own, ownCalls(controller)[0])...),
			}},
		{"endpoint pickers", "pickers",
			map[string][]call{"roundhouse-endpoint-picker team-a": append(spread("team-a", "list watch", ":pods", "inference.networking.k8s.io:inferencepools",
				"inference.networking.x-k8s.io:inferencepools", "inference.networking.x-k8s.io:inferencemodels", "inference.networking.x-k8s.io:inferenceobjectives",
				"inference.networking.x-k8s.io:inferencemodelrewrites", "llm-d.ai:inferenceobjectives", "llm-d.ai:inferencemodelrewrites"), spread("", "list watch", "apiextensions.k8s.io:customresourcedefinitions")...)},
			map[string][]call{"roundhouse-endpoint-picker team-a": append(append(append(never("team-a"), configs("team-a")...), writes...), spread("team-b", "list", ":pods", ":services", "inference.networking.k8s.io:inferencepools")...)}},
		{"no Reserves", "no-reserves",
			map[string][]call{controller: spread("elsewhere", "list watch", "roundhouse.dev:reserves")},
			map[string][]call{controller: append(spread("", "get list watch", ":nodes"), spread("elsewhere", "get list create delete", "batch:jobs")...)}},
		{"HTTPS with listeners' Secrets", "https",
			map[string][]call{controller: spread("elsewhere", "list watch", ":secrets"), gateway: spread("elsewhere", "list watch", ":secrets")},
			map[string][]call{controller: spread("elsewhere", "create update patch delete", ":secrets"), gateway: spread("elsewhere", "create update patch delete", ":secrets")}},
		{"no accounts of routers and no ConfigMaps", "policies",
			map[string][]call{controller: spread("team-a", "get", ":serviceaccounts")},
			map[string][]call{controller: append(append(configs("team-a"), spread("team-a", "list watch create patch delete", ":serviceaccounts")...),
				spread("team-a", "get list create patch delete", "rbac.authorization.k8s.io:roles", "rbac.authorization.k8s.io:rolebindings")...)}},
		{"two namespaces", "namespaces",
			map[string][]call{
				controller: append(append(controllerCalls("team-a"), controllerCalls("team-b")...), ownCalls(controller)...),
				gateway:    append(gatewayCalls("team-b"), call{"get", "", "configmaps", namespace, controller}, call{"watch", "discovery.k8s.io", "endpointslices", namespace, ""}),
			},
			map[string][]call{
				controller: append(append(never("team-a"), own...), append(spread("", "list", "roundhouse.dev:modelservices", ":namespaces", "apps:deployments"), spread("elsewhere", "get list create", "apps:deployments", "roundhouse.dev:modelservices", ":pods", ":configmaps")...)...),
				gateway:    append(append(append(never("team-a"), configs("team-a")...), writes...), spread("elsewhere", "get patch", "apps:deployments/scale", "roundhouse.dev:pools")...),
			}},
	} {
		t.Run(set.name, func(t *testing.T) {
			var rbac []*unstructured.Unstructured
			for _, u := range kubetest.Parse(t, render(t, values[set.values])) {
				if u.GroupVersionKind().Group == "rbac.authorization.k8s.io" {
					rbac = append(rbac, u)
				}
			}
			install(t, c, rbac, false)
			defer func() {
				for _, u := range rbac {
					if err := c.Delete(t.Context(), u); err != nil {
						t.Error(err)
					}
				}
			}()
			for account, calls := range set.allowed {
				// Roles take effect as the server's caches learn of them.
				kubetest.Eventually(t, func() string {
					if !may(t, c, account, calls[0]) {
						return "the roles are not in force"
					}
					return ""
				})
				for _, call := range calls {
					if !may(t, c, account, call) {
						t.Errorf("%s may not %s", account, call)
					}
				}
			}
			for account, calls := range set.denied {
				for _, call := range calls {
					if may(t, c, account, call) {
						t.Errorf("%s may %s", account, call)
					}
				}
			}
		})
	}
}

// may asks the API server whether an account's call is allowed.
func may(t *testing.T, c client.Client, account string, want call) bool {
	t.Helper()
	resource, sub, _ := strings.Cut(want.resource, "/")
	account, in, elsewhere := strings.Cut(account, " ")
	if !elsewhere {
		in = namespace
	}
	user := fmt.Sprintf("system:serviceaccount:%s:%s", in, account)
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user,
		Groups: []string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:" + in},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: want.verb, Group: want.group, Resource: resource, Subresource: sub,
			Namespace: want.namespace, Name: want.name}}}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(review)
	if err != nil {
		t.Fatal(err)
	}
	raw := &unstructured.Unstructured{Object: fields}
	raw.SetGroupVersionKind(authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"))
	if err := c.Create(t.Context(), raw); err != nil {
		t.Fatal(err)
	}
	allowed, _, _ := unstructured.NestedBool(raw.Object, "status", "allowed")
	return allowed
}

// TestRBACApart: with rbac.create false nothing of it is rendered, and what an
// administrator applies instead is all that would have been.
func TestRBACApart(t *testing.T) {
	rules := func(out string) (names []string) {
		for _, u := range kubetest.Parse(t, out) {
			if u.GroupVersionKind().Group == "rbac.authorization.k8s.io" {
				names = append(names, u.GetKind()+" "+u.GetNamespace()+"/"+u.GetName())
			}
		}
		return names
	}
	for name, set := range values {
		apart := rules(renderWith(t, set, "--show-only", "templates/rbac.yaml", "--set", "rbac.create=true"))
		if all := rules(renderWith(t, set, "--set", "rbac.create=true")); len(all) == 0 || !slices.Equal(apart, all) {
			t.Errorf("%s: %v apart, of %v", name, apart, all)
		}
		if left := rules(renderWith(t, set, "--set", "rbac.create=false")); len(left) > 0 {
			t.Errorf("%s: %v without rbac.create", name, left)
		}
	}
}
