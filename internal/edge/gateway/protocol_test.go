package gateway

import (
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// TestUnspokenProtocolWakesNothing: a call that a service's server certainly
// does not answer is refused in the form of the call's own API, whether or not
// a replica is ready, and every other call is forwarded.
func TestUnspokenProtocolWakesNothing(t *testing.T) {
	predictive := []service.Protocol{service.ProtocolV1, service.ProtocolV2, service.ProtocolGRPCV2}
	language := []service.Protocol{service.ProtocolOpenAI}
	v1 := []service.Protocol{service.ProtocolV1}
	both := []service.Protocol{service.ProtocolV2, service.ProtocolOpenAI}
	const (
		chat, messages, cohere, rerank = "/v1/chat/completions", "/v1/messages", "/v2/chat", "/v2/rerank"
		prefixed, audio                = "/openai/v1/completions", "/v1/audio/speech"
		infer, versioned, generate     = "/v2/models/m/infer", "/v2/models/m/versions/1/infer", "/v2/models/m/generate"
		predict, own                   = "/v1/models/m:predict", "/v2/models/m/things/1"
		named                          = `{"model":"m","messages":[]}`
	)
	const speaksBoth = "m does not answer this call: it speaks KServe v1, the Open Inference Protocol and the Open Inference Protocol over gRPC; " +
		"ask it by POST /v1/models/m:predict, POST /v2/models/m/infer or gRPC's ModelInfer"
	const speaksOpenAI = "m does not answer this call: it speaks OpenAI's API; ask it by POST /v1/chat/completions, or another call that its engine has, with the model in the body"
	for _, c := range []struct {
		speaks []service.Protocol
		path   string
		want   string // of the body; "" has it forwarded
	}{
		{predictive, chat, `{"error":{"message":"` + speaksBoth + `","type":"not_found_error","param":null,"code":"protocol_not_spoken"}}`},
		{predictive, prefixed, `"code":"protocol_not_spoken"`},
		{predictive, audio, `"code":"protocol_not_spoken"`},
		{predictive, messages, `{"type":"error","error":{"type":"not_found_error","message":"` + speaksBoth + `"}}`},
		{predictive, cohere, `{"message":"` + speaksBoth + `"}`},
		{predictive, infer, ""}, {predictive, generate, ""}, {predictive, predict, ""}, {predictive, own, ""},
		{v1, infer, ""}, {v1, chat, "ask it by POST /v1/models/m:predict\""},
		{language, infer, `{"error":"` + speaksOpenAI + `"}`},
		{language, versioned, speaksOpenAI}, {language, generate, speaksOpenAI}, {language, predict, `{"error":"` + speaksOpenAI + `"}`},
		{language, chat, ""}, {language, prefixed, ""}, {language, messages, ""}, {language, cohere, ""}, {language, rerank, ""}, {language, audio, ""}, {language, own, ""},
		{both, chat, ""}, {both, infer, ""}, {both, predict, ""},
		{nil, chat, ""}, {nil, infer, ""}, {nil, predict, ""}, {nil, messages, ""},
	} {
		for _, asleep := range []bool{true, false} {
			r := newRig(t, nil)
			awake := pool("m", replicaServer(t, echo))
			awake.Protocols = c.speaks
			p := awake
			if asleep {
				p.Replicas = nil
				r.demand.onWake = func(string) { go r.d.SetPool(awake) }
			}
			r.d.SetPool(p)
			a := r.send("POST", c.path, named)
			if c.want == "" {
				a.want(t, 200, "POST /")
				continue
			}
			a.want(t, 404, c.want)
			if n := r.demand.wakes.Load(); n != 0 {
				t.Errorf("%v, %s: %d wakes", c.speaks, c.path, n)
			}
			r.send("GET", "/v2/models/m/ready", "").want(t, 200, `"ready":true`)
			r.send("POST", "/v2/repository/models/m/load", "").want(t, 200)
		}
	}
}

// TestSharedPoolsRefuseNoProtocol: their servers may be anybody's.
func TestSharedPoolsRefuseNoProtocol(t *testing.T) {
	r := newRig(t, nil)
	member := pool("iris", replicaServer(t, echo))
	member.Protocols = []service.Protocol{service.ProtocolV2}
	r.d.SetPools([]dispatch.PoolConfig{member, {Key: service.ParseKey("shared"), Shared: true, Members: []dispatch.PoolConfig{member}}})
	q := dispatch.Request{To: routing.PoolRef(service.ParseKey("shared")), Protocol: service.ProtocolOpenAI, Model: "x"}
	grant, err := r.d.Admit(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	grant.Done(dispatch.Outcome{})
}

// TestUnspokenProtocolNamesModelAsRequestsDo: a name that several namespaces
// have is given with its namespace, escaped in paths.
func TestUnspokenProtocolNamesModelAsRequestsDo(t *testing.T) {
	r := newRig(t, nil)
	one, two := pool("iris"), pool("team/iris")
	one.Protocols = []service.Protocol{service.ProtocolV2}
	two.Protocols = one.Protocols
	r.d.SetPools([]dispatch.PoolConfig{one, two})
	a := r.send("POST", "/v1/completions", `{"model":"team/iris"}`)
	a.want(t, 404, "team/iris does not answer", "POST /v2/models/team%2Firis/infer")
	if strings.Contains(a.body, "default") {
		t.Errorf("another namespace's service is named: %s", a.body)
	}
}
