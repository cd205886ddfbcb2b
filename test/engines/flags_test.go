package engines

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	words "roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// invocation is a program that an entry of the catalog runs, with the flags that it
// gives it.
type invocation struct {
	program string
	flags   []string
}

// entrypoints are the programs that images begin with, for arguments without a command.
// Images that begin with a script, which runs what the arguments name, are not here.
var entrypoints = map[string]string{
	"kserve/autogluonserver":   "autogluonserver",
	"kserve/huggingfaceserver": "huggingfaceserver",
	"kserve/lgbserver":         "lgbserver",
	"kserve/paddleserver":      "paddleserver",
	"kserve/pmmlserver":        "pmmlserver",
	"kserve/predictiveserver":  "predictiveserver",
	"kserve/sklearnserver":     "sklearnserver",
	"kserve/xgbserver":         "xgbserver",
	"openvino/model_server":    "ovms",
	"roundhouse":               "roundhouse",
	"vllm/vllm-openai":         "vllm.entrypoints.openai.api_server",
}

// invocations are those of a runtime's containers and processes. Arguments for
// adapters and for sleeping belong to each engine.
func invocations(rt *words.Runtime) (out []invocation) {
	var more []string
	if a := rt.Adapters; a != nil {
		more = slices.Concat(a.Args, a.Each, a.Rank)
	}
	for _, role := range words.Roles {
		c := rt.Components.Get(role)
		if c == nil {
			continue
		}
		pods := []corev1.PodSpec{c.Pod}
		for _, n := range []*words.Node{c.Leader, c.Worker} {
			if n != nil {
				pods = append(pods, n.Pod)
			}
		}
		for _, p := range pods {
			for _, m := range p.Containers {
				line := slices.Concat(m.Command, m.Args)
				if program := entrypoints[workload.Repository(m.Image)]; len(m.Command) == 0 && program != "" {
					line = slices.Insert(line, 0, program)
				}
				if role == words.RoleEngine {
					line = append(line, more...)
				}
				out = append(out, commands(line)...)
			}
		}
		for l := c.Local; l != nil; l = l.Fallback {
			line := slices.Clone(l.Command)
			if role == words.RoleEngine {
				line = append(line, more...)
			}
			if l.Standby != nil {
				line = append(line, l.Standby.Args...)
			}
			out = append(out, commands(line)...)
		}
	}
	return out
}

var (
	substituted = regexp.MustCompile(`"?\$\([^()]*\)"?|\$\(\([^()]*\)\)`)
	assignment  = regexp.MustCompile(`^[A-Za-z_]\w*=`)
)

// shellWords begin or follow what is no program of an engine.
var shellWords = []string{"until", "while", "if", "then", "do", "exec", "!"}

// commands are the programs of a command line, of the text of a shell too.
func commands(line []string) (out []invocation) {
	if len(line) < 3 || !slices.Contains([]string{"sh", "bash"}, path.Base(line[0])) || !strings.HasSuffix(line[1], "c") {
		return []invocation{command(line)}
	}
	text := strings.NewReplacer(";", " ; ", "&&", " ; ", "||", " ; ", "|", " ; ", "\n", " ; ").Replace(substituted.ReplaceAllString(line[2], "X"))
	for part := range strings.SplitSeq(text, " ; ") {
		var one []string
		for _, w := range strings.Fields(part) {
			switch w {
			case `"$@"`: // what follows the text, but for the shell's own name
				one = append(one, line[min(len(line), 4):]...)
			default:
				one = append(one, strings.Trim(w, `"'`))
			}
		}
		out = append(out, command(one))
	}
	return out
}

// command is one program and its flags.
func command(line []string) (out invocation) {
	for len(line) > 0 && (assignment.MatchString(line[0]) || slices.Contains(shellWords, line[0])) {
		line = line[1:]
	}
	if len(line) == 0 {
		return out
	}
	out.program = path.Base(line[0])
	if strings.HasPrefix(out.program, "python") && len(line) > 2 && line[1] == "-m" {
		out.program, line = line[2], line[2:]
	}
	for _, w := range line[1:] {
		if f := flag.FindString(w); f != "" {
			out.flags = append(out.flags, f)
		}
	}
	return out
}

// TestCommands: flags are found wherever a command line has them.
func TestCommands(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		line []string
		want []invocation
	}{
		{[]string{"vllm", "serve", "/m", "--port=1", "-tp", "2"}, []invocation{{"vllm", []string{"--port", "-tp"}}}},
		{[]string{"python3", "-m", "sglang.launch_server", "--host", "h"}, []invocation{{"sglang.launch_server", []string{"--host"}}}},
		{[]string{"/usr/bin/x", "--a_b={{.Name}}"}, []invocation{{"x", []string{"--a_b"}}}},
		{[]string{"sh", "-c", `exec /app/x -m "$(find . --no)" "$@" --last $((A * b))`, "x", "--more"}, []invocation{{"x", []string{"-m", "--more", "--last"}}}},
		{[]string{"bash", "-c", `a --b && C=$(D):1 exec python -m e "--f=${G:-h}"; until i --j; do k; done`},
			[]invocation{{"a", []string{"--b"}}, {"e", []string{"--f"}}, {"i", []string{"--j"}}, {"k", nil}, {"done", nil}}},
	} {
		got := commands(tt.line)
		if !slices.EqualFunc(got, tt.want, func(a, b invocation) bool { return a.program == b.program && slices.Equal(a.flags, b.flags) }) {
			t.Errorf("%q:\n%q, want\n%q", tt.line, got, tt.want)
		}
	}
}
