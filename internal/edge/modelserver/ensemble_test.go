package modelserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// graph is a config.pbtxt of an ensemble, of steps "MODEL IN OUT".
func graph(name, inputs, outputs string, steps ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %q\nplatform: \"ensemble\"\n", name)
	for _, side := range [][2]string{{"input", inputs}, {"output", outputs}} { // in this order: a test replaces the first type
		for _, n := range strings.Fields(side[1]) {
			fmt.Fprintf(&b, "%s [ { name: %q data_type: TYPE_FP32 dims: [ -1 ] } ]\n", side[0], n)
		}
	}
	b.WriteString("instance_group [ { kind: KIND_CPU } ] # what is not known changes nothing\nensemble_scheduling {\n")
	for _, s := range steps {
		w := strings.Fields(s)
		fmt.Fprintf(&b, "  step [ { model_name: %q model_version: -1 input_map { key: \"x\" value: %q } output_map { key: \"y\" value: %q } } ]\n", w[0], w[1], w[2])
	}
	return b.String() + "}\n"
}

// models are fakes of words, by name.
func models(words map[string]string, more map[string]string) map[string]string {
	out := map[string]string{}
	for name, word := range words {
		out[name+"/model-settings.json"] = settings("test.Fake", "model.fake", "")
		out[name+"/model.fake"] = "fake " + word
	}
	for name, text := range more {
		out[name] = text
	}
	return out
}

const askIN = `{"id":"7","inputs":[{"name":"IN","shape":[2],"datatype":"FP32","data":[1,2]}]`

// TestEnsemble: a graph's steps run in the order of their tensors, as requests to the
// server's models, and an ensemble may be a step of another.
func TestEnsemble(t *testing.T) {
	s := loaded(t, models(map[string]string{"a": "double", "b": "triple"}, map[string]string{
		"both/config.pbtxt":  graph("both", "IN", "OUT OTHER", "b MID OUT", "a IN MID", "b IN OTHER"),
		"both/3/.keep":       "",
		"outer/config.pbtxt": strings.ReplaceAll(strings.ReplaceAll(graph("outer", "IN", "OUT", "both IN MID", "a MID OUT"), `model_name: "both" model_version: -1 input_map { key: "x"`, `model_name: "both" model_version: 3 input_map { key: "IN"`), `{ key: "y" value: "MID"`, `{ key: "OUT" value: "MID"`),
	}))
	s.want(t, "POST /v2/repository/index", "", 200, `{"name":"both","version":"3","state":"READY","reason":""},{"name":"outer","version":"1","state":"READY"`)
	s.want(t, "GET /v2/models/both", "", 200, `{"name":"both","versions":["3"],"platform":"ensemble","inputs":[{"name":"IN","datatype":"FP32","shape":[-1]}],"outputs":[{"name":"OUT","datatype":"FP32","shape":[-1]},{"name":"OTHER"`)
	s.want(t, "GET /v2/models/both/config", "", 200, `"ensemble_scheduling":{"step":[{"model_name":"b","model_version":-1,"input_map":{"x":"MID"},"output_map":{"y":"OUT"}}`)
	s.want(t, "POST /v2/models/both/infer", askIN+"}", 200, `{"model_name":"both","model_version":"3","id":"7","parameters":{},"outputs":[{"name":"OUT","shape":[2],"datatype":"FP32","data":[6.0,12.0]},{"name":"OTHER","shape":[2],"datatype":"FP32","data":[3.0,6.0]}]}`)
	if n := s.infers.Load(); n != 3 {
		t.Errorf("%d steps ran, want 3", n)
	}
	// Only what is asked for runs.
	s.want(t, "POST /v2/models/both/infer", askIN+`,"outputs":[{"name":"OTHER"}]}`, 200, `"outputs":[{"name":"OTHER","shape":[2],"datatype":"FP32","data":[3.0,6.0]}]}`)
	if n := s.infers.Load(); n != 4 {
		t.Errorf("%d steps ran, want 4", n)
	}
	s.want(t, "POST /v2/models/outer/infer", askIN+"}", 200, `"data":[12.0,24.0]`)
	s.want(t, "GET /v2/models/both/stats", "", 200, `"inference_count":3`)
	s.want(t, "GET /v2/models/b/stats", "", 200, `"inference_count":4`)
	for body, says := range map[string]string{
		`{"inputs":[]}`: `input \"IN\" is missing`,
		`{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}`:    `has no input \"x\"`,
		`{"inputs":[{"name":"IN","shape":[1],"datatype":"INT8","data":[1]}]}`:   `is INT8`,
		`{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[1]}]}`: `has the shape [1 1]`,
		askIN + `,"outputs":[{"name":"MID"}]}`:                                  `has no output \"MID\"`,
	} {
		s.want(t, "POST /v2/models/both/infer", body, 400, says)
	}
}

