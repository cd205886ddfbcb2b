package cluster

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestLogs: whose output is asked for: the newest pod's, that of the container
// which fetches the model while it does, that of a pod named.
func TestLogs(t *testing.T) {
	const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME","namespace":"default","creationTimestamp":"2026-03-01T12:00:0SZ","annotations":{"roundhouse.dev/service":"iris"},
		"labels":{"roundhouse.dev/role":"engine"}},"spec":{"nodeName":"n","containers":[{"name":"main"}],"initContainers":[{"name":"roundhouse-model"}]},"status":STATUS}`
	one := func(name, second, status string) json.RawMessage {
		return json.RawMessage(strings.NewReplacer("NAME", name, "0SZ", "0"+second+"Z", "STATUS", status).Replace(pod))
	}
	answers := map[string]any{
		"/apis":                         map[string]any{"groups": []any{map[string]any{"name": "roundhouse.dev", "versions": []any{map[string]any{"groupVersion": "roundhouse.dev/v1alpha1", "version": "v1alpha1"}}}}},
		"/apis/roundhouse.dev/v1alpha1": map[string]any{"groupVersion": "roundhouse.dev/v1alpha1", "resources": []any{map[string]any{"name": "modelservices"}}},
		"/apis/roundhouse.dev/v1alpha1/namespaces/default/modelservices/iris": map[string]any{"apiVersion": "roundhouse.dev/v1alpha1", "kind": "ModelService", "metadata": map[string]any{"name": "iris", "namespace": "default"},
			"spec": map[string]any{"model": map[string]any{"uri": "s3://b/iris.ubj"}}},
		"/apis/apps/v1/namespaces/default/deployments":         map[string]any{"apiVersion": "apps/v1", "kind": "DeploymentList", "items": []any{}},
		"/apis/apps/v1/namespaces/default/controllerrevisions": map[string]any{"apiVersion": "apps/v1", "kind": "ControllerRevisionList", "items": []any{}},
		"/api/v1/namespaces/default/pods": map[string]any{"apiVersion": "v1", "kind": "PodList", "items": []any{
			one("new", "2", `{"initContainerStatuses":[{"name":"roundhouse-model","state":{"running":{}}}]}`),
			one("old", "1", `{"containerStatuses":[{"name":"main","state":{"running":{}}}]}`)}},
	}
	c := newClient(t, server(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/log") {
			_, _ = io.WriteString(w, r.URL.Path+" "+r.URL.RawQuery)
			return
		}
		answer, there := answers[r.URL.Path]
		if !there {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	for _, x := range []struct {
		o    LogOptions
		want string
	}{
		{LogOptions{}, "pods/new/log container=roundhouse-model"},
		{LogOptions{Replica: "old", LogOptions: fleet.LogOptions{Follow: true, Tail: 5}}, "pods/old/log container=main&follow=true&tailLines=5"},
		{LogOptions{Replica: "old", LogOptions: fleet.LogOptions{Previous: true}}, "pods/old/log container=main&previous=true"},
	} {
		out, err := c.Logs(t.Context(), service.Key{Namespace: "default", Name: "iris"}, x.o)
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := io.ReadAll(out)
		_ = out.Close()
		if !strings.HasSuffix(string(raw), x.want) {
			t.Errorf("asked for %s, want %s", raw, x.want)
		}
	}
}
