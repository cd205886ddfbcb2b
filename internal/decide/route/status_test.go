package route

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// said is an object's conditions, one a line.
func said(st routing.Status) string {
	var out []string
	for _, c := range st.Conditions {
		line := fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason)
		if c.Message != "" {
			line += ": " + c.Message
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

func members(pairs ...string) (out []Member) {
	for _, p := range pairs {
		name, label, _ := strings.Cut(p, " ")
		k, v, _ := strings.Cut(label, "=")
		out = append(out, Member{Key: key(name), Labels: map[string]string{k: v}})
	}
	return out
}

func TestStatuses(t *testing.T) {
	pool := func(name string, selector string, addresses ...string) *routing.Pool {
		p := &routing.Pool{Meta: meta("default/"+name, 0), Addresses: addresses}
		if k, v, ok := strings.Cut(selector, "="); ok {
			p.Selector = map[string]string{k: v}
		}
		return p
	}
	route := func(name string, age int, models string, refs ...routing.Ref) *routing.Route {
		r := &routing.Route{Meta: meta("default/"+name, age), Models: strings.Split(models, ",")}
		for _, ref := range refs {
			r.Targets = append(r.Targets, routing.Target{Ref: ref, Weight: 1})
		}
		return r
	}
	http := func(name string, refs ...routing.Ref) *routing.HTTPRoute {
		var rule routing.HTTPRule
		for _, ref := range refs {
			rule.Backends = append(rule.Backends, routing.Backend{Ref: ref, Weight: 1})
		}
		return &routing.HTTPRoute{Meta: meta("default/"+name, 0), Rules: []routing.HTTPRule{rule}, Parents: []routing.Parent{{Name: "gw", SectionName: "http"}}}
	}
	noGateway := func(r *routing.HTTPRoute, grpc bool) *routing.HTTPRoute {
		r.Parents, r.GRPC = nil, grpc
		return r
	}
	svc := func(s string) routing.Ref { return routing.Service(key(s)) }
	at := func(s string) routing.Ref { return routing.PoolRef(key(s)) }
	services := members("default/chat app=llama", "default/chat-next app=llama", "team/chat app=llama")
	llama := pool("llama", "app=llama")
	copying := noGateway(http("r", svc("default/chat")), false)
	copying.Rules[0].Handling.Mirrors = []routing.Mirror{{Ref: at("default/llama"), PerMillion: routing.Whole}}
	for _, c := range []struct {
		name    string
		objects []routing.Object
		trouble string
		want    string // of the last object
	}{
		{"a pool with members", []routing.Object{llama}, "",
			`Ready=True Accepted: 2 services: chat, chat-next
Accepted=Unknown Pending: no HTTPRoute or GRPCRoute refers to it; requests reach it by its host and by its models' names
ResolvedRefs=True ResolvedRefs`},
		{"a pool that an HTTPRoute uses", []routing.Object{http("r", at("llama")), llama}, "",
			`Ready=True Accepted: 2 services: chat, chat-next
Accepted=True Accepted: 2 services: chat, chat-next
ResolvedRefs=True ResolvedRefs`},
		{"a pool that an HTTPRoute without a gateway uses", []routing.Object{noGateway(http("r", at("llama")), false), llama}, "",
			`Ready=True Accepted: 2 services: chat, chat-next
Accepted=True Accepted: 2 services: chat, chat-next
ResolvedRefs=True ResolvedRefs`},
		{"a pool that a GRPCRoute without a gateway uses", []routing.Object{noGateway(http("r", at("llama")), true), llama}, "",
			`Ready=True Accepted: 2 services: chat, chat-next
Accepted=True Accepted: 2 services: chat, chat-next
ResolvedRefs=True ResolvedRefs`},
		{"a pool that gets copies of an HTTPRoute's requests", []routing.Object{copying, llama}, "",
			`Ready=True Accepted: 2 services: chat, chat-next
Accepted=True Accepted: 2 services: chat, chat-next
ResolvedRefs=True ResolvedRefs`},
		{"a pool of addresses", []routing.Object{pool("p", "app=llama", "a:1", "b:2")}, "b: no such host",
			`Ready=True Degraded: 2 services: chat, chat-next; 2 addresses; b: no such host
Accepted=Unknown Pending: no HTTPRoute or GRPCRoute refers to it; requests reach it by its host and by its models' names
ResolvedRefs=True ResolvedRefs`},
		{"a pool of addresses that fail", []routing.Object{pool("p", "", "a:1")}, "down: a: no such host",
			`Ready=False NoEndpoints: 1 address; a: no such host
Accepted=Unknown Pending: no HTTPRoute or GRPCRoute refers to it; requests reach it by its host and by its models' names
ResolvedRefs=True ResolvedRefs`},
		{"a pool of nothing", []routing.Object{pool("p", "app=lama")}, "",
			`Ready=False NoEndpoints: no service of namespace default has the labels app=lama; chat has app=llama
Accepted=Unknown Pending: no HTTPRoute or GRPCRoute refers to it; requests reach it by its host and by its models' names
ResolvedRefs=True ResolvedRefs`},
		{"an HTTPRoute", []routing.Object{llama, http("r", at("llama"), svc("default/chat"), at("llama"))}, "",
			`Ready=True Routed: to pool llama, service chat
Accepted=True Accepted
ResolvedRefs=True ResolvedRefs`},
		{"an HTTPRoute to what is not there", []routing.Object{llama, http("r", at("default/lama"), svc("default/chatt"), at("team/llama"))}, "",
			`Ready=False BackendNotFound: there is no pool default/lama; did you mean llama?; there is no service default/chatt; did you mean chat?; there is no pool team/llama
Accepted=True Accepted
ResolvedRefs=False BackendNotFound: there is no pool default/lama; did you mean llama?; there is no service default/chatt; did you mean chat?; there is no pool team/llama`},
		{"a route", []routing.Object{llama, route("r", 0, "a,b", at("llama"), svc("default/chat"))}, "",
			`Ready=True Routed: a, b to pool llama, service chat`},
		{"a route that lost a name", []routing.Object{route("old", 1, "a", svc("default/chat")), route("r", 0, "a,b", svc("default/chat"))}, "",
			`Ready=True Degraded: a, b to service chat; a belongs to the older route old`},
		{"a route that lost its name", []routing.Object{route("old", 1, "a", svc("default/chat")), route("r", 0, "a", svc("default/chat"))}, "",
			`Ready=False ModelNameInUse: a belongs to the older route old`},
		{"a rewrite of nothing", []routing.Object{llama,
			&routing.Rewrite{Meta: meta("default/old", 1), Pool: key("default/llama"), Rules: []routing.RewriteRule{{Models: []string{"a"}}}},
			&routing.Rewrite{Meta: meta("default/w", 0), Pool: key("default/llama"), Rules: []routing.RewriteRule{{Models: []string{"a"}}}}}, "",
			`Ready=False ModelNameInUse: in pool llama; a is rewritten by the older old
Accepted=True Accepted
ResolvedRefs=True ResolvedRefs`},
		{"a route to what is not there", []routing.Object{route("r", 0, "a", at("llama"))}, "",
			`Ready=False BackendNotFound: there is no pool default/llama`},
		{"a route, half of which serves", []routing.Object{route("r", 0, "a", svc("default/chat"), at("llama"))}, "",
			`Ready=True Degraded: a to service chat, pool llama; there is no pool default/llama`},
		{"a route whose serving target has no weight", []routing.Object{&routing.Route{Meta: meta("default/r", 0), Models: []string{"a"},
			Targets: []routing.Target{{Ref: svc("default/chat")}, {Ref: at("llama"), Weight: 1}}}}, "",
			`Ready=False BackendNotFound: there is no pool default/llama`},
		{"a route without a weight", []routing.Object{&routing.Route{Meta: meta("default/r", 0), Models: []string{"a"}, Targets: []routing.Target{{Ref: svc("default/chat")}}}}, "",
			`Ready=False NoEndpoints: no target has a weight above 0`},
		{"an HTTPRoute, half of which serves", []routing.Object{http("r", svc("default/chat"), at("llama"))}, "",
			`Ready=True Degraded: to service chat, pool llama; there is no pool default/llama
Accepted=True Accepted
ResolvedRefs=False BackendNotFound: there is no pool default/llama`},
		{"a pool that nobody has reported on", []routing.Object{pool("p", "", "a:1")}, "unknown",
			`Ready=Unknown Checking: 1 address; no server has been checked yet
Accepted=Unknown Pending: no HTTPRoute or GRPCRoute refers to it; requests reach it by its host and by its models' names
ResolvedRefs=True ResolvedRefs`},
		{"a pool that is being checked", []routing.Object{http("r", at("p")), pool("p", "", "a:1")}, "unchecked",
			`Ready=Unknown Checking: 1 address; no server has been checked yet
Accepted=True Accepted: 1 address; no server has been checked yet
ResolvedRefs=True ResolvedRefs`},
		{"a pool with members that is being checked", []routing.Object{pool("p", "app=llama", "a:1")}, "unchecked",
			`Ready=True Accepted: 2 services: chat, chat-next; 1 address
Accepted=Unknown Pending: no HTTPRoute or GRPCRoute refers to it; requests reach it by its host and by its models' names
ResolvedRefs=True ResolvedRefs`},
		{"a route to a pool that is being checked", []routing.Object{pool("p", "", "a:1"), route("r", 0, "a", at("p"), svc("default/gone"))}, "unchecked",
			`Ready=Unknown Checking: pool p: 1 address; no server has been checked yet; there is no service default/gone`},
		{"a route to a service and a pool that is being checked", []routing.Object{pool("p", "", "a:1"), route("r", 0, "a", at("p"), svc("default/chat"))}, "unchecked",
			`Ready=True Routed: a to pool p, service chat`},
		{"a pool with one name that is not found", []routing.Object{pool("p", "", "a:1", "b:2")}, "a: no such host",
			`Ready=True Degraded: 2 addresses; a: no such host
Accepted=Unknown Pending: no HTTPRoute or GRPCRoute refers to it; requests reach it by its host and by its models' names
ResolvedRefs=True ResolvedRefs`},
		{"a route to a dead pool", []routing.Object{pool("p", "", "a:1"), route("r", 0, "a", at("p"))}, "down: a: connection refused",
			`Ready=False NoEndpoints: pool p has no endpoint: 1 address; a: connection refused`},
		{"a route to a dead pool and a service", []routing.Object{pool("p", "", "a:1"), route("r", 0, "a", at("p"), svc("default/chat"))}, "down: a: connection refused",
			`Ready=True Degraded: a to pool p, service chat; pool p has no endpoint: 1 address; a: connection refused`},
		{"an HTTPRoute to a dead pool", []routing.Object{pool("p", "", "a:1"), http("r", at("p"))}, "down: a: connection refused",
			`Ready=False NoEndpoints: pool p has no endpoint: 1 address; a: connection refused
Accepted=True Accepted
ResolvedRefs=True ResolvedRefs`},
		{"a model", []routing.Object{llama, &routing.Model{Meta: meta("default/m", 0), ModelName: "x", Pool: key("default/llama")}}, "",
			`Ready=True Accepted: x in pool llama
Accepted=True Accepted
ResolvedRefs=True ResolvedRefs`},
		{"a model without its pool", []routing.Object{&routing.Model{Meta: meta("default/m", 0), ModelName: "x", Pool: key("default/llama")}}, "",
			`Ready=False BackendNotFound: there is no pool default/llama
Accepted=Unknown Pending: there is no pool default/llama
ResolvedRefs=False BackendNotFound: there is no pool default/llama`},
		{"an objective", []routing.Object{llama, &routing.Objective{Meta: meta("default/o", 0), Pool: key("default/llama"), Priority: -3}}, "",
			`Ready=True Accepted: priority -3
Accepted=True Accepted
ResolvedRefs=True ResolvedRefs`},
		{"a rewrite behind an older one", []routing.Object{llama,
			&routing.Rewrite{Meta: meta("default/old", 1), Pool: key("default/llama"), Rules: []routing.RewriteRule{{Models: []string{"a"}}, {}}},
			&routing.Rewrite{Meta: meta("default/w", 0), Pool: key("default/llama"), Rules: []routing.RewriteRule{{Models: []string{"a", "b"}}, {}}}}, "",
			`Ready=True Degraded: in pool llama; a is rewritten by the older old; every other name is rewritten by the older old
Accepted=True Accepted
ResolvedRefs=True ResolvedRefs`},
	} {
		last := c.objects[len(c.objects)-1]
		degraded := map[service.Key]routing.Degradation{}
		text, down := strings.CutPrefix(c.trouble, "down: ")
		for _, o := range c.objects { // those of pools count
			if c.trouble == "unchecked" {
				degraded[o.Common().Key] = routing.Degradation{Unchecked: true}
			} else if c.trouble != "unknown" {
				degraded[o.Common().Key] = routing.Degradation{Message: text, Down: down}
			}
		}
		got := Statuses(services, c.objects, degraded)[routing.IDOf(last)]
		if said(got) != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, said(got), c.want)
		}
	}
}

