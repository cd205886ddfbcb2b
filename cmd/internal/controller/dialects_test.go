package controller

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestEveryDialect takes manifests of three dialects from their application to
// their end.
func TestEveryDialect(t *testing.T) {
	c := kubetest.Client(t, "kserve", "ome", "gie", "seldon")
	ns := kubetest.Namespace(t, c, nil)
	o := options(t)
	o.adopt = append(o.adopt, "seldon")
	begin(t, o, kubetest.Server(t))
	for _, m := range []struct {
		manifest string
		status   []string
		want     string
		url      []string
	}{
		{iris, []string{"status", "model", "state"}, "Pending", []string{"status", "url"}},
		{kserveSklearn, []string{"status", "clusterServingRuntimeName"}, "kserve-mlserver", []string{"status", "url"}},
		{omeMistral, []string{"status", "modelStatus", "transitionStatus"}, "InProgress", []string{"status", "url"}},
		{kserveLLM, []string{"status", "addresses"}, "[map[url:http://llm." + ns + ".example.com]]", []string{"status", "url"}},
		{kserveTrained, []string{"status", "address", "url"}, "http://trained." + ns + ".example.com", []string{"status", "url"}},
		{seldonSklearn, []string{"status", "state"}, "Creating", []string{"status", "address", "url"}},
	} {
		applied := kubetest.Apply(t, c, ns, m.manifest)
		u := applied[len(applied)-1]
		kubetest.Eventually(t, func() string {
			if got := field(get(t, c, u), m.status...); got != m.want {
				return fmt.Sprintf("%s is %s, not %s: %v", strings.Join(m.status, "."), got, m.want, get(t, c, u).Object["status"])
			}
			return ""
		})
		now := get(t, c, u)
		if got := field(now, "status", "observedGeneration"); got != fmt.Sprint(u.GetGeneration()) {
			t.Errorf("%s: observedGeneration %s of %d", u.GetKind(), got, u.GetGeneration())
		}
		if got, want := field(now, m.url...), "http://"+u.GetName()+"."+ns+".example.com"; got != want {
			t.Errorf("url %s, not %s", got, want)
		}
		if got := made(t, c, ns, u.GetName()); got["records"] != 1 || got["deployments"] != 1 || got["services"] != 1 {
			t.Errorf("%s: made %v", u.GetName(), got)
		}
		kubetest.Eventually(t, func() string { return lacks(events(t, c, u), "RuntimeSelected", "RevisionMade", "Scaled") })
		var d appsv1.Deployment
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: shape.Name(service.Key{Namespace: ns, Name: u.GetName()}, service.RoleEngine)}, &d); err != nil {
			t.Fatal(err)
		}
		if n := *d.Spec.Replicas; n != 1 {
			t.Errorf("%s has %d replicas", d.Name, n)
		}
		if err := c.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		kubetest.Eventually(t, func() string {
			if left := made(t, c, ns, u.GetName()); len(left) > 0 {
				return fmt.Sprintf("nothing left, not %v", left)
			}
			return ""
		})
	}
}

// kserveLLM is a service that has its model of the Config that it is laid over.
const kserveLLM = `
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceServiceConfig
metadata: {name: house}
spec:
  model: {uri: "hf://acme/tiny"}
  template: {containers: [{name: main, env: [{name: VLLM_ADDITIONAL_ARGS, value: --enforce-eager}]}]}
---
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: llm}
spec:
  baseRefs: [{name: house}]
  model: {name: Acme/Tiny}
  router: {route: {}, gateway: {}, scheduler: {}}
`

// TestLLMInferenceServiceFollowsItsConfig: a service whose Config comes later, and
// changes, has pods of what both say.
func TestLLMInferenceServiceFollowsItsConfig(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	begin(t, options(t), kubetest.Server(t))
	config, llm, _ := strings.Cut(kserveLLM, "---\n")
	u := kubetest.Apply(t, c, ns, llm)[0]
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, u), "Ready"); !strings.Contains(got, `no LLMInferenceServiceConfig named "house"`) {
			return "the missing Config named, not " + got
		}
		return ""
	})
	for _, flag := range []string{"--enforce-eager", "--enable-prefix-caching"} {
		kubetest.Apply(t, c, ns, strings.Replace(config, "--enforce-eager", flag, 1))
		kubetest.Eventually(t, func() string {
			var d appsv1.Deployment
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: shape.Name(service.Key{Namespace: ns, Name: "llm"}, service.RoleEngine)}, &d); err != nil {
				return err.Error()
			}
			m := d.Spec.Template.Spec.Containers[0]
			if words := strings.Join(append(m.Command, m.Args...), " "); words != "vllm serve /mnt/models --served-model-name Acme/Tiny --host 0.0.0.0 --port 8000 "+flag {
				return words
			}
			return ""
		})
	}
}

const seldonSklearn = `
apiVersion: machinelearning.seldon.io/v1
kind: SeldonDeployment
metadata: {name: flowers}
spec:
  protocol: v2
  predictors:
  - name: default
    graph: {name: classifier, implementation: SKLEARN_SERVER, modelUri: "gs://bucket/flowers"}
`

