package e2e

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestLoadAndUnload: the verbs call the repository of a gateway, and that of a model
// server which --gateway names.
func TestLoadAndUnload(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	contains(t, n.do("load", "iris", "digits"), "model iris is loaded\n", "model digits is loaded\n")
	matches(t, n.do("ps"), `(?s)default/digits .*Ready.*default/iris .*Ready`)
	contains(t, n.do("unload", "default/iris"), "model default/iris is unloaded")
	eventually(t, "iris sleeps", func() (bool, string) {
		out := n.do("ps")
		return !strings.Contains(out, "default/iris") && strings.Contains(out, "default/digits"), out
	})
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "awake.yaml", onPlain(1, "")))
	contains(t, n.do("unload", "chat"), "model chat is unloaded") // although it is never idle
	eventually(t, "chat sleeps", func() (bool, string) { out := n.do("ps"); return !strings.Contains(out, "default/chat"), out })
	n.do("stop", "digits", "--wait")
	for args, want := range map[string]string{
		"load nosuch":                     "load nosuch: 404",
		"load digits":                     "load digits: 503",
		"unload nosuch":                   "unload nosuch: 404",
		"unload":                          "the name of a model",
		"load iris --timeout 0s":          "more than 0",
		"load iris --gateway 127.0.0.1:1": "no server listens at http://127.0.0.1:1",
	} {
		if r := n.run(strings.Fields(args)...); r.code == 0 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %s", args, r)
		}
	}

	logs := &capture{}
	server := exec.Command(binary, "serve", "examples/quickstart/models/iris.ubj", "--http-port", "0")
	server.Dir, server.Env, server.Stdout, server.Stderr = root, n.environ(), logs, &capture{}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		_ = server.Wait()
	}()
	at := ""
	eventually(t, "the server prints its address", func() (bool, string) {
		at = after(logs.String(), "  REST       ")
		return at != "", logs.String()
	})
	ready := func() bool { return n.get(at+"/v2/models/iris/ready").status == 200 }
	eventually(t, "the model is loaded", func() (bool, string) { return ready(), "" })
	n.do("unload", "iris", "--gateway", at)
	if ready() {
		t.Error("the model is still loaded")
	}
	n.do("load", "iris", "--gateway", at)
	if !ready() {
		t.Error("the model is not loaded")
	}
}
