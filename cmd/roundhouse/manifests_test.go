package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

func printManifests(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := newManifestsCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestManifestsPrints CRDs first, and the image that was asked for.
func TestManifestsPrints(t *testing.T) {
	out, err := printManifests(t, "--image", "registry.example/roundhouse:1", "--namespace", "serving")
	if err != nil {
		t.Fatal(err)
	}
	docs := strings.Split(strings.TrimPrefix(out, "---\n"), "\n---\n")
	for i, d := range docs {
		if crd := strings.Contains(d, "kind: CustomResourceDefinition"); crd != (i < 6) {
			t.Errorf("document %d: a CRD is %v", i, crd)
		}
	}
	if n := strings.Count(out, "image: registry.example/roundhouse:1\n"); n != 2 || strings.Contains(out, "roundhouse-system") {
		t.Errorf("%d images; roundhouse-system is in it: %v", n, strings.Contains(out, "roundhouse-system"))
	}
}

// TestManifestsRefuses what no cluster would take, before anything is printed.
func TestManifestsRefuses(t *testing.T) {
	for _, args := range [][]string{
		{"--namespace", "Serving"}, {"--namespace", ""}, {"--watch-namespace", "a_b"}, {"--watch-namespace", "a,-b"}, {"--image", ""}, {"--image", "a b"},
		{"--adopt", "kubeflow"}, {"--install-crds", "gateway"}, {"--gateway-url", "http://a b"}, {"--gateway-url", "models.example.com"}, {"--namespace", strings.Repeat("n", 64)},
	} {
		var usage *command.UsageError
		if out, err := printManifests(t, args...); !errors.As(err, &usage) || !strings.Contains(err.Error(), args[0]) || out != "" {
			t.Errorf("%q: %v, printed %q", args, err, out)
		}
	}
}
