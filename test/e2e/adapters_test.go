package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// adapted is a service of two replicas with LoRA adapters, each "name uri".
func adapted(scaling string, adapters ...string) string {
	var b strings.Builder
	for _, a := range adapters {
		name, uri, _ := strings.Cut(a, " ")
		fmt.Fprintf(&b, "\n      - {name: %s, uri: %q}", name, uri)
	}
	if b.Len() == 0 {
		b.WriteString(" []")
	}
	return fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: llama}
spec:
  model:
    format: {name: simulator}
    adapters:%s
  scaling: {%s}
  engine:
    args: [--speed, "200"]
`, b.String(), scaling)
}

// card is what /v1/models says of one model.
type card struct {
	ID, Root, Parent string
}

func (n *node) cards() map[string]card {
	n.t.Helper()
	var list struct{ Data []card }
	if err := json.Unmarshal([]byte(n.get(n.gateway+"/v1/models").body), &list); err != nil {
		n.t.Fatal(err)
	}
	out := map[string]card{}
	for _, c := range list.Data {
		out[c.ID] = c
	}
	return out
}

// adapterFiles writes an adapter as PEFT does, and returns its folder's name.
func adapterFiles(t *testing.T, dir, name string, rank int) string {
	t.Helper()
	at := filepath.Join(dir, name)
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, at, "adapter_config.json", fmt.Sprintf(`{"peft_type":"LORA","r":%d,"base_model_name_or_path":"llama"}`, rank))
	write(t, at, "adapter_model.safetensors", "\x02\x00\x00\x00\x00\x00\x00\x00{}") // no tensors
	return name
}

// TestAdapters serves two LoRA adapters beside their model, from folders.
func TestAdapters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t)
	sql, chat := "sql file://"+adapterFiles(t, dir, "sql-lora", 16), "chat file://"+adapterFiles(t, dir, "chat-lora", 20)
	n.do("apply", "--wait", "-f", write(t, dir, "llama.yaml", adapted("minReplicas: 2, maxReplicas: 2", sql, chat)))
	for _, name := range []string{"llama", "sql", "chat", "default/sql"} {
		a, model := n.completion(name)
		if want := strings.TrimPrefix(name, "default/"); a.status != 200 || model != want {
			t.Errorf("%s: a replica was asked for %q: %s", name, model, a)
		}
	}
	cards := n.cards()
	if c := cards["sql"]; c.Parent != "llama" || c.Root != "sql" || cards["llama"].Parent != "" || cards["chat"].Parent != "llama" {
		t.Errorf("models are %+v", cards)
	}
	if a, _ := n.completion("sqll"); a.status != 404 || !strings.Contains(a.body, "did you mean sql?") {
		t.Errorf("a misspelt adapter: %s", a)
	}
}
