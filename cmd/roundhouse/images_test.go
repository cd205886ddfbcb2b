package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/edge/image/imagetest"
)

// runBuild runs a command of images and returns what it said.
func runBuild(t *testing.T, command string, args ...string) (stdout []byte, stderr string, err error) {
	t.Helper()
	root := newRootCommand()
	var out, says bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&says)
	root.SetArgs(append([]string{command}, args...))
	err = root.ExecuteContext(t.Context())
	return out.Bytes(), says.String(), err
}

// irisFolder is a folder with a model and the settings at its root.
func irisFolder(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "flowers")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	model, err := os.ReadFile(filepath.Join(models, "iris.ubj"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"iris.ubj":            string(model),
		"settings.json":       `{"debug": true, "server_name": "mine", "http_port": 9999}`,
		"model-settings.json": `{"implementation": "mlserver_xgboost.XGBoostModel", "parameters": {"uri": "./iris.ubj", "version": "v7"}}`,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

const models = "../../examples/quickstart/models"

const row = `{"id":"1","inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`

// askImage asks until the server answers for the model, and returns the answer.
func askImage(t *testing.T, url, body string) string {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		response, err := http.Post(url, "application/json", strings.NewReader(body))
		if err == nil {
			text, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode == http.StatusOK {
				return string(text)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: no answer: %v", url, err)
		}
	}
}

// TestBuiltImageRuns builds an image of the model server and a model, unpacks it
// as the specification says, runs it as its configuration says (in a root of
// its own and as a user nobody knows, where the test may do that), and asks
// it.
func TestBuiltImageRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	program := filepath.Join(t.TempDir(), command.ServerProgram)
	build := exec.Command("go", "build", "-o", program, "../roundhouse-server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	folder := irisFolder(t)
	archive, says, err := runBuild(t, "build", folder, "-t", "flowers:v7", "-o", "-", "--binary", program)
	if err != nil {
		t.Fatalf("%v: %s", err, says)
	}
	i := imagetest.Read(t, archive)
	root := t.TempDir()
	i.Unpack(t, root)
	c := i.Config.Config
	if !slices.Contains(c.Env, "MLSERVER_HTTP_PORT=9999") || len(c.Entrypoint) != 1 {
		t.Fatalf("configuration %+v", c)
	}
	t.Run("the folder", func(t *testing.T) {
		url := runImage(t, i, root)
		// The settings of the folder hold, but for what the variables say; a
		// booster is answered with values, as MLServer's XGBoostModel does.
		want := `"model_name":"flowers","model_version":"v7"`
		if got := askImage(t, url+"/v2/models/flowers/infer", row); !strings.Contains(got, want) || !strings.Contains(got, `"datatype":"FP32"`) || !strings.Contains(got, `"data":[0.99185`) {
			t.Errorf("infer: %s\nwant %s", got, want)
		}
	})
	t.Run("a model that is mounted", func(t *testing.T) {
		mounted := filepath.Join(root, "mnt/models/other")
		if err := os.MkdirAll(mounted, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(root, "opt/mlserver/iris.ubj"), filepath.Join(mounted, "iris.ubj")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(mounted, "model-settings.json"), []byte(`{"name":"mounted","parameters":{"version":"v8"}}`), 0o644); err != nil {
			t.Fatal(err)
		}
		url := runImage(t, i, root)
		if got := askImage(t, url+"/v2/models/mounted/infer", row); !strings.Contains(got, `"model_name":"mounted","model_version":"v8"`) {
			t.Errorf("infer: %s", got)
		}
	})
}

func TestBuildErrors(t *testing.T) {
	folder := irisFolder(t)
	code := filepath.Join(t.TempDir(), "code")
	if _, err := runHere(t, "init", code); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir()) // no docker, no buildah
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{folder}, `required flag(s) "tag" not set`},
		{[]string{folder, "-t", "Not An Image"}, `--tag: "Not An Image" is no image name`},
		{[]string{"none", "-t", "x"}, "no such file"},
		{[]string{folder, "-t", "x", "--binary", "none"}, "--binary"},
		{[]string{folder, "-t", "x", "-o", "-", "--binary", text}, "no program for Linux"},
		{[]string{code, "-t", "x", "--binary", os.Args[0]}, "names the implementation models.Runtime"},
		{[]string{code, "-t", "x", "--binary", os.Args[0]}, "(--base FILE.tar), or build with docker or buildah"},
		{[]string{folder, "-t", "x", "--base", text, "-o", filepath.Join(code, "x.tar"), "--binary", os.Args[0]}, "cannot be read as a tar"},
	} {
		if out, _, err := runBuild(t, "build", test.args...); err == nil || !strings.Contains(err.Error(), test.says) || len(out) > 0 {
			t.Errorf("%q: error %v does not say %q", test.args, err, test.says)
		}
	}
	if left, err := filepath.Glob(filepath.Join(code, "*.tar*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q %v", left, err)
	}
}

func TestDockerfileCommand(t *testing.T) {
	folder := irisFolder(t)
	if out, _, err := runBuild(t, "dockerfile", folder, "-i"); err != nil || string(out) != "wrote "+filepath.Join(folder, "Dockerfile")+"\nwrote "+filepath.Join(folder, ".dockerignore")+"\n" {
		t.Fatalf("%s %v", out, err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "Dockerfile"))
	if err != nil || !strings.HasPrefix(string(text), "# syntax=docker/dockerfile:1\n") || !strings.Contains(string(text), `MLSERVER_MODEL_VERSION="v7"`) {
		t.Errorf("%s %v", text, err)
	}
	if _, _, err := runBuild(t, "dockerfile", folder); err == nil || !strings.Contains(err.Error(), "--force replaces it") {
		t.Errorf("a Dockerfile that is there: %v", err)
	}
	if _, _, err := runBuild(t, "dockerfile", folder, "--force"); err != nil {
		t.Error(err)
	}
}