// TestPromotion: of models with the same name in a pool the oldest wins, then
// the first by name; the loser says so and takes the name when the winner
// goes. Another pool's name is another name.
func TestPromotion(t *testing.T) {
	model := func(name string, age int, pool string) *routing.Model {
		return &routing.Model{Meta: meta("default/"+name, age), ModelName: "m", Pool: key("default/" + pool)}
	}
	objects := []routing.Object{&routing.Pool{Meta: meta("default/p", 0)}, &routing.Pool{Meta: meta("default/q", 0)},
		model("young", 1, "p"), model("old-b", 5, "p"), model("old-a", 5, "p"), model("elsewhere", 0, "q")}
	for _, winner := range []string{"old-a", "old-b", "young"} {
		got := Statuses(nil, objects, nil)
		for _, o := range objects {
			m, ok := o.(*routing.Model)
			if !ok {
				continue
			}
			accepted := got[routing.IDOf(o)].Conditions[1]
			want := "False ModelNameInUse"
			if m.Name == winner || m.Name == "elsewhere" {
				want = "True Accepted"
			}
			if s := accepted.Status + " " + accepted.Reason; s != want {
				t.Errorf("while %s wins, %s is %s, want %s", winner, m.Name, s, want)
			}
			if want[0] == 'F' && !strings.Contains(accepted.Message, "default/"+winner) {
				t.Errorf("%s is not told who has the name: %s", m.Name, accepted.Message)
			}
		}
		tab := NewTable(nil, "", objects...)
		if target, err := tab.Resolve(Query{Host: "p.default.localhost", Model: "m"}, first); err != nil || !strings.Contains(target.Why(), "default/"+winner) {
			t.Errorf("while %s wins, requests go by %s (%v)", winner, target.Why(), err)
		}
		objects = slices.DeleteFunc(objects, func(o routing.Object) bool { return o.Common().Name == winner })
	}
}

