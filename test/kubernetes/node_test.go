//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

func TestMain(m *testing.M) { node.Main(m) }

// TestNode runs our image under kubelet, containerd and runc: two replicas
// answer at the address of their service.
func TestNode(t *testing.T) {
	c := node.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	if err := c.ApplyYAML(ctx, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {runAsNonRoot: true}
      containers:
      - name: engine
        image: `+node.Image+`
        imagePullPolicy: Never
        args: [simulate, engine, --host, 0.0.0.0, --port, "8000", --model, hello]
        ports: [{containerPort: 8000}]
        readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: hello, namespace: default}
spec:
  clusterIP: 10.96.0.100
  selector: {app: hello}
  ports: [{port: 80, targetPort: 8000}]
`); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitRollout(ctx, "default", "hello"); err != nil {
		t.Fatal(err)
	}
	t.Logf("two replicas ready after %.1f s", time.Since(began).Seconds())
	for {
		res, err := http.Get("http://10.96.0.100/v1/models")
		if err == nil {
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != http.StatusOK || !strings.Contains(string(body), "hello") {
				t.Fatalf("%s: %s", res.Status, body)
			}
			break
		}
		select {
		case <-time.After(50 * time.Millisecond): // kube-proxy tells nobody when its rules are in force
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
	t.Logf("the service answers after %.1f s", time.Since(began).Seconds())
	if _, err := c.Kubectl(ctx, "delete", "deployment,service", "hello", "--wait"); err != nil {
		t.Fatal(err)
	}
}
