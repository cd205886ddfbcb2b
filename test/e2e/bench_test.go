package e2e

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"roundhouse.dev/roundhouse/internal/decide/load"
)

// TestBench: a load is sent to a service or to a server, and its figures are printed as
// a table, as JSON and as a chart.
func TestBench(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", onPlain(1, "")))
	chart := filepath.Join(t.TempDir(), "chart.svg")
	out := n.do("bench", "chat", "--concurrency", "1,4", "--requests", "20", "--input-tokens", "32", "--output-tokens", "U(4,8)", "--svg", chart)
	matches(t, out, `^SCENARIO +LOAD +REQUESTS +FAILED +REQ/S +TOKENS/S +TTFT P50 .*\n32 → U\(4,8\) +1 at once +20 +0 +[\d.e+]+ +[\d.e+]+ +[\d.]+ ms.*\n32 → U\(4,8\) +4 at once +20 +0 .*\n$`)
	wellFormed(t, chart)

	server, _ := simulated(t, "--speed", "200")
	var r load.Report
	if err := json.Unmarshal([]byte(n.do("bench", "http://"+server+"/v1", "--rate", "100", "--requests", "50", "--scenario", "D(64,5)", "-o", "json")), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Points) != 1 || r.Model != "chat" {
		t.Fatalf("%+v", r)
	}
	p := r.Points[0]
	if p.Requests != 50 || p.Failed != 0 || p.OutputTokens != 250 || p.InputTokens < 50*64 || p.TTFT.P50 <= 0 || p.TPOT.P99 <= 0 || p.Latency.Max < p.TTFT.P50 || p.Rate != 100 {
		t.Errorf("%+v", p)
	}
	report, summary := filepath.Join(t.TempDir(), "new", "report.json"), filepath.Join(t.TempDir(), "summary")
	n.do("bench", "http://"+server, "--requests", "5", "--output-tokens", "4", "--report", report, "--summary", summary)
	if err := json.Unmarshal([]byte(read(t, report)), &r); err != nil || len(r.Points) != 1 || r.Points[0].Requests != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	matches(t, read(t, summary), `^256 → 4, 8 at once: 5 requests, 0 failed, .* tokens/s, TTFT .* ms \(p99 .*\)$`)
	matches(t, n.do("bench", "http://"+server, "--scenario", "E(16)", "--requests", "5"), `\nE\(16\) +8 at once +5 +0 +\S+ +- +- `)
}

func wellFormed(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestBenchInterrupted: Ctrl-C prints what was measured until then.
func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	server, _ := simulated(t, "--speed", "200")
	cmd := exec.Command(binary, "bench", "http://"+server, "--duration", "1h", "--output-tokens", "4", "--warm-up", "0")
	cmd.Env = n.environ()
	var out capture
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "requests are answered", func() (bool, string) {
		a := n.get("http://" + server + "/metrics")
		return regexp.MustCompile(`vllm:request_success_total\{.*\} [1-9]`).MatchString(a.body), a.body
	})
	_ = cmd.Process.Signal(syscall.SIGINT)
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("%v: %s", err, out.String())
	}
	matches(t, out.String(), `\n256 → 4, 8 at once: interrupted after \S+ s\n`)
}

// TestBenchErrors: what cannot be measured is said in one line.
func TestBenchErrors(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for want, args := range map[string][]string{
		"--rate is an open loop and --concurrency a closed one: give one of them": {"chat", "--rate", "1", "--concurrency", "2"},
		`--scenario: "D(1)" is not a scenario: write D(INPUT,OUTPUT)`:             {"http://127.0.0.1:1", "--model", "m", "--scenario", "D(1)"},
		"--scenario states what --input-tokens and --output-tokens do":            {"chat", "--scenario", "D(1,1)", "--input-tokens", "3"},
		`--param is "a=": want NAME=JSON`:                                         {"chat", "--param", "a="},
		"ftp://a is not the address of a server":                                  {"ftp://a"},
		`unknown API "soap"`:                                                      {"http://127.0.0.1:1", "--model", "m", "--api", "soap"},
		"the concurrency is 0: want 1 to 4096":                                    {"http://127.0.0.1:1", "--model", "m", "--concurrency", "0"},
	} {
		r := n.run(append([]string{"bench"}, args...)...)
		if r.code != 2 {
			t.Errorf("%v: code %d", args, r.code)
		}
		contains(t, r.err, want)
	}
	for want, args := range map[string][]string{
		"http://127.0.0.1:1/v1/models: connection refused; name the model with --model":          {"http://127.0.0.1:1"},
		"http://127.0.0.1:1: connection refused":                                                 {"http://127.0.0.1:1", "--model", "m"},
		"--report hf://a/b: the report cannot be written: hf://a/b: nothing is written to hf://": {"http://127.0.0.1:1", "--model", "m", "--report", "hf://a/b"},
		"--dataset none.jsonl: no such file or directory":                                        {"http://127.0.0.1:1", "--model", "m", "--dataset", "none.jsonl"},
	} {
		if r := n.run(append([]string{"bench"}, args...)...); r.code != 1 {
			t.Errorf("%v: code %d", args, r.code)
		} else {
			contains(t, r.err, want)
		}
	}
}

