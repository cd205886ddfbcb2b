package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"roundhouse.dev/roundhouse/internal/edge/image/imagetest"
)

var update = flag.Bool("update", false, "write the golden files")

// native are the implementations the tests call native.
var native = []string{"mlserver_xgboost.XGBoostModel"}

// tree writes files: names that end in / are folders, texts that begin with
// "-> " links.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "iris")
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, link := strings.CutPrefix(text, "-> "); link {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// staticELF is the least that passes for a static program.
func staticELF(t *testing.T) string {
	t.Helper()
	return fakeELF(t, 62, "roundhouse") // for amd64
}

func fakeELF(t *testing.T, machine byte, name string) string {
	t.Helper()
	head := make([]byte, 64)
	copy(head, "\x7fELF\x02\x01\x01")
	head[16], head[18], head[20] = 2, machine, 1 // an executable, of version 1
	head[52], head[54], head[58] = 64, 56, 64
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, head, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func paths(p *Plan) []string {
	var out []string
	for _, f := range p.Files {
		out = append(out, f.Path)
	}
	return out
}

func TestReadFolder(t *testing.T) {
	p, err := ReadFolder(tree(t, map[string]string{
		"settings.json":       `{"http_port": 9000, "debug": true, "server_name": "mine", "tracing_server": null, "extensions": ["a.b"]}`,
		"model-settings.json": `{"implementation": "models.Runtime", "parameters": {"uri": "./model.bin", "extra": {"a": "$b \"c\""}}, "inputs": [{"name": "x"}]}`,
		"models.py":           "", "model.bin": "1", "requirements.txt": "numpy",
		"conda.yaml": "", "environment.yml": "",
		"sub/model-settings.json": `{"implementation": "mlserver_xgboost.XGBoostModel"}`,
		"sub/latest":              "-> ../model.bin",
		"__pycache__/x.pyc":       "", "sub/__pycache__/y.pyc": "", ".git/HEAD": "", ".env": "", "Dockerfile": "",
	}), native)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"conda.yaml", "environment.yml", "model.bin", "models.py", "requirements.txt", "sub", "sub/latest", "sub/model-settings.json"}; !slices.Equal(paths(p), want) {
		t.Errorf("files %q, want %q", paths(p), want)
	}
	want := []string{
		"MLSERVER_DEBUG=true", `MLSERVER_EXTENSIONS=["a.b"]`, "MLSERVER_HTTP_PORT=9000",
		`MLSERVER_MODEL_EXTRA={"a":"$b \"c\""}`, "MLSERVER_MODEL_IMPLEMENTATION=models.Runtime", `MLSERVER_MODEL_INPUTS=[{"name":"x"}]`,
		"MLSERVER_MODEL_URI=./model.bin", "MLSERVER_SERVER_NAME=mine",
	}
	if !slices.Equal(p.Defaults, want) {
		t.Errorf("defaults %q\nwant %q", p.Defaults, want)
	}
	if p.Name != "iris" || p.Conda != "conda.yaml" || p.Pip != "requirements.txt" || !slices.Equal(p.ports(), []string{"9000", "8081", "8082"}) {
		t.Errorf("%+v, ports %v", p, p.ports())
	}
}

// TestNameOfTheModel gives a model its folder's name where that is what serve
// would do, and to models of others none.
func TestNameOfTheModel(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"MLSERVER_MODEL_NAME=iris":    {"iris.ubj": "x"},
		"MLSERVER_MODEL_NAME=mine":    {"iris.ubj": "x", "model-settings.json": `{"name": "mine"}`},
		"MLSERVER_MODEL_PLATFORM=p":   {"a/model-settings.json": "{}", "model-settings.json": `{"platform": "p"}`},
		"":                            {"requirements.txt": "torch"},
		"MLSERVER_PARALLEL_WORKERS=2": {"environment.yaml": "", "settings.json": `{"parallel_workers": 2}`},
	} {
		p, err := ReadFolder(tree(t, files), native)
		if got := strings.Join(p.Defaults, " "); err != nil || got != want {
			t.Errorf("%v: %s %v, want %s", files, got, err, want)
		}
	}
}

