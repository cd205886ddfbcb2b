package gateway

import (
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// TestCanaryHasNoName: requests name a service, never its canary. Lists leave
// canaries out, for keys with and without limits, and a service is unloaded as a
// whole, whichever workload the request would have gone to. A key for the service
// is for its canary's host too.
func TestCanaryHasNoName(t *testing.T) {
	r, create := newKeyRig(t, nil)
	addr := replicaServer(t, echo)
	stable, canary := pool("chat", addr), pool("chat", addr)
	stable.CanaryPercent = 100
	canary.Key = stable.Key.Canary()
	canary.Replicas[0].ID, canary.Replicas[0].Service = "chat-canary-0", canary.Key
	r.d.SetPools([]dispatch.PoolConfig{stable, canary})
	for _, limits := range []apikey.Limits{{}, {Models: []string{"chat"}, Namespaces: []string{"default"}}, {Models: []string{"chat"}}} {
		_, secret := create(limits)
		auth := []string{"X-Api-Key", secret}
		for _, a := range []answer{r.send("GET", "/v1/models", "", auth...), r.send("POST", "/v2/repository/index", "", auth...)} {
			if a.want(t, 200, `"chat"`); strings.Contains(a.body, "canary") {
				t.Errorf("%+v: the canary is listed: %s", limits, a.body)
			}
		}
		byHost := append(slices.Clone(auth), "Host", "chat~canary.default.localhost")
		r.send("POST", "/v1/completions", ask, byHost...).want(t, 200)
		r.send("GET", "/v2/models/chat/ready", "", byHost...).want(t, 200)
		r.send("POST", "/v2/repository/models/chat/unload", "{}", auth...).want(t, 200)
		if name := r.demand.asleep.Swap(""); name != "default/chat" {
			t.Errorf("%+v: %v sleeps, want default/chat", limits, name)
		}
	}
}
