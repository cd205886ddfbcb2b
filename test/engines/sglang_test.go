package engines

import (
	"net/http"
	"strings"
	"testing"
)

// sglangService is a service of SGLang with two adapters, on CPUs, which the
// entry's GPU has to be taken from.
func sglangService(name, folder, more string) string {
	return strings.NewReplacer("runtime: {name: vllm}", "runtime: {name: sglang}", "name: tiny", "name: "+name).Replace(vllmService(folder, more))
}

// TestSGLang starts SGLang by the catalog's entry: adapters that answer
// differently, names that are none, and the metrics that its load is read by.
func TestSGLang(t *testing.T) {
	bin := sglang.needs(t, "sglang", "python")
	n, folder := startNode(t, bin), t.TempDir()
	python(t, bin, "hf_model.py", folder)
	n.apply(sglangService("tiny", folder, ", args: [--enable-priority-scheduling]"))
	was := n.ready("tiny", 1)[0]
	n.differ("tiny", "sql", "chat")
	// SGLang itself answers names that it does not know by the base model.
	for _, name := range []string{"slq", "tiny:none", "default"} {
		for _, host := range []string{"", "tiny.default.localhost"} {
			a := n.post("/v1/completions", `{"model":"`+name+`","prompt":"hello","max_tokens":4}`, "Host", host)
			if a.status != http.StatusNotFound {
				t.Errorf("the name %s at the host %q: %s", name, host, a)
			}
		}
	}
	n.reads("sglang", was.metrics())
}

// TestSGLangCannotStart: get names the cause that the engine printed.
func TestSGLangCannotStart(t *testing.T) {
	bin := sglang.needs(t, "sglang", "python")
	n, folder := startNode(t, bin), t.TempDir()
	python(t, bin, "hf_model.py", folder)
	n.apply(sglangService("flag", folder, ", args: [--no-such-flag]"))
	n.eventually("get names the flag", func() (bool, string) {
		out := n.do("get", "flag")
		return strings.Contains(out, "unrecognized arguments: --no-such-flag"), out
	})
	t.Log(n.do("get", "flag"))
}
