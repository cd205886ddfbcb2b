package gateway

import (
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// lora is a service with adapters, each "name uri".
func lora(name, address string, adapters ...string) dispatch.PoolConfig {
	p := pool(name, address)
	for _, a := range adapters {
		n, uri, _ := strings.Cut(a, " ")
		p.Adapters = append(p.Adapters, dispatch.Adapter{Name: n, URI: uri})
	}
	return p
}

// TestAdapterCards: an adapter is a model of its own, of the model it is laid
// over. Where its files are is told of public ones alone.
func TestAdapterCards(t *testing.T) {
	r := newRig(t, nil)
	addr := replicaServer(t, echo)
	r.d.SetPools([]dispatch.PoolConfig{lora("llama", addr, "sql hf://org/sql@main?x=y", "chat s3://team-secrets/chat"), lora("team/llama", addr, "tldr pvc://claim/tldr")})
	r.send("GET", "/v1/models", "").want(t, 200, `"models":["chat","default/llama","sql","team/llama","tldr"]`,
		`"name":"sql","ready":true,"state":"Ready","root":"org/sql@main","parent":"default/llama"`,
		`"name":"chat","ready":true,"state":"Ready","root":"chat","parent":"default/llama"`)
	r.send("GET", "/v1/models/tldr", "").want(t, 200, `"id":"tldr"`, `"root":"tldr"`, `"parent":"team/llama"`)
	if a := r.send("GET", "/v1/models/default%2Fllama", ""); strings.Contains(a.body, "parent") {
		t.Errorf("the model itself: %s", a.body)
	}
	for body, got := range map[string]string{`{"model":"sql"}`: `"model":"sql"`, `{"model":"default/sql"}`: `"model":"sql"`, `{"model":"team/tldr"}`: `"model":"tldr"`} {
		r.send("POST", "/v1/completions", body).want(t, 200, got)
	}
}

// TestAdapterKeys: a key for a model is for its adapters, which are as much of
// it as they are; a key for an adapter is for nothing else.
func TestAdapterKeys(t *testing.T) {
	r, create := newKeyRig(t, nil)
	addr := replicaServer(t, echo)
	r.d.SetPools([]dispatch.PoolConfig{lora("llama", addr, "sql hf://a", "chat hf://b"), lora("team/mistral", addr, "tldr hf://c", "sum hf://d")})
	_, model := create(apikey.Limits{Models: []string{"llama"}})
	_, adapter := create(apikey.Limits{Models: []string{"sql", "team/tldr"}})
	_, tenant := create(apikey.Limits{Namespaces: []string{"team"}})
	for _, c := range []struct {
		key, host, model string
		status           int
	}{
		{model, "", "llama", 200}, {model, "", "sql", 200}, {model, "", "default/chat", 200}, {model, "llama.default.localhost", "sql", 200}, {model, "", "tldr", 403},
		{adapter, "", "sql", 200}, {adapter, "", "default/sql", 200}, {adapter, "", "chat", 403}, {adapter, "", "llama", 403},
		{adapter, "", "tldr", 200}, {adapter, "", "team/tldr", 200}, {adapter, "", "sum", 403}, {adapter, "", "team/mistral", 403},
		// A host is a service's, whose other names no key for an adapter is for.
		{adapter, "llama.default.localhost", "sql", 403}, {adapter, "llama.default.localhost", "chat", 403},
		{tenant, "", "sum", 200}, {tenant, "", "sql", 404}, {tenant, "", "default/sql", 404},
	} {
		header := []string{"X-Api-Key", c.key}
		if c.host != "" {
			header = append(header, "Host", c.host)
		}
		if a := r.send("POST", "/v1/completions", `{"model":"`+c.model+`"}`, header...); a.code != c.status {
			t.Errorf("%s at %q: %d, want %d: %s", c.model, c.host, a.code, c.status, a.body)
		}
	}
	for key, models := range map[string]string{model: `"models":["chat","llama","sql"]`, adapter: `"models":["sql","tldr"]`, tenant: `"models":["mistral","sum","tldr"]`} {
		r.send("GET", "/v1/models", "", "X-Api-Key", key).want(t, 200, models)
	}
}

// TestAdapterSeries: requests for an adapter count under its name while it is
// one; other names that replicas answer to are their service's.
func TestAdapterSeries(t *testing.T) {
	r := newRig(t, nil)
	addr := replicaServer(t, echo)
	r.d.SetPools([]dispatch.PoolConfig{lora("llama", addr, "sql hf://a")})
	for _, model := range []string{"llama", "sql", "made-up"} {
		r.send("POST", "/v1/chat/completions", `{"model":"`+model+`","messages":[]}`, "Host", "llama.default.localhost").want(t, 200)
	}
	r.waitSettled()
	const label = `gen_ai_server_request_duration_seconds label:{name:"error_type" value:""} label:{name:"gen_ai_operation_name" value:"chat"} label:{name:"gen_ai_provider_name" value:"openai"} label:{name:"gen_ai_request_model" value:`
	got := r.series()
	for _, want := range []string{label + `"llama"} histogram:{sample_count:2 `, label + `"sql"} histogram:{sample_count:1 `} {
		if !strings.Contains(got, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(got, "made-up") {
		t.Error("a client made up a label")
	}
	r.d.SetPools([]dispatch.PoolConfig{lora("llama", addr)})
	if got := r.series(); strings.Contains(got, `"sql"`) {
		t.Error("the series of an adapter stay that is gone")
	}
	if t.Failed() {
		t.Log(got)
	}
}

// TestUnknownAdapters: where an engine would answer a misspelled adapter by the
// model without one, the gateway refuses the name.
func TestUnknownAdapters(t *testing.T) {
	r := newRig(t, nil)
	p := lora("llama", replicaServer(t, echo), "sql hf://a")
	p.Adapters[0].ServedName = "llama:sql"
	r.d.SetPools([]dispatch.PoolConfig{p})
	for _, host := range []string{"", "llama.default.localhost"} {
		r.send("POST", "/v1/completions", `{"model":"sql"}`, "Host", host).want(t, 200, `"model":"llama:sql"`)
		r.send("POST", "/v1/completions", `{"model":"slq"}`, "Host", host).want(t, 404, `the models are llama, sql`)
	}
}
