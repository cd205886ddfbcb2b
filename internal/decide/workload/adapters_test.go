package workload

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// vllmArgs is how vLLM is told of adapters.
var vllmArgs = &service.AdapterArgs{
	Rank: []string{"--max-lora-rank", "{{.AdapterRank}}"},
	Args: []string{"--enable-lora", "--max-loras", "{{.Adapters}}", "--lora-modules"},
	Each: []string{"{{.Adapter}}={{.AdapterPath}}"},
}

// adapted renders svc() with adapters on runtime(), which takes them as how says.
func adapted(how *service.AdapterArgs, edit func(*Input), adapters ...Adapter) (Revision, error) {
	s, rt := svc(), runtime()
	rt.Adapters = how
	s.Model = &service.ModelSource{URI: "hf://x"}
	for _, a := range adapters {
		s.Model.Adapters = append(s.Model.Adapters, service.Adapter{Name: a.Name, URI: a.URI})
	}
	in := Input{Service: s, Runtime: &rt, Choice: service.RuntimeChoice{Name: rt.Name, Scope: rt.Scope}, Protocol: service.ProtocolOpenAI,
		URI: "hf://x", Adapters: adapters}
	if edit != nil {
		edit(&in)
	}
	return Render(in)
}

func args(t *testing.T, rev Revision) string {
	t.Helper()
	c := rev.Component(service.RoleEngine)
	m := container(c.Pod, c.Main)
	own := "--port=8080 --model=/mnt/models --served-model-name=llama --max-model-len=8192 --chat-template={{ m.content }}"
	rest, ok := strings.CutPrefix(strings.Join(m.Args, " "), own)
	if !ok {
		t.Errorf("the container's own arguments are %q", m.Args)
	}
	return strings.TrimSpace(rest)
}

func TestAdapterArgs(t *testing.T) {
	sql, chat := Adapter{Name: "sql", URI: "hf://org/sql", Rank: 8}, Adapter{Name: "chat", URI: "hf://org/chat", Rank: 20}
	unknown := Adapter{Name: "new", URI: "hf://org/new"}
	own := func(args ...string) func(*Input) {
		return func(in *Input) {
			m := &in.Service.Components.Engine.Pod.Containers[0]
			m.Args = append(m.Args, args...)
		}
	}
	each := &service.AdapterArgs{Args: []string{"--max-loras", "{{.Adapters}}"}, Each: []string{"--lora", "{{.Adapter}}", "--of={{.Name}}"}}
	for name, tc := range map[string]struct {
		how      *service.AdapterArgs
		edit     func(*Input)
		adapters []Adapter
		want     string
	}{
		"one flag, many values": {vllmArgs, nil, []Adapter{sql, chat},
			`--max-lora-rank 32 --enable-lora --max-loras 2 --lora-modules sql={{index .AdapterPaths "sql"}} chat={{index .AdapterPaths "chat"}}`},
		"a rank unknown": {vllmArgs, nil, []Adapter{sql, unknown},
			`--enable-lora --max-loras 2 --lora-modules sql={{index .AdapterPaths "sql"}} new={{index .AdapterPaths "new"}}`},
		"the least rank": {vllmArgs, nil, []Adapter{{Name: "a", URI: "x://", Rank: 1}},
			`--max-lora-rank 8 --enable-lora --max-loras 1 --lora-modules a={{index .AdapterPaths "a"}}`},
		"a flag each": {each, nil, []Adapter{sql, chat}, "--max-loras 2 --lora sql --of=llama --lora chat --of=llama"},
		"none":        {vllmArgs, nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			rev, err := adapted(tc.how, tc.edit, tc.adapters...)
			if err != nil {
				t.Fatal(err)
			}
			if got := args(t, rev); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if !slices.Equal(rev.Model.Adapters, tc.adapters) {
				t.Errorf("the revision has %v", rev.Model.Adapters)
			}
		})
	}

	sglang := *each
	sglang.Model = "{{.Name}}:{{.Adapter}}"
	if rev, err := adapted(&sglang, nil, sql); err != nil || len(rev.Model.Adapters) != 1 || rev.Model.Adapters[0].ServedName != "llama:sql" {
		t.Errorf("the name at the replicas: %+v, %v", rev.Model.Adapters, err)
	}
	// What is stated is not said twice.
	rev, err := adapted(vllmArgs, own("--max_loras=1", "--enable-lora"), sql)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(container(rev.Component(service.RoleEngine).Pod, "kserve-container").Args, " ")
	if !strings.HasSuffix(got, `--max_loras=1 --enable-lora --max-lora-rank 8 --lora-modules sql={{index .AdapterPaths "sql"}}`) {
		t.Errorf("beside the service's own: %s", got)
	}
	for _, tc := range []struct {
		how  *service.AdapterArgs
		edit func(*Input)
		want string
	}{
		{vllmArgs, own("--lora-modules", "mine=/m"), "--lora-modules is how the service's adapters are given"},
		{each, own("--lora=mine"), "--lora=mine is how the service's adapters are given"},
		{nil, nil, "the runtime takes no adapters"},
		{&service.AdapterArgs{Each: []string{"{{.Adaptor}}"}}, nil, `adapters.each[0]: template {{.Adaptor}}: no field "Adaptor"`},
		{&service.AdapterArgs{Each: each.Each, Model: "{{.Adapter}}@{{.AdapterPath}}"}, nil, `adapters.model: template {{.AdapterPath}}: no field "AdapterPath"`},
	} {
		if _, err := adapted(tc.how, tc.edit, sql); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v, want %q", err, tc.want)
		}
	}
}

