package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
)

func simulateScaling(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := newRootCommand()
	var out bytes.Buffer
	root.SetArgs(append([]string{"simulate", "scaling"}, args...))
	root.SetIn(strings.NewReader(""))
	root.SetOut(&out)
	root.SetErr(io.Discard)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// A trace of counts and a manifest: a line for every policy and for the
// service, whose own limits count.
func TestSimulateScalingOfAService(t *testing.T) {
	dir := t.TempDir()
	trace, manifest := filepath.Join(dir, "counts.csv"), filepath.Join(dir, "chat.yaml")
	for name, text := range map[string]string{
		trace: "time,requests\n0,60\n60,0\n120,300\n180,20\n",
		manifest: `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  model: {uri: file:///models/chat, format: {name: safetensors}}
  scaling: {minReplicas: 3, maxReplicas: 3, targetConcurrency: 5}
`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := simulateScaling(t, "--trace", trace, "-f", manifest, "--startup", "10s", "-o", "json", "--seeds", "2")
	if err != nil {
		t.Fatal(err)
	}
	var all []printer.Scaling
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Policy)
		if s.Summary.Requests != 380 || len(s.Seeds) != 2 || s.Workload != trace || s.Startup != "10s" {
			t.Errorf("%+v", s)
		}
		if s.Policy == "default/chat" && (s.Summary.Starts != 3 || s.Summary.ReplicaSeconds < 3*240) {
			t.Errorf("three replicas all the time: %+v", s.Summary)
		}
	}
	if got := strings.Join(names, " "); got != "roundhouse knative average hpa clairvoyant default/chat" {
		t.Errorf("policies %s", got)
	}

	out, err = simulateScaling(t, "--trace", trace, "--policy", "knative", "--startup", "10s")
	if err != nil || !strings.Contains(out, "knative") || !strings.Contains(out, "over 2s") || !strings.Contains(out, "380 requests, startup 10s") {
		t.Errorf("%v:\n%s", err, out)
	}
	chart := filepath.Join(dir, "chart.svg")
	if _, err := simulateScaling(t, "--trace", trace, "-f", manifest, "--startup", "10s", "--svg", chart); err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(chart)
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(image, new(struct{})); err != nil || strings.Count(string(image), "<g ") != 6 || strings.Contains(string(image), "NaN") {
		t.Errorf("%v: want six panels:\n%.2000s", err, image)
	}
	out, err = simulateScaling(t, "--trace", trace, "--suggest", "--startup", "10s", "--late", "0.5")
	if err != nil || !strings.Contains(out, "the cheapest of ") || !strings.Contains(out, "\n  targetConcurrency: ") {
		t.Errorf("%v:\n%s", err, out)
	}
	out, err = simulateScaling(t, "--trace", trace, "--suggest", "--startup", "10s", "--late", "0", "--slo", "0")
	if err != nil || !strings.Contains(out, "# ") || !strings.Contains(out, "none of ") {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestSimulateScalingWrongCommandLines(t *testing.T) {
	dir := t.TempDir()
	missing, cpu, empty := filepath.Join(dir, "missing"), filepath.Join(dir, "cpu.yaml"), filepath.Join(dir, "empty.yaml")
	for name, text := range map[string]string{
		cpu: `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor: {scaleMetric: cpu, scaleTarget: 50, model: {modelFormat: {name: sklearn}, storageUri: "gs://b/m"}}
`,
		empty: "# nothing\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args  []string
		usage bool
		want  string
	}{
		{[]string{"--policy", "best"}, true, `there is no policy "best"; there are roundhouse, knative`},
		{[]string{"--workload", "best"}, true, `there is no workload "best"; there are bursty`},
		{[]string{"--slots", "0"}, true, "slots is 0: want 1 to 4096"},
		{[]string{"--queue", "0"}, true, "the queue holds 0"},
		{[]string{"--max", "5000"}, true, "the most replicas are 5000"},
		{[]string{"--min", "9", "--max", "8"}, true, "want 0 <= min <= max"},
		{[]string{"--startup", "soon"}, true, `"soon" is no startup time: write it as 60s`},
		{[]string{"--startup", "90s-30s"}, true, "the second no less than the first"},
		{[]string{"--rate", "0"}, true, "rate"},
		{[]string{"--length", "1ms"}, true, "the length is 1ms"},
		{[]string{"--length", "8000h"}, true, "more than 5000000 requests: ask for a shorter length"},
		{[]string{"--seeds", "0"}, true, "--seeds is 0"},
		{[]string{"--suggest", "--late", "1"}, true, "--late is 1"},
		{[]string{"--suggest", "--svg", "a.svg"}, true, "--svg has no effect with --suggest"},
		{[]string{"--svg", filepath.Join(missing, "a.svg")}, false, "a.svg: no such file"},
		{[]string{"-o", "xml"}, true, `flag: want json`},
		{[]string{"--trace", missing}, false, "--trace " + missing + ": no such file"},
		{[]string{"-f", missing}, false, "no such file"},
		{[]string{"-f", empty}, false, "the manifests have no service to compare"},
		{[]string{"-f", cpu}, false, "default/iris scales by cpu"},
	} {
		_, err := simulateScaling(t, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) || command.WrongUsage(err) != c.usage {
			t.Errorf("%q: %v; want %s, wrong usage %t", c.args, err, c.want, c.usage)
		}
	}
}

func TestSimulateScalingInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"simulate", "scaling"}, {"simulate", "scaling", "--suggest"}} {
		root := newRootCommand()
		root.SetArgs(args)
		root.SetOut(io.Discard)
		if err := root.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestSimulateRoutingOfAPool: a line for the preset and for each Pool, whose own
// scorers count: one by load alone finds less in caches.
func TestSimulateRoutingOfAPool(t *testing.T) {
	const text = `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: blind}
spec:
  addresses: ["127.0.0.1:8000"]
  picker: {scorers: [{name: running, weight: 1}]}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: same, namespace: team}
spec: {addresses: ["127.0.0.1:8000"]}
`
	file := filepath.Join(t.TempDir(), "pools.yaml")
	simulate := func(manifest string, args ...string) (string, error) {
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		root := newRootCommand()
		var out bytes.Buffer
		root.SetArgs(append([]string{"simulate", "routing", "-f", file, "--policy", "default", "--rate", "8", "--requests", "300", "--seeds", "1", "-o", "json"}, args...))
		root.SetOut(&out)
		root.SetErr(io.Discard)
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}
	out, err := simulate(text)
	if err != nil {
		t.Fatal(err)
	}
	var all []printer.Replay
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != 3 || all[0].Policy != "default" || all[1].Policy != "default/blind" || all[2].Policy != "team/same" {
		t.Fatalf("%+v", all)
	}
	if hits := all[0].Summary.HitRate; all[1].Summary.HitRate > hits/2 || all[2].Summary.HitRate != hits {
		t.Errorf("hit rates %.2f, %.2f by load alone, %.2f as the default", hits, all[1].Summary.HitRate, all[2].Summary.HitRate)
	}
	for bad, want := range map[string]string{
		strings.ReplaceAll(text, "running", "runnin"): `did you mean "running"?`,
		"apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: x}\nspec: {model: {uri: file:///x, format: {name: xgboost}}}\n": "no Pool",
	} {
		if _, err := simulate(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
