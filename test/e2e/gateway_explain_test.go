package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestExplainRequest: what would become of a request is said as text and as
// JSON, for OpenAI's body and a path that names the model, for a model nobody
// has, and for a request that would be shed. Nobody is asked or woken for it.
func TestExplainRequest(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	dir := t.TempDir()
	n.do("apply", "--wait", "-f", write(t, dir, "chat.yaml", simulatedService("1")))
	n.do("apply", "-f", write(t, dir, "iris.yaml", irisManifest("iris", "{minReplicas: 0}")), "-f", write(t, dir, "pool.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: engines}
spec: {selector: {app: chat}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: batch}
spec: {criticality: Sheddable, targets: [{pool: engines, model: chat}]}
`))
	ask := write(t, dir, "ask.json", shortAsk)

	text := n.do("explain", "request", ask)
	contains(t, text, "pool: default/chat (Ready)", "admission: Admit, Available", "priority 0, 0 waiting", "replica: chat-", "slot ", " of 2 open")
	for _, r := range n.service("default/chat").Replicas {
		contains(t, text, r.HTTP) // both are weighed
		if got := n.figure("http://"+r.HTTP+"/metrics", "vllm:request_success_total"); got != 0 {
			t.Errorf("%s was asked %v times for an explanation", r.ID, got)
		}
	}
	var x struct {
		Route, Pool, State, Model, Decision, Because string
		Priority                                     int
		Pick                                         struct {
			Replica, Address, Reason string
			Uncached                 int
			Table                    []string
		}
	}
	unmarshal := func(out string) {
		t.Helper()
		if err := json.Unmarshal([]byte(out), &x); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
	}
	batch := strings.Replace(shortAsk, "chat", "batch", 1)
	r := n.runWith(batch, "explain", "request", "-", "-o", "json")
	if r.code != 0 {
		t.Fatalf("from standard input: %s", r)
	}
	unmarshal(r.out)
	if x.Pool != "pool default/engines" || x.Model != "chat" || x.Decision != "Admit" || x.Priority != -1 || !strings.Contains(x.Route, "batch") ||
		x.Pick.Replica == "" || x.Pick.Address == "" || x.Pick.Reason == "" || len(x.Pick.Table) < 2 {
		t.Errorf("the route's pool: %+v", x)
	}

	// By its path, and asleep: it would wait for the start, which nobody asks for.
	rows := write(t, dir, "rows.json", irisTensor)
	contains(t, n.do("explain", "request", rows, "--path", "/v2/models/iris/infer"), "pool: default/iris (Asleep)", "admission: Queue, Starting", "replica: none")
	contains(t, n.do("explain", "request", rows, "--path", "/v1/models/iris:predict"), "pool: default/iris (Asleep)")
	contains(t, n.do("explain", "request", ask, "--path", "/v2/chat"), "pool: default/chat")
	contains(t, n.do("explain", "request", ask, "--host", "chat.default.localhost"), "pool: default/chat")
	contains(t, n.status("iris"), "Asleep")

	for what, c := range map[string]struct {
		body, path string
		want       []string
	}{
		"an unknown model": {`{"model":"caht","prompt":"x"}`, "", []string{"caht", "is not served here; the models are batch, chat, iris"}},
		"no model":         {`{"prompt":"x"}`, "", []string{"model"}},
		"no JSON":          {`{`, "", []string{"not valid JSON"}},
		"an unknown path":  {`{}`, "/nowhere", []string{"nothing is served at /nowhere"}},
		"no path":          {`{}`, "nowhere", []string{"must begin with a slash"}},
		"the gateway's":    {`{}`, "/v2/repository/models/iris/load", []string{"answered by the gateway itself"}},
	} {
		args := []string{"explain", "request", "-"}
		if c.path != "" {
			args = append(args, "--path", c.path)
		}
		r := n.runWith(c.body, args...)
		if r.code != 1 || r.out != "" {
			t.Errorf("%s: %s", what, r)
		}
		contains(t, r.err, c.want...)
	}
	if r := n.run("explain", "request", ask, "-o", "yaml"); r.code != 2 {
		t.Errorf("-o yaml: %s", r)
	}
	if r := n.run("explain", "request", ask, "--header", "nonsense"); r.code != 2 || !strings.Contains(r.err, "Name: value") {
		t.Errorf("a header without a colon: %s", r)
	}

	// With both engines saturated by their own account, a request of priority
	// -1 is shed and one of 0 waits.
	for _, r := range n.service("default/chat").Replicas {
		if a := n.send("POST", "http://"+r.HTTP+"/simulate/pin", `{"waiting":50,"running":50,"kv_usage":0.99}`); a.status != 200 {
			t.Fatalf("pin: %s", a)
		}
	}
	eventually(t, "a sheddable request is shed", func() (bool, string) {
		n.post("/v1/completions", batch) // metrics are read while requests come
		r := n.runWith(batch, "explain", "request", "-", "-o", "json")
		unmarshal(r.out)
		if shed := x.Decision == "Shed"; shed != (r.code == 1) {
			t.Fatal(r)
		}
		return x.Decision == "Shed" && x.Because == "Saturated", r.out
	})
	if a := n.post("/v1/completions", batch); a.status != 429 {
		t.Errorf("the request itself: %s", a)
	}
	contains(t, n.runWith(batch, "explain", "request", "-").out, "admission: Shed, Saturated; priority -1")
	contains(t, n.do("explain", "request", ask), "admission: Queue, Paced")
}