// TestEnsembleAtOnce: steps that need nothing of one another are under way at once, and
// the first that fails ends the others.
func TestEnsembleAtOnce(t *testing.T) {
	s := loaded(t, models(map[string]string{"w": "wait", "v": "wait", "bad": "panic"}, map[string]string{
		"e/config.pbtxt": graph("e", "IN", "ONE TWO", "w IN ONE", "v IN TWO"),
		"f/config.pbtxt": graph("f", "IN", "ONE TWO", "w IN ONE", "bad IN TWO"),
	}))
	answered := make(chan string)
	go func() {
		_, text, _ := s.do(t, "POST /v2/models/e/infer", askIN+"}")
		answered <- text
	}()
	<-s.entered
	<-s.entered // before the first was let go
	s.leave <- struct{}{}
	s.leave <- struct{}{}
	if text := <-answered; strings.Count(text, "[2.0,4.0]") != 2 {
		t.Error(text)
	}
	s.want(t, "POST /v2/models/f/infer", askIN+"}", 500, `step 1 (model \"bad\"): internal error: boom`)
}

// TestEnsembleCannotRun: what is wrong with a graph is said where its model is listed,
// and never found out by running it.
func TestEnsembleCannotRun(t *testing.T) {
	s := loaded(t, models(map[string]string{"a": "double", "broken": "broken"}, map[string]string{
		"lacks/config.pbtxt":    graph("lacks", "IN", "OUT", "nothing IN OUT"),
		"unloaded/config.pbtxt": graph("unloaded", "IN", "OUT", "broken IN OUT"),
		"one/config.pbtxt":      graph("one", "IN", "OUT", "two IN OUT"),
		"two/config.pbtxt":      graph("two", "IN", "OUT", "one IN OUT"),
		"other/config.pbtxt":    graph("another", "IN", "OUT", "a IN OUT"),
		"text/config.pbtxt":     "name: \"text\"\nplatform \"ensemble\"\n",
		"none/config.pbtxt":     "platform: \"ensemble\"\n",
		"trt/config.pbtxt":      "platform: \"tensorrt_plan\"\n",
		"empty/config.pbtxt":    "backend: \"onnxruntime\"\n",
		"path/config.pbtxt":     "backend: \"onnxruntime\"\ndefault_model_filename: \"../a/model.fake\"\n",
		"path/1/.keep":          "",
		"typed/config.pbtxt":    strings.Replace(graph("typed", "IN", "OUT", "a IN OUT"), "TYPE_FP32", "TYPE_INT8", 1),
		"good/config.pbtxt":     graph("good", "IN", "OUT", "a IN OUT"),
	}))
	reasons := map[string]string{}
	for _, m := range s.Index(false) {
		reasons[m.Name] = m.Reason
	}
	for name, says := range map[string]string{
		"lacks": `step 0 (model "nothing"): Model nothing not found`, "unloaded": `step 0 (model "broken"): Model broken is not ready`, "one": "lead back to it", "two": "lead back to it",
		"other": `name "another" is not that of the folder`, "text": "line 2", "none": "no ensemble_scheduling", "trt": `the backend "tensorrt_plan" is not served here`,
		"empty": "no folder of a version", "path": "is not the name of a file", "typed": "INT8", "good": "",
	} {
		if !strings.Contains(reasons[name], says) || says == "" && reasons[name] != "" {
			t.Errorf("%s: %q, want %q", name, reasons[name], says)
		}
	}
	s.want(t, "POST /v2/models/good/infer", askIN+"}", 200, "[2.0,4.0]")
	// A model that goes takes the ensemble's readiness along, and comes back with it.
	s.want(t, "POST /v2/repository/models/a/unload", "", 200, "")
	s.want(t, "GET /v2/models/good/ready", "", 400, "")
	s.want(t, "POST /v2/models/good/infer", askIN+"}", 503, `step 0 (model \"a\")`)
	s.want(t, "POST /v2/repository/models/good/load", "", 200, "")
	s.want(t, "POST /v2/models/good/infer", askIN+"}", 200, "[2.0,4.0]")
	// A model that becomes an ensemble of one that it is part of is refused.
	if err := os.Remove(filepath.Join(s.folder, "a", "model-settings.json")); err != nil {
		t.Fatal(err)
	}
	write(t, s.folder, map[string]string{"a/config.pbtxt": strings.ReplaceAll(strings.ReplaceAll(graph("a", "x", "y", "good x y"), `{ key: "x"`, `{ key: "IN"`), `{ key: "y"`, `{ key: "OUT"`), "a/1/.keep": ""})
	s.want(t, "POST /v2/repository/models/a/load", "", 400, "lead back to it")
}

// FuzzTritonConfig: whatever a config.pbtxt holds, reading it ends.
func FuzzTritonConfig(f *testing.F) {
	f.Add([]byte(graph("e", "IN", "OUT", "a IN OUT")))
	f.Add([]byte("version_policy: { specific: { versions: [1, 2] } }\nmax_batch_size: 8\nparameters { key: \"a\" value: { string_value: \"b\" } }"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseTritonConfig(text)
		if err != nil {
			return
		}
		if e, err := ensembleOf("e", c); err == nil && len(e.Steps) != len(c.EnsembleScheduling.Step) {
			t.Errorf("%d steps of %d", len(e.Steps), len(c.EnsembleScheduling.Step))
		}
	})
}
