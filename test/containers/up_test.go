package containers

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait.
const patience = 2 * time.Minute

// output is what a program printed so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String is all of it.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// up is a running `roundhouse up`.
type up struct {
	t              *testing.T
	dir            string
	cmd            *exec.Cmd
	out, logs      *output
	gateway, admin string
}

func eventually(t *testing.T, what string, is func() (bool, string)) {
	t.Helper()
	var now string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var ok bool
		if ok, now = is(); ok {
			return
		}
	}
	t.Fatalf("%s: not within %s; now: %s", what, patience, now)
}

// start starts up over its data directory.
func (u *up) start(args ...string) {
	u.t.Helper()
	u.out, u.logs = &output{}, &output{}
	program(u.t, "roundhouse.dev/roundhouse/cmd/roundhouse-server")
	u.cmd = exec.Command(program(u.t, "roundhouse.dev/roundhouse/cmd/roundhouse"), append([]string{"up", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0",
		"--admin-listen", "127.0.0.1:0", "--hub-cache", "off", "--data-dir", u.dir, "--containers", engine(u.t)}, args...)...)
	u.cmd.Stdout, u.cmd.Stderr = u.out, u.logs
	if err := u.cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	after := func(label string) string {
		_, rest, _ := strings.Cut(u.out.String(), label)
		line, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSpace(line)
	}
	eventually(u.t, "up prints its addresses", func() (bool, string) {
		u.gateway, u.admin = after("Roundhouse answers at  "), after("Admin API and metrics  ")
		return u.gateway != "" && u.admin != "", u.out.String() + u.logs.String()
	})
}

// end ends it by a signal and waits until it has ended.
func (u *up) end(s syscall.Signal) {
	u.t.Helper()
	_ = u.cmd.Process.Signal(s)
	_ = u.cmd.Wait()
}

// cli runs a command against it.
func (u *up) cli(args ...string) string {
	cmd := exec.Command(u.cmd.Path, args...)
	cmd.Env = append(os.Environ(), "ROUNDHOUSE_SERVER="+u.admin, "ROUNDHOUSE_GATEWAY="+u.gateway, "ROUNDHOUSE_DATA_DIR="+u.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s(%v)", out, err)
	}
	return string(out)
}

