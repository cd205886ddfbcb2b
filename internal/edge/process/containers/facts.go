package containers

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// facts are what decides how an engine has to be called on this machine.
type facts struct {
	root     bool // this process is root
	rootless bool // the engine's containers are a user's
	systemd  bool // it runs the machine
	// hybrid: control groups of version 1 with those of version 2 beside them, which
	// crun refuses.
	hybrid bool
	runc   bool // is installed
	// raises: limits may be raised above this process's own.
	raises        bool
	files         uint64 // the most open files that this process may ask for
	selinux       bool
	cdi           bool // devices for GPUs are described (CDI)
	nvidiaRuntime bool
}

// maxProcesses is the most processes that a container is given where limits cannot
// be raised: podman runs with no more itself.
const maxProcesses = 32768

// look finds the facts.
func look() facts {
	f := facts{root: os.Geteuid() == 0, systemd: exists("/run/systemd/system"), hybrid: exists("/sys/fs/cgroup/unified/cgroup.controllers"),
		selinux: exists("/sys/fs/selinux/enforce"), raises: mayRaise()}
	_, err := exec.LookPath("runc")
	f.runc = err == nil
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) == nil {
		f.files = l.Max
	}
	for _, dir := range []string{"/etc/cdi", "/var/run/cdi"} {
		found, _ := filepath.Glob(filepath.Join(dir, "*nvidia*"))
		f.cdi = f.cdi || len(found) > 0
	}
	_, err = exec.LookPath("nvidia-container-runtime")
	f.nvidiaRuntime = err == nil
	return f
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// capSysResource is the capability to raise limits (capabilities(7)).
const capSysResource = 24

// mayRaise reports whether this process has that capability. A system that does
// not say is taken to let it.
func mayRaise() bool {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err != nil || set&(1<<capSysResource) != 0
		}
	}
	return true
}

// missing is what the engine lacks on this machine, with what to do.
func (f facts) missing(engine string) string {
	if engine == Podman && f.hybrid && !f.runc {
		return "this machine has control groups of both versions, which crun refuses: install runc"
	}
	return ""
}

// global are the engine's own flags.
func (f facts) global(engine string) (out []string) {
	if engine != Podman {
		return nil
	}
	if !f.systemd {
		out = append(out, "--cgroup-manager=cgroupfs")
	}
	if f.hybrid {
		out = append(out, "--runtime=runc")
	}
	return out
}

// limits are the flags of a container's limits, where the engine's own are above what
// this process may give. A rootless podman finds them by itself.
func (f facts) limits(engine string) []string {
	if engine != Podman || !f.root || f.raises {
		return nil
	}
	return []string{"--ulimit=nofile=" + both(f.files), "--ulimit=nproc=" + both(maxProcesses)}
}

func both(n uint64) string {
	s := strconv.FormatUint(n, 10)
	return s + ":" + s
}

// noGPUs is why containers get no GPUs, with what to do.
func (e *Engine) noGPUs() string {
	switch {
	case e.Name == Podman && !e.facts.cdi:
		return "podman gives GPUs to containers by CDI, and this machine describes none: install nvidia-container-toolkit and run nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
	case e.Name == Docker && !e.facts.cdi && !e.facts.nvidiaRuntime:
		return "Docker gives GPUs to containers by the NVIDIA Container Toolkit, which is not here: install nvidia-container-toolkit"
	}
	return ""
}
