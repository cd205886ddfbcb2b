package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/test/loopback"
)

// TestExplainTellsNoSecrets: neither a password nor a signature of a URI is in
// what explain prints, for people or for programs.
func TestExplainTellsNoSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: a}
spec:
  model:
    uri: https://user:hunter2@models.invalid/a.ubj?X-Amz-Signature=deadbeef&X-Amz-Date=20260101
    format: {name: xgboost}
    adapters: [{name: b, uri: "https://user:hunter2@models.invalid/b?sig=deadbeef", rank: 8}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + loopback.Reserve(t)
	for _, args := range [][]string{{}, {"--all"}, {"-o", "json"}} {
		out, err := runHere(t, append([]string{"explain", file, "--server", nobody}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"hunter2", "deadbeef", "user:"} {
			if strings.Contains(out, secret) {
				t.Errorf("%v: %q is in\n%s", args, secret, out)
			}
		}
		if !strings.Contains(out, "https://models.invalid/a.ubj?…") || !strings.Contains(out, "https://models.invalid/b?…") {
			t.Errorf("%v: the URIs are not in\n%s", args, out)
		}
	}
}
