//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// TestGatewayAPI has the Gateway API's objects lead requests to pods that really
// run: of pools, of services, of two tenants. The steps build on one another.
func TestGatewayAPI(t *testing.T) {
	p := &product{Cluster: node.Get(t)}
	p.live(t, []string{"Install", "DefinitionsComeLater"}, []step{
		{"Install", 0, gatewayInstall},
		{"DefinitionsComeLater", 0, gatewayDefinitions},
		{"PoolOfPods", 0, gatewayPool},
		{"RouteBeforeItsPool", 0, gatewayRouteFirst},
		{"ModelService", 0, gatewayService},
		{"Weights", 0, gatewayWeights},
		{"Tenants", 0, gatewayTenants},
		{"Envoy", 0, gatewayEnvoy},
		{"Deletion", 0, gatewayDeletion},
		{"Uninstall", 0, gatewayUninstall},
	})
}

// gatewayValues are the chart's; what comes with the Gateway API's definitions
// is appended.
const gatewayValues = `
image: {repository: roundhouse.local/roundhouse, tag: e2e, pullPolicy: Never}
controller: {resources: {requests: {cpu: 50m}}}
endpointPicker: {namespaces: [blue], resources: {requests: {cpu: 50m}}}
gateway:
  url: "http://{name}.{namespace}.` + domain + `"
  resources: {requests: {cpu: 50m}}
`

