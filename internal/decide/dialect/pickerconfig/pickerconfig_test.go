package pickerconfig_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestRead reads each configuration of testdata, whose fields are those of the ones
// that llm-d and the Inference Extension publish, and compares what it becomes and every
// problem with the file beside it.
func TestRead(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 7 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			read := dialect.Read(filepath.Base(file), data)
			var b strings.Builder
			for _, p := range read.Problems {
				fmt.Fprintln(&b, p)
			}
			for _, s := range read.Schedulings {
				j, err := json.MarshalIndent(s.Scheduling, "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintln(&b, string(j))
				c, err := picker.Of(s.Scheduling.Picker)
				if err == nil {
					_, err = picker.New(c)
				}
				if err != nil {
					t.Errorf("the policy is none: %v", err)
				}
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || string(want) != b.String() {
				t.Errorf("got\n%s\nwant\n%s", &b, want)
			}
		})
	}
}

// FuzzRead: whatever a file says is a policy or a problem.
func FuzzRead(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, s := range dialect.Read("f.yaml", data).Schedulings {
			c, err := picker.Of(s.Scheduling.Picker)
			if err == nil {
				_, err = picker.New(c)
			}
			if err != nil {
				t.Errorf("%+v: %v", s.Scheduling.Picker, err)
			}
		}
	})
}

// TestHostileQuantity: a number of a billion digits is refused before it is built,
// wherever a configuration stands.
func TestHostileQuantity(t *testing.T) {
	const huge = "1.5e1000000000"
	for _, inline := range []string{"{flowControl: {maxRequests: " + huge + "}}", "'flowControl: {priorityBands: [{priority: 1, maxBytes: " + huge + "}]}'"} {
		read := dialect.Read("a.yaml", []byte(`
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: a}
spec:
  model: {uri: "hf://org/m", name: m}
  router: {route: {}, gateway: {}, scheduler: {config: {inline: `+inline+`}}}
`))
		if !strings.Contains(fmt.Sprint(read.Problems), "has no effect: expected a quantity") {
			t.Errorf("%s: %v", inline, read.Problems)
		}
	}
}

// TestNumbersOfPlugins: a number out of its range is an error once, whether anything
// refers to its plugin or not; parameters that are not read are not looked at.
func TestNumbersOfPlugins(t *testing.T) {
	const text = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: PLUGIN\n  parameters: {PARAMETER}\n- type: queue-scorer\nHANDLERschedulingProfiles:\n- plugins: [{pluginRef: queue-scorer}]\n"
	const handler = "- type: disagg-profile-handler\n  parameters: {deciders: {prefill: prefix-based-pd-decider}}\n"
	for _, c := range []struct{ plugin, parameter, handler, want string }{
		{"prefix-based-pd-decider", "nonCachedTokens: -4", "", "-4 is not a number from 0 to 1e+09"},
		{"prefix-based-pd-decider", "nonCachedTokens: -4", handler, "-4 is not a number from 0 to 1e+09"},
		{"prefix-based-pd-decider", "nonCachedTokens: 4", "", ""},
		{"pd-profile-handler", "threshold: -1", "", "-1 is not a number from 0 to 1e+09"},
		{"latency-scorer", "threshold: -1", "", ""},
		{"concurrency-detector", "maxConcurrency: 0", "", "0 is not a number from 1 to 1e+06"},
	} {
		manifest := strings.NewReplacer("PLUGIN", c.plugin, "PARAMETER", c.parameter, "HANDLER", c.handler).Replace(text)
		var got []string
		for _, p := range dialect.Read("a.yaml", []byte(manifest)).Problems {
			if strings.Contains(p.Message, "is not a number") {
				got = append(got, p.Message)
			}
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%s of %s: %q, want %q", c.parameter, c.plugin, got, c.want)
		}
	}
}
