//go:build kubernetes && linux

package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	cgroupVariable = "ROUNDHOUSE_KUBERNETES_CGROUP"
	cgroupPrefix   = "roundhouse-kubernetes-"
	cgroupRoot     = "/sys/fs/cgroup"
)

// cgroup is the name of the cgroup that holds everything: below this process's
// own in every hierarchy of version 1, below the root of version 2, whose
// groups hold either processes or controllers.
type cgroup string

// hierarchies are where cgroups are mounted, each with its own name: the
// controllers of version 1, or "" for version 2.
func hierarchies() (map[string]string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	own := map[string]string{} // this process's group, by hierarchy
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 {
			own[strings.TrimPrefix(parts[1], "name=")] = parts[2]
		}
	}
	if unified() {
		return map[string]string{"": cgroupRoot}, nil
	}
	delete(own, "") // a hybrid's, without controllers
	out := map[string]string{}
	for h, group := range own {
		if _, err := os.Stat(filepath.Join(cgroupRoot, h)); err == nil {
			out[h] = filepath.Join(cgroupRoot, h, group)
		}
	}
	for _, need := range []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids"} {
		if _, found := out[need]; !found && !mountedWith(own, need) {
			return nil, fmt.Errorf("the kernel has no cgroup controller %s", need)
		}
	}
	return out, nil
}

// mountedWith reports whether a controller shares its hierarchy: "cpu,cpuacct".
func mountedWith(own map[string]string, controller string) bool {
	for h := range own {
		for part := range strings.SplitSeq(h, ",") {
			if part == controller {
				return true
			}
		}
	}
	return false
}

func unified() bool {
	_, err := os.Stat(cgroupRoot + "/cgroup.controllers")
	return err == nil
}

// makeCgroup makes the group, and removes those whose makers were killed.
func makeCgroup() (cgroup, error) {
	folders, err := hierarchies()
	if err != nil {
		return "", err
	}
	for _, folder := range folders {
		old, err := filepath.Glob(filepath.Join(folder, cgroupPrefix+"*"))
		if err != nil {
			return "", err
		}
		for _, path := range old {
			pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), cgroupPrefix))
			if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				_ = removeTree(path) // somebody else's remains: not worth failing for
			}
		}
	}
	g := cgroup(cgroupPrefix + strconv.Itoa(os.Getpid()))
	for h, folder := range folders {
		path := filepath.Join(folder, string(g))
		if err := os.Mkdir(path, 0o755); err != nil {
			return g, err
		}
		if h != "cpuset" {
			continue
		}
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} { // empty in a new group of version 1
			text, err := os.ReadFile(filepath.Join(folder, f))
			if err == nil {
				err = os.WriteFile(filepath.Join(path, f), text, 0)
			}
			if err != nil {
				return g, err
			}
		}
	}
	return g, nil
}

// enter moves this process into the group, which becomes the root of a new
// namespace of this thread's.
func (g cgroup) enter() error {
	folders, err := hierarchies()
	if err != nil {
		return err
	}
	for _, folder := range folders {
		if err := os.WriteFile(filepath.Join(folder, string(g), "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	return unix.Unshare(unix.CLONE_NEWCGROUP)
}

// mount mounts the hierarchies, of which the namespace shows the group alone.
func (g cgroup) mount() error {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	if !bytes.Contains(text, []byte(":memory:")) && !bytes.Contains(text, []byte(",memory")) {
		return mountUnified()
	}
	if err := unix.Mount("tmpfs", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(string(line)), ":", 3)
		if len(parts) != 3 || parts[1] == "" {
			continue
		}
		target := filepath.Join(cgroupRoot, strings.TrimPrefix(parts[1], "name="))
		if err := os.Mkdir(target, 0o755); err != nil {
			return err
		}
		options := parts[1]
		if strings.HasPrefix(options, "name=") {
			options = "none," + options
		}
		if err := unix.Mount("cgroup", target, "cgroup", 0, options); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
	}
	return nil
}

// mountUnified mounts version 2. This process moves into a group below, so that
// the root may hand its controllers on.
func mountUnified() error {
	if err := unix.Mount("cgroup2", cgroupRoot, "cgroup2", 0, ""); err != nil {
		return err
	}
	if err := os.Mkdir(cgroupRoot+"/tests", 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(cgroupRoot+"/tests/cgroup.procs", []byte("0"), 0); err != nil {
		return err
	}
	controllers, err := os.ReadFile(cgroupRoot + "/cgroup.controllers")
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(controllers)) {
		if err := os.WriteFile(cgroupRoot+"/cgroup.subtree_control", []byte("+"+c), 0); err != nil {
			return fmt.Errorf("controller %s: %w", c, err)
		}
	}
	return nil
}

// remove removes the group, whose processes have ended or are about to.
func (g cgroup) remove() error {
	folders, err := hierarchies()
	if err != nil {
		return err
	}
	for _, folder := range folders {
		path := filepath.Join(folder, string(g))
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			// Ended processes leave their group a little later, and nothing tells.
			if err = removeTree(path); err == nil || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeTree removes groups, innermost first. Their files go with them.
func removeTree(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeTree(filepath.Join(path, e.Name())))
		}
	}
	return errors.Join(err, syscall.Rmdir(path))
}
