package route

import (
	"maps"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// pool is what a shared pool makes of model names.
type pool struct {
	ref        routing.Ref
	prefix     string                // "namespace/"
	models     map[string]*modelRule // by the name requests use; empty passes every name through
	names      []string              // of models, sorted
	rewrites   map[string]*rewriteRule
	fallback   *rewriteRule // for names without a rewrite of their own; nil for none
	objectives map[string]*routing.Objective
}

// modelRule is an accepted InferenceModel.
type modelRule struct {
	object *routing.Model
	split  split
}

// rewriteRule is one rule of an InferenceModelRewrite.
type rewriteRule struct {
	object  *routing.Rewrite
	targets []routing.WeightedModel
	split   split
}

func (t *Table) addPools(set *accepted) {
	t.pools = make(map[service.Key]*pool, len(set.pools))
	for k := range set.pools {
		t.pools[k] = &pool{ref: routing.PoolRef(k), prefix: k.Namespace + "/", models: map[string]*modelRule{},
			rewrites: map[string]*rewriteRule{}, objectives: map[string]*routing.Objective{}}
		if host := Host(k, t.domain); t.hosts[host].Name == "" {
			if _, claimed := t.hosts[host]; !claimed {
				t.hosts[host] = routing.PoolRef(k)
			}
		}
	}
	for _, m := range set.models {
		if p := t.pools[m.Pool]; p != nil {
			p.models[m.ModelName] = &modelRule{object: m, split: modelSplit(m.Targets)}
			p.names = append(p.names, m.ModelName)
		}
	}
	for _, p := range t.pools {
		slices.Sort(p.names)
	}
	for _, o := range set.objectives {
		if p := t.pools[o.Pool]; p != nil {
			p.objectives[o.Name] = o
		}
	}
	for _, o := range set.rewrites { // oldest first, and the first rule for a name holds
		if p := t.pools[o.Pool]; p != nil {
			p.addRewrite(o)
		}
	}
}

func (p *pool) addRewrite(o *routing.Rewrite) {
	for _, r := range o.Rules {
		rule := &rewriteRule{object: o, targets: r.Targets, split: modelSplit(r.Targets)}
		if len(r.Models) == 0 && p.fallback == nil {
			p.fallback = rule
		}
		for _, m := range r.Models {
			if p.rewrites[m] == nil {
				p.rewrites[m] = rule
			}
		}
	}
}

// resolve settles the model's name and the priority of a request to the pool.
// model is the name without a namespace that may have stood before it; out
// holds what led here.
func (p *pool) resolve(q *Query, model string, random func(n int) int, out Target) (Target, error) {
	out.Pool = p.ref
	model, known, rule := p.lookUp(model)
	out.Model = model
	if rule != nil {
		if i := rule.split.pick(random); i >= 0 {
			out.Model, out.by.rewrite = rule.targets[i].Name, rule
		}
		known = p.models[out.Model]
	}
	switch {
	case known != nil:
		if err := known.apply(&out, random); err != nil {
			return Target{}, err
		}
	case len(p.models) == 0 || rule != nil:
	case model == "":
		return Target{}, &MissingModelError{Pool: p.ref.Key, Known: p.names}
	default:
		return Target{}, p.notFound(model)
	}
	p.prioritize(q, &out)
	return out.leave(q), nil
}

// lookUp finds what the pool makes of a model's name, and returns the name without
// the pool's namespace.
func (p *pool) lookUp(model string) (name string, known *modelRule, rule *rewriteRule) {
	known, rule = p.models[model], p.rewrites[model]
	if known == nil && rule == nil && strings.HasPrefix(model, p.prefix) {
		model = model[len(p.prefix):]
		known, rule = p.models[model], p.rewrites[model]
	}
	if rule == nil && known == nil {
		rule = p.fallback
	}
	return model, known, rule
}

// takes reports whether requests for a model may go to the pool.
func (p *pool) takes(model string) bool {
	_, known, rule := p.lookUp(model)
	return known != nil || rule != nil || len(p.models) == 0
}

// apply picks the InferenceModel's target.
func (m *modelRule) apply(out *Target, random func(n int) int) error {
	out.by.model = m
	if out.by.claim == nil || out.by.claim.route == nil {
		out.Priority = m.object.Priority
	}
	if len(m.object.Targets) == 0 {
		return nil
	}
	i := m.split.pick(random)
	if i < 0 {
		return &BackendError{Object: "InferenceModel " + m.object.Key.String(), Message: "no valid target model: every weight is 0"}
	}
	out.Model = m.object.Targets[i].Name
	return nil
}

// prioritize lets the request's objective set its priority.
func (p *pool) prioritize(q *Query, out *Target) {
	if len(p.objectives) == 0 {
		return
	}
	name := q.Objective
	if name == "" && q.Header != nil {
		name = routing.FirstOf(q.Header, routing.HeaderObjective)
	}
	if o := p.objectives[name]; o != nil {
		out.Priority, out.by.objective = o.Priority, o
		out.Latency = o.Target.Or(out.Latency)
	}
}

// Member is a service as a pool's selector sees it.
type Member struct {
	service.Key
	Labels map[string]string
}

// NewMember is the service with the labels that its entrance's pods have: its
// own, those of the component, and those that KServe and OME give by
// themselves. Of a key given twice the pods' counts.
func NewMember(s *service.Service) Member {
	labels := map[string]string{}
	switch s.Origin.Dialect() {
	case service.DialectKServe:
		labels["serving.kserve.io/inferenceservice"] = s.Name
		labels["app"] = "isvc." + s.Name + "-predictor"
	case service.DialectOME:
		labels["ome.io/inferenceservice"] = s.Name
	case service.DialectSeldon:
		labels["seldon-deployment-id"] = s.Name
	}
	maps.Copy(labels, s.Labels)
	if c := s.Components.Engine; c != nil {
		maps.Copy(labels, c.Labels)
	}
	return Member{Key: s.Key, Labels: labels}
}

// Members are the services that a pool selects, sorted.
func Members(p *routing.Pool, services []Member) []service.Key {
	if len(p.Selector) == 0 {
		return nil
	}
	var out []service.Key
	for _, s := range services {
		if s.Namespace == p.Namespace && selects(p.Selector, s.Labels) {
			out = append(out, s.Key)
		}
	}
	slices.SortFunc(out, compareKeys)
	return out
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}
