package containers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Spec is a container to run.
type Spec struct {
	Name   string // of the container
	Labels [][2]string
	Host   string // address on which its ports are published
	// Ports are published: the machine's, and the container's.
	Ports [][2]int
	// Process is resolved; its Container is set.
	Process workload.Process
	// EnvFile holds the variables whose values are one line, and Inherited are the
	// names of the others, which the client has in its own environment.
	EnvFile   string
	Inherited []string
	// Mounts are folders and files of this machine.
	Mounts []Bind
	GPUs   []string // as the driver names them
	// ImageUser is who the image runs as of itself, "" for root.
	ImageUser string
}

// Bind is a folder or file of this machine in a container.
type Bind struct {
	Source, Target string
	ReadOnly       bool
}

// dropped are capabilities that engines leave containers and no server of models
// needs: to make devices and to read what passes the network.
var dropped = []string{"AUDIT_WRITE", "MKNOD", "NET_RAW", "SETFCAP", "SYS_CHROOT"}

// Args is the client's command line, without its name. It stays in the foreground.
func (e *Engine) Args(s Spec) []string {
	p, c := &s.Process, s.Process.Container
	out := append(e.facts.global(e.Name), "run", "--name="+s.Name, "--pull=never", "--log-driver=none",
		"--security-opt=no-new-privileges")
	if e.facts.selinux { // models are files of others, which are not to be labelled anew
		out = append(out, "--security-opt=label=disable")
	}
	for _, d := range e.drops(c) {
		out = append(out, "--cap-drop="+d)
	}
	for _, l := range s.Labels {
		out = append(out, "--label="+l[0]+"="+l[1])
	}
	for _, at := range s.Ports {
		out = append(out, fmt.Sprintf("--publish=%s:%d:%d", bracketed(s.Host), at[0], at[1]))
	}
	if s.EnvFile != "" {
		out = append(out, "--env-file="+s.EnvFile)
	}
	for _, name := range s.Inherited {
		out = append(out, "--env="+name)
	}
	out = append(out, e.facts.limits(e.Name)...)
	out = append(out, e.resources(p)...)
	out = append(out, mounts(s)...)
	out = append(out, e.devices(s.GPUs)...)
	out = append(out, identity(c, s.ImageUser)...)
	if p.WorkingDir != "" {
		out = append(out, "--workdir="+p.WorkingDir)
	}
	words := p.Command
	if c.Entrypoint && len(words) > 0 {
		out = append(out, "--entrypoint="+words[0])
		words = words[1:]
	}
	return append(append(out, c.Image), words...)
}

// bracketed is an address as engines publish ports on it.
func bracketed(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// drops are the capabilities that a container goes without.
func (e *Engine) drops(c *workload.Container) []string {
	if slices.ContainsFunc(c.Drop, func(d string) bool { return strings.EqualFold(d, "all") }) {
		return []string{"ALL"}
	}
	out := slices.Clone(dropped)
	for _, d := range c.Drop {
		if d = strings.TrimPrefix(strings.ToUpper(d), "CAP_"); !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// resources bound what a container takes. It gets no swap beyond its memory. An engine
// that cannot limit memory refuses some containers that ask for it.
func (e *Engine) resources(p *workload.Process) (out []string) {
	if p.MemoryBytes > 0 && e.NoMemoryLimits == "" {
		n := strconv.FormatInt(p.MemoryBytes, 10)
		out = append(out, "--memory="+n, "--memory-swap="+n)
	}
	if p.Container.CPUs > 0 {
		out = append(out, "--cpus="+strconv.FormatFloat(p.Container.CPUs, 'f', 3, 64))
	}
	if n := p.Container.SharedMemory; n > 0 {
		out = append(out, "--shm-size="+strconv.FormatInt(n, 10))
	}
	return out
}

// mounts are the volumes: what lies in memory is the container's own.
func mounts(s Spec) (out []string) {
	for _, b := range s.Mounts {
		v := "--volume=" + b.Source + ":" + b.Target
		if b.ReadOnly {
			v += ":ro"
		}
		out = append(out, v)
	}
	for _, m := range s.Process.Container.Mounts {
		if m.Memory {
			v := "--tmpfs=" + m.Target + ":rw,nosuid,nodev,mode=1777"
			if m.Size > 0 {
				v += ",size=" + strconv.FormatInt(m.Size, 10)
			}
			out = append(out, v)
		}
	}
	return out
}

// devices give a container its GPUs. One that has none is not to find any, which
// images of NVIDIA's would otherwise ask its runtime for.
func (e *Engine) devices(gpus []string) (out []string) {
	switch {
	case len(gpus) == 0:
		return []string{"--env=NVIDIA_VISIBLE_DEVICES=void"}
	case e.Name == Docker && e.facts.nvidiaRuntime: // else by CDI, which Docker has to be told of
		return []string{`--gpus="device=` + strings.Join(gpus, ",") + `"`}
	}
	for _, g := range gpus {
		out = append(out, "--device=nvidia.com/gpu="+g)
	}
	return out
}

// identity is who a container runs as.
func identity(c *workload.Container, imageUser string) (out []string) {
	if c.ReadOnly {
		out = append(out, "--read-only")
	}
	switch {
	case c.User != nil && c.Group != nil:
		out = append(out, fmt.Sprintf("--user=%d:%d", *c.User, *c.Group))
	case c.User != nil:
		out = append(out, fmt.Sprintf("--user=%d", *c.User))
	case c.Group != nil && imageUser != "":
		user, _, _ := strings.Cut(imageUser, ":")
		out = append(out, fmt.Sprintf("--user=%s:%d", user, *c.Group))
	case c.Group != nil:
		out = append(out, fmt.Sprintf("--user=0:%d", *c.Group))
	}
	return out
}