// post asks the gateway.
func (u *up) post(path, body string) (int, string) {
	resp, err := http.Post(u.gateway+path, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, strings.TrimSpace(string(b))
}

// answers waits until a request is answered as wanted.
func (u *up) answers(path, body, want string) {
	u.t.Helper()
	eventually(u.t, path, func() (bool, string) {
		code, text := u.post(path, body)
		return code == http.StatusOK && strings.Contains(text, want), fmt.Sprintf("%d %s\n%s%s", code, text, u.cli("get"), u.logs)
	})
}

// names are the containers that run, or have run.
func names(t *testing.T) []string {
	return strings.Fields(ask(t, "ps", "--all", "--filter", "label=roundhouse.dev/replica", "--format", "{{.Names}}"))
}

const manifests = `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: custom}
spec:
  predictor:
    containers:
      - name: kserve-container
        image: IMAGE
        imagePullPolicy: IfNotPresent
        env:
          - {name: STORAGE_URI, value: "file://MODELS/three"}
          - {name: SCRATCH, value: /scratch}
        envFrom: [{configMapRef: {name: settings}}, {prefix: MODEL_, secretRef: {name: hidden}}]
        startupProbe: {httpGet: {path: /v1/models/custom, port: 8080}, failureThreshold: 60, periodSeconds: 1}
        ports: [{containerPort: 8080, protocol: TCP}]
        securityContext: {readOnlyRootFilesystem: true, runAsNonRoot: true, runAsUser: 65532}
        resources: {limits: {cpu: "1", memory: 256Mi}}
        volumeMounts: [{name: scratch, mountPath: /scratch}]
    volumes: [{name: scratch, emptyDir: {}}]
---
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: like-tensorflow-serving}
spec:
  supportedModelFormats: [{name: tensorflow, version: "1", autoSelect: true}]
  protocolVersions: [v1]
  containers:
    - name: kserve-container
      image: IMAGE
      imagePullPolicy: IfNotPresent
      command: [/server]
      args: ["--model_name={{.Name}}", --rest_api_port=8501, --model_base_path=/mnt/models]
      ports: [{containerPort: 8501}]
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: flowers}
spec: {predictor: {model: {runtime: like-tensorflow-serving, modelFormat: {name: tensorflow}, storageUri: "file://MODELS/three"}}}
---
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: like-triton}
spec:
  supportedModelFormats: [{name: triton, version: "2", autoSelect: true}]
  protocolVersions: [v2]
  containers:
    - name: kserve-container
      image: IMAGE
      imagePullPolicy: IfNotPresent
      args: [--model-repository=/mnt/models, --http-port=8000]
      ports: [{containerPort: 8000, name: http}]
      readinessProbe: {httpGet: {path: /v2/health/ready, port: http}}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: simple}
spec: {predictor: {model: {runtime: like-triton, modelFormat: {name: triton}, storageUri: "file://MODELS/repository"}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {MODEL_NAME: custom}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden}
stringData: {DIR: /mnt/models}
`

const besides = `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: pictures}
spec:
  predictor:
    containers:
      - name: kserve-container
        image: IMAGE
        imagePullPolicy: IfNotPresent
        env:
          - {name: STORAGE_URI, value: "file://MODELS/three"}
          - {name: MODEL_NAME, value: pictures}
          - {name: MODEL_DIR, value: /mnt/models}
        ports: [{containerPort: 8080, protocol: TCP}]
  transformer:
    containers:
      - name: kserve-container
        image: IMAGE
        imagePullPolicy: IfNotPresent
        env: [{name: TRY, value: "TRIED"}]
        startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 60}
  explainer:
    containers:
      - name: kserve-container
        image: IMAGE
        imagePullPolicy: IfNotPresent
`

// TestBeside: a transformer and an explainer that are containers reach their predictor, a
// container too, and nothing else that listens on this machine's loopback; also under the
// next up after kill -9.
func TestBeside(t *testing.T) {
	name := made(t, "server:1", "roundhouse.dev/roundhouse/test/containers/server")
	models := t.TempDir()
	if err := os.MkdirAll(filepath.Join(models, "three"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(models, "three", "model.txt"), []byte("3"), 0o644); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	manifest := filepath.Join(models, "services.yaml")
	if err := os.WriteFile(manifest, []byte(strings.NewReplacer("IMAGE", name, "MODELS", models, "TRIED", other.Addr().String()).Replace(besides)), 0o600); err != nil {
		t.Fatal(err)
	}
	u := &up{t: t, dir: t.TempDir()}
	u.start("-f", manifest)
	ended := false
	defer func() {
		if !ended {
			u.end(syscall.SIGTERM)
		}
	}()
	both := func() {
		t.Helper()
		u.answers("/v1/models/pictures:predict", `{"instances": [1, 2]}`, `{"by": "predict", "predictor": {"predictions":[6,9]}`)
		u.answers("/v1/models/pictures:explain", `{"instances": [1, 2]}`, `{"by": "explain", "predictor": {"predictions":[6,9]}`)
	}
	both()
	before := names(t)
	if len(before) != 3 {
		t.Errorf("three components run in %v", before)
	}
	for _, c := range before {
		if strings.Contains(c, "transformer") {
			if out := u.cli("logs", "pictures", "--replica", strings.TrimPrefix(c, "roundhouse-")); !strings.Contains(out, "reaches "+other.Addr().String()+": false") {
				t.Errorf("what the transformer's container reaches:\n%s", out)
			}
		}
	}
	u.end(syscall.SIGKILL)
	u.start("-f", manifest)
	both()
	if after := names(t); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("containers before up was killed: %v, after: %v", before, after)
	}
	u.end(syscall.SIGTERM)
	ended = true
	if left := names(t); len(left) > 0 {
		t.Errorf("up has ended and left %v", left)
	}
}

// TestUp serves published kinds of manifests by containers of up, kills up, and has
// the next one take the containers over.
func TestUp(t *testing.T) {
	name := made(t, "server:1", "roundhouse.dev/roundhouse/test/containers/server")
	models := t.TempDir()
	for path, text := range map[string]string{"three/model.txt": "3", "repository/simple/1/model.txt": "5"} {
		at := filepath.Join(models, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	manifest := filepath.Join(models, "services.yaml")
	if err := os.WriteFile(manifest, []byte(strings.NewReplacer("IMAGE", name, "MODELS", models).Replace(manifests)), 0o600); err != nil {
		t.Fatal(err)
	}
	u := &up{t: t, dir: t.TempDir()}
	u.start("-f", manifest)
	ended := false
	defer func() {
		if !ended {
			u.end(syscall.SIGTERM)
		}
	}()
	all := func() {
		t.Helper()
		u.answers("/v1/models/custom:predict", `{"instances": [1, 2]}`, `[3,6]`)
		u.answers("/v1/models/flowers:predict", `{"instances": [4]}`, `[12]`)
		u.answers("/v2/models/simple/infer", `{"inputs": [{"name": "in", "datatype": "FP64", "shape": [2], "data": [1, 2]}]}`, `[5,10]`)
	}
	all()
	for _, c := range []struct{ args, want string }{
		{"explain custom", "as a container of " + engine(t)},
		{"explain flowers", "as a container of " + engine(t)},
		{"logs custom", "custom times 3 listens on :8080 as user 65532"},
	} {
		if out := u.cli(strings.Fields(c.args)...); !strings.Contains(out, c.want) || strings.Contains(out, "warning: the root file system") {
			t.Errorf("%s: want %q in:\n%s", c.args, c.want, out)
		}
	}
	before := names(t)
	if len(before) != 3 {
		t.Errorf("three services run in %v", before)
	}

	u.end(syscall.SIGKILL)
	u.start("-f", manifest)
	all()
	if after := names(t); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("containers before up was killed: %v, after: %v", before, after)
	}
	if out := u.cli("logs", "flowers"); strings.Count(out, "listens on") != 1 {
		t.Errorf("the log of an adopted container:\n%s", out)
	}

	if out := u.cli("delete", "inferenceservice", "flowers"); !strings.Contains(out, "deleted") {
		t.Errorf("delete: %s", out)
	}
	eventually(t, "the deleted service's container is gone", func() (bool, string) {
		now := names(t)
		return len(now) == 2, strings.Join(now, " ")
	})

	missing := filepath.Join(models, "missing.yaml")
	if err := os.WriteFile(missing, []byte(strings.NewReplacer("name: custom", "name: nowhere", "IMAGE", "127.0.0.1:1/nobody/nothing:1", "MODELS", models).
		Replace(strings.Split(manifests, "---\n")[0])), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := u.cli("apply", "-f", missing); strings.Contains(out, "exit status") {
		t.Fatalf("apply: %s", out)
	}
	eventually(t, "get names the missing image", func() (bool, string) {
		out := u.cli("get")
		return strings.Contains(out, "127.0.0.1:1/nobody/nothing:1") && strings.Contains(out, "cannot be pulled"), out + u.cli("describe", "nowhere")
	})

	u.end(syscall.SIGTERM)
	ended = true
	if left := names(t); len(left) > 0 {
		t.Errorf("up has ended and left %v", left)
	}
	if left, _ := filepath.Glob(filepath.Join(u.dir, "processes", "containers", "*")); len(left) > 0 {
		t.Errorf("up has ended and left %v", left)
	}
}
