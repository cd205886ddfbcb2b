package command

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// TestFlagErrors: a flag's error says what the flag takes.
func TestFlagErrors(t *testing.T) {
	for arg, want := range map[string]string{
		"--wait=5":      `x: --wait is "5": want a time with its unit, such as 5s or 2m`,
		"--count=many":  `x: --count is "many": want a whole number`,
		"--share=half":  `x: --share is "half": want a number`,
		"--quick=maybe": `x: --quick is "maybe": want true or false`,
		"--none":        "x: unknown flag: --none",
	} {
		root := &cobra.Command{Use: "x", SilenceUsage: true, SilenceErrors: true, RunE: func(*cobra.Command, []string) error { return nil }}
		f := root.Flags()
		f.Duration("wait", time.Second, "")
		f.Int("count", 1, "")
		f.Float64("share", 1, "")
		f.Bool("quick", false, "")
		Mark(root)
		var logs bytes.Buffer
		if code := Run(root, []string{arg}, &logs, &logs); code != 2 || logs.String() != want+"\nSee `x --help`.\n" {
			t.Errorf("%s: exit %d: %s", arg, code, logs.String())
		}
	}
}

// TestListenErrors: what is wrong with the address, and which flag chooses
// another.
func TestListenErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for address, want := range map[string]string{
		taken.Addr().String(): taken.Addr().String() + " is in use: stop what listens there, or choose another with --listen",
		"x":                   `--listen: missing port in "x": want HOST:PORT, such as 127.0.0.1:8080`,
		"127.0.0.1:99999":     `--listen: invalid port in "99999": want HOST:PORT, such as 127.0.0.1:8080`,
		"192.0.2.1:80":        "192.0.2.1:80 is no address of this machine: choose another with --listen",
	} {
		_, err := net.Listen("tcp", address)
		if err = ListenError(err, "--listen"); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", address, err, want)
		}
	}
	other := errors.New("disk full")
	if got := ListenError(other, "--listen"); !errors.Is(got, other) || got.Error() != other.Error() || ListenError(nil, "--listen") != nil {
		t.Errorf("another error became %v", got)
	}
}