func TestNeeds(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		needs string // in the first need, "" for none
	}{
		{"a native model", map[string]string{"iris.ubj": "x"}, ""},
		{"a native implementation", map[string]string{"model-settings.json": `{"implementation": "mlserver_xgboost.XGBoostModel"}`}, ""},
		{"another implementation", map[string]string{"model-settings.json": `{"implementation": "models.Mine"}`}, "implementation models.Mine"},
		{"another, below", map[string]string{"a/model-settings.json": `{"implementation": "mlserver_sklearn.SKLearnModel"}`}, "a/model-settings.json names the implementation mlserver_sklearn"},
		{"code", map[string]string{"a/models.py": ""}, "a/models.py"},
		{"packages", map[string]string{"requirements.txt": ""}, "requirements.txt states Python packages"},
		{"an environment", map[string]string{"environment.yaml": ""}, "Conda"},
		{"a pickle", map[string]string{"model.joblib": ""}, "model.joblib"},
		{"ignored code", map[string]string{"models.py": "", ".dockerignore": "*.py"}, ""},
		{"code kept", map[string]string{"models.py": "", "x.py": "", ".dockerignore": "*.py\n!models.py"}, "models.py"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, err := ReadFolder(tree(t, test.files), native)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(p.Needs, "; "); !strings.Contains(got, test.needs) || test.needs == "" && got != "" {
				t.Errorf("needs %q, want %q", got, test.needs)
			}
		})
	}
}

func TestReadFolderErrors(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		says  string
	}{
		"no JSON":         {map[string]string{"settings.json": "{"}, "settings.json: unexpected end"},
		"no object":       {map[string]string{"model-settings.json": "[]"}, "model-settings.json"},
		"parameters":      {map[string]string{"model-settings.json": `{"parameters": 1}`}, "parameters"},
		"a field":         {map[string]string{"settings.json": `{"a b": 1}`}, `"a b" cannot be a setting`},
		"a value":         {map[string]string{"settings.json": `{"host": "a\nRUN b"}`}, "one line"},
		"nested settings": {map[string]string{"a/model-settings.json": "{"}, "a/model-settings.json"},
		"a way out":       {map[string]string{"a/data": "-> ../../secret"}, "outside the folder"},
		"an absolute way": {map[string]string{"data": "-> /etc/passwd"}, "outside the folder"},
		"a bad pattern":   {map[string]string{".dockerignore": "[a-"}, ".dockerignore"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ReadFolder(tree(t, test.files), native); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v does not say %q", err, test.says)
			}
		})
	}
	if _, err := ReadFolder(filepath.Join(t.TempDir(), "none"), native); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if _, err := ReadFolder(staticELF(t), native); err == nil || !strings.Contains(err.Error(), "is made of a folder") {
		t.Errorf("a file: %v", err)
	}
}

