package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// TestModelMissingInItsRepository: a server that names models by their folders
// is given a repository without the service's name, or one model in the place
// of a repository: the status says what is there and what to do.
func TestModelMissingInItsRepository(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "models", "resnet", "1"), 0o700); err != nil {
		t.Fatal(err)
	}
	engine := write(t, dir, "engine.py", twoPorts)
	for name, c := range map[string]struct{ folder, says string }{
		"photos": {"models", `there is no model "photos" in its repository, only "resnet"`},
		"single": {"models/resnet", "is the folder of one model"},
		"resnet": {"models", ""},
	} {
		n.do("apply", "-f", write(t, dir, name+".yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: `+name+`}
spec:
  protocol: v2
  model: {uri: "file://`+filepath.Join(dir, c.folder)+`", format: {name: triton}}
  engine: {local: {command: [python3, `+engine+`, "--port={{.Port}}", "--metrics-port={{.MetricsPort}}", "--model-repository={{.ModelPath}}"]}}
`))
		eventually(t, "the status of "+name, func() (bool, string) {
			rs := n.service("default/" + name).Replicas
			if len(rs) == 0 || rs[0].Phase != "Ready" && rs[0].Phase != "Failed" {
				return false, ""
			}
			if c.says == "" {
				return rs[0].Message == "", rs[0].Message
			}
			contains(t, rs[0].Message, c.says)
			contains(t, n.do("describe", name), c.says)
			return true, ""
		})
	}
}
