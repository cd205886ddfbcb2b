package migrate

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

func TestSplitCommand(t *testing.T) {
	for _, c := range []struct {
		cmd  string
		want []string
		err  string
	}{
		{"a b  c\n d", []string{"a", "b", "c", "d"}, ""},
		{"a 'b c' \"d 'e'\" f\\ g ''", []string{"a", "b c", "d 'e'", "f g", ""}, ""},
		{"a \\\n  b \\\n# no\n  c", []string{"a", "b", "c"}, ""},
		{`a "x\"y\\z\n"`, []string{"a", `x"y\z\n`}, ""},
		{"a $(rm -rf /) `b` ; c", []string{"a", "$(rm", "-rf", "/)", "`b`", ";", "c"}, ""},
		{"a 'b", nil, "quotes do not end"},
		{"  # only\n", nil, "empty"},
		{"''", nil, "empty"},
		{"a \x00", nil, "zero byte"},
		{strings.Repeat("a ", maxWords+1), nil, "more than a command may have"},
	} {
		got, err := splitCommand(c.cmd)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%.40q: %v, want an error with %q", c.cmd, err, c.err)
			}
		} else if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q (%v), want %q", c.cmd, got, err, c.want)
		}
	}
}

// swapped migrates a configuration, and returns all that is made of it.
func swapped(t *testing.T, config string) (*Migration, string, error) {
	t.Helper()
	m, err := LlamaSwap(fstest.MapFS{"config.yaml": {Data: []byte(config)}}, "config.yaml", map[string]string{"GIVEN": "given"}, false)
	if err != nil {
		return nil, "", err
	}
	return m, all(t, m), nil
}

