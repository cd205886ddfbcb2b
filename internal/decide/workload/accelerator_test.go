package workload

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestAcceleratorOverCommandLines puts a class's arguments and sizes into the command
// lines that runtimes have.
func TestAcceleratorOverCommandLines(t *testing.T) {
	sizes := func(tensor int64) service.AcceleratorParallel { return service.AcceleratorParallel{Tensor: tensor} }
	script := "python3 -m sglang.launch_server \\\n  --host 0.0.0.0 \\\n  --tp-size=8 \\\n  --context-length \"4 096\" \\\n  --enable-metrics\n"
	for name, c := range map[string]struct {
		image         string
		command, args []string
		worker        bool
		a             Accelerator
		want          []string // command, then args
	}{
		"in place of the same flag, others at the end": {
			args: []string{"--port=8080", "--dtype", "half"}, a: Accelerator{Args: []string{"--dtype=fp8", "--enable-x"}},
			want: []string{"--port=8080", "--dtype=fp8", "--enable-x"}},
		"a flag and its value in one word, and several lines of them": {
			args: []string{"--port=8080"}, a: Accelerator{Args: []string{"--dtype fp8", "--a 1 \\\n--b=2 \\\n"}},
			want: []string{"--port=8080", "--dtype", "fp8", "--a", "1", "--b=2"}},
		"a size where it stands, whatever it is called": {
			image: "vllm/vllm-openai", command: []string{"vllm", "serve", "-tp", "8"}, args: []string{"--port=1"}, a: Accelerator{Parallel: sizes(2)},
			want: []string{"vllm", "serve", "-tp=2", "--port=1"}},
		"a size that is not stated, by the engine's flag": {
			image: "lmsysorg/sglang:v1", args: []string{"--port=1"}, a: Accelerator{Parallel: service.AcceleratorParallel{Tensor: 2, Pipeline: 3, Data: 4}},
			want: []string{"--port=1", "--tp-size=2", "--pp-size=3", "--dp-size=4"}},
		"a size that is not stated, of an engine that is not known": {
			image: "own", args: []string{"--port=1"}, a: Accelerator{Parallel: sizes(2)}, want: []string{"--port=1"}},
		"a size replaces the variable of OME's runtimes": {
			args: []string{"--tensor-parallel-size=$(PARALLELISM_SIZE)"}, a: Accelerator{Parallel: sizes(4)}, want: []string{"--tensor-parallel-size=4"}},
		"into the text of a shell": {
			command: []string{"/bin/bash", "-lc", "--"}, args: []string{script},
			a:    Accelerator{Parallel: sizes(4), Args: []string{"--context-length", "8192", "--config", `{"a": 1}`, "--enable_metrics"}},
			want: []string{"/bin/bash", "-lc", "--", "python3 -m sglang.launch_server \\\n  --host 0.0.0.0 \\\n  --tp-size=4 \\\n  --context-length 8192 \\\n  --enable_metrics --config '{\"a\": 1}'\n"}},
		"into the text of a shell in the command": {
			command: []string{"sh", "-c", `exec serve --tp 1 "$@"`}, args: []string{"--", "--x"}, a: Accelerator{Parallel: sizes(2)},
			want: []string{"sh", "-c", `exec serve --tp=2 "$@"`, "--", "--x"}},
		"a node of Ray gets nothing new": {image: "vllm/vllm-openai", command: []string{"bash", "-c"}, args: []string{"ray start --address=$HEAD --block"}, worker: true,
			a: Accelerator{Parallel: sizes(2), Args: []string{"--dtype=fp8"}}, want: []string{"bash", "-c", "ray start --address=$HEAD --block"}},
		"a node of Ray without a shell": {image: "vllm/vllm-openai", command: []string{"ray", "start"}, args: []string{"--num-gpus=1"},
			a: Accelerator{Parallel: sizes(2), Args: []string{"--dtype=fp8", "--num-gpus=2"}}, want: []string{"ray", "start", "--num-gpus=2"}},
		"a worker of another program gets only what it has": {image: "vllm/vllm-openai", command: []string{"/join.sh"}, args: []string{"--dtype", "half", "--tp=8"}, worker: true,
			a: Accelerator{Parallel: sizes(2), Args: []string{"--dtype=fp8", "--x"}}, want: []string{"/join.sh", "--dtype=fp8", "--tp=2"}},
		"a worker that runs the engine": {command: []string{"python3", "-m", "sglang.launch_server"}, args: []string{"--node-rank=1"}, worker: true,
			a: Accelerator{Parallel: sizes(2), Args: []string{"--dtype=fp8"}}, want: []string{"python3", "-m", "sglang.launch_server", "--node-rank=1", "--dtype=fp8", "--tp-size=2"}},
		"nothing": {command: []string{"a"}, args: []string{"--b"}, want: []string{"a", "--b"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Concat(c.command, c.args)
			command, args, err := c.a.onto(c.image, c.command, c.args, c.worker)
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Concat(command, args); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			if !slices.Equal(before, slices.Concat(c.command, c.args)) {
				t.Error("the runtime's own words changed")
			}
		})
	}
}

