package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// TestHelp: every command says what it does and shows how it is called.
func TestHelp(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if shown := c.HasSubCommands() || strings.Contains(c.Example, c.CommandPath()); c.Short == "" || !shown {
			t.Errorf("%s: short %q, example %q", c.CommandPath(), c.Short, c.Example)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
}

// TestWrongCommandLines: what is wrong, and what to write instead; wrong usage
// is no failure of the work.
func TestWrongCommandLines(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	nobody := "--server=http://127.0.0.1:1"
	for _, c := range []struct {
		args  []string
		usage bool
		says  []string
	}{
		{[]string{"ups"}, true, []string{`no command "ups"`, "did you mean up?"}},
		{[]string{"keys", "lst"}, true, []string{`no command "lst"`, "did you mean list?"}},
		{[]string{"simulate", "weather"}, true, []string{`no command "weather"`}},
		{[]string{"apply", "iris.yaml"}, true, []string{"-f iris.yaml"}},
		{[]string{"up", "models/"}, true, []string{"-f models/"}},
		{[]string{"keys", "list", "all"}, true, []string{`no "all"`}},
		{[]string{"logs"}, true, []string{"the name of a service", "roundhouse logs NAME"}},
		{[]string{"logs", "a", "b"}, true, []string{`"b" is one argument too many`}},
		{[]string{"get", "--server", "127.0.0.1:1"}, false, []string{"nobody listens at http://127.0.0.1:1", "--server"}},
		{[]string{"get", "--server", "ftp://x"}, true, []string{"--server", "want http://HOST:PORT"}},
		{[]string{"infer", "iris", "-d", "{\"instances\":[]}", "--gateway", "127.0.0.1:1", nobody}, false, []string{"nobody listens at http://127.0.0.1:1", "--gateway"}},
		{[]string{"infer", "iris", "-d", " "}, false, []string{"is empty", "-d @FILE"}},
		{[]string{"infer", "iris", "-d", "[1]"}, false, []string{"of kind array"}},
		{[]string{"explain", "missing.yaml", nobody}, false, []string{"missing.yaml: no such file"}},
		{[]string{"explain", "./missing", nobody}, false, []string{"./missing: no such file"}},
		{[]string{"keys", "list", "--file", missing}, false, []string{missing, "no such file"}},
		{[]string{"gateway", "-f", ".", "--session-header", "a b", "--listen=127.0.0.1:0", "--grpc-listen=", "--metrics-listen="}, true, []string{"--session-header", "X-Session-Id"}},
		{[]string{"endpoint-picker", "-f", ".", "--session-header", "a:b"}, true, []string{"--session-header"}},
		{[]string{"simulate", "routing", "--policy", "best"}, true, []string{`"best"`, "round-robin"}},
		{[]string{"simulate", "routing", "--workload", "best"}, true, []string{`"best"`, "shared-prefix"}},
		{[]string{"simulate", "routing", "--trace", missing}, false, []string{"--trace " + missing + ": no such file"}},
		{[]string{"simulate", "engine", "--role", "king"}, true, []string{`"king"`, "prefill"}},
	} {
		root := newRootCommand()
		root.SetArgs(c.args)
		root.SetIn(strings.NewReader(""))
		root.SetOut(&bytes.Buffer{})
		root.SetErr(&bytes.Buffer{})
		err := root.ExecuteContext(t.Context())
		if err == nil {
			t.Errorf("%q: no error", c.args)
			continue
		}
		if usage := command.WrongUsage(err); usage != c.usage {
			t.Errorf("%q: wrong usage is %t: %v", c.args, usage, err)
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%q: %q does not say %q", c.args, err, s)
			}
		}
	}
}