// TestBenchmarkJob: an applied BenchmarkJob is run once, without an API key where
// requests need one, and its report is shown until it is deleted. One of a service that
// is not there says so and holds up no other.
func TestBenchmarkJob(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("keys", "create", "someone")
	dir := t.TempDir()
	named := func(name, of, scenario string) string {
		return write(t, dir, "job.yaml", `apiVersion: ome.io/v1beta1
kind: BenchmarkJob
metadata: {name: `+name+`}
spec:
  endpoint: {inferenceService: {name: `+of+`}}
  task: text-to-text
  trafficScenarios: ["`+scenario+`"]
  numConcurrency: [1, 4]
  maxTimePerIteration: 1
  maxRequestsPerIteration: 10
  additionalRequestParams: {temperature: "0.0"}
  outputLocation: {storageUri: "file://`+dir+`/results"}
`)
	}
	job := func(scenario string) string { return named("chat-load", "chat", scenario) }
	n.do("apply", "--wait", "-f", write(t, dir, "chat.yaml", onPlain(1, "")))
	missing := `job.yaml:1: warning: benchmarkjob default/a-missing: spec.endpoint.inferenceService: there is no service default/chatt`
	contains(t, n.run("validate", named("a-missing", "chatt", "D(20,5)")).err, missing)
	contains(t, n.run("apply", "-f", named("a-missing", "chatt", "D(20,5)")).err, missing+"; did you mean chat?")
	eventually(t, "a job of a service that is not there says so", func() (bool, string) {
		out := n.do("describe", "benchmarkjob", "a-missing")
		return regexp.MustCompile(`State: +Pending\nReason: .*404 Not Found: model "chatt" is not served here; did you mean chat\?`).MatchString(out), out
	})
	r := n.run("apply", "-f", job("D(20,5)"))
	contains(t, r.out, "benchmarkjob default/chat-load created")
	shows := func(pattern string) {
		t.Helper()
		eventually(t, pattern, func() (bool, string) {
			out := n.do("get", "benchmarkjobs")
			return regexp.MustCompile(pattern).MatchString(out), out
		})
	}
	shows(`(?m)^default +chat-load +Completed +2/2 +default/chat$`)
	matches(t, n.do("describe", "benchmarkjob", "chat-load"), `^Name: +default/chat-load\nTarget: +default/chat\nState: +Completed\nOutput: +file://.*/results/chat-load/report.json\nStarted: .*\nEnded: .*\n\nSCENARIO .*\nD\(20,5\) +1 at once +10 +0 .*\nD\(20,5\) +4 at once +10 +0 .*\n$`)
	var report load.Report
	if text, err := os.ReadFile(filepath.Join(dir, "results", "chat-load", "report.json")); err != nil || json.Unmarshal(text, &report) != nil || len(report.Points) != 2 || report.Target != "default/chat" || report.Ended.IsZero() {
		t.Errorf("%+v, %v", report, err)
	}
	claim := write(t, dir, "claim.yaml", strings.ReplaceAll(read(t, job("D(20,5)")), "file://"+dir, "pvc://claim"))
	for _, command := range []string{"validate", "apply"} {
		contains(t, n.run(command, "-f", claim).err, "claim.yaml:12: spec.outputLocation.storageUri: is a PersistentVolumeClaim, which one machine does not have: write file://PATH")
	}
	contains(t, n.do("apply", "--wait", "-f", job("D(30,6)")), "benchmarkjob default/chat-load configured: Completed")
	matches(t, n.do("describe", "benchmarkjob", "chat-load"), `State: +Completed\n(.*\n)*D\(30,6\) +4 at once +10 +0 `)
	r = n.run("apply", "--wait", "--timeout", "100ms", "-f", named("a-missing", "chatt", "D(20,5)"))
	contains(t, r.out, "benchmarkjob default/a-missing unchanged: Pending")
	contains(t, r.err, "benchmarkjob default/a-missing has not ended within 100ms: ")
	contains(t, n.do("get", "benchmarkjob", "chat-load", "-o", "yaml"), "kind: BenchmarkJob")
	n.do("delete", "benchmarkjob", "chat-load", "a-missing")
	contains(t, n.do("get", "benchmarkjobs"), "No benchmarkjobs found")
}