func TestReference(t *testing.T) {
	for in, want := range map[string][2]string{
		"iris":                       {"iris:latest", "docker.io/library/iris:latest"},
		"iris:v1":                    {"iris:v1", "docker.io/library/iris:v1"},
		"team/iris:v1":               {"team/iris:v1", "docker.io/team/iris:v1"},
		"example.com/iris":           {"example.com/iris:latest", "example.com/iris:latest"},
		"localhost:5000/a/b-c__d:V_": {"localhost:5000/a/b-c__d:V_", "localhost:5000/a/b-c__d:V_"},
	} {
		r, err := parseReference(in)
		if got := [2]string{r.short(), r.full()}; err != nil || got != want {
			t.Errorf("%s: %v %v, want %v", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "Iris", "iris:", "iris:-", "a//b", "/a", "a/", "a b", "ex_ample.com:80/a", "a@sha256:0", strings.Repeat("a", 256), "-x"} {
		if err := ParseTag(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestDockerfileGolden(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"native":       {"iris.ubj": "x", "settings.json": `{"http_port": 9000}`},
		"requirements": {"models.py": "", "requirements.txt": "", "model-settings.json": `{"implementation": "models.M", "parameters": {"extra": {"price": "$5", "path": "a\\b"}}}`},
		"conda":        {"models.py": "", "environment.yaml": "", "requirements.txt": ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := ReadFolder(tree(t, files), native)
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".Dockerfile")
			if *update {
				if err := os.WriteFile(golden, []byte(p.Dockerfile()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Dockerfile(); got != string(want) {
				t.Errorf("not as %s (-update writes it):\n%s", golden, got)
			}
		})
	}
}

// layout writes the layout of a folder and reads it.
func layout(t *testing.T, folder, program, base string) (*imagetest.Image, []byte) {
	t.Helper()
	p, err := ReadFolder(folder, native)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := WriteLayout(t.Context(), &b, Layout{Plan: p, Tag: "team/iris:v1", Program: program, Base: base}); err != nil {
		t.Fatal(err)
	}
	return imagetest.Read(t, b.Bytes()), b.Bytes()
}

func TestLayout(t *testing.T) {
	folder := tree(t, map[string]string{"iris.ubj": "model", "settings.json": `{"debug": true}`, "sub/link": "-> ../iris.ubj",
		strings.Repeat("long/", 30) + "file": "deep", "naïve ☃": ""})
	if err := os.Chmod(filepath.Join(folder, "iris.ubj"), 0o700); err != nil {
		t.Fatal(err)
	}
	program := staticELF(t)
	i, text := layout(t, folder, program, "")
	if want := map[string]string{"org.opencontainers.image.ref.name": "v1", "io.containerd.image.name": "docker.io/team/iris:v1"}; !reflect.DeepEqual(i.Descriptor.Annotations, want) {
		t.Errorf("annotations %v", i.Descriptor.Annotations)
	}
	if d := i.Docker; len(d) != 1 || !slices.Equal(d[0].RepoTags, []string{"team/iris:v1"}) || d[0].Config != "blobs/sha256/"+i.Manifest.Config.Digest.Encoded() || len(d[0].Layers) != 2 {
		t.Errorf("manifest.json: %+v", d)
	}
	want := v1.ImageConfig{
		User:       "1000:0",
		Env:        []string{"PATH=/usr/local/bin", "HOME=/opt/mlserver", "MLSERVER_HOST=0.0.0.0", "MLSERVER_MODELS_DIR=/mnt/models", "MLSERVER_DEBUG=true", "MLSERVER_MODEL_NAME=iris"},
		Entrypoint: []string{"/usr/local/bin/roundhouse-server"}, WorkingDir: "/opt/mlserver",
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "8081/tcp": {}, "8082/tcp": {}},
	}
	if !reflect.DeepEqual(i.Config.Config, want) || i.Config.OS != "linux" || i.Config.Architecture != "amd64" {
		t.Errorf("configuration %+v", i.Config)
	}
	root := t.TempDir()
	i.Unpack(t, root)
	for name, mode := range map[string]os.FileMode{"opt/mlserver/iris.ubj": 0o775, "opt/mlserver/naïve ☃": 0o664, "opt/mlserver": 0o775 | os.ModeDir,
		"mnt/models": 0o775 | os.ModeDir, "tmp": 0o777 | os.ModeDir | os.ModeSticky, "usr/local/bin/roundhouse-server": 0o755} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v, want %v", name, info, err, mode)
		}
	}
	for name, want := range map[string]string{"opt/mlserver/sub/link": "model", "opt/mlserver/" + strings.Repeat("long/", 30) + "file": "deep"} {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "opt/mlserver/settings.json")); !os.IsNotExist(err) {
		t.Errorf("the settings file is in the image: %v", err)
	}
	// The same folder gives the same bytes, whenever it was written.
	if err := os.Chtimes(filepath.Join(folder, "iris.ubj"), i.Config.Created.AddDate(1, 0, 0), i.Config.Created.AddDate(2, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if _, again := layout(t, folder, program, ""); !bytes.Equal(text, again) {
		t.Error("a second layout differs")
	}
}

func TestLayoutErrors(t *testing.T) {
	code := tree(t, map[string]string{"models.py": ""})
	plain := tree(t, map[string]string{"iris.ubj": "x"})
	dynamic := staticELF(t)
	head, err := os.ReadFile(dynamic)
	if err != nil {
		t.Fatal(err)
	}
	head[32], head[56] = 64, 1 // one program header, behind this one
	if err := os.WriteFile(dynamic, append(head, append([]byte{3}, make([]byte, 55)...)...), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		folder, program, base, says string
	}{
		"code":       {code, staticELF(t), "", "models.py is not for a native engine"},
		"no program": {plain, filepath.Join(plain, "iris.ubj"), "", "no program for Linux"},
		"dynamic":    {plain, dynamic, "", "needs the C library"},
		"no base":    {code, staticELF(t), "none.tar", "none.tar"},
		"no archive": {code, staticELF(t), filepath.Join(plain, "iris.ubj"), "cannot be read as a tar"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := ReadFolder(test.folder, native)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			err = WriteLayout(t.Context(), &b, Layout{Plan: p, Tag: "x", Program: test.program, Base: test.base})
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v does not say %q", err, test.says)
			}
		})
	}
	p, err := ReadFolder(plain, native)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := WriteLayout(ctx, &bytes.Buffer{}, Layout{Plan: p, Tag: "x", Program: staticELF(t)}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	// A file that grows between the plan and the layout.
	if err := os.WriteFile(filepath.Join(plain, "iris.ubj"), []byte("grown"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteLayout(t.Context(), &bytes.Buffer{}, Layout{Plan: p, Tag: "x", Program: staticELF(t)}); err == nil || !strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("grown: %v", err)
	}
}

// pack makes a tar of files.
func pack(t testing.TB, names []string, files map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// bases are archives of one image, of two layers, as several programs write
// them.
func bases(t testing.TB) map[string][]byte {
	t.Helper()
	first := pack(t, []string{"etc/passwd", "gone"}, map[string][]byte{"etc/passwd": []byte("root"), "gone": nil})
	second := pack(t, []string{".wh.gone"}, nil)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(first); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	marshal := func(v any) []byte {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	blobs := map[string][]byte{}
	put := func(mediaType string, content []byte) v1.Descriptor {
		d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
		blobs["blobs/sha256/"+d.Digest.Encoded()] = content
		return d
	}
	config := v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "amd64"},
		Config:  v1.ImageConfig{Env: []string{"PATH=/usr/bin", "LANG=C", "HOME=/root"}, Entrypoint: []string{"python3"}, Labels: map[string]string{"a": "b"}},
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(first), digest.FromBytes(second)}},
		History: []v1.History{{CreatedBy: "one"}, {CreatedBy: "two"}, {CreatedBy: "nothing", EmptyLayer: true}}}
	manifest := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: put(v1.MediaTypeImageConfig, marshal(config)),
		Layers: []v1.Descriptor{put(v1.MediaTypeImageLayerGzip, zipped.Bytes()), put("application/vnd.docker.image.rootfs.diff.tar", second)}}
	manifest.SchemaVersion = 2
	m := put(v1.MediaTypeImageManifest, marshal(manifest))
	m.Platform = &config.Platform
	other := put(v1.MediaTypeImageManifest, []byte("{}"))
	other.Platform = &v1.Platform{OS: "linux", Architecture: "arm64"}
	inner := put(v1.MediaTypeImageIndex, marshal(v1.Index{Manifests: []v1.Descriptor{other, m}}))
	archive := func(extra map[string][]byte) []byte {
		files := map[string][]byte{}
		for name, text := range blobs {
			files[name] = text
		}
		var names []string
		for name, text := range extra {
			files[name] = text
		}
		for name := range files {
			names = append(names, name)
		}
		slices.Sort(names)
		return pack(t, names, files)
	}
	plain := m
	plain.Platform = nil
	return map[string][]byte{
		"layout":       archive(map[string][]byte{"index.json": marshal(v1.Index{Manifests: []v1.Descriptor{plain}})}),
		"nested index": archive(map[string][]byte{"index.json": marshal(v1.Index{Manifests: []v1.Descriptor{inner}})}),
		"docker save": pack(t, []string{"a/layer.tar", "b/layer.tar", "c.json", "manifest.json"}, map[string][]byte{
			"a/layer.tar": first, "b/layer.tar": second, "c.json": marshal(config),
			"manifest.json": []byte(`[{"Config":"c.json","RepoTags":["python:3"],"Layers":["a/layer.tar","b/layer.tar"]}]`)}),
		"another machine": archive(map[string][]byte{"index.json": marshal(v1.Index{Manifests: []v1.Descriptor{other, other}})}),
		"damaged":         bytes.Replace(archive(map[string][]byte{"index.json": marshal(v1.Index{Manifests: []v1.Descriptor{plain}})}), []byte("LANG=C"), []byte("LANG=D"), 1),
		"nothing":         pack(t, []string{"a"}, nil),
		"two images":      pack(t, []string{"manifest.json"}, map[string][]byte{"manifest.json": []byte(`[{},{}]`)}),
	}
}

