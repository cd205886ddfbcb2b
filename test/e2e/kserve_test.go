package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// runBeside is a transformer or an explainer as anybody may write one, with KServe's
// arguments: it asks its predictor and says who answers, in its own words or in those of
// files. This test's own binary is the program.
func runBeside(args []string) {
	flags := flag.NewFlagSet("beside", flag.ExitOnError)
	name, predictor := flags.String("model_name", "", ""), flags.String("predictor_host", "", "")
	port, says, files := flags.String("http_port", "", ""), flags.String("says", "", ""), flags.String("says_files", "", "")
	_ = flags.Parse(args)
	for file := range strings.FieldsFuncSeq(*files, func(r rune) bool { return r == ',' }) {
		b, err := os.ReadFile(file)
		if err != nil {
			fmt.Fprintln(os.Stderr, "beside:", err)
			os.Exit(1)
		}
		*says += string(b)
	}
	err := http.ListenAndServe("127.0.0.1:"+*port, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := http.Post("http://"+*predictor+"/v1/models/"+*name+":predict", "application/json", r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = answer.Body.Close() }()
		b, err := io.ReadAll(answer.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.WriteHeader(answer.StatusCode)
		_, _ = w.Write(bytes.Replace(b, []byte("{"), []byte(`{"by":"`+*says+`",`), 1))
	}))
	fmt.Fprintln(os.Stderr, "beside:", err)
	os.Exit(1)
}

// TestKServeComponents: a transformer, an explainer, a logger, a batcher, a trained
// model and a graph over them serve on one machine, asleep at first.
func TestKServeComponents(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan string, 100)
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		events <- r.Header.Get("Ce-Component") + " " + r.Header.Get("Ce-Type")
	}))
	defer sink.Close()
	beside := func(role string) string {
		return fmt.Sprintf(`  %s:
    minReplicas: 0
    containers:
    - {name: kserve-container, image: example/x:1, command: [sh, -c, %q, sh], args: [--says, %s, --http_port, "8080"]}
`, role, "exec "+self+` beside "$@"`, role)
	}
	n := startNode(t)
	n.do("apply", "-f", write(t, t.TempDir(), "all.yaml", `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: full}
spec:
  predictor:
    minReplicas: 0
    logger: {mode: request, url: "`+sink.URL+`"}
    model: {modelFormat: {name: xgboost}, storageUri: "`+modelURI("iris.ubj")+`"}
`+beside("transformer")+beside("explainer")+`---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: plain}
spec:
  predictor:
    minReplicas: 0
    batcher: {maxBatchSize: 8, maxLatency: 5}
    model: {modelFormat: {name: xgboost}, storageUri: "`+modelURI("iris.ubj")+`"}
---
apiVersion: serving.kserve.io/v1alpha1
kind: TrainedModel
metadata: {name: trained}
spec:
  inferenceService: plain
  model: {framework: xgboost, storageUri: "`+modelURI("iris.ubj")+`", memory: 64Mi}
---
apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata: {name: graph}
spec:
  nodes:
    root:
      routerType: Ensemble
      steps: [{serviceName: full, name: one}, {serviceName: plain, name: two}]
`))
	const body = `{"instances":[[5.1,3.5,1.4,0.2]]}`
	for _, tt := range []struct {
		path, host string
		want       []string
	}{
		{"/v1/models/full:explain", "", []string{`"by":"explainer"`, `"predictions"`}},
		{"/v1/models/full:predict", "", []string{`"by":"transformer"`, `"predictions"`}},
		{"/v1/models/plain:predict", "", []string{`"batchId"`, `"predictions"`}},
		{"/v1/models/trained:predict", "plain.default.localhost", []string{`"predictions"`}},
		{"/", "graph.default.localhost", []string{`"one":{"by":"transformer"`, `"two":{"message"`}},
	} {
		var header []string
		if tt.host != "" {
			header = []string{"Host", tt.host}
		}
		a := n.post(tt.path, body, header...)
		for _, want := range tt.want {
			if a.status != http.StatusOK || !strings.Contains(a.body, want) {
				t.Errorf("%s: got %s, want %s", tt.path, a, want)
			}
		}
	}
	for range 3 { // of the explanation, the prediction and the graph
		if e := next(t, events); e != "predictor org.kubeflow.serving.inference.request" {
			t.Errorf("an event of %s", e)
		}
	}
	if out := n.do("get", "inferencegraphs"); !strings.Contains(out, "graph") {
		t.Errorf("no graph is listed:\n%s", out)
	}
}

// next is the next event.
func next(t *testing.T, events <-chan string) string {
	t.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(30 * time.Second):
		t.Fatal("no event came within 30 s")
		return ""
	}
}
