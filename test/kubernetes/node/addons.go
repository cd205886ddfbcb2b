//go:build kubernetes && linux

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// groupsImage is the image of the controller of LeaderWorkerSets.
const groupsImage = "roundhouse.local/lws:e2e"

// groupsManifest is what that project's installation applies.
const groupsManifest = "lws.yaml"

// InstallGroups installs the controller of LeaderWorkerSets as that project
// does: its kind, webhooks and permissions, and its program in a pod. It returns
// once a LeaderWorkerSet is admitted.
func (c *Cluster) InstallGroups(ctx context.Context) error {
	if err := c.ImportProgram(ctx, "lws", groupsImage); err != nil {
		return fmt.Errorf("%w: `make e2e-kubernetes` builds it", err)
	}
	manifest, err := os.ReadFile(binary(groupsManifest))
	if err != nil {
		return fmt.Errorf("%w: `make e2e-kubernetes` writes it", err)
	}
	text := string(manifest)
	for _, change := range [][2]string{
		{"image: us-central1-docker.pkg.dev/k8s-staging-images/lws/lws:main", "image: " + groupsImage + "\n        imagePullPolicy: Never"},
		{"- /manager\n", "- /lws\n"},
		{"cpu: 1\n", "cpu: 50m\n"}, // of a node that others use, too
		{"memory: 1Gi\n", "memory: 64Mi\n"},
		{"replicas: 2\n", "replicas: 1\n"},
	} {
		if strings.Count(text, change[0]) != 1 {
			return fmt.Errorf("%s has %q %d times", groupsManifest, change[0], strings.Count(text, change[0]))
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	if err := c.ApplyYAML(ctx, text); err != nil {
		return err
	}
	if err := c.AwaitRollout(ctx, "lws-system", "lws-controller-manager"); err != nil {
		return err
	}
	return c.retry(ctx, c.admitGroup)
}

// admitGroup has the webhooks look at a LeaderWorkerSet that is not kept: they
// answer some time after the program is ready.
func (c *Cluster) admitGroup(ctx context.Context) error {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
		"metadata": map[string]any{"name": "trial", "namespace": metav1.NamespaceDefault},
		"spec": map[string]any{"leaderWorkerTemplate": map[string]any{"size": int64(1), "workerTemplate": map[string]any{
			"spec": map[string]any{"containers": []any{map[string]any{"name": "one", "image": "one"}}}}}},
	}}
	return c.Create(ctx, u, client.DryRunAll)
}

// retry tries until it succeeds: of what is waited for nobody tells.
func (c *Cluster) retry(ctx context.Context, try func(context.Context) error) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// nameServer is where the node's pods ask for names. Nobody listens there
// before StartNames.
const nameServer = Address

// StartNames starts CoreDNS, which knows the names of Services and of pods with
// a host name; once is enough.
func (c *Cluster) StartNames(ctx context.Context) error {
	const name = "coredns"
	if c.daemons[name] != nil {
		return nil
	}
	config := filepath.Join(runDir, "Corefile")
	err := os.WriteFile(config, []byte(`.:53 {
  bind `+nameServer+`
  ready 127.0.0.1:8181
  errors
  kubernetes cluster.local {
    kubeconfig `+Kubeconfig+`
    ttl 1
  }
}
`), 0o644)
	if err != nil {
		return err
	}
	if _, err := os.Stat(binary(name)); err != nil {
		return errors.Join(err, errors.New("`make e2e-kubernetes` builds it"))
	}
	return c.daemon(ctx, name, askHTTP(plain, "http://127.0.0.1:8181/ready"), "-conf", config)
}
