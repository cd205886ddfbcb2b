//go:build kubernetes && linux

// Package node makes a real Kubernetes of one node for tests: etcd, the control
// plane, kubelet, kube-proxy, containerd and runc, all inside namespaces of
// their own, with no route out of the machine.
//
// The test's process runs itself again as the first process of new pid, mount,
// network, IPC, host name and cgroup namespaces. Whatever ends that process ends
// everything started in it, and takes its mounts, interfaces and files along:
// they are on a tmpfs of its own. What is left on the machine is one cgroup,
// which the process outside removes.
package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// stage is where in the re-execution a process is: "" outside, then first,
// then tests.
const stage = "ROUNDHOUSE_KUBERNETES_STAGE"

// Addresses of the node. They are for documentation (RFC 5737): nothing real
// has them, and nothing leaves the namespace.
const (
	Address      = "192.0.2.1"
	podRange     = "10.244.0.0/22"
	serviceRange = "10.96.0.0/16"
	name         = "node"
)

// unavailable is why there can be no node here, nil if there can.
var unavailable error

// Main is a package's TestMain: it runs the tests where a node can be started.
func Main(m *testing.M) {
	switch os.Getenv(stage) {
	case "tests":
		os.Exit(runTests(m))
	case "first":
		code, err := first()
		if err != nil {
			fmt.Fprintln(os.Stderr, "kubernetes: the namespaces:", err)
			code = 1
		}
		os.Exit(code)
	}
	if unavailable = missing(); unavailable != nil {
		os.Exit(m.Run()) // every test skips, and says why
	}
	code, err := outside()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubernetes:", err)
		code = 1
	}
	os.Exit(code)
}

// outside runs the stages in new namespaces and removes what they leave.
func outside() (code int, err error) {
	runtime.LockOSThread() // the child is to die with this thread, which lives as long as the process
	group, err := makeCgroup()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, group.remove()) }()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), stage+"=first", cgroupVariable+"="+string(group))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("new namespaces: %w", err)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may have ended
		}
	}()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	if code = cmd.ProcessState.ExitCode(); code < 0 {
		code = 1 // killed
	}
	return code, nil
}

// first is the first process of the namespaces: it makes them fit for a node,
// runs the tests, and reaps what they leave behind meanwhile.
func first() (code int, err error) {
	runtime.LockOSThread() // of the threads, this one alone enters the cgroup namespace
	group := cgroup(os.Getenv(cgroupVariable))
	if err := group.enter(); err != nil {
		return 0, err
	}
	for _, step := range []func() error{mountFiles, group.mount, network} {
		if err := step(); err != nil {
			return 0, err
		}
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if err := errors.Join(os.Setenv(stage, "tests"), os.Setenv("TMPDIR", runDir+"/tmp")); err != nil {
		return 0, err
	}
	child, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, err
	}
	go func() {
		for s := range signals {
			_ = syscall.Kill(child.Pid, s.(syscall.Signal)) // it may have ended
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, err
		case pid == child.Pid && status.Exited():
			return status.ExitStatus(), nil
		case pid == child.Pid && status.Signaled():
			return 0, fmt.Errorf("the tests ended by %v", status.Signal())
		}
	}
}

// mountFiles gives the namespaces a /proc and a /sys of their own, and a tmpfs
// wherever the node's programs write.
func mountFiles() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, m := range []struct{ kind, target string }{
		{"proc", "/proc"}, {"sysfs", "/sys"},
		{"tmpfs", "/run"}, {"tmpfs", "/var/log"},
	} {
		if err := unix.Mount(m.kind, m.target, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	// A mount that a container is to see is made after the container is.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return err
	}
	return os.MkdirAll(runDir+"/tmp", 0o777)
}

// network gives the namespace the node's address, on an interface that leads
// nowhere, and nothing else: no packet can leave.
func network() error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "node0", "type", "bridge"},
		{"address", "add", Address + "/24", "dev", "node0"},
		{"link", "set", "node0", "up"},
		// The addresses of services are rewritten once a packet has a route.
		{"route", "add", serviceRange, "dev", "node0"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}