func TestLayoutOnBase(t *testing.T) {
	folder := tree(t, map[string]string{"models.py": "code"})
	says := map[string]string{"another machine": "no image for linux/amd64", "damaged": "not what its hash says", "nothing": "neither index.json nor manifest.json", "two images": "holds 2 images"}
	for name, text := range bases(t) {
		t.Run(name, func(t *testing.T) {
			base := filepath.Join(t.TempDir(), "base.tar")
			if err := os.WriteFile(base, text, 0o600); err != nil {
				t.Fatal(err)
			}
			if says[name] != "" {
				p, err := ReadFolder(folder, native)
				if err != nil {
					t.Fatal(err)
				}
				err = WriteLayout(t.Context(), &bytes.Buffer{}, Layout{Plan: p, Tag: "x", Program: staticELF(t), Base: base})
				if err == nil || !strings.Contains(err.Error(), says[name]) {
					t.Errorf("error %v does not say %q", err, says[name])
				}
				return
			}
			i, _ := layout(t, folder, staticELF(t), base)
			c := i.Config.Config
			if want := []string{"PATH=/usr/bin", "LANG=C", "HOME=/opt/mlserver", "MLSERVER_HOST=0.0.0.0", "MLSERVER_MODELS_DIR=/mnt/models", "PYTHONPATH=/opt/mlserver", "PYTHONUNBUFFERED=1", "MLSERVER_MODEL_NAME=iris"}; !slices.Equal(c.Env, want) {
				t.Errorf("environment %q", c.Env)
			}
			if len(i.Manifest.Layers) != 4 || c.Labels["a"] != "b" || !slices.Equal(c.Entrypoint, []string{Program}) {
				t.Errorf("%+v", i.Config)
			}
			root := t.TempDir()
			if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
				t.Fatal(err)
			}
			i.Unpack(t, root)
			for file, want := range map[string]string{"etc/passwd": "root", "opt/mlserver/models.py": "code"} {
				if got, err := os.ReadFile(filepath.Join(root, file)); err != nil || string(got) != want {
					t.Errorf("%s: %q %v", file, got, err)
				}
			}
			if _, err := os.Stat(filepath.Join(root, "gone")); !os.IsNotExist(err) {
				t.Errorf("a file that a layer removed: %v", err)
			}
		})
	}
}

