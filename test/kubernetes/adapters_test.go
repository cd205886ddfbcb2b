//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// TestAdapters has pods bring LoRA adapters, from a store and from a volume, and
// answer under their names.
func TestAdapters(t *testing.T) {
	p := &product{Cluster: node.Get(t)}
	s3 := openS3(t)
	p.live(t, []string{"Install"}, []step{
		{"Install", 0, install},
		{"Adapters", 0, func(ctx context.Context, p *product) { adapters(ctx, p, s3) }},
		{"Uninstall", 0, uninstall},
	})
}

// named asks for a completion by a model's name alone.
func (p *product) named(model string, status int) request {
	return request{p.address, p.address, "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"Hello","max_tokens":4}`, model),
		func(got int, body []byte) error {
			var answer struct{ Model string }
			_ = json.Unmarshal(body, &answer)
			if got != status || got == http.StatusOK && answer.Model != strings.TrimPrefix(model, "apps/") {
				return fmt.Errorf("status %d: %.300s", got, body)
			}
			return nil
		}}
}

// until asks until the answer is as wanted.
func (r request) until(ctx context.Context, t *testing.T) {
	t.Helper()
	for {
		err := r.do(ctx, http.DefaultClient)
		if err == nil {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond): // between two requests
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

func adapters(ctx context.Context, p *product, s3 *objectStore) {
	s3.put(p.t, "sql/adapter_config.json", []byte(`{"peft_type":"LORA","r":8}`))
	s3.put(p.t, "sql/adapter_model.safetensors", []byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	const sql, chat = `{name: sql, uri: "s3://models/sql"}`, `{name: chat, uri: "pvc://models"}`
	apply := func(adapters ...string) {
		p.t.Helper()
		p.do(p.ApplyYAML(ctx, fmt.Sprintf(`
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: llama, namespace: apps}
spec:
  model: {format: {name: simulator}, adapters: [%s]}
  scaling: {minReplicas: 2, maxReplicas: 2}
  engine:
    args: [--speed, "50"]
    env:
    - {name: AWS_ACCESS_KEY_ID, value: %s}
    - {name: AWS_SECRET_ACCESS_KEY, value: %s}
    - {name: AWS_DEFAULT_REGION, value: %s}
    - {name: S3_ENDPOINT, value: %q}
    - {name: S3_USE_HTTPS, value: "0"}
`, strings.Join(adapters, ", "), s3Key, s3SecretKey, s3Region, s3.address)))
	}
	apply(sql, chat)
	p.awaitReady(ctx, modelService, "apps", "llama")
	for _, pod := range p.awaitReplicas(ctx, "apps", "llama", 2) {
		at := slices.IndexFunc(pod.Status.InitContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == "roundhouse-adapter-sql" })
		if at < 0 || pod.Status.InitContainerStatuses[at].State.Terminated == nil || pod.Status.InitContainerStatuses[at].State.Terminated.ExitCode != 0 {
			p.t.Errorf("%s has brought %+v", pod.Name, pod.Status.InitContainerStatuses)
		}
		mounts := pod.Spec.Containers[0].VolumeMounts
		for _, want := range []string{"/mnt/adapters/sql", "/mnt/adapters/chat"} {
			if !slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == want && m.ReadOnly }) {
				p.t.Errorf("%s mounts %+v, not %s", pod.Name, mounts, want)
			}
		}
	}
	for _, name := range []string{"llama", "sql", "chat", "apps/sql"} {
		p.named(name, http.StatusOK).until(ctx, p.t)
	}
	models, err := fetch(ctx, p.address, "/v1/models")
	p.do(err)
	for _, want := range []string{`"id":"sql"`, `"id":"chat"`, `"parent":"llama"`} {
		if !strings.Contains(models, want) {
			p.t.Errorf("the models lack %s: %s", want, models)
		}
	}

	// One that is not there: said by its name, and what served goes on.
	apply(sql, chat, `{name: nowhere, uri: "s3://models/nowhere"}`)
	u := p.await(ctx, modelService, "apps", "llama", "what is wrong with the adapter", func(u *unstructured.Unstructured) bool {
		return strings.Contains(fmt.Sprint(u.Object["status"]), "adapter nowhere cannot be fetched")
	})
	p.t.Logf("it says: %v", condition(u, "Ready")["message"])
	p.named("sql", http.StatusOK).must(p.t)

	// Taken away: the name is gone, the others stay.
	apply(sql)
	p.named("chat", http.StatusNotFound).until(ctx, p.t)
	p.named("sql", http.StatusOK).must(p.t)
	p.do(p.DeleteYAML(ctx, "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: llama, namespace: apps}\n"))
}
