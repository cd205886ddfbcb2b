//go:build kubernetes && linux

package node

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// auditPolicy logs what our controller asks, and nothing else.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: [` + Controller + `]}
- {level: None}
`

const auditLog = runDir + "/audit.log"

// GetFake gives the package's cluster of a real control plane and n nodes of
// KWOK's, whose pods are ready and run nowhere.
func GetFake(t *testing.T, n int) *Cluster {
	t.Helper()
	return get(t, func(ctx context.Context) (*Cluster, error) { return startFake(ctx, n) })
}

func startFake(ctx context.Context, n int) (*Cluster, error) {
	for _, f := range []string{"kwok", "kwok-stages.yaml"} {
		if _, err := os.Stat(binary(f)); err != nil {
			return nil, fmt.Errorf("%w: `make scale-kubernetes` builds it", err)
		}
	}
	policy := filepath.Join(runDir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o644); err != nil {
		return nil, err
	}
	c := &Cluster{daemons: map[string]*daemon{}, apiServer: []string{"--audit-policy-file", policy, "--audit-log-path", auditLog}}
	if err := c.connect(ctx); err != nil {
		return nil, err
	}
	const marked = "kwok.x-k8s.io/node"
	listens := func(context.Context) error { return nil } // the nodes will tell
	if err := c.daemon(ctx, "kwok", listens, "--kubeconfig", Kubeconfig, "--config", binary("kwok-stages.yaml"), "--node-lease-duration-seconds=40",
		"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector="+marked+"=fake"); err != nil {
		return nil, err
	}
	room := corev1.ResourceList{"cpu": resource.MustParse("1000"), "memory": resource.MustParse("1Ti"), "pods": resource.MustParse("400")}
	for i := range n {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("fake-%02d", i), Annotations: map[string]string{marked: "fake"}},
			Status: corev1.NodeStatus{Allocatable: room, Capacity: room}}
		if err := c.Create(ctx, node); err != nil {
			return nil, err
		}
	}
	return c, c.awaitNodes(ctx, n)
}

// Call is a request that the controller sent to the API server.
type Call struct{ Verb, Resource string }

// Writes reports whether it changes something that stays: not a lease, not an
// event.
func (c Call) Writes() bool {
	switch c.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return !strings.HasPrefix(c.Resource, "leases") && !strings.HasPrefix(c.Resource, "events") &&
			!strings.HasSuffix(c.Resource, "reviews")
	}
	return false
}

// Calls counts what the controller asked since an offset of the audit log, and
// gives the next offset.
func (c *Cluster) Calls(from int64) (map[Call]int, int64, error) {
	f, err := os.Open(auditLog)
	if err != nil {
		return nil, from, err
	}
	defer func() { _ = f.Close() }() // only read from
	if _, err := f.Seek(from, 0); err != nil {
		return nil, from, err
	}
	out := map[Call]int{}
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return out, from, nil // the last one may be half written
		}
		from += int64(len(line))
		var e struct {
			Verb      string
			ObjectRef struct{ Resource, Subresource string }
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, from, err
		}
		call := Call{e.Verb, e.ObjectRef.Resource}
		if e.ObjectRef.Subresource != "" {
			call.Resource += "/" + e.ObjectRef.Subresource
		}
		out[call]++
	}
}

// Run starts a program of ours beside the cluster, as a user, and waits until
// an address of it answers.
func (c *Cluster) Run(ctx context.Context, name, path, ready string, args ...string) (pid int, err error) {
	d, err := start(name, path, args...)
	if err != nil {
		return 0, err
	}
	c.daemons[name] = d
	return d.cmd.Process.Pid, d.ready(ctx, askHTTP(plain, ready))
}

// Stop ends a program that Run started.
func (c *Cluster) Stop(name string) error {
	d := c.daemons[name]
	delete(c.daemons, name)
	return d.stop(stopPatience)
}