// FuzzBase reads archives as an enemy may have written them.
func FuzzBase(f *testing.F) {
	for _, text := range bases(f) {
		f.Add(text)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(dir, "base.tar")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := openBase(t.Context(), file, "amd64")
		if err != nil {
			return
		}
		defer b.close()
		for _, l := range b.layers {
			var n counter
			if err := l.write(t.Context(), &n); err == nil && int64(n) != l.size {
				t.Errorf("layer of %d bytes has %d", l.size, n)
			}
		}
	})
}

// TestBuilders has programs that only note what they were asked stand for
// docker and buildah.
func TestBuilders(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh")
	}
	tests := map[string]struct {
		docker, buildah string // what they do
		found           string // or what the error says
		args            string
	}{
		"docker":             {"exit 0", "exit 0", "docker", "buildx build --load --tag x --file DIR/Dockerfile --platform linux/amd64 --build-context roundhouse=DIR/program --no-cache FOLDER"},
		"no daemon":          {`[ "$1" = version ] && { echo refused; exit 1; }; exit 0`, "exit 0", "buildah", "build --layers --force-rm --ignorefile DIR/Dockerfile.dockerignore --tag x --file DIR/Dockerfile --platform linux/amd64 --build-context roundhouse=DIR/program --no-cache FOLDER"},
		"no BuildKit":        {`[ "$1" = buildx ] && { echo unknown; exit 1; }; exit 0`, "", "docker is here, but it has no BuildKit (the buildx plugin): unknown", ""},
		"none":               {"", "", exec.ErrNotFound.Error(), ""},
		"a build that fails": {"", `echo "no space"; exit 3`, "buildah could not build the image: exit status 3", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			bin, notes := t.TempDir(), filepath.Join(t.TempDir(), "notes")
			for program, does := range map[string]string{"docker": test.docker, "buildah": test.buildah} {
				if does == "" {
					continue
				}
				script := "#!" + shell + "\necho \"$@\" >> " + notes + "\nfor a; do case $a in */Dockerfile) cat $a $a.dockerignore >> " + notes + "; ls ${a%/*}/program/usr/local/bin >> " + notes + ";; esac; done\n" + does + "\n"
				if err := os.WriteFile(filepath.Join(bin, program), []byte(script), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			path := os.Getenv("PATH")
			t.Setenv("PATH", bin)
			p, err := ReadFolder(tree(t, map[string]string{"models.py": "", ".dockerignore": "secret\n"}), native)
			if err != nil {
				t.Fatal(err)
			}
			builder, err := FindBuilder(t.Context())
			if err == nil {
				t.Setenv("PATH", path)
				err = builder.Run(t.Context(), Build{Plan: p, Tag: "x", Program: staticELF(t), NoCache: true, Out: &bytes.Buffer{}})
			}
			if err != nil {
				if !strings.Contains(err.Error(), test.found) || test.args != "" {
					t.Errorf("error %v, want %s", err, test.found)
				}
				return
			}
			said, err := os.ReadFile(notes)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(string(said), "\n")
			at := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "--tag") })
			_, rest, _ := strings.Cut(lines[at], "--file ")
			dir, _, _ := strings.Cut(rest, "/Dockerfile")
			got := strings.NewReplacer(dir, "DIR", p.Folder, "FOLDER").Replace(lines[at])
			if builder.Name != test.found || got != test.args {
				t.Errorf("%s %s\nwant %s", builder.Name, got, test.args)
			}
			for _, want := range []string{"ARG BASE_IMAGE=docker.io/library/python", "secret", "roundhouse"} {
				if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, want) }) {
					t.Errorf("the builder was not given %q:\n%s", want, said)
				}
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s was left: %v", dir, err)
			}
		})
	}
}
