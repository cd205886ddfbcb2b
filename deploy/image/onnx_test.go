//go:build linux

package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/image"
	"roundhouse.dev/roundhouse/internal/edge/image/imagetest"
	"roundhouse.dev/roundhouse/test/loopback"
)

// TestServeONNX serves a model from the image that `make test-image-onnx` wrote: in
// its file system and nothing else, as the image's user. It needs root for that.
func TestServeONNX(t *testing.T) {
	file := os.Getenv("ROUNDHOUSE_ONNX_IMAGE")
	if file == "" || os.Getuid() != 0 {
		t.Skip("ROUNDHOUSE_ONNX_IMAGE names no image, or this is not root: make test-image-onnx")
	}
	archive, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	imagetest.Read(t, archive).Unpack(t, root)
	furnish(t, root)
	address := loopback.Reserve(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command("/roundhouse-server", "/mnt/models", "--name", "linear", "--format", "onnx", "--host", "127.0.0.1", "--http-port", port, "--grpc-port", "-1")
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", []string{"PATH=/", "HOME=/tmp"}, &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: image.ReleaseUser, Gid: image.ReleaseUser}, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() }()
	client := &http.Client{Timeout: 10 * time.Second}
	deadline := time.Now().Add(time.Minute)
	for {
		res, err := client.Get("http://" + address + "/v2/health/ready")
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("not ready: %v\n%s", err, log.String())
		}
		time.Sleep(50 * time.Millisecond) // it tells nobody that it is ready
	}
	res, err := client.Post("http://"+address+"/v2/models/linear/infer", "application/json",
		strings.NewReader(`{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"outputs"`)) {
		t.Errorf("%s %s %v\n%s", res.Status, body, err, log.String())
	}
}

// furnish adds what a container's runtime does, and the model.
func furnish(t *testing.T, root string) {
	t.Helper()
	models := filepath.Join(root, "mnt/models")
	for _, dir := range []string{models, filepath.Join(root, "dev")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, minor := range map[string]int{"null": 3, "urandom": 9} {
		if err := syscall.Mknod(filepath.Join(root, "dev", name), syscall.S_IFCHR|0o666, 1<<8|minor); err != nil {
			t.Skipf("devices cannot be made here: %v", err)
		}
		if err := os.Chmod(filepath.Join(root, "dev", name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	model, err := os.ReadFile("../../internal/edge/engine/onnx/testdata/linear.onnx")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(models, "model.onnx"), model, 0o644); err != nil {
		t.Fatal(err)
	}
	// The temporary folder is its owner's alone.
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