// TestAdapterArgsKeepWhatIsStated: whatever a command line holds, it stays as it
// is, in front, and none of its flags is said again.
func TestAdapterArgsKeepWhatIsStated(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 11))
	given := []string{"--enable-lora", "--max-loras", "2", "-v", "--lora-modules", "a=/a", "b=/b"}
	words := []string{"--enable-lora", "--enable_lora=true", "--max-loras", "--max_loras=9", "-v", "-7", "x", "--other", "--", "", "-", "--lora", "{{.Port}}"}
	for range 2000 {
		line := make([]string, r.IntN(8))
		for i := range line {
			line[i] = words[r.IntN(len(words))]
		}
		out, err := withAdapters(line, given, map[string]bool{"--lora-modules": true}, "here")
		if err != nil || len(out) < len(line) || !slices.Equal(out[:len(line)], line) {
			t.Fatalf("%q became %q: %v", line, out, err)
		}
		for _, f := range []string{"--enable-lora", "--max-loras", "-v", "--lora-modules"} {
			said := func(in []string) (n int) {
				for _, w := range in {
					if name, _, _ := strings.Cut(strings.ReplaceAll(w, "_", "-"), "="); name == f {
						n++
					}
				}
				return n
			}
			if before, after := said(line), said(out); after != max(before, 1) {
				t.Fatalf("%q: %s is said %d times, it was %d: %q", line, f, after, before, out)
			}
		}
		if !slices.Equal(out[len(out)-3:], given[4:]) {
			t.Fatalf("%q became %q without the adapters", line, out)
		}
	}
}

// TestAdapterPlaces: a process and a pod get the paths of their own.
func TestAdapterPlaces(t *testing.T) {
	rev, err := adapted(vllmArgs, nil, Adapter{Name: "sql", URI: "hf://org/sql"}, Adapter{Name: "a-b.c", URI: "hf://org/abc"})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(rev) // stored and read again
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &rev); err != nil {
		t.Fatal(err)
	}
	c := rev.Component(service.RoleEngine)
	at := Location{Port: 7000, ModelPath: "/store/m", AdapterPaths: map[string]string{"sql": "/store/1", "a-b.c": "/store/2"}}
	p, err := c.Process.Resolve(at)
	if err != nil {
		t.Fatal(err)
	}
	want := "vllm serve /store/m --port 7000 --served-model-name llama --max-model-len=8192 --chat-template={{ m.content }} " +
		"--enable-lora --max-loras 2 --lora-modules sql=/store/1 a-b.c=/store/2"
	if got := strings.Join(p.Command, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	pod, err := ResolvePod(c.Pod, at)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(pod.Containers[0].Args, " "); !strings.HasSuffix(got, "--lora-modules sql=/store/1 a-b.c=/store/2") {
		t.Errorf("the pod has %s", got)
	}
	if _, err := c.Process.Resolve(Location{AdapterPaths: map[string]string{"sql": "/store/1"}}); err == nil || !strings.Contains(err.Error(), `no key "a-b.c"`) {
		t.Errorf("an adapter that is nowhere: %v", err)
	}
}

