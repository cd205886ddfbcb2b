package e2e

import (
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"testing"
)

const (
	irisRow     = `{"instances":[[5.1,3.5,1.4,0.2]]}`
	irisTensor  = `{"inputs":[{"name":"input-0","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`
	chatRequest = `{"model":"chat","max_tokens":24,"messages":[{"role":"user","content":"Hello"}]`
)

// argmax of one row of class probabilities, which have to add up to 1.
func argmax(t *testing.T, row []float64) int {
	t.Helper()
	best, sum := 0, 0.0
	for i, p := range row {
		sum += p
		if p > row[best] {
			best = i
		}
	}
	if math.Abs(sum-1) > 1e-5 {
		t.Errorf("probabilities %v add up to %g", row, sum)
	}
	return best
}

func (n *node) infer(path, body string) []float64 {
	n.t.Helper()
	var out struct {
		Outputs []struct{ Data []float64 }
	}
	a := n.post(path, body)
	if err := json.Unmarshal([]byte(a.body), &out); a.status != 200 || err != nil || len(out.Outputs) == 0 {
		n.t.Fatalf("%s answers %s (%v)", path, a, err)
	}
	return out.Outputs[0].Data
}

func TestQuickstart(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	t.Run("iris over v2", func(t *testing.T) {
		n := n.on(t)
		row := n.infer("/v2/models/iris/infer", read(t, filepath.Join(root, "examples/quickstart/iris-request.json")))
		if len(row) != 3 || argmax(t, row) != 0 {
			t.Errorf("the sample is a setosa, class 0 of 3; got %v", row)
		}
	})
	t.Run("iris over v1", func(t *testing.T) {
		n := n.on(t)
		a := n.post("/v1/models/iris:predict", irisRow)
		var out struct{ Predictions [][]float64 }
		if err := json.Unmarshal([]byte(a.body), &out); err != nil || len(out.Predictions) != 1 || argmax(t, out.Predictions[0]) != 0 {
			t.Errorf("want class 0, got %s", a)
		}
	})
	t.Run("digits, a manifest of KServe's", func(t *testing.T) {
		n := n.on(t)
		row := n.infer("/v2/models/digits/infer", read(t, filepath.Join(root, "examples/quickstart/digits-request.json")))
		if len(row) != 10 || argmax(t, row) != 0 {
			t.Errorf("the sample is the digit 0 of 10; got %v", row)
		}
	})
	t.Run("chat", func(t *testing.T) { n.on(t).chatsWhole(t) })
	t.Run("chat streaming", func(t *testing.T) { n.on(t).chatsStreaming(t) })
	t.Run("what is printed works", func(t *testing.T) { n.on(t).printedCommandsAreTrue(t) })
	t.Run("lists", func(t *testing.T) { n.on(t).listsModels(t) })
	t.Run("repository", func(t *testing.T) { n.on(t).loadsAndUnloads(t) })
}

func (n *node) chatsWhole(t *testing.T) {
	a := n.post("/v1/chat/completions", chatRequest+"}")
	var out struct {
		Choices []struct {
			Message struct{ Content string }
		}
		Usage struct {
			CompletionTokens int `json:"completion_tokens"`
		}
	}
	if err := json.Unmarshal([]byte(a.body), &out); a.status != 200 || err != nil || len(out.Choices) != 1 {
		t.Fatalf("got %s (%v)", a, err)
	}
	contains(t, out.Choices[0].Message.Content, "simulator")
	if out.Usage.CompletionTokens != 24 {
		t.Errorf("24 tokens were asked for, %d counted", out.Usage.CompletionTokens)
	}
}

func (n *node) chatsStreaming(t *testing.T) {
	a := n.post("/v1/chat/completions", chatRequest+`,"stream":true}`)
	if ct := a.header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		t.Errorf("Content-Type is %q", ct)
	}
	events := strings.Split(strings.TrimSpace(a.body), "\n\n")
	if len(events) < 10 || events[len(events)-1] != "data: [DONE]" {
		t.Fatalf("want an event per token and [DONE], got %d:\n%s", len(events), a.body)
	}
	var text strings.Builder
	for _, e := range events[:len(events)-1] {
		var out struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(e, "data: ")), &out); err != nil {
			t.Fatalf("%v in %s", err, e)
		}
		for _, c := range out.Choices {
			text.WriteString(c.Delta.Content)
		}
	}
	contains(t, text.String(), "simulator")
}

// printedCommandsAreTrue checks the curl lines that up prints: each is answered
// by what its service is for.
func (n *node) printedCommandsAreTrue(t *testing.T) {
	lines := 0
	for line := range strings.Lines(n.out.String()) {
		url, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "curl "), "-N "), " ")
		if !strings.HasPrefix(url, n.gateway) {
			continue
		}
		lines++
		a := n.get(url)
		if data, ok := strings.CutPrefix(rest, "-H 'Content-Type: application/json' -d "); ok {
			data = strings.Trim(data, "'")
			if file, ok := strings.CutPrefix(data, "@"); ok {
				data = read(t, filepath.Join(n.cwd, file))
			}
			a = n.post(strings.TrimPrefix(url, n.gateway), data)
		}
		if a.status != 200 || !strings.Contains(a.body, `"outputs"`) && !strings.Contains(a.body, `"choices"`) {
			t.Errorf("%s: %s", line, a)
		}
	}
	if lines != 3 {
		t.Errorf("want curl lines for three services, got:\n%s", n.out)
	}
}

func (n *node) listsModels(t *testing.T) {
	var models struct {
		Data   []struct{ ID string }
		Models []string
	}
	if a := n.get(n.gateway + "/v1/models"); json.Unmarshal([]byte(a.body), &models) != nil || len(models.Data) != 3 || len(models.Models) != 3 {
		t.Errorf("/v1/models: want data and models of three, got %s", a)
	}
	contains(t, n.get(n.gateway+"/v2").body, `"name":"roundhouse"`, `"model_repository"`)
	contains(t, n.get(n.gateway+"/v2/models/iris").body, `"platform":"xgboost"`, `"inputs"`)
	for _, path := range []string{"/v2/health/live", "/v2/health/ready", "/v2/models/iris/ready"} {
		if a := n.get(n.gateway + path); a.status != 200 {
			t.Errorf("%s: %s", path, a)
		}
	}
}

func (n *node) loadsAndUnloads(t *testing.T) {
	state := func(name string) string {
		var index []struct{ Name, State string }
		a := n.post("/v2/repository/index", "{}")
		if err := json.Unmarshal([]byte(a.body), &index); err != nil || len(index) != 3 {
			t.Fatalf("repository index: %s", a)
		}
		for _, m := range index {
			if m.Name == name {
				return m.State
			}
		}
		return "missing"
	}
	if a := n.post("/v2/repository/models/iris/load", ""); a.status != 200 {
		t.Fatalf("load: %s", a)
	}
	pid := n.pid("iris") // load returns once it is ready
	if s := state("iris"); s != "READY" {
		t.Errorf("loaded, iris is %s", s)
	}
	if a := n.post("/v2/repository/models/iris/unload", ""); a.status != 200 {
		t.Fatalf("unload: %s", a)
	}
	gone(t, pid)
	eventually(t, "the index says UNAVAILABLE", func() (bool, string) { s := state("iris"); return s == "UNAVAILABLE", s })
	contains(t, n.status("iris"), "Asleep")
	n.infer("/v2/models/iris/infer", irisTensor) // wakes it again
}
