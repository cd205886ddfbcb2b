package configfile

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

type settings struct {
	listen, output string
	files, hosts   []string
	watch          bool
	wait           time.Duration
}

// run runs a command with a file of flags and a command line.
func run(t *testing.T, text string, args ...string) (got settings, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return nil }}
	f := cmd.Flags()
	f.StringVar(&got.listen, "listen", "127.0.0.1:8080", "")
	f.StringArrayVarP(&got.files, "filename", "f", nil, "")
	f.StringSliceVar(&got.hosts, "allowed-hosts", nil, "")
	f.BoolVar(&got.watch, "watch", false, "")
	f.DurationVar(&got.wait, "wait", time.Second, "")
	command.OutputFlag(cmd, &got.output, "", "wide", "json")
	Add(cmd)
	cmd.SetArgs(append([]string{"--config", file}, args...))
	return got, cmd.Execute()
}

func TestFile(t *testing.T) {
	const text = `# comments stay
listen: 127.0.0.1:1
filename: [a.yaml, b.yaml]
allowed-hosts: chat.example
watch: true
wait: 5m
output: wide
`
	for name, c := range map[string]struct {
		text string
		args []string
		want settings
	}{
		"all of it":           {text, nil, settings{"127.0.0.1:1", "wide", []string{"a.yaml", "b.yaml"}, []string{"chat.example"}, true, 5 * time.Minute}},
		"the command line is": {text, []string{"--listen", ":2", "-f", "c.yaml", "--watch=false"}, settings{":2", "wide", []string{"c.yaml"}, []string{"chat.example"}, false, 5 * time.Minute}},
		"nothing":             {"# only this\n", nil, settings{listen: "127.0.0.1:8080", wait: time.Second}},
	} {
		got, err := run(t, c.text, c.args...)
		if err != nil || got.listen != c.want.listen || got.output != c.want.output || got.watch != c.want.watch || got.wait != c.want.wait ||
			!slices.Equal(got.files, c.want.files) || !slices.Equal(got.hosts, c.want.hosts) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

func TestFaults(t *testing.T) {
	for text, says := range map[string]string{
		"listne: x":                         "c.yaml:1: listne: is no flag of this command; did you mean listen?",
		"config: other.yaml":                "is no flag of this command",
		"\nwait: soon":                      `c.yaml:2: wait: "soon": want a time with its unit`,
		"wait: [1s]":                        "c.yaml:1: wait: want a time with its unit",
		"watch: perhaps":                    `"perhaps": want true or false`,
		"output: xml":                       `"xml": want wide or json`,
		"filename: {a: b}":                  "want a word, or a list of words",
		"filename: [{a: b}]":                "want a list of words",
		"listen: x\nlisten: y":              "c.yaml:2: listen: is stated twice",
		"listen:":                           "c.yaml:1: listen: want a word",
		"[a]":                               "c.yaml:1: want flags by their names",
		"listen: [":                         "c.yaml: ",
		"a: 1\nb: 2":                        "c.yaml:2: b: is no flag",
		"# " + strings.Repeat("x", 1<<20+1): "is over 1048576 bytes",
	} {
		if _, err := run(t, text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40q: %v, want %s", text, err, says)
		}
	}
	if _, err := run(t, "wait: soon", "--wait", "1s"); err != nil { // which has precedence
		t.Errorf("of a flag that the command line states: %v", err)
	}
}