// TestAcceleratorOverScripts puts a class's flags into the texts of shells: to the
// engine's command alone, and nowhere that is not certain.
func TestAcceleratorOverScripts(t *testing.T) {
	for text, want := range map[string]string{
		"vllm serve $MODEL":                               "vllm serve $MODEL --x=1 --tensor-parallel-size=2",
		"vllm serve m # as ever; really":                  "vllm serve m --x=1 --tensor-parallel-size=2 # as ever; really",
		"vllm serve m >/log 2>&1 &":                       "vllm serve m >/log 2>&1 --x=1 --tensor-parallel-size=2 &",
		"vllm serve m --x > /log":                         "vllm serve m --x=1 > /log --tensor-parallel-size=2",
		"vllm serve m --x 3 --tp=8 | tee /log":            "vllm serve m --x=1 --tp=2 | tee /log",
		`vllm serve "m;$(echo "a)" | tr a b)" --tp 4`:     `vllm serve "m;$(echo "a)" | tr a b)" --tp=2 --x=1`,
		`vllm serve m "--tp=${TP}" "$@"`:                  `vllm serve m --tp=2 "$@" --x=1`,
		"ray start --head --x=7 && A=b exec vllm serve m": "ray start --head --x=7 && A=b exec vllm serve m --x=1 --tensor-parallel-size=2",
		"setup --x=7; exec serve --tp 4":                  "setup --x=7; exec serve --tp=2 --x=1",
		"(cd /; python3 -m vllm.entrypoints.api_server)":  "(cd /; python3 -m vllm.entrypoints.api_server --x=1 --tensor-parallel-size=2)",
		"if a; then vllm serve m --x 1 --tp 8\\\n; fi":    "if a; then vllm serve m --x=1 --tp=2; fi",
		"ray start --head --block":                        "ray start --head --block",

		"if a; then vllm serve m; fi":  `error: acceleratorConfig[h100].runtimeArgsOverride: --x=1 cannot be added to the script: "fi" comes after`,
		"vllm serve m | tee /log":      `"tee /log" comes after`,
		"vllm serve m --x=1 || exit 1": `acceleratorConfig[h100].tensorParallelismOverride: --tensor-parallel-size=2 cannot be added`,
		"vllm serve m & wait":          `"wait" comes after`,
		"setup; serve":                 "none of its commands is known to be the engine's",
		"if a; then vllm serve --x 2; else vllm serve --x 3 -tp 1": "--x stands in more than one",
		"vllm serve <<EOF\nEOF": "here-document",
		"vllm serve 'm":         "without an end",
		"":                      "none of its commands",
	} {
		command, args, err := Accelerator{Class: "h100", Args: []string{"--x=1"}, Parallel: service.AcceleratorParallel{Tensor: 2}}.onto("vllm/vllm-openai", []string{"/bin/bash", "-euo", "pipefail", "-c", text}, []string{"$0"}, false)
		switch {
		case err != nil:
			if want = strings.TrimPrefix(want, "error: "); !strings.Contains(err.Error(), want) {
				t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
			}
		case command[4] != want || !slices.Equal(args, []string{"$0"}):
			t.Errorf("%s\ngot  %s %q\nwant %s", text, command[4], args, want)
		}
	}
	for words, want := range map[string]string{
		"--a=1|--a=2":                   "--port 1 --a=1 --a=2",
		"--a b (c)":                     "--port 1 --a 'b (c)'",
		"--a=$(id)":                     "--port 1 '--a=$(id)'",
		"--a=${B}\"`id`\\;":             "--port 1 \"--a=${B}\\\"\\`id\\`\\\\;\"",
		"--port={{.Annotations.alias}}": "error: acceleratorConfig[].runtimeArgsOverride: --port has a template",
		"word":                          `error: acceleratorConfig[].runtimeArgsOverride: "word" is not a flag`,
	} {
		command, _, err := Accelerator{Args: strings.Split(words, "|")}.onto("", []string{"sh", "-c", "vllm serve --port 1"}, nil, false)
		got := ""
		if err != nil {
			got = "error: " + err.Error()
		} else {
			got = strings.TrimPrefix(command[2], "vllm serve ")
		}
		if err == nil && got != want || err != nil && !strings.HasPrefix(got, want) {
			t.Errorf("%s\ngot  %s\nwant %s", words, got, want)
		}
	}
}

