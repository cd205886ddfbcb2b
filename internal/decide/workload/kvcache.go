package workload

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// kvEngine is how an engine is told of a connector. Words and values of variables
// with {remote} or {gib} are left out where those are not stated.
type kvEngine struct {
	args [][]string
	env  [][2]string
}

// lmcacheEnv is LMCache's own configuration. Its store finds what another replica
// put there by hashes, which Python's seed must not change.
var lmcacheEnv = [][2]string{{"LMCACHE_LOCAL_CPU", "True"}, {"LMCACHE_MAX_LOCAL_CPU_SIZE", "{gib}"}, {"LMCACHE_REMOTE_URL", "{remote}"}, {"PYTHONHASHSEED", "0"}}

// kvEngines are the engines' flags, by connector and engine.
var kvEngines = map[string]map[string]kvEngine{
	service.ConnectorLMCache: {
		"vllm":   {args: [][]string{{"--kv-transfer-config", `{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}`}}, env: lmcacheEnv},
		"sglang": {args: [][]string{{"--enable-lmcache"}}, env: append([][2]string{{"LMCACHE_USE_EXPERIMENTAL", "True"}}, lmcacheEnv...)},
	},
	service.ConnectorHiCache: {
		"sglang": {args: [][]string{{"--enable-hierarchical-cache"}, {"--hicache-size", "{gib}"}, {"--hicache-storage-backend", "{remote}"}}},
	},
}

// kvFlags are the engines' flags for such a cache, whichever the connector.
var kvFlags = []string{"--kv-transfer-config", "--enable-lmcache", "--enable-hierarchical-cache", "--hicache-size", "--hicache-ratio", "--hicache-storage-backend"}

// KVCacheFlag is the flag for a cache of keys and values that a word of a command
// line is; "" for none.
func KVCacheFlag(word string) string {
	flag, _, _ := strings.Cut(word, "=")
	if slices.Contains(kvFlags, strings.ReplaceAll(flag, "_", "-")) {
		return flag
	}
	return ""
}

// KVCacheVariable reports whether a variable is one that a connector's cache is told
// by.
func KVCacheVariable(connector, name string) bool {
	return connector == service.ConnectorLMCache && (strings.HasPrefix(name, "LMCACHE_") || name == "PYTHONHASHSEED")
}

// engineOf is which engine a command line runs, by the image's name or its words.
func engineOf(image string, words []string) string {
	text := Repository(image)
	text = text[strings.LastIndex(text, "/")+1:]
	for _, engine := range []string{"sglang", "vllm"} {
		if strings.Contains(text, engine) {
			return engine
		}
	}
	for _, w := range words[:min(len(words), 3)] {
		for _, engine := range []string{"sglang", "vllm"} {
			if w == engine || strings.HasPrefix(w, engine+".") || strings.HasSuffix(w, "/"+engine) {
				return engine
			}
		}
	}
	return ""
}

// remember tells the engine of the service's cache of keys and values.
func (c *Component) remember(k *service.KVCache) error {
	if k == nil || c.Role != service.RoleEngine && c.Role != service.RoleDecoder {
		return nil
	}
	for _, m := range c.engines() {
		args, env, err := remembering(k, m.Image, m.Command, m.Args)
		if err != nil {
			return fmt.Errorf("container %s: %w", m.Name, err)
		}
		m.Args = append(slices.Clone(m.Args), args...)
		m.Env = withDefaults(m.Env, env)
	}
	if p := c.Process; p != nil && len(p.Command) > 0 {
		args, env, err := remembering(k, "", p.Command, nil)
		if err != nil {
			return fmt.Errorf("local command: %w", err)
		}
		p.Command = append(slices.Clone(p.Command), args...)
		p.Env = withDefaults(p.Env, env)
	}
	return nil
}

// remembering are the arguments and variables of one engine.
func remembering(k *service.KVCache, image string, command, args []string) (words []string, env []corev1.EnvVar, err error) {
	all := slices.Concat(command, args)
	engine := engineOf(image, all)
	how, known := kvEngines[k.Connector][engine]
	if !known {
		return nil, nil, fmt.Errorf("spec.kvCache: connector %s is not known of this server: name a runtime of vLLM or SGLang (hicache: SGLang), or write the server's own flags in engine.containers and remove kvCache", k.Connector)
	}
	for _, w := range all {
		if flag := KVCacheFlag(w); flag != "" {
			return nil, nil, fmt.Errorf("spec.kvCache: the runtime's own arguments have %s: remove kvCache, or name another runtime", flag)
		}
	}
	fill := func(s string) (string, bool) {
		switch s {
		case "{remote}":
			return k.Remote, k.Remote != ""
		case "{gib}":
			return strconv.FormatInt(max(1, k.Memory>>30), 10), k.Memory > 0
		}
		return s, true
	}
	for _, a := range how.args {
		last, stated := fill(a[len(a)-1])
		if stated {
			words = append(append(words, a[:len(a)-1]...), last)
		}
	}
	for _, e := range how.env {
		if v, stated := fill(e[1]); stated {
			env = append(env, corev1.EnvVar{Name: e[0], Value: v})
		}
	}
	return words, env, nil
}

// withDefaults adds the variables that are not stated.
func withDefaults(env, more []corev1.EnvVar) []corev1.EnvVar {
	out := slices.Clone(env)
	for _, e := range more {
		if !slices.ContainsFunc(out, func(have corev1.EnvVar) bool { return have.Name == e.Name }) {
			out = append(out, e)
		}
	}
	return out
}
