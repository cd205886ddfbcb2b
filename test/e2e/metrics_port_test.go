package e2e

import (
	"encoding/json"
	"net"
	"strings"
	"testing"
)

// twoPorts answers requests on one port and tells its load on another, under
// Triton's names; a request's answer is how often the load was read.
const twoPorts = `
import http.server, sys, threading
read = 0
class Inference(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("{}")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer('{"read": %d}' % read)
    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *args): pass
class Metrics(Inference):
    def do_GET(self):
        global read
        read += self.path == "/stats"
        self.answer('nv_inference_pending_request_count{model="m",version="1"} 7\n')
port, metrics = (int(a.split("=")[1]) for a in sys.argv[1:3])
threading.Thread(target=http.server.ThreadingHTTPServer(("127.0.0.1", metrics), Metrics).serve_forever, daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", port), Inference).serve_forever()
`

// TestLoadIsReadFromThePortOfMetrics: a runtime whose metrics are on a port of
// their own is asked there for its load, for its service as for a pool, whether
// KServe's annotations state the port or our own runtime's field.
func TestLoadIsReadFromThePortOfMetrics(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	dir := t.TempDir()
	engine := write(t, dir, "engine.py", twoPorts)
	n.do("apply", "--wait", "-f", write(t, dir, "all.yaml", `apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: annotated}
spec:
  annotations: {prometheus.kserve.io/port: "8002", prometheus.kserve.io/path: /stats}
  supportedModelFormats: [{name: annotated}]
  protocolVersions: [v2]
  containers:
  - name: kserve-container
    image: example.com/engine
    command: [python3, `+engine+`, --port=8000, --metrics-port=8002]
    ports: [{containerPort: 8000}]
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: annotated, labels: {app: two-ports}}
spec: {predictor: {model: {modelFormat: {name: annotated}, runtime: annotated, protocolVersion: v2}}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: stated, labels: {app: two-ports}}
spec:
  protocol: v2
  engine:
    metrics: {path: /stats}
    local: {command: [python3, `+engine+`, "--port={{.Port}}", "--metrics-port={{.MetricsPort}}"]}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: both}
spec: {protocol: v2, selector: {app: two-ports}}
`))
	for _, name := range []string{"annotated", "stated"} {
		r := n.service("default/" + name).Replicas[0]
		host, path, _ := strings.Cut(r.Metrics, "/")
		if _, port, err := net.SplitHostPort(host); err != nil || path != "stats" || strings.HasSuffix(r.HTTP, ":"+port) {
			t.Errorf("%s tells its load at %q, takes requests at %q", name, r.Metrics, r.HTTP)
		}
		eventually(t, "the load of "+name+" is read", func() (bool, string) {
			a := n.post("/v2/models/"+name+"/infer", `{"inputs":[]}`)
			return a.status == 200 && !strings.Contains(a.body, `"read": 0}`), a.body
		})
	}
	eventually(t, "the pool knows both loads", func() (bool, string) {
		raw := n.get(n.admin+"/api/v1/routing", "Authorization", "Bearer "+n.token())
		var all []struct {
			Endpoints []struct{ Load struct{ Waiting int } }
		}
		if err := json.Unmarshal([]byte(raw.body), &all); err != nil {
			t.Fatalf("%v in %s", err, raw)
		}
		known := 0
		for _, o := range all {
			for _, e := range o.Endpoints {
				if e.Load.Waiting == 7 {
					known++
				}
			}
		}
		return known == 2, raw.body
	})
}
