package replica

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCauseOfRealLogs: of what engines wrote as they failed, the lines are
// found that say why, not those that came after.
func TestCauseOfRealLogs(t *testing.T) {
	for file, want := range map[string]string{
		"sglang-driver.txt":      "RuntimeError: Found no NVIDIA driver on your system.",
		"vllm-weights.txt":       "SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
		"llama-server-model.txt": "error loading model: llama_model_loader: failed to load model from /models/broken/model.safetensors",
		"python-chained.txt":     "RuntimeError: model /models/none/config.json cannot be read",
		"triton-repository.txt":  "failed to stat file /models/none",
	} {
		data, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		if got := Cause(strings.Split(string(data), "\n"), 1); len(got) == 0 || len(got) > maxCause || !strings.Contains(strings.Join(got, " | "), want) {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
}

func TestCause(t *testing.T) {
	for in, want := range map[string]string{
		"":                           "",
		"\n \n":                      "",
		"hello\nbye\n":               "bye",
		"ValueError: no memory\nbye": "ValueError: no memory",
		"INFO: 0 errors\nlast":       "last",
		"2026-11-22 12:00:01 INFO error handlers are set\nlast":                                                                            "last",
		"[WARNING] cannot raise the limit\nlast":                                                                                           "last",
		"level=info msg=\"failed=0\"\nlast":                                                                                                "last",
		"0.1 E srv load: no luck\n0.2 I srv gone":                                                                                          "0.1 E srv load: no luck",
		"0.1 E srv load: failed to load\n0.2 I srv cleaning up\n0.3 E srv exiting due to an error":                                         "0.1 E srv load: failed to load | 0.3 E srv exiting due to an error",
		"panic: boom\n\ngoroutine 1 [running]:\nmain.main()":                                                                               "panic: boom",
		"bind: address already in use: error\nFailed to bind\nsee above: error":                                                            "bind: address already in use: error | Failed to bind",
		"a: UserWarning: Only CUDA supports this\nlast":                                                                                    "last",
		"[x.py:3] ValueError: no\nat\nFailed to clean up\nbye":                                                                             "[x.py:3] ValueError: no | Failed to clean up",
		"torch.OutOfMemoryError: CUDA out of memory.\nbye":                                                                                 "torch.OutOfMemoryError: CUDA out of memory.",
		"error 1\nerror 2\nerror 3\nerror 4\nerror 5\nbye":                                                                                 "error 2 | error 3 | error 4 | error 5",
		"tool: unrecognized option '--x'\nUsage: tool [options]\n  --y: what failed cannot go on":                                          "tool: unrecognized option '--x'",
		"flag provided but not defined: -x\nUsage of tool:\n  -y error":                                                                    "flag provided but not defined: -x",
		"W1122 14:17:38.7 99 metrics.cc:798] \"initialization error\"\nlast":                                                               "last",
		"E1122 14:17:38.7 99 m.cc:642] \"failed to load 'm': Internal: ImportError: no\"\n| m | ImportError: no |\nerror: creating server": "E1122 14:17:38.7 99 m.cc:642] \"failed to load 'm': Internal: ImportError: no\" | error: creating server",
		"roundhouse-server: unknown flag: --x\nSee `roundhouse-server --help`.":                                                            "roundhouse-server: unknown flag: --x",
		"raise ValueError(\nlast":                                                                                                          "last",
		// Pydantic's message is below its heading, and above where to read on.
		"vllm: error: argument --c: 1 validation error for Config\n  Invalid JSON: no key at line 1 [type=json_invalid, input_value='{a:', input_type=str]\n    For further information visit https://errors.pydantic.dev/2.14/v/json_invalid":        "vllm: error: argument --c: 1 validation error for Config | Invalid JSON: no key at line 1 [type=json_invalid, input_value='{a:', input_type=str]",
		"a.ValidationError: 1 validation error for Model\n  Value error, no folder /m\nPlease verify it.\n [type=value_error, input_value=Args(), input_type=Args]\n    For further information visit https://errors.pydantic.dev/2.14/v/value_error": "a.ValidationError: 1 validation error for Model | Value error, no folder /m",
		// A structured line is quoted by what it says, once.
		`time=2026-11-22T21:30:01Z level=ERROR msg="model cannot be loaded" model=m version="" error="/m/x.ubj: this is no \"U\" model"` +
			"\nroundhouse-server: model \"m\": /m/x.ubj: this is no \"U\" model": `/m/x.ubj: this is no "U" model`,
		`{"time":"2026-11-22T21:30:01Z","level":"ERROR","msg":"model cannot be loaded","error":"no such file"}`: "no such file",
		`time=2026-11-22T21:30:01Z level=ERROR msg="the disk failed" free=0`:                                    "the disk failed",
		`time=2026-11-22T21:30:01Z level=ERROR cut off`:                                                         "time=2026-11-22T21:30:01Z level=ERROR cut off",
		"error: no file\nsrv failed: error: no file\nerror: no file":                                            "srv failed: error: no file",
	} {
		if got := strings.Join(Cause(strings.Split(in, "\n"), 1), " | "); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