func TestParentsOfAPool(t *testing.T) {
	pool := &routing.Pool{Meta: meta("default/p", 0)}
	objects := []routing.Object{pool}
	for i := range 40 {
		objects = append(objects, &routing.HTTPRoute{Meta: meta(fmt.Sprintf("team/r%02d", i), 0),
			Parents: []routing.Parent{{Name: "shared", SectionName: "a"}, {Name: fmt.Sprintf("g%02d", i)}},
			Rules:   []routing.HTTPRule{{Backends: []routing.Backend{{Ref: routing.PoolRef(key("default/p"))}}}}})
	}
	got := Statuses(nil, objects, nil)[routing.IDOf(pool)].Parents
	if len(got) != maxParents || got[0] != (routing.Parent{Namespace: "team", Name: "shared"}) || got[1].Name != "g00" {
		t.Errorf("%d parents, the first %+v", len(got), got[:2])
	}
}

func TestMembers(t *testing.T) {
	kserve := service.Service{Meta: service.Meta{Key: key("default/iris"), Labels: map[string]string{"team": "a", "tier": "x"},
		Origin: service.Origin{APIVersion: "serving.kserve.io/v1beta1"}}}
	kserve.Components.Engine = &service.Component{Labels: map[string]string{"tier": "y", "app": "vllm"}}
	for _, c := range []struct {
		selector map[string]string
		want     bool
	}{
		{map[string]string{"team": "a"}, true},
		{map[string]string{"tier": "y"}, true}, // the pod's label hides the service's
		{map[string]string{"tier": "x"}, false},
		{map[string]string{"app": "vllm", "serving.kserve.io/inferenceservice": "iris"}, true},
		{map[string]string{"app": "vllm", "team": "b"}, false},
		{map[string]string{"missing": ""}, false},
		{nil, false},
	} {
		p := &routing.Pool{Meta: meta("default/p", 0), Selector: c.selector}
		if got := len(Members(p, []Member{NewMember(&kserve)})) == 1; got != c.want {
			t.Errorf("%v: member %v, want %v", c.selector, got, c.want)
		}
	}
	p := &routing.Pool{Meta: meta("default/p", 0), Selector: map[string]string{"app": "x"}}
	if got := Members(p, members("team/a app=x", "default/c app=x", "default/b app=x")); len(got) != 2 || got[0].Name != "b" {
		t.Errorf("members %v", got)
	}
}
