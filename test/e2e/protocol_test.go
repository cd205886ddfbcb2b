package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// TestUnspokenProtocolLeavesModelAsleep: a call of a protocol that a service's
// runtime does not speak is refused by name of the calls that it answers, and
// starts nothing; the explanation says the same.
func TestUnspokenProtocolLeavesModelAsleep(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	dir := t.TempDir()
	n.do("apply", "-f", write(t, dir, "iris.yaml", irisManifest("iris", "{minReplicas: 0}")),
		"-f", write(t, dir, "chat.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  model: {format: {name: simulator}}
  scaling: {minReplicas: 0}
`))
	for _, name := range []string{"iris", "chat"} {
		eventually(t, name+" asleep", func() (bool, string) {
			out := n.status(name)
			return strings.Contains(out, "Asleep"), out
		})
	}
	const ask = `{"model":"iris","messages":[{"role":"user","content":"hello"}]}`
	for path, calls := range map[string]string{
		"/v1/chat/completions": "POST /v2/models/iris/infer", "/v1/messages": "POST /v1/models/iris:predict",
		"/v2/models/chat/infer": "POST /v1/chat/completions", "/v1/models/chat:predict": "POST /v1/chat/completions",
	} {
		a, err := try(http.MethodPost, n.gateway+path, ask)
		if err != nil || a.status != 404 || !strings.Contains(a.body, "does not answer this call") || !strings.Contains(a.body, calls) {
			t.Errorf("%s: %v %s", path, err, a)
		}
	}
	r := n.run("explain", "request", write(t, dir, "ask.json", ask))
	contains(t, r.String(), "exit code 1", "refused: default/iris does not answer this call", "/infer")
	for _, name := range []string{"iris", "chat"} {
		if s := n.service("default/" + name); len(s.Replicas) != 0 {
			t.Errorf("%s was woken: %+v", name, s.Replicas)
		}
		contains(t, n.status(name), "Asleep")
	}
	n.infer("/v2/models/iris/infer", irisTensor)
	if a, err := try(http.MethodPost, n.gateway+"/v1/chat/completions", ask); err != nil || a.status != 404 {
		t.Errorf("awake: %v %s", err, a)
	}
}
