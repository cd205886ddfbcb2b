//go:build kubernetes && linux

package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// plugins is where Debian, and others, put the plugins of container networks.
var plugins = []string{"/usr/lib/cni", "/opt/cni/bin"}

// The archives of images that Start imports.
const (
	imageArchive = "roundhouse-image.tar"
	// Image is our own image's name on the node.
	Image      = "roundhouse.local/roundhouse:e2e"
	pauseImage = "roundhouse.local/pause:e2e"
)

// Binaries is the folder of what `make e2e-kubernetes` builds.
func Binaries() string {
	dir, err := filepath.Abs(".")
	for err == nil && dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return filepath.Join(dir, "bin", "k8s")
}

// binary is the path of one of them.
func binary(name string) string { return filepath.Join(Binaries(), name) }

// missing returns what stands in the way of a node here.
func missing() error {
	if os.Geteuid() != 0 {
		return errors.New("a node needs root: namespaces, mounts and cgroups are made for it")
	}
	for _, f := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "pause", "server", imageArchive} {
		if _, err := os.Stat(binary(f)); err != nil {
			return fmt.Errorf("%w: `make e2e-kubernetes` builds it", err)
		}
	}
	for _, p := range []string{"containerd", "ctr", "runc", "ip", "nft", "iptables", "conntrack"} {
		if _, err := exec.LookPath(p); err != nil {
			return fmt.Errorf("%s is not installed; on Debian: apt-get install containerd runc containernetworking-plugins iproute2 nftables iptables conntrack", p)
		}
	}
	if pluginDir() == "" {
		return fmt.Errorf("no plugin bridge in any of %v; on Debian: apt-get install containernetworking-plugins", plugins)
	}
	filesystems, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return err
	}
	if !containsWord(string(filesystems), "overlay") {
		return errors.New("the kernel has no overlay file system (modprobe overlay)")
	}
	_, err = hierarchies()
	return err
}

func pluginDir() string {
	for _, dir := range plugins {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir
		}
	}
	return ""
}