// TestScriptAt finds the text that a shell is given, and none in other programs' words.
func TestScriptAt(t *testing.T) {
	for words, want := range map[string]int{
		"sh|-c|a":                 2,
		"/bin/bash|-lc|--|a b":    3,
		"bash|-o|pipefail|-c|a":   4,
		"bash|-euoc|pipefail|a":   3,
		"tini|--|bash|-e|-c|a":    5,
		"-c|vllm serve m":         1,
		"-c|4096":                 -1,
		"bash|run.sh|-c|a":        -1,
		"vllm|serve|-cc|a --b":    -1,
		"serve|--prompt|a --b c":  -1,
		"bash|-c":                 -1,
		"python3|-c|import x --y": -1,
	} {
		if got := scriptAt(strings.Split(words, "|")); got != want {
			t.Errorf("%s: %d, want %d", words, got, want)
		}
	}
}

// FuzzScript: what is put into a script stays one command of it, the other commands
// stay what they are, and put there again it replaces itself.
func FuzzScript(f *testing.F) {
	for _, text := range []string{"vllm serve m", "a; exec vllm serve --x 1 2>&1 | b", "vllm \"$(a '(' )\" # c\n", "if a; then vllm serve --x '1\n2'\\\n; fi", "((a)) & vllm `b`"} {
		f.Add(text, "1")
		f.Add(text, "${A}'\"`(\\")
	}
	f.Fuzz(func(t *testing.T, text, value string) {
		if strings.Contains(value, "$") && !strings.Contains(value, "${A}") || strings.Count(value, "$") > 1 {
			return // variables are the runtime's own
		}
		before, err := readScript(text)
		if err != nil {
			return
		}
		a := Accelerator{Args: []string{"--x", "v" + value}}
		command, _, err := a.onto("", []string{"sh", "-c", text}, nil, false)
		if err != nil || command[2] == text {
			return
		}
		after, err := readScript(command[2])
		if err != nil || len(after.commands) != len(before.commands) || after.at != before.at {
			t.Fatalf("%q became %q: %v", text, command[2], err)
		}
		for i := range after.words {
			if i != after.at && !slices.Equal(after.words[i], before.words[i]) {
				t.Fatalf("%q became %q, in another command too", text, command[2])
			}
		}
	})
}

// classed is a service on a class of accelerators and the revision that comes of it.
func classed(t *testing.T, cluster bool, change func(*Input)) Component {
	t.Helper()
	gpu := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
	pod := corev1.PodSpec{NodeSelector: map[string]string{"pool": "gpu", "zone": "runtime"}, Containers: []corev1.Container{{
		Name: "ome-container", Image: "lmsysorg/sglang", Args: []string{"--port=8080"}, Env: []corev1.EnvVar{{Name: "B", ValueFrom: &corev1.EnvVarSource{}}, {Name: "A", Value: "$(B)"}},
		Resources: corev1.ResourceRequirements{Limits: gpu}}}}
	in := Input{
		Cluster: cluster, Choice: service.RuntimeChoice{Name: "rt", Scope: service.ScopeCluster},
		Service: &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "m"}}, Components: service.Components{Engine: &service.Component{Main: "ome-container"}}},
		Runtime: &service.Runtime{Meta: service.Meta{Key: service.Key{Name: "rt"}}, Scope: service.ScopeCluster,
			Components: service.Components{Engine: &service.Component{Main: "ome-container", Pod: pod, Local: &service.Local{Command: []string{"sglang", "--port={{.Port}}"}}}, Router: &service.Component{Main: "ome-container", Pod: *pod.DeepCopy()}}},
		Accelerators: map[service.Role]Accelerator{service.RoleEngine: {Class: "h100", NodeSelector: map[string]string{"product": "h100", "zone": "class"},
			Affinity:  &corev1.Affinity{NodeAffinity: required("product", "zone")},
			Resources: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1"), "example.com/link": resource.MustParse("1")},
			Args:      []string{"--dtype=fp8"}, Env: map[string]string{"B": "class", "C": "class"}, Parallel: service.AcceleratorParallel{Tensor: 2}}},
		Placement: service.Placement{NodeSelector: map[string]string{"disk": "nvme", "pool": "model"}, Affinity: required("region")},
	}
	if change != nil {
		change(&in)
	}
	rev, err := Render(in)
	if err != nil {
		t.Fatal(err)
	}
	if r := rev.Component(service.RoleRouter); r == nil || !reflect.DeepEqual(r.Pod.NodeSelector, pod.NodeSelector) || len(r.Pod.Containers[0].Args) != 1 || r.Pod.Affinity != nil {
		t.Errorf("the router runs on the class of the engine: %+v", r)
	}
	return *rev.Component(service.RoleEngine)
}