// TestAdapterHash: a revision without adapters is what it was before there were
// any, whatever its runtime says of them; one with adapters is another for every
// change of them, and of nothing that was found out.
func TestAdapterHash(t *testing.T) {
	sql := Adapter{Name: "sql", URI: "hf://org/sql"}
	hash := func(how *service.AdapterArgs, edit func(*Input), adapters ...Adapter) string {
		t.Helper()
		rev, err := adapted(how, edit, adapters...)
		if err != nil {
			t.Fatal(err)
		}
		return rev.Hash
	}
	derived := func(in *Input) { in.Runtime.AdaptersDerived = true }
	none := hash(nil, nil)
	if none != hash(vllmArgs, nil) || none != hash(vllmArgs, derived) {
		t.Error("how a runtime takes adapters restarts a service that has none")
	}
	// As revisions were hashed before there were adapters.
	const before = "8bf18b5fa231780f"
	if none != before {
		t.Errorf("a service without adapters has become revision %s, it was %s: what is stored would restart", none, before)
	}
	some := hash(vllmArgs, nil, sql)
	for name, other := range map[string]string{
		"without":         none,
		"another name":    hash(vllmArgs, nil, Adapter{Name: "sqk", URI: sql.URI}),
		"another URI":     hash(vllmArgs, nil, Adapter{Name: "sql", URI: "hf://org/other"}),
		"one more":        hash(vllmArgs, nil, sql, Adapter{Name: "chat", URI: "hf://org/chat"}),
		"elsewhere":       hash(vllmArgs, func(in *Input) { in.Adapters = []Adapter{{Name: "sql", URI: "upload://1/sql"}} }, sql),
		"another runtime": hash(&service.AdapterArgs{Each: vllmArgs.Each}, nil, sql),
	} {
		if other == some {
			t.Errorf("%s: the same revision", name)
		}
	}
	if hash(vllmArgs, nil, Adapter{Name: "sql", URI: sql.URI, Rank: 64}) != some {
		t.Error("a rank that was found out is another revision")
	}
	if hash(vllmArgs, derived, sql) != hash(&service.AdapterArgs{Each: vllmArgs.Each}, derived, sql) {
		t.Error("another catalog is another revision")
	}
}

func TestAdapted(t *testing.T) {
	engine := func(image string) service.Components {
		return service.Components{Engine: &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}}}}
	}
	catalog := []service.Runtime{
		{Adapters: vllmArgs, Components: engine("vllm/vllm-openai:v1")},
		{Adapters: &service.AdapterArgs{Each: []string{"simulator"}}, Components: engine("roundhouse")},
	}
	leader := service.Runtime{Components: service.Components{Engine: &service.Component{
		Leader: &service.Node{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "vllm/vllm-openai@sha256:1"}}}}}}}
	own := &service.AdapterArgs{Each: []string{"own"}}
	for name, tc := range map[string]struct {
		rt      service.Runtime
		want    *service.AdapterArgs
		derived bool
	}{
		"the same repository":      {service.Runtime{Components: engine("docker.io/vllm/vllm-openai:v2")}, vllmArgs, true},
		"the leader's":             {leader, vllmArgs, true},
		"its own":                  {service.Runtime{Adapters: own, Components: engine("vllm/vllm-openai:v2")}, own, false},
		"another":                  {service.Runtime{Components: engine("vllm/other:v2")}, nil, false},
		"this program's own image": {service.Runtime{Components: engine("roundhouse")}, nil, false},
		"no engine":                {service.Runtime{}, nil, false},
		"no image":                 {service.Runtime{Components: engine("")}, nil, false},
	} {
		if got := Adapted(tc.rt, catalog); got.Adapters != tc.want || got.AdaptersDerived != tc.derived {
			t.Errorf("%s: %+v, derived %t", name, got.Adapters, got.AdaptersDerived)
		}
	}
}

// TestSameFiles: what is not known differs from nothing.
func TestSameFiles(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"", "", true},
		{"", "m+a", true},
		{"m", "m", true},
		{"m", "n", false},
		{"m+", "m+a", true},
		{"+a", "m+a", true},
		{"+a", "m+b", false},
		{"m+a", "m+b", false},
		{"m", "m+a", true}, // of a version that left out what it did not know
		{"m", "n+a", false},
	} {
		if SameFiles(c.a, c.b) != c.same || SameFiles(c.b, c.a) != c.same {
			t.Errorf("%q and %q: want %v", c.a, c.b, c.same)
		}
	}
}
