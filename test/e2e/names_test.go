package e2e

import (
	"strings"
	"testing"
)

// TestNames: one name in two namespaces.
func TestNames(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	dir := t.TempDir()
	east := strings.Replace(irisManifest("iris", "{minReplicas: 0}"), "{name: iris}", "{name: iris, namespace: east}", 1)
	west := strings.Replace(east, "east", "west", 1)
	n.do("apply", "-f", write(t, dir, "east.yaml", east))
	if a := n.get(n.gateway + "/v2/models/iris"); a.status != 200 {
		t.Errorf("a bare name that is unique: %s", a)
	}
	n.do("apply", "-f", write(t, dir, "west.yaml", west))
	a := n.post("/v2/models/iris/infer", irisTensor)
	if a.status != 404 {
		t.Errorf("an ambiguous name: want 404, got %s", a)
	}
	contains(t, a.body, "east/iris", "west/iris")
	for _, ns := range []string{"east", "west"} {
		if row := n.infer("/v2/models/"+ns+"%2Firis/infer", irisTensor); argmax(t, row) != 0 {
			t.Errorf("%s/iris: %v", ns, row)
		}
		host := strings.TrimPrefix(n.service(ns+"/iris").Status.URL, "http://")
		if a := n.post("/v1/models/iris:predict", irisRow, "Host", host); a.status != 200 {
			t.Errorf("by Host %s: %s", host, a)
		}
		contains(t, n.do("infer", "-n", ns, "iris", "-d", irisRow), "predictions")
		contains(t, n.do("infer", ns+"/iris", "-d", irisRow), "predictions")
	}
	contains(t, n.get(n.gateway+"/v1/models").body, `"east/iris"`, `"west/iris"`)
	n.do("delete", "-n", "east", "iris")
	eventually(t, "the name is unique again", func() (bool, string) {
		a := n.post("/v2/models/iris/infer", irisTensor)
		return a.status == 200, a.String()
	})
}