// required asks for a label of each key, each in a term of its own.
func required(keys ...string) *corev1.NodeAffinity {
	terms := &corev1.NodeSelector{}
	for _, k := range keys {
		terms.NodeSelectorTerms = append(terms.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: k, Operator: corev1.NodeSelectorOpExists}}})
	}
	return &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
}

// terms are those of a pod's affinity to nodes: alternatives of keys.
func terms(p corev1.PodSpec) string {
	if p.Affinity == nil || p.Affinity.NodeAffinity == nil || p.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	var out []string
	for _, term := range p.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		var keys []string
		for _, e := range term.MatchExpressions {
			keys = append(keys, e.Key)
		}
		out = append(out, strings.Join(keys, "&"))
	}
	return strings.Join(out, " | ")
}

// TestAcceleratorClassOnAPod: a class goes over the runtime and the service over both;
// the model's nodes are those under all, and what both affinities ask for holds.
func TestAcceleratorClassOnAPod(t *testing.T) {
	c := classed(t, true, nil)
	if want := map[string]string{"pool": "gpu", "zone": "class", "product": "h100", "disk": "nvme"}; !reflect.DeepEqual(c.Pod.NodeSelector, want) {
		t.Errorf("node selector %v, want %v", c.Pod.NodeSelector, want)
	}
	if got := terms(c.Pod); got != "product&region | zone&region" {
		t.Errorf("affinity %s", got)
	}
	m := c.Pod.Containers[0]
	if got := strings.Join(m.Args, " "); got != "--port=8080 --dtype=fp8 --tp-size=2" {
		t.Errorf("args %s", got)
	}
	if want := []corev1.EnvVar{{Name: "B", Value: "class"}, {Name: "A", Value: "$(B)"}, {Name: "C", Value: "class"}}; !reflect.DeepEqual(m.Env, want) {
		t.Errorf("variables %+v, want %+v", m.Env, want)
	}
	if got := quantities(m); got != "limits 2 GPUs 1 links, requests 2 GPUs 1 links" {
		t.Error(got)
	}

	c = classed(t, true, func(in *Input) {
		in.Service.Components.Engine.Pod = corev1.PodSpec{NodeSelector: map[string]string{"zone": "service"}, Affinity: &corev1.Affinity{NodeAffinity: required("own")},
			Containers: []corev1.Container{{Name: "ome-container", Args: []string{"--dtype=bf16", "--tp-size=1"}, Env: []corev1.EnvVar{{Name: "B", Value: "service"}},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}}
	})
	m = c.Pod.Containers[0]
	if got := strings.Join(m.Args, " "); got != "--port=8080 --dtype=bf16 --tp-size=1" || c.Pod.NodeSelector["zone"] != "service" || terms(c.Pod) != "own&region" {
		t.Errorf("what the service states does not stay: %s, %v, %s", got, c.Pod.NodeSelector, terms(c.Pod))
	}
	if got := quantities(m); got != "limits 1 GPUs 1 links, requests 1 GPUs 1 links" {
		t.Error(got)
	}
}

// quantities are the devices that a container gets.
func quantities(m corev1.Container) string {
	of := func(l corev1.ResourceList) string {
		gpus, links := l["nvidia.com/gpu"], l["example.com/link"]
		return gpus.String() + " GPUs " + links.String() + " links"
	}
	return "limits " + of(m.Resources.Limits) + ", requests " + of(m.Resources.Requests)
}

// TestResourcesOfAClass: a request for devices is always their limit, and of what can
// be overcommitted never above it.
func TestResourcesOfAClass(t *testing.T) {
	list := func(q string) corev1.ResourceList {
		if q == "" {
			return nil
		}
		return corev1.ResourceList{"r": resource.MustParse(q)}
	}
	of := func(limit, request string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Limits: list(limit), Requests: list(request)}
	}
	for _, c := range []struct {
		runtime      corev1.ResourceRequirements
		class        string
		service      corev1.ResourceRequirements
		limit, asked string
	}{
		{of("2", ""), "1", of("", ""), "2", "2"},
		{of("2", ""), "4", of("", ""), "4", "4"},
		{of("", "2"), "1", of("", ""), "2", "2"},
		{of("8", "2"), "4", of("", ""), "8", "4"},
		{of("", ""), "4", of("", ""), "4", "4"},
		{of("4", "4"), "4", of("1", ""), "1", "1"},
		{of("4", "4"), "2", of("", "1"), "1", "1"},
	} {
		got := resources(c.runtime, list(c.class), c.service)
		limit, asked := got.Limits["r"], got.Requests["r"]
		if limit.String() != c.limit || asked.String() != c.asked {
			t.Errorf("%+v: limit %s, request %s", c, limit.String(), asked.String())
		}
	}
}

