//go:build kubernetes && linux

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"roundhouse.dev/roundhouse/internal/edge/image"
)

const containerdSocket = runDir + "/containerd.sock"

// restrict_oom_score_adj, because a container may lack CAP_SYS_RESOURCE.
const containerdConfig = `version = 2
root = "` + runDir + `/containerd"
state = "` + runDir + `/containerd-state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "` + containerdSocket + `"
[plugins."io.containerd.internal.v1.opt"]
  path = "` + runDir + `/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "` + pauseImage + `"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "%s"
    conf_dir = "` + runDir + `/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`

const cniConfig = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "` + runDir + `/cni-addresses", "ranges": [[{"subnet": "` + podRange + `"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix://` + containerdSocket + `
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: ` + certDir + `/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: ` + certDir + `/kubelet.crt
tlsPrivateKeyFile: ` + certDir + `/kubelet.key
address: ` + Address + `
healthzPort: 10248
oomScoreAdj: 0
clusterDomain: cluster.local
clusterDNS: [` + nameServer + `]
resolvConf: ""
podLogsDir: ` + podLogs + `
volumePluginDir: ` + runDir + `/volume-plugins
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
maxPods: 250
serializeImagePulls: false
syncFrequency: 10s
nodeStatusUpdateFrequency: 4s
enforceNodeAllocatable: [pods]
crashLoopBackOff: {maxContainerRestartPeriod: 2s}
`

const podLogs = logDir + "/pods"

// startWorker starts containerd, kubelet and kube-proxy, and imports the images.
func (c *Cluster) startWorker(ctx context.Context) error {
	for file, text := range map[string]string{
		"containerd.toml": fmt.Sprintf(containerdConfig, pluginDir()), "cni/10-pods.conflist": cniConfig, "kubelet.yaml": kubeletConfig,
	} {
		path := filepath.Join(runDir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	askContainerd := func(ctx context.Context) error {
		_, err := ctr(ctx, "version")
		return err
	}
	if err := c.daemon(ctx, "containerd", askContainerd, "--config", runDir+"/containerd.toml"); err != nil {
		return err
	}
	if err := c.ImportProgram(ctx, "pause", pauseImage); err != nil {
		return err
	}
	if err := c.Import(ctx, binary(imageArchive)); err != nil {
		return err
	}
	if err := c.daemon(ctx, "kubelet", askHTTP(plain, "http://127.0.0.1:10248/healthz"),
		"--config", runDir+"/kubelet.yaml", "--kubeconfig", certificate("kubelet.kubeconfig"), "--root-dir", runDir+"/kubelet",
		"--hostname-override", name, "--node-ip", Address, "-v=2"); err != nil {
		return err
	}
	return c.daemon(ctx, "kube-proxy", askHTTP(plain, "http://127.0.0.1:10256/livez"),
		"--kubeconfig", certificate("proxy.kubeconfig"), "--proxy-mode=nftables", "--cluster-cidr", podRange,
		"--conntrack-max-per-core=0", // the whole machine's
		"--hostname-override", name, "--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249")
}

// Import gives the node the images of an archive.
func (c *Cluster) Import(ctx context.Context, archive string) error {
	_, err := ctr(ctx, "images", "import", archive)
	return err
}

// Tag gives an image of the node another name.
func (c *Cluster) Tag(ctx context.Context, from, to string) error {
	_, err := ctr(ctx, "images", "tag", "--force", from, to)
	return err
}

// KillContainer ends the process of a container, "containerd://ID" as a pod's
// status has it, by SIGKILL.
func (c *Cluster) KillContainer(ctx context.Context, id string) error {
	_, err := ctr(ctx, "tasks", "kill", "--signal", "SIGKILL", strings.TrimPrefix(id, "containerd://"))
	return err
}

func ctr(ctx context.Context, args ...string) (string, error) {
	return command(ctx, "ctr", append([]string{"--address", containerdSocket, "--namespace", "k8s.io"}, args...)...)
}

// ImportProgram gives the node an image of one of Binaries' programs.
func (c *Cluster) ImportProgram(ctx context.Context, name, tag string) error {
	path := filepath.Join(runDir, name+".tar")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = image.WriteRelease(ctx, f, image.Release{Tag: tag, Programs: [][]string{{binary(name)}}})
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return c.Import(ctx, path)
}

// containsWord reports whether a word stands alone in a text.
func containsWord(text, word string) bool {
	for w := range strings.FieldsSeq(text) {
		if w == word {
			return true
		}
	}
	return false
}
