package workload

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestKVCache: what each engine is told, by its connector.
func TestKVCache(t *testing.T) {
	lm := &service.KVCache{Connector: service.ConnectorLMCache, Remote: "redis://cache:6379", Memory: 20 << 30}
	lmEnv := "LMCACHE_LOCAL_CPU=True LMCACHE_MAX_LOCAL_CPU_SIZE=20 LMCACHE_REMOTE_URL=redis://cache:6379 PYTHONHASHSEED=0"
	for name, c := range map[string]struct {
		k             *service.KVCache
		image         string
		command, args []string
		words, env    string
		fails         string
	}{
		"none":            {nil, "docker.io/vllm/vllm-openai:v1", nil, []string{"--model", "x"}, "--model x", "", ""},
		"vLLM":            {lm, "docker.io/vllm/vllm-openai:v1", nil, []string{"--model", "x"}, `--model x --kv-transfer-config {"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}`, lmEnv, ""},
		"vLLM of LMCache": {&service.KVCache{Connector: "lmcache"}, "lmcache/vllm-openai:v1", nil, nil, `--kv-transfer-config {"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}`, "LMCACHE_LOCAL_CPU=True PYTHONHASHSEED=0", ""},
		"SGLang":          {lm, "lmsysorg/sglang:v1", []string{"python3", "-m", "sglang.launch_server"}, nil, "--enable-lmcache", "LMCACHE_USE_EXPERIMENTAL=True " + lmEnv, ""},
		"another image":   {lm, "registry/own:v1", []string{"python3", "-m", "sglang.launch_server"}, nil, "--enable-lmcache", "LMCACHE_USE_EXPERIMENTAL=True " + lmEnv, ""},
		"hicache": {&service.KVCache{Connector: "hicache", Remote: "mooncake", Memory: 100 << 30}, "lmsysorg/sglang:v1", nil, nil,
			"--enable-hierarchical-cache --hicache-size 100 --hicache-storage-backend mooncake", "", ""},
		"hicache alone": {&service.KVCache{Connector: "hicache"}, "lmsysorg/sglang:v1", nil, nil, "--enable-hierarchical-cache", "", ""},
		"hicache, vLLM": {&service.KVCache{Connector: "hicache"}, "vllm/vllm-openai:v1", nil, nil, "", "", "connector hicache is not known of this server"},
		"no engine":     {lm, "ghcr.io/ggml-org/llama.cpp:server", nil, nil, "", "", "name a runtime of vLLM or SGLang"},
		"its own flag":  {lm, "vllm/vllm-openai:v1", nil, []string{"--kv-transfer-config={}"}, "", "", "own arguments have --kv-transfer-config"},
	} {
		pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: c.image, Command: c.command, Args: c.args}}}
		part := Component{Role: service.RoleEngine, Pod: pod, Main: "main"}
		err := part.remember(c.k)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var env []string
		for _, e := range part.Pod.Containers[0].Env {
			env = append(env, e.Name+"="+e.Value)
		}
		if got := strings.Join(part.Pod.Containers[0].Args, " "); err != nil || got != c.words || strings.Join(env, " ") != c.env {
			t.Errorf("%s: %q, %q: %v", name, got, env, err)
		}
	}
}

// TestKVCacheProcess: a process is told as a container is, and what it states
// stays.
func TestKVCacheProcess(t *testing.T) {
	c := Component{Role: service.RoleEngine, Process: &Process{Command: []string{"/opt/bin/vllm", "serve", "m"}, Env: []corev1.EnvVar{{Name: "PYTHONHASHSEED", Value: "7"}}}}
	if err := c.remember(&service.KVCache{Connector: "lmcache"}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(c.Process.Command, "--kv-transfer-config") || c.Process.Env[0].Value != "7" || len(c.Process.Env) != 2 {
		t.Errorf("%+v", c.Process)
	}
}

// TestDelivery: an annotation goes over what the operator chose; on one machine
// there is none.
func TestDelivery(t *testing.T) {
	chosen := Delivery{Beside: true, Store: "/srv", StoreSize: "80%"}
	for _, c := range []struct {
		annotation string
		cluster    bool
		want       Delivery
	}{
		{"", true, chosen},
		{"/disk/models", true, Delivery{Beside: true, Store: "/disk/models", StoreSize: "80%"}},
		{service.NoModelStore, true, Delivery{Beside: true, StoreSize: "80%"}},
		{"/disk/models", false, Delivery{}},
	} {
		s := &service.Service{}
		if c.annotation != "" {
			s.Annotations = map[string]string{service.AnnotationModelStore: c.annotation}
		}
		if got := (Input{Service: s, Cluster: c.cluster, Delivery: chosen}).delivery(); got != c.want {
			t.Errorf("%q: %+v, want %+v", c.annotation, got, c.want)
		}
	}
	for store, ok := range map[string]bool{"/a/b": true, "none": true, "": false, "a": false, "/": false, "/a/../b": false, "/a:b": false, "/a/": false} {
		if bad := service.ModelStoreError(store); (bad == "") != ok {
			t.Errorf("%q: %q", store, bad)
		}
	}
}
