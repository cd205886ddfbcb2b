package engines

import (
	"strings"
	"testing"
)

// mlserverService is a service of MLServer: its format is sklearn, and its folder
// may hold custom code.
func mlserverService(name, folder, scaling string) string {
	return predictor(name, scaling, `model: {modelFormat: {name: sklearn}, runtime: kserve-mlserver, protocolVersion: v2, storageUri: "file://`+folder+`"}`)
}

// measured is a service of MLServer with its metrics, which the catalog's entry
// turns off, on a port of their own.
func measured(manifest string) string {
	manifest = strings.Replace(manifest, "kind: InferenceService\nmetadata: {", `kind: InferenceService
metadata: {annotations: {prometheus.kserve.io/port: "8082"}, `, 1)
	return strings.Replace(manifest, "model: {", `model: {env: [{name: MLSERVER_METRICS_ENDPOINT, value: /metrics}, {name: MLSERVER_METRICS_PORT, value: "{{.MetricsPort}}"}], `, 1)
}

// TestMLServer asks MLServer for a model of scikit-learn and for custom code.
func TestMLServer(t *testing.T) {
	t.Parallel()
	bin := mlserver.needs(t, "mlserver", "python")
	n, folder := startNode(t, bin), models(t, bin)
	const one = "minReplicas: 1\n    maxReplicas: 1"
	n.apply(mlserverService("sorted", folder+"/sklearn", "minReplicas: 0") + "---\n" + mlserverService("double", folder+"/mlserver/double", one) + "---\n" +
		measured(mlserverService("count", folder+"/mlserver/count", one)) + "---\n" + mlserverService("absent", folder+"/triton", one))
	if a := n.post("/v2/models/sorted/infer", `{"inputs":[{"name":"x","datatype":"FP32","shape":[2,1],"data":[1,9]}]}`); a.status != 200 || !strings.Contains(a.body, `"data":[0,1]`) {
		t.Errorf("the classes of 1 and 9: %s", a)
	}
	doubles(t, n.post("/v2/models/double/infer", vector))
	n.overGRPCDoubles()
	was := n.ready("count", 1)[0]
	const ask = `{"inputs":[{"name":"N","datatype":"INT64","shape":[1],"data":[10000]}]}`
	// Ten thousand numbers take minutes, unless MLServer learns that nobody reads them.
	const running = "rest_server_requests_in_progress"
	s := n.stream("/v2/models/count/infer_stream", ask)
	n.figure(was.metrics(), running, 1)
	s.cancel()
	n.figure(was.metrics(), running, 0)
	s = n.stream("/v2/models/count/infer_stream", ask)
	n.scraped()
	n.mlserverReads(was.metrics())
	kill(t, was.PID)
	events := s.rest()
	contains(t, events[len(events)-1], "event: error\ndata: {\"error\":")
	n.restarted("count", was.PID)
	n.killedUnanswered("count", func() answer {
		return n.post("/v2/models/count/infer_stream", strings.Replace(ask, "10000", "3", 1))
	})
	s = n.stream("/v2/models/count/infer_stream", ask)
	n.edited("count", strings.Replace(measured(mlserverService("count", folder+"/mlserver/count", one)), "env: [", "env: [{name: REVISION, value: next}, ", 1), s)
	n.eventually("get names the cause", func() (bool, string) {
		out := n.do("get", "absent")
		return strings.Contains(out, "Is a directory: '"+folder+"/triton'"), out
	})
	t.Log(n.do("get", "absent"))
}
