package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/image/imagetest"
	"roundhouse.dev/roundhouse/test/loopback"
)

// runImage runs an image that was unpacked at root and returns the server's
// URL.
func runImage(t *testing.T, i *imagetest.Image, root string) string {
	t.Helper()
	c := i.Config.Config
	_, port, err := net.SplitHostPort(loopback.Reserve(t))
	if err != nil {
		t.Fatal(err)
	}
	// The host is the image's to set; the tests stay on loopback.
	args := append(append([]string{}, c.Cmd...), "--http-port", port)
	cmd := exec.Command(filepath.Join(root, c.Entrypoint[0]), args...)
	cmd.Env = append(append([]string{}, c.Env...), "MLSERVER_HOST=127.0.0.1")
	if os.Geteuid() == 0 {
		cmd.Path, cmd.Dir = c.Entrypoint[0], c.WorkingDir
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 123456, Gid: 0}}
		if err := os.Chmod(root, 0o755); err != nil {
			t.Fatal(err)
		}
	} else {
		cmd.Dir = filepath.Join(root, c.WorkingDir)
		cmd.Env = append(cmd.Env, "MLSERVER_MODELS_DIR="+filepath.Join(root, "mnt/models"))
	}
	var says bytes.Buffer
	cmd.Stdout, cmd.Stderr = &says, &says
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("%v\n%s", err, says.String())
		}
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the image's program: %v\n%s", err, says.String())
		}
	})
	return "http://127.0.0.1:" + port
}