// all is what a migration prints, which must be read without an error.
func all(t *testing.T, m *Migration) string {
	t.Helper()
	var texts []string
	for _, d := range m.Documents {
		text, err := d.YAML()
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	whole := strings.Join(texts, "---\n")
	for _, p := range dialect.Read("migrated", []byte(whole)).Errors(dialect.Process) {
		t.Errorf("%s in\n%s", p, whole)
	}
	return whole
}

func TestLlamaSwap(t *testing.T) {
	for _, c := range []struct {
		name, config string
		has          []string
		left         string
	}{
		{"macros in macros, a model's before the whole's", `
macros: {ctx: 4096, args: "--ctx-size ${ctx}"}
models: {m: {macros: {ctx: 8192}, cmd: "s --port ${PORT} ${args} --id ${MODEL_ID}"}}`,
			[]string{"--ctx-size\n", `"8192"`, "- --id\n      - m\n", "'{{.Port}}'"}, ""},
		{"braces stay", `models: {m: {cmd: "s --port ${PORT} --template '{{ x }}'"}}`, []string{`'{{"{{"}} x }}'`}, ""},
		{"a number of a macro", `{macros: {t: 30}, models: {m: {cmd: "s ${PORT}", ttl: "${t}"}}}`, []string{"scaleToZeroAfter: 30s"}, ""},
		{"no check", `models: {m: {cmd: "s ${PORT}", checkEndpoint: none}}`, []string{"tcpSocket"}, ""},
		{"a port in a longer number", `models: {m: {cmd: "s --port 80 -n 8080", proxy: "http://localhost:80"}}`, []string{`"8080"`, "{{.Port}}"}, ""},
		{"GPUs", `models: {m: {cmd: "s ${PORT}", env: ["CUDA_VISIBLE_DEVICES=0,2"]}}`, []string{`nvidia.com/gpu: "2"`, "became a limit of 2"}, ""},
		{"groups", `
models: {a: {cmd: "s ${PORT}"}, b: {cmd: "s ${PORT}"}, c: {cmd: "s ${PORT}"}}
groups: {forever: {persistent: true, swap: false, exclusive: false, members: [c]}}
hooks: {on_startup: {preload: [c]}}`,
			[]string{"oneOf: default", "group: forever\n    pin: true\n    preload: true", "exclusive: true"}, ""},
		{"a variable that was given", `models: {m: {cmd: "s ${PORT} ${env.GIVEN}"}}`, []string{"- given"}, ""},
		{"a variable that was not", `models: {m: {cmd: "s ${PORT} ${env.HOME}"}}`, nil, "give --env HOME"},
		{"a macro that is not there", `models: {m: {cmd: "s ${PORT} ${none}"}}`, nil, "no macro ${none}"},
		{"a macro of itself", `{macros: {}, models: {m: {macros: {a: "x ${a}"}, cmd: "s ${PORT}"}}}`, nil, "names itself"},
		{"no port", `models: {m: {cmd: server}}`, nil, "neither ${PORT} nor"},
		{"a server elsewhere", `models: {m: {cmd: "s ${PORT}", proxy: "http://10.0.0.1:80"}}`, nil, "is not this machine's"},
		{"a peer with a key", `peers: {p: {proxy: "https://example.org/api", apiKey: top-secret, models: [x]}}`, nil, "plain HTTP"},
		{"no mapping", `models: {m: 5}`, nil, "is no mapping"},
		{"an unknown key", "models: {m: {cmd: \"s ${PORT}\", \"ne\\nw\": 1}}", []string{"ne w: is no key that is known"}, ""},
		{"names that are none", `models: {"A/b": {cmd: "s ${PORT}"}, "a-b": {cmd: "s ${PORT}"}, "…": {cmd: "s ${PORT}"}}`, []string{"name: a-b\n", "name: a-b-2\n", "name: model\n", "- A/b\n"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, text, err := swapped(t, c.config)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.has {
				if !strings.Contains(text, want) {
					t.Errorf("it lacks %q:\n%s", want, text)
				}
			}
			if left := strings.Join(m.Left, "\n"); c.left == "" && left != "" || !strings.Contains(left, c.left) {
				t.Errorf("left out: %q, want %q", left, c.left)
			}
			if strings.Contains(text+strings.Join(m.Left, ""), "top-secret") {
				t.Error("a secret is printed")
			}
		})
	}
}

// TestLlamaSwapBounds: what would grow without end is refused.
func TestLlamaSwapBounds(t *testing.T) {
	bomb := "macros:\n  m0: " + strings.Repeat("x", 1000) + "\n"
	for i := 1; i < 40; i++ {
		bomb += fmt.Sprintf("  m%d: ${m%d}${m%d}\n", i, i-1, i-1)
	}
	aliases := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 12; i++ {
		aliases += fmt.Sprintf("a%d: &a%d [*a%s,*a%s,*a%s,*a%s,*a%s,*a%s]\n", i, i, before(i), before(i), before(i), before(i), before(i), before(i))
	}
	for name, config := range map[string]string{
		"macros": bomb + "models: {m: {cmd: \"${m39} ${PORT}\"}}", "aliases": aliases, "text": "\x00", "a list": "[]", "depth": strings.Repeat("[", 20000),
		"size": strings.Repeat("#", maxFileBytes+1),
	} {
		if _, _, err := swapped(t, config); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func before(i int) string {
	if i == 1 {
		return ""
	}
	return fmt.Sprint(i - 1)
}

// TestLlamaSwapKeysAreSorted: each key once, and each with what becomes of it.
func TestLlamaSwapKeysAreSorted(t *testing.T) {
	for i, k := range LlamaSwapKeys {
		if k.Becomes == "" && k.Lacks == "" {
			t.Errorf("%s has nothing", k.Path)
		}
		if i > 0 && LlamaSwapKeys[i-1].Path >= k.Path {
			t.Errorf("%s is not after %s", k.Path, LlamaSwapKeys[i-1].Path)
		}
	}
	// Every field that is read has a row.
	var walk func(path string, t reflect.Type)
	walk = func(path string, rt reflect.Type) {
		for i := range rt.NumField() {
			f := rt.Field(i)
			at := strings.TrimPrefix(path+"."+f.Tag.Get("yaml"), ".")
			ft := f.Type
			for ft.Kind() == reflect.Map || ft.Kind() == reflect.Pointer {
				if ft.Kind() == reflect.Map && ft.Elem().Kind() == reflect.Struct {
					at += ".*"
				}
				ft = ft.Elem()
			}
			covered := slices.ContainsFunc(LlamaSwapKeys, func(k Key) bool { return at == k.Path || strings.HasPrefix(at, k.Path+".") })
			if ft.Kind() == reflect.Struct && !covered {
				walk(at, ft)
			} else if !covered {
				t.Errorf("%s is read and has no row", at)
			}
		}
	}
	walk("", reflect.TypeFor[swapConfig]())
}

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// TestOllamaHostile: a manifest leads to no file but a blob, and each bad one is left
// out by itself.
func TestOllamaHostile(t *testing.T) {
	good := fmt.Sprintf(`{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":%q}]}`, digest)
	root := fstest.MapFS{
		"blobs/" + strings.Replace(digest, ":", "-", 1):            {Data: []byte("GGUF....")},
		"manifests/registry.ollama.ai/library/good/latest":         {Data: []byte(good)},
		"manifests/example.org/team/other/1b":                      {Data: []byte(good)},
		"manifests/registry.ollama.ai/library/path/latest":         {Data: []byte(strings.Replace(good, digest, "sha256:../../etc/passwd", 1))},
		"manifests/registry.ollama.ai/library/missing/latest":      {Data: []byte(strings.Replace(good, "0123", "9999", 1))},
		"manifests/registry.ollama.ai/library/json/latest":         {Data: []byte("{")},
		"manifests/registry.ollama.ai/library/none/latest":         {Data: []byte("{}")},
		"manifests/registry.ollama.ai/library/twice/latest":        {Data: []byte(strings.Replace(good, "]", ","+strings.TrimPrefix(good, `{"layers":[`)[:len(good)-len(`{"layers":[`)-1], 1))},
		"manifests/registry.ollama.ai/library/deep/er/than/latest": {Data: []byte(good)},
	}
	m, err := Ollama(root, "/srv/ollama", true)
	if err != nil {
		t.Fatal(err)
	}
	text := all(t, m)
	for _, want := range []string{"name: good\n", "- good\n  - good:latest\n", "- example.org/team/other:1b\n", "shareGPU: true", "uri: file:///srv/ollama/blobs/sha256-0123"} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q:\n%s", want, text)
		}
	}
	if len(m.Documents) != 2 || len(m.Left) != 6 {
		t.Errorf("%d documents; left out:\n%s", len(m.Documents), strings.Join(m.Left, "\n"))
	}
	if _, err := Ollama(fstest.MapFS{}, "/srv", false); err == nil || !strings.Contains(err.Error(), "no folder manifests") {
		t.Errorf("no folder: %v", err)
	}
}

// TestFolderIsLeftByNoLink: links of a folder lead nowhere else.
func TestFolderIsLeftByNoLink(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	for path, text := range map[string]string{
		secret: `{"secret_setting": true}`,
		filepath.Join(outside, "model-settings.json"): `{"name":"stolen","implementation":"mlserver_xgboost.XGBoostModel"}`,
		filepath.Join(dir, "model-settings.json"):     `{"implementation":"mlserver_xgboost.XGBoostModel","parameters":{"uri":"../../x"}}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"settings.json": secret, "linked": outside} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if m, err := MLServer(root.FS(), dir); err == nil {
		t.Errorf("settings.json leads out of the folder, and was read: %+v", m)
	}
	if err := os.Remove(filepath.Join(dir, "settings.json")); err != nil {
		t.Fatal(err)
	}
	m, err := MLServer(root.FS(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if text := all(t, m); len(m.Documents) != 1 || strings.Contains(text, "stolen") || !strings.Contains(text, "leads out of the folder") {
		t.Errorf("%s", text)
	}
}

func FuzzLlamaSwap(f *testing.F) {
	f.Add("models: {m: {cmd: \"s --port ${PORT}\", aliases: [a], ttl: 5, env: [A=b]}}")
	f.Add("macros: {a: b}\nmodels:\n  m:\n    cmd: |\n      ${a} '${PORT}' \\\n        {{.Name}}\n    proxy: http://[::1]:${PORT}/x\ngroups: {g: {members: [m]}}")
	f.Fuzz(func(t *testing.T, config string) {
		m, err := LlamaSwap(fstest.MapFS{"c": {Data: []byte(config)}}, "c", nil, true)
		if err == nil {
			all(t, m)
		}
	})
}