// gatewayInstall installs Roundhouse where nothing of the Gateway API is.
func gatewayInstall(ctx context.Context, p *product) {
	for _, ns := range []string{"red", "blue"} {
		p.do(p.ApplyYAML(ctx, fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {roundhouse.dev/adopt: gateway, tenant: %[1]s}}\n", ns)))
	}
	manifests, err := chart(ctx, gatewayValues)
	p.do(err)
	p.do(p.ApplyYAML(ctx, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+system+"}\n---\n"+manifests))
	p.do(p.AwaitRollout(ctx, system, controller))
	p.do(p.AwaitRollout(ctx, system, gateway))
	var s corev1.Service
	p.do(p.Get(ctx, client.ObjectKey{Namespace: system, Name: gateway}, &s))
	p.address = net.JoinHostPort(s.Spec.ClusterIP, "80")
}

// The kinds of the Gateway API.
var (
	kindClass   = schema.GroupVersionKind{Group: "gateway.networking.k8s.io", Version: "v1", Kind: "GatewayClass"}
	kindGateway = schema.GroupVersionKind{Group: "gateway.networking.k8s.io", Version: "v1", Kind: "Gateway"}
	kindRoute   = schema.GroupVersionKind{Group: "gateway.networking.k8s.io", Version: "v1", Kind: "HTTPRoute"}
	kindPool    = schema.GroupVersionKind{Group: "inference.networking.k8s.io", Version: "v1", Kind: "InferencePool"}
)

// What is said of an object with which all is well.
const (
	fine       = "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"
	programmed = "Accepted=True/Accepted Programmed=True/Programmed"
)

// stated are the conditions of a list, sorted, "Type=Status/Reason"; those that
// are not of the object's newest generation say so.
func stated(u *unstructured.Unstructured, list any) string {
	var out []string
	all, _ := list.([]any)
	for _, c := range all {
		c, _ := c.(map[string]any)
		text := fmt.Sprintf("%s=%s/%s", c["type"], c["status"], c["reason"])
		if c["observedGeneration"] != u.GetGeneration() {
			text += " (stale)"
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// states waits until an object's own conditions are as wanted.
func (p *product) states(ctx context.Context, kind schema.GroupVersionKind, namespace, name, want string) *unstructured.Unstructured {
	p.t.Helper()
	return p.await(ctx, kind, namespace, name, kind.Kind+" is "+want, func(u *unstructured.Unstructured) bool {
		list, _, _ := unstructured.NestedFieldNoCopy(u.Object, "status", "conditions")
		return stated(u, list) == want
	})
}

// parented waits until our conditions of an object are as wanted, by Gateway:
// "gateway: Type=Status/Reason …".
func (p *product) parented(ctx context.Context, kind schema.GroupVersionKind, namespace, name string, want ...string) {
	p.t.Helper()
	p.await(ctx, kind, namespace, name, fmt.Sprintf("%s has the parents %q", kind.Kind, want), func(u *unstructured.Unstructured) bool {
		all, _, _ := unstructured.NestedSlice(u.Object, "status", "parents")
		var got []string
		for _, e := range all {
			e := e.(map[string]any)
			ref, _ := e["parentRef"].(map[string]any)
			if e["controllerName"] != "roundhouse.dev/gateway" {
				got = append(got, "of somebody else")
				continue
			}
			got = append(got, fmt.Sprintf("%s: %s", ref["name"], stated(u, e["conditions"])))
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}

// gatewayDefinitions installs the definitions as they are published, and a
// Gateway: programs that run already serve it.
func gatewayDefinitions(ctx context.Context, p *product) {
	kubetest.Published(p.t, p, kubetest.GatewayAPI, kubetest.InferenceExtension)
	manifests, err := chart(ctx, gatewayValues+"gatewayClass: {create: true}\n")
	p.do(err)
	p.do(p.ApplyYAML(ctx, manifests+`
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front, namespace: `+system+`}
spec:
  gatewayClassName: roundhouse
  listeners:
  - {name: web, port: 80, protocol: HTTP, hostname: "*.shop.test", allowedRoutes: {namespaces: {from: All}}}
  - {name: red, port: 80, protocol: HTTP, hostname: "*.red.test", allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {tenant: red}}}}}
`))
	p.states(ctx, kindClass, "", "roundhouse", "Accepted=True/Accepted SupportedVersion=True/SupportedVersion")
	u := p.states(ctx, kindGateway, system, "front", programmed)
	address, _, _ := unstructured.NestedSlice(u.Object, "status", "addresses")
	if len(address) != 1 || net.JoinHostPort(fmt.Sprint(address[0].(map[string]any)["value"]), "80") != p.address {
		p.t.Errorf("the Gateway has the addresses %v, its Service is at %s", address, p.address)
	}
	for _, d := range []string{controller, gateway} {
		if n := p.restarts(ctx, d); n > 0 {
			p.t.Errorf("%s restarted %d times", d, n)
		}
	}
}

// engines is a Deployment of plain pods; each serves its own name and "any".
const engines = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: engine
        image: ` + node.Image + `
        imagePullPolicy: Never
        args: [simulate, engine, --host, 0.0.0.0, --port, "8000", --model, %[2]s, --model, any, --speed, "20"]
        ports: [{containerPort: 8000}]
        readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 1}
        resources: {requests: {cpu: 10m}}
`

// poolOf is a pool of such pods; picker is what its endpointPickerRef says.
const poolOf = `
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: %[2]s}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: %[3]s, port: {number: 9002}, failureMode: FailOpen}
`

// pickerService is what a pool's endpointPickerRef names where nothing runs
// behind it.
const pickerService = `
apiVersion: v1
kind: Service
metadata: {name: picker, namespace: %[1]s}
spec: {selector: {app: picker}, ports: [{port: 9002, appProtocol: kubernetes.io/h2c}]}
`

const routeTo = `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  parentRefs: [{name: front, namespace: ` + system + `}]
  hostnames: [%[3]s]
  rules: [{backendRefs: [%[4]s]}]
`

// toPool is a reference of a backend.
func toPool(name string) string {
	return "{group: inference.networking.k8s.io, kind: InferencePool, name: " + name + "}"
}

// asks is a request for a model at a host; want is the answer's status.
func (p *product) asks(host, model string, want int) request {
	return request{p.address, host, "/v1/completions", `{"model":"` + model + `","max_tokens":1,"prompt":"Hello"}`, func(status int, body []byte) error {
		if status != want {
			return fmt.Errorf("status %d, want %d: %.300s", status, want, body)
		}
		return nil
	}}
}

// gets waits until both gateways answer as wanted: each hears of changes by
// itself.
func (p *product) gets(ctx context.Context, r request) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, pod := range p.pods(ctx, system, gateway) {
		r.address = net.JoinHostPort(pod.Status.PodIP, "8080")
		for {
			err := r.do(ctx, http.DefaultClient)
			if err == nil {
				break
			}
			select {
			case <-time.After(100 * time.Millisecond): // nobody says when a gateway has heard
			case <-ctx.Done():
				p.t.Fatalf("%s at %s: %v", r.body, r.host, err)
			}
		}
	}
}

// gatewayPool: a pool of plain pods is reached by the host of its route, and by
// no other.
func gatewayPool(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, fmt.Sprintf(engines, "red", "ruby", 2)+"---"+fmt.Sprintf(engines, "red", "rust", 1)+"---"+fmt.Sprintf(pickerService, "red")+
		"---"+fmt.Sprintf(poolOf, "red", "ruby", "picker")+"---"+fmt.Sprintf(routeTo, "red", "ruby", "ruby.shop.test", toPool("ruby"))))
	p.do(p.AwaitRollout(ctx, "red", "ruby"))
	p.parented(ctx, kindRoute, "red", "ruby", "front: "+fine)
	p.parented(ctx, kindPool, "red", "ruby", "front: "+fine)
	p.gets(ctx, p.asks("ruby.shop.test", "ruby", 200))
	p.gets(ctx, p.asks("ruby.shop.test", "rust", 404)) // of the engine: the pool passes every name through
	p.asks("rust.shop.test", "ruby", 404).must(p.t)
}

// gatewayRouteFirst: a route whose pool is not there is answered 500 and says
// so; it leads there once it is.
func gatewayRouteFirst(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, fmt.Sprintf(routeTo, "red", "rust", "rust.red.test", toPool("rust"))))
	p.parented(ctx, kindRoute, "red", "rust", "front: Accepted=True/Accepted ResolvedRefs=False/BackendNotFound")
	p.gets(ctx, p.asks("rust.red.test", "rust", 500))
	p.do(p.ApplyYAML(ctx, fmt.Sprintf(poolOf, "red", "rust", "picker")))
	p.parented(ctx, kindRoute, "red", "rust", "front: "+fine)
	p.parented(ctx, kindPool, "red", "rust", "front: "+fine)
	p.do(p.AwaitRollout(ctx, "red", "rust"))
	p.gets(ctx, p.asks("rust.red.test", "rust", 200))
}

// gatewayService: a route leads to a service of ours that sleeps, and wakes it.
func gatewayService(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: sleeper, namespace: red, labels: {bed: "1"}}
spec:
  model: {format: {name: simulator}}
  scaling: {minReplicas: 0, maxReplicas: 1}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: beds, namespace: red}
spec:
  selector: {matchLabels: {bed: "1"}}
  targetPorts: [{number: 8080}]
  endpointPickerRef: {name: picker, port: {number: 9002}, failureMode: FailOpen}
---`+fmt.Sprintf(routeTo, "red", "sleeper", "sleeper.shop.test", "{name: sleeper, port: 80}")+
		"---"+fmt.Sprintf(routeTo, "red", "beds", "beds.shop.test", toPool("beds"))))
	p.parented(ctx, kindRoute, "red", "sleeper", "front: "+fine)
	p.parented(ctx, kindRoute, "red", "beds", "front: "+fine)
	p.awaitReplicas(ctx, "red", "sleeper", 0)
	p.gets(ctx, p.asks("sleeper.shop.test", "sleeper", 200))
	p.awaitReplicas(ctx, "red", "sleeper", 1)
	p.gets(ctx, p.asks("beds.shop.test", "sleeper", 200))
}

// served is how many tokens of prompts the pods of a Deployment have read.
func (p *product) served(ctx context.Context, namespace, deployment string) (n int) {
	p.t.Helper()
	for _, pod := range p.pods(ctx, namespace, deployment+"-") {
		res, err := http.Get("http://" + net.JoinHostPort(pod.Status.PodIP, "8000") + "/simulate/state")
		p.do(err)
		var state struct {
			PromptTokens int `json:"prompt_tokens"`
		}
		err = json.NewDecoder(res.Body).Decode(&state)
		_ = res.Body.Close()
		p.do(err)
		n += state.PromptTokens
	}
	return n
}

// gatewayWeights: two pools have three and one of four requests.
func gatewayWeights(ctx context.Context, p *product) {
	weighted := func(name string, weight int) string {
		return strings.Replace(toPool(name), "}", fmt.Sprintf(", weight: %d}", weight), 1)
	}
	p.do(p.ApplyYAML(ctx, fmt.Sprintf(routeTo, "red", "mix", "mix.shop.test", weighted("ruby", 3)+", "+weighted("rust", 1))))
	p.parented(ctx, kindRoute, "red", "mix", "front: "+fine)
	p.gets(ctx, p.asks("mix.shop.test", "any", 200))
	ruby, rust := p.served(ctx, "red", "ruby"), p.served(ctx, "red", "rust")
	const n = 400
	for range n {
		p.asks("mix.shop.test", "any", 200).must(p.t)
	}
	ruby, rust = p.served(ctx, "red", "ruby")-ruby, p.served(ctx, "red", "rust")-rust
	share := float64(ruby) / float64(ruby+rust)
	p.t.Logf("ruby had %.3f of %d requests", share, n)
	if share < 0.66 || share > 0.84 { // four standard deviations
		p.t.Errorf("ruby, whose weight is 3 of 4, had %.3f of the requests", share)
	}
}

// gatewayTenants: equal names in two namespaces stay apart, and neither reaches
// the other's without its leave.
func gatewayTenants(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, fmt.Sprintf(engines, "blue", "sky", 2)+"---"+fmt.Sprintf(strings.Replace(poolOf, "{app: %[2]s}", "{app: sky}", 1), "blue", "ruby", "roundhouse-endpoint-picker")+
		"---"+fmt.Sprintf(routeTo, "blue", "ruby", "ruby.blue.test", toPool("ruby"))+ // no listener has this host
		"---"+fmt.Sprintf(routeTo, "blue", "mine", "mine.shop.test", toPool("ruby"))+
		"---"+fmt.Sprintf(routeTo, "blue", "intruder", "intruder.red.test", toPool("ruby"))+
		"---"+fmt.Sprintf(routeTo, "blue", "theirs", "theirs.shop.test", strings.Replace(toPool("ruby"), "}", ", namespace: red}", 1))))
	p.do(p.AwaitRollout(ctx, "blue", "sky"))
	p.parented(ctx, kindRoute, "blue", "mine", "front: "+fine)
	p.parented(ctx, kindPool, "blue", "ruby", "front: "+fine)
	p.gets(ctx, p.asks("mine.shop.test", "sky", 200))
	p.asks("ruby.shop.test", "sky", 404).must(p.t) // the other tenant's pool of this name
	p.parented(ctx, kindRoute, "blue", "ruby", "front: Accepted=False/NoMatchingListenerHostname ResolvedRefs=True/ResolvedRefs")
	p.parented(ctx, kindRoute, "blue", "intruder", "front: Accepted=False/NoMatchingListenerHostname ResolvedRefs=True/ResolvedRefs")
	p.gets(ctx, p.asks("intruder.red.test", "sky", 404))

	refused := "front: Accepted=True/Accepted ResolvedRefs=False/RefNotPermitted"
	p.parented(ctx, kindRoute, "blue", "theirs", refused)
	p.gets(ctx, p.asks("theirs.shop.test", "ruby", 500))
	grant := `
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: blue, namespace: red}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: blue}]
  to: [{group: inference.networking.k8s.io, kind: InferencePool, name: ruby}]
`
	p.do(p.ApplyYAML(ctx, grant))
	p.parented(ctx, kindRoute, "blue", "theirs", "front: "+fine)
	p.gets(ctx, p.asks("theirs.shop.test", "ruby", 200))
	p.do(p.DeleteYAML(ctx, grant))
	p.parented(ctx, kindRoute, "blue", "theirs", refused)
	p.gets(ctx, p.asks("theirs.shop.test", "ruby", 500))
}