// TestOMEReferencesFindTheNamespacesOwn: OME's definition writes the cluster's
// kinds into references without one, and OME looks in the namespace first.
func TestOMEReferencesFindTheNamespacesOwn(t *testing.T) {
	c := kubetest.Client(t, "ome")
	ns := kubetest.Namespace(t, c, nil)
	begin(t, options(t), kubetest.Server(t))
	own := strings.NewReplacer("kind: Cluster", "kind: ", "hf://mistralai", "hf://tenant",
		"model: {name: mistral-7b-instruct}", "model: {name: mistral-7b-instruct, kind: ClusterBaseModel, apiGroup: ome.io}",
		"runtime: {name: srt-mistral-7b-instruct}", "runtime: {name: srt-mistral-7b-instruct, kind: ClusterServingRuntime, apiGroup: ome.io}").Replace(omeMistral)
	applied := kubetest.Apply(t, c, ns, own)
	u := applied[len(applied)-1]
	kubetest.Eventually(t, func() string {
		if got := made(t, c, ns, u.GetName()); got["deployments"] != 1 {
			return fmt.Sprintf("a Deployment, not %v: %v", got, get(t, c, u).Object["status"])
		}
		return ""
	})
	var d appsv1.Deployment
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: shape.Name(service.Key{Namespace: ns, Name: u.GetName()}, service.RoleEngine)}, &d); err != nil {
		t.Fatal(err)
	}
	if args := d.Spec.Template.Spec.InitContainers[0].Args; !strings.HasPrefix(args[1], "hf://tenant/") {
		t.Errorf("the model is not the namespace's: %q", args)
	}
}

// TestRuntimesStayInTheirNamespace: what one tenant brings, another does not see.
func TestRuntimesStayInTheirNamespace(t *testing.T) {
	c := kubetest.Client(t)
	mine, theirs := kubetest.Namespace(t, c, nil), kubetest.Namespace(t, c, nil)
	begin(t, options(t), kubetest.Server(t))
	kubetest.Apply(t, c, theirs, "{apiVersion: roundhouse.dev/v1alpha1, kind: ServingRuntime, metadata: {name: secret}, spec: {supportedModelFormats: [{name: odd, autoSelect: true}], engine: {image: i}}}")
	odd := strings.Replace(iris, "xgboost", "odd", 1)
	u, v := kubetest.Apply(t, c, mine, odd)[0], kubetest.Apply(t, c, theirs, odd)[0]
	kubetest.Eventually(t, func() string {
		if got := field(get(t, c, v), "status", "runtime", "name"); got != "secret" {
			return "its own runtime, not " + got
		}
		return ""
	})
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, u), "Ready"); !strings.Contains(got, "NoSupportingRuntime") || strings.Contains(got, "secret") {
			return "no runtime, and no word of another's, not " + got
		}
		return ""
	})
}

// TestRouting follows a pool from no service to one.
func TestRouting(t *testing.T) {
	c := kubetest.Client(t, "gie")
	ns := kubetest.Namespace(t, c, nil)
	o := options(t)
	o.install = []string{ownCRDs, "gie"} // there already: left as they are
	begin(t, o, kubetest.Server(t))
	pools := kubetest.Apply(t, c, ns, `
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: ours}
spec: {selector: {app: iris}}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: theirs}
spec: {selector: {matchLabels: {app: iris}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: e, port: {number: 9002}}}
`)
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, pools[0]), "Ready"); !strings.Contains(got, "NoEndpoints") {
			return "no endpoints, not " + got
		}
		return ""
	})
	kubetest.Apply(t, c, ns, strings.Replace(iris, "metadata: {name: iris}", "metadata: {name: iris, labels: {app: iris}}", 1))
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, pools[0]), "Ready"); !strings.Contains(got, "1 service: iris") {
			return "a service, not " + got
		}
		return ""
	})
	if got := get(t, c, pools[1]).Object["status"]; got != nil {
		t.Errorf("an InferencePool that no HTTPRoute of ours leads to has the status %v", got)
	}
}

// TestGraphURL: the status of an InferenceGraph says where it is reached and which of its
// services there are, also as KServe's own definition has it.
func TestGraphURL(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	begin(t, options(t), kubetest.Server(t))
	kubetest.Apply(t, c, ns, kserveSklearn)
	for _, name := range []string{"stand-in", "published"} {
		t.Run(name, func(t *testing.T) {
			if name == "published" {
				kubetest.Published(t, c, kubetest.KServeGraphs)
			}
			apply := func(service string) *unstructured.Unstructured {
				t.Helper()
				return kubetest.Apply(t, c, ns, fmt.Sprintf(`apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata: {name: %s}
spec: {nodes: {root: {routerType: Sequence, steps: [{serviceName: %s}]}}}
`, name, service))[0]
			}
			u := apply("lost")
			says := func(want string) {
				t.Helper()
				kubetest.Eventually(t, func() string {
					now := get(t, c, u)
					if got := condition(now, "Ready"); !strings.Contains(got, want) {
						return fmt.Sprintf("%q lacks %q", got, want)
					}
					if got, want := field(now, "status", "url"), "http://"+name+"."+ns+".example.com"; got != want {
						return fmt.Sprintf("url %s, not %s", got, want)
					}
					return ""
				})
			}
			says("BackendNotFound")
			apply("example-sklearn-isvc")
			says("status:True")
		})
	}
}

// kserveTrained is a model that is a service of its own.
const kserveTrained = `apiVersion: serving.kserve.io/v1alpha1
kind: TrainedModel
metadata: {name: trained}
spec:
  inferenceService: server
  model: {framework: sklearn, storageUri: "https://models.example.com/model.joblib", memory: 64Mi}
`