// TestAcceleratorClassOnOneMachine: what a class changes of the command and the
// variables holds for a process; it places nothing.
func TestAcceleratorClassOnOneMachine(t *testing.T) {
	c := classed(t, false, nil)
	if got := strings.Join(c.Process.Command, " "); got != "sglang --port={{.Port}} --dtype=fp8 --tp-size=2" {
		t.Errorf("command %s", got)
	}
	if c.Process.GPUs != 2 || !slices.Contains(c.Process.Env, corev1.EnvVar{Name: "C", Value: "class"}) {
		t.Errorf("process %+v", c.Process)
	}
	if _, placed := c.Pod.NodeSelector["product"]; placed || c.Pod.Affinity != nil {
		t.Errorf("placed: %v %v", c.Pod.NodeSelector, c.Pod.Affinity)
	}
}

// TestModelOnManyNodes: with no class the model's nodes alone count, and affinities of
// too many terms are refused.
func TestModelOnManyNodes(t *testing.T) {
	c := classed(t, true, func(in *Input) { in.Accelerators = nil })
	if want := map[string]string{"pool": "gpu", "zone": "runtime", "disk": "nvme"}; !reflect.DeepEqual(c.Pod.NodeSelector, want) || terms(c.Pod) != "region" {
		t.Errorf("%v, %s", c.Pod.NodeSelector, terms(c.Pod))
	}
	many := required(strings.Split(strings.Repeat("a,", 20)+"a", ",")...)
	if _, err := bothAffinities(many, many); err == nil || !strings.Contains(err.Error(), "more than 256 terms") {
		t.Errorf("%d terms each: %v", 21, err)
	}
}

// TestKeptOnNodes: the pods go where their model is kept, besides what else they ask of
// nodes; where all nodes keep it, only the rest counts.
func TestKeptOnNodes(t *testing.T) {
	kept := &Kept{Name: "a", Folder: "/models/n", Nodes: required("cached").RequiredDuringSchedulingIgnoredDuringExecution}
	if got := terms(classed(t, true, func(in *Input) { in.Accelerators, in.Kept = nil, kept }).Pod); got != "region&cached" {
		t.Error(got)
	}
	if got := terms(classed(t, true, func(in *Input) { in.Accelerators, in.Kept, in.Placement = nil, kept, service.Placement{} }).Pod); got != "cached" {
		t.Error(got)
	}
	if got := terms(classed(t, true, func(in *Input) { in.Accelerators, in.Kept = nil, &Kept{Name: "a", Folder: "/models/n"} }).Pod); got != "region" {
		t.Error(got)
	}
}

// TestAcceleratorsInTheHash: a revision is another on another class, or where the class
// changes what runs; a runtime's words about classes alone change nothing.
func TestAcceleratorsInTheHash(t *testing.T) {
	base := func() Input {
		return Input{Cluster: true, Service: &service.Service{}, Runtime: &service.Runtime{Scope: service.ScopeCluster, Formats: []service.SupportedFormat{{}}}}
	}
	want := base().Hash()
	same := base()
	same.Runtime.AcceleratorNeeds.MinMemoryGB = 80
	same.Runtime.Formats[0].Accelerators = map[string]service.AcceleratorConfig{"h100": {Args: []string{"--x"}}}
	same.Service.Accelerators = map[service.Role]service.AcceleratorSelector{service.RoleEngine: {Policy: service.AcceleratorBestFit}}
	if got := same.Hash(); got != want {
		t.Error("what no class came of makes another revision")
	}
	other := base()
	other.Accelerators = map[service.Role]Accelerator{service.RoleEngine: {Class: "h100", NodeSelector: map[string]string{"a": "b"}}}
	first := other.Hash()
	other.Accelerators = map[service.Role]Accelerator{service.RoleEngine: {Class: "h100", NodeSelector: map[string]string{"a": "c"}}}
	if first == want || other.Hash() == first {
		t.Error("a class, or another selector of nodes, is the same revision")
	}
	other.Cluster = false
	there := other.Hash()
	other.Accelerators = map[service.Role]Accelerator{service.RoleEngine: {Class: "h100"}}
	if other.Hash() != there {
		t.Error("on one machine a selector of nodes makes another revision")
	}
}
