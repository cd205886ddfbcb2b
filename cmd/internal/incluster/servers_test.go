package incluster

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	judge "roundhouse.dev/roundhouse/internal/decide/gatewayapi"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/pools"
)

func TestServicePort(t *testing.T) {
	sink := func(port int32) judge.ServicePort {
		return judge.ServicePort{Key: service.Key{Namespace: "team", Name: "sink"}, Port: port}
	}
	for url, want := range map[string]struct {
		at     judge.ServicePort
		inside bool
		err    string
	}{
		"http://sink":                            {sink(80), true, ""},
		"http://sink:8080/x":                     {sink(8080), true, ""},
		"http://sink.team.svc.cluster.local":     {sink(80), true, ""},
		"http://broker.knative-eventing.svc/a/b": {judge.ServicePort{}, true, "is of namespace knative-eventing"},
		"https://sink":                           {judge.ServicePort{}, true, "by http:// alone"},
		"http://sink:99999":                      {judge.ServicePort{}, true, "has no port"},
		"https://logs.example.com/x":             {judge.ServicePort{}, false, ""},
		"http://10.0.0.1":                        {judge.ServicePort{}, false, ""},
	} {
		at, inside, err := servicePort(url, "team")
		if at != want.at || inside != want.inside || (err == nil) != (want.err == "") || err != nil && !strings.Contains(err.Error(), want.err) {
			t.Errorf("%s: %v, %v, %v", url, at, inside, err)
		}
	}
}

// TestReachesPodsAlone: no EndpointSlice leads to the gateway's own machine or link.
func TestReachesPodsAlone(t *testing.T) {
	for address, pod := range map[string]bool{
		"10.1.2.3:8080": true, "[fd00::1]:80": true, "203.0.113.9:80": true,
		"127.0.0.1:80": false, "[::1]:80": false, "[::ffff:127.0.0.1]:80": false, "169.254.169.254:80": false, "[::ffff:169.254.169.254]:80": false,
		"[fe80::1]:80": false, "0.0.0.0:80": false, "[::]:80": false, "224.0.0.1:80": false, "localhost:80": false,
	} {
		got, err := new(servers).pod(service.Key{Namespace: "team", Name: "sink"}, pools.ServiceState{Addresses: []string{address}})
		if pod && (err != nil || got != address) || !pod && (err == nil || !strings.Contains(err.Error(), "no address of a pod")) {
			t.Errorf("%s: %q, %v", address, got, err)
		}
	}
}

// TestLoggers: a gateway of a cluster sends what a service's logger asks for to the
// Service of its namespace that it names, and nothing elsewhere inside.
func TestLoggers(t *testing.T) {
	r := newRig(t)
	r.api = kubetest.Client(t, "kserve")
	events := make(chan string, 10)
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		events <- q.Host + " " + q.Header.Get("Ce-Component") + " " + q.Header.Get("Ce-Type")
	}))
	t.Cleanup(sink.Close)
	_, text, _ := strings.Cut(strings.TrimPrefix(sink.URL, "http://"), ":")
	var port int
	if _, err := fmt.Sscan(text, &port); err != nil {
		t.Fatal(err)
	}
	kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(plainService, "sink"))
	r.slice("sink", port)
	m := newModel(t)
	kubetest.Apply(t, r.api, r.ns, `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    logger: {url: "http://sink/x", mode: request}
    model: {modelFormat: {name: xgboost}, protocolVersion: v2, storageUri: "https://models.test/iris.ubj"}
`)
	k := r.decide(service.ProtocolV2, "iris", m.port(), 1)
	r.endpoint(k, "iris-1", m.port(), true)
	g := r.gateway(func(o *Options) { o.Adopt = []string{"kserve"} })
	kubetest.Eventually(t, func() string {
		if _, err := g.servers.reach(r.ns, "http://sink/x"); err != nil {
			return err.Error()
		}
		return ""
	})
	kubetest.Eventually(t, func() string {
		if status, body, err := g.ask(t.Context(), "iris", ""); err != nil || status != http.StatusOK {
			return fmt.Sprint(status, body, err)
		}
		return ""
	})
	if got := <-events; got != "sink predictor org.kubeflow.serving.inference.request" {
		t.Errorf("the sink got %s", got)
	}
	for _, namespace := range []string{"other", ""} {
		if _, err := g.servers.reach(namespace, "http://sink."+r.ns+".svc"); err == nil {
			t.Errorf("a logger of namespace %q reaches the Service", namespace)
		}
	}
	if err := r.api.DeleteAllOf(t.Context(), &discoveryv1.EndpointSlice{}, client.InNamespace(r.ns), client.MatchingLabels{discoveryv1.LabelServiceName: "sink"}); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if _, err := g.servers.reach(r.ns, "http://sink/x"); err == nil || !strings.Contains(err.Error(), "has no pod that is ready") {
			return fmt.Sprint(err)
		}
		return ""
	})
	if open := r.gateway(func(o *Options) { o.Adopt, o.Internal = []string{"kserve"}, true }); open.servers != nil {
		t.Error("a gateway that may reach internal addresses looks for Services")
	}
}