// gatewayDeletion takes a pool, routes and the Gateway away, each of which
// leaves nothing behind.
func gatewayDeletion(ctx context.Context, p *product) {
	remove := func(namespace, what string) {
		p.t.Helper()
		_, err := p.Kubectl(ctx, "delete", what, "--namespace", namespace, "--wait")
		p.do(err)
	}
	remove("red", "inferencepool/rust")
	p.parented(ctx, kindRoute, "red", "rust", "front: Accepted=True/Accepted ResolvedRefs=False/BackendNotFound")
	p.gets(ctx, p.asks("rust.red.test", "rust", 500))
	remove("red", "httproute/rust")
	p.gets(ctx, p.asks("rust.red.test", "rust", 404))
	remove("red", "httproute/mix")
	p.parented(ctx, kindPool, "red", "ruby", "front: "+fine)
	remove("red", "httproute/ruby")
	remove("blue", "httproute/theirs")
	p.parented(ctx, kindPool, "red", "ruby")
	p.gets(ctx, p.asks("ruby.shop.test", "ruby", 404))
	p.asks("mine.shop.test", "sky", 200).must(p.t)
	remove(system, "gateway/front")
	p.parented(ctx, kindRoute, "blue", "mine")
	p.parented(ctx, kindPool, "blue", "ruby")
	p.gets(ctx, p.asks("mine.shop.test", "sky", 404))
}

// gatewayUninstall takes the product and the definitions away.
func gatewayUninstall(ctx context.Context, p *product) {
	_, err := p.Kubectl(ctx, "delete", "namespace", "red", "blue", "--wait")
	p.do(err)
	manifests, err := chart(ctx, gatewayValues+"gatewayClass: {create: true}\n")
	p.do(err)
	p.do(p.DeleteYAML(ctx, manifests))
	p.gone(ctx)
	crds, err := p.Kubectl(ctx, "get", "customresourcedefinitions", "-o", "name")
	p.do(err)
	for crd := range strings.FieldsSeq(crds) {
		if strings.Contains(crd, "networking") {
			_, err := p.Kubectl(ctx, "delete", crd)
			p.do(err)
		}
	}
}
