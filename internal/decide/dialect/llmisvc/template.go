package llmisvc

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
	"roundhouse.dev/roundhouse/internal/decide/expression"
)

// language is that of KServe's Configs: Go templates over the merged service.
var language = expression.Language{
	Fields: ".Spec, .ObjectMeta and .GlobalConfig of KServe's LLMInferenceServiceConfig",
	Functions: map[string]expression.Function{
		"ChildName":        childName,
		"kvTransferConfig": func(args []any) (any, error) { return transferText(args) },
		"shutdownTimeout":  shutdownTimeout,
	},
}

// maxName is the length of a name in Kubernetes.
const maxName = 63

// childName is the name of an object that KServe makes of a service.
func childName(args []any) (any, error) {
	if len(args) != 2 {
		return nil, errors.New("ChildName wants a name and what follows it")
	}
	parent, ok1 := args[0].(string)
	suffix, ok2 := args[1].(string)
	if !ok1 || !ok2 {
		return nil, errors.New("ChildName wants texts")
	}
	if len(parent)+len(suffix) <= maxName {
		return parent + suffix, nil
	}
	sum := sha256.Sum256([]byte(parent + suffix))
	return (parent[:min(len(parent), maxName-9)] + "-" + hex.EncodeToString(sum[:4])), nil
}

// shutdownTimeout is how long vLLM may end requests: the pod's grace, but for what
// its preStop takes and 5 seconds.
func shutdownTimeout(args []any) (any, error) {
	if len(args) != 2 {
		return nil, errors.New("shutdownTimeout wants a template and the seconds of its preStop")
	}
	grace := int64(60)
	if pod, ok := args[0].(map[string]any); ok {
		if n, ok := pod["TerminationGracePeriodSeconds"].(int64); ok {
			grace = n
		}
	}
	before, _ := args[1].(int64)
	return max(0, grace-before-min(5, grace)), nil
}

// transferText is the argument of vLLM for a cache in main memory, "" for none.
func transferText(args []any) (string, error) {
	if len(args) != 1 {
		return "", errors.New("kvTransferConfig wants .Spec.KVCacheOffloading")
	}
	in, ok := args[0].(map[string]any)
	if !ok {
		return "", nil
	}
	var o offloading
	raw, err := json.Marshal(map[string]any{"cpu": in["CPU"], "evictionPolicy": in["EvictionPolicy"]})
	if err == nil {
		err = json.Unmarshal(raw, &o)
	}
	if err != nil {
		return "", fmt.Errorf("kvTransferConfig: %w", err)
	}
	return "--kv-transfer-config '" + o.config() + "'", nil
}

// config is vLLM's setting for a cache in main memory.
func (o *offloading) config() string {
	extra := map[string]any{"cpu_bytes_to_use": o.CPU.Value()}
	if o.EvictionPolicy != "" {
		extra["eviction_policy"] = o.EvictionPolicy
	}
	// Maps of texts and numbers always encode.
	raw, _ := json.Marshal(map[string]any{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra})
	return string(raw)
}

// fill fills the templates of a service. A text that cannot be filled is reported
// through problem, with its path.
func (m *object) fill(problem func(path string, err error)) {
	raw, err := json.Marshal(m.Spec)
	if err != nil {
		problem("spec", err)
		return
	}
	if !strings.Contains(string(raw), "{{") {
		return
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		problem("spec", err)
		return
	}
	data := map[string]any{"Spec": exported(tree),
		"ObjectMeta":   map[string]any{"Name": m.Metadata.Name, "Namespace": m.Metadata.Namespace, "Labels": orEmpty(m.Metadata.Labels), "Annotations": orEmpty(m.Metadata.Annotations)},
		"GlobalConfig": map[string]any{"EnableTLS": false, "IngressGatewayName": "", "IngressGatewayNamespace": "", "ModelBasedRoutingHeaderName": "", "SystemNamespace": systemNamespace}}
	left := maxFilled
	filled := walk(tree, "spec", func(path, s string) string {
		out, err := language.Fill(s, data)
		if left -= len(out); left < 0 && err == nil {
			err = fmt.Errorf("all texts together are over %d bytes once their templates are filled", maxFilled)
		}
		if err != nil {
			problem(path, err)
			return ""
		}
		return out
	})
	raw, err = json.Marshal(filled)
	if err == nil {
		m.Spec = spec{}
		err = json.Unmarshal(raw, &m.Spec)
	}
	if err != nil {
		problem("spec", err)
	}
}

// maxFilled is the size of all texts of a service once their templates are filled.
const maxFilled = 16 << 20

// check reports what no service could fill.
func (m *object) check(problem func(path string, err error)) {
	raw, err := json.Marshal(m.Spec)
	var tree any
	if err == nil {
		err = json.Unmarshal(raw, &tree)
	}
	if err != nil {
		problem("spec", err)
		return
	}
	walk(tree, "spec", func(path, s string) string {
		if err := language.Check(s); err != nil {
			problem(path, err)
		}
		return s
	})
}

// walk gives every text below v to f, in order, and takes what it returns.
func walk(v any, path string, f func(path, s string) string) any {
	switch v := v.(type) {
	case string:
		return f(path, v)
	case []any:
		for i := range v {
			v[i] = walk(v[i], strict.Index(path, i), f)
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			v[k] = walk(v[k], strict.Join(path, k), f)
		}
	}
	return v
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// names are those of KServe's Go fields that are not their json name with its first
// letter raised.
var names = map[string]string{"uri": "URI", "lora": "LoRA", "kvCacheOffloading": "KVCacheOffloading", "cpu": "CPU",
	"maxCpuAdapters": "MaxCpuAdapters", "http": "HTTP", "wva": "WVA", "keda": "KEDA", "hpa": "HPA"}

// exported is a value with the names that templates use for its fields.
func exported(v any) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = exported(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			name := names[k]
			if name == "" && k != "" {
				name = strings.ToUpper(k[:1]) + k[1:]
			}
			out[name] = exported(e)
		}
		for _, k := range []string{"Parallelism", "Prefill", "Router", "KVCacheOffloading", "Template", "Worker", "Tensor", "Pipeline", "Data", "DataLocal", "DataRPCPort", "Expert", "LoRA"} {
			if _, stated := out[k]; !stated {
				out[k] = nil
			}
		}
		return out
	case float64:
		if n := int64(v); float64(n) == v {
			return n
		}
		return fmt.Sprint(v)
	}
	return v
}
