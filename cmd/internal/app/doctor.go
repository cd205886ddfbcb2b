package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/process"
)

// Check is one thing that `up` needs, or that is good to know.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Said string `json:"said"`           // what was found
	Mend string `json:"mend,omitempty"` // what to do where that is not well
}

// Health is what can run on this machine.
type Health struct {
	Machine  []Check               `json:"machine"`
	Runtimes []selection.Diagnosis `json:"runtimes"`
	// Images counts the runtimes that only come as images, for clusters.
	Images int `json:"images"`
}

// Runs reports whether any runtime does.
func (h *Health) Runs() bool {
	for _, d := range h.Runtimes {
		if d.Runs {
			return true
		}
	}
	return false
}

// Examine finds out what can run on this machine. up reports whether an `up` answers
// here already, which then has the ports.
func Examine(ctx context.Context, dataDir string, up bool) (*Health, error) {
	catalog, err := Catalog()
	if err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "roundhouse-doctor-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	platform, err := process.New(process.Config{Dir: filepath.Join(tmp, "processes")})
	if err != nil {
		return nil, err
	}
	defer func() { _ = platform.Close(ctx, false) }()
	host, err := platform.Host(ctx)
	if err != nil {
		return nil, err
	}
	runtimes := make([]service.Runtime, len(catalog))
	for i := range catalog {
		runtimes[i] = workload.Localize(workload.Adapted(catalog[i], catalog), catalog, host)
	}
	if host, err = platform.Host(ctx, selection.CheckAll(runtimes, host)...); err != nil {
		return nil, err
	}
	h := &Health{}
	h.Runtimes, h.Images = selection.Diagnose(runtimes, host)
	h.Machine = append(h.Machine, programs(), engine(host.Containers), gpus(host), memory(host), files(), folder(dataDir))
	if up {
		h.Machine = append(h.Machine, Check{Name: "up", OK: true, Said: "a roundhouse up is running"})
		return h, nil
	}
	h.Machine = append(h.Machine, port(ctx, "--listen", DefaultListen), port(ctx, "--grpc-listen", DefaultGRPCListen), port(ctx, "--admin-listen", DefaultAdmin))
	return h, nil
}

func programs() Check {
	c := Check{Name: "programs", OK: true, Said: command.ServerProgram + " is beside roundhouse"}
	if _, err := os.Stat(command.Beside(command.ServerProgram)); err != nil {
		c.OK, c.Said, c.Mend = false, err.Error(), "install the whole release: its programs belong in one folder"
	}
	return c
}

// engine is what runs images here.
func engine(c selection.Containers) Check {
	const without = "images run on a cluster alone"
	switch {
	case c.Engine == "" && c.Lacks == "":
		return Check{Name: "containers", OK: true, Said: "off: " + without}
	case c.Engine == "" && strings.HasPrefix(c.Lacks, "install "):
		return Check{Name: "containers", OK: true, Said: "neither podman nor Docker was found: " + without}
	case c.Engine == "":
		return Check{Name: "containers", Said: c.Lacks, Mend: "mend it, or do without: --containers off"}
	}
	said := c.Engine
	if c.NoGPUs != "" {
		said += ", without GPUs"
	}
	if c.NoCalls != "" {
		said += ", without transformers, explainers and routers: " + c.NoCalls
	}
	if c.NoMemoryLimits != "" {
		said += ", without limits of memory: " + c.NoMemoryLimits
	}
	return Check{Name: "containers", OK: true, Said: said}
}

func gpus(host selection.Host) Check {
	if host.Accelerators == 0 {
		return Check{Name: "gpus", OK: true, Said: "none was found, by nvidia-smi: engines run on the processor where they can"}
	}
	return Check{Name: "gpus", OK: true, Said: command.Count(host.Accelerators, "GPU")}
}

func memory(host selection.Host) Check {
	return Check{Name: "memory", OK: true, Said: command.SizeText(host.MemoryBytes) + " for replicas"}
}

// leastFiles is how many files a process should be able to have open: each
// connection is one.
const leastFiles = 4096

func files() Check {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return Check{Name: "open files", OK: true, Said: err.Error()}
	}
	c := Check{Name: "open files", OK: l.Max >= leastFiles, Said: fmt.Sprintf("at most %d", l.Max)}
	if !c.OK {
		c.Mend = fmt.Sprintf("ulimit -Hn %d, or LimitNOFILE= of the systemd unit", leastFiles)
	}
	return c
}

// leastDisk is what models and logs should find free.
const leastDisk = 2 << 30

func folder(dir string) Check {
	at := dir
	for {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at) // it will be made
	}
	c := Check{Name: "data directory", Said: dir}
	if err := syscall.Access(at, 2 /* W_OK */); err != nil {
		c.Said, c.Mend = fmt.Sprintf("%s: %v", at, err), "name a folder that you may write to with --data-dir"
		return c
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(at, &st); err != nil {
		c.Said, c.Mend = err.Error(), "name a folder on a disk with --data-dir"
		return c
	}
	free := int64(float64(st.Bavail) * float64(st.Bsize)) // of types that differ between systems
	c.Said += ", " + command.SizeText(free) + " free"
	if c.OK = free >= leastDisk; !c.OK {
		c.Mend = "make room, or name a folder on another disk with --data-dir"
	}
	return c
}

func port(ctx context.Context, flag, address string) Check {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return Check{Name: "port", Said: err.Error(), Mend: "end what has it, or name another with " + flag}
	}
	_ = l.Close()
	return Check{Name: "port", OK: true, Said: address + " is free"}
}
