package picker

import (
	"slices"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// Default is the name of the policy for pools that name none.
const Default = "default"

// Presets names the presets.
func Presets() []string {
	return []string{Default, "least-request", "round-robin", "seed-50", "v0.3-128"}
}

// Preset is the configuration of that name; "" is Default's.
func Preset(name string) (Config, error) {
	c := Config{Name: name}
	switch name {
	case "", Default:
		c.Name = Default
		c.Scorers = []Scorer{
			{Name: "queue", Weight: 2},
			{Name: "running", Weight: 1},
			{Name: "tokens", Weight: 1.5},
			{Name: "kv", Weight: 1},
			{Name: "prefix", Weight: 5},
			{Name: "lora", Weight: 3},
			{Name: "session", Weight: 10},
		}
	case "round-robin":
		c.Choice = choiceRoundRobin
	case "least-request":
		c.Filters = []Step{{Filter: "least-request"}}
		c.Choice = choiceRandom
	case "seed-50":
		affinity := Step{Filter: "lora-active", Else: []Step{{Filter: "lora-room"}}}
		c.Filters = tree(
			Step{Filter: "waiting-below", Waiting: 50}, affinity,
			Step{Filter: "lora-low-cost"},
			Step{Filter: "capacity-below", Waiting: 5, KV: 0.8})
		c.Choice = choiceRandom
	case "v0.3-128":
		soft := Step{Filter: "lora-soft", Probability: 0.999}
		c.Filters = tree(
			Step{Filter: "waiting-at-most", Waiting: 128}, soft, soft,
			Step{Filter: "capacity-at-most", Waiting: 5, KV: 0.8})
		c.Choice = choiceRandom
	default:
		return Config{}, unknown("policy", name, Presets())
	}
	return c, nil
}

// Of is the configuration that a pool asks for: a preset, with what replaces
// parts of it.
func Of(p routing.Picker) (Config, error) {
	c, err := Preset(p.Preset)
	if err != nil {
		return c, err
	}
	if len(p.Filters) > 0 {
		c.Filters = steps(p.Filters)
	}
	if len(p.Scorers) > 0 {
		c.Scorers = nil
		for _, s := range p.Scorers {
			c.Scorers = append(c.Scorers, Scorer{Name: s.Name, Weight: s.Weight, Scale: s.Scale})
		}
	}
	if p.Choice != "" {
		c.Choice = p.Choice
	}
	if p.Balance != 0 {
		c.Balance = p.Balance
	}
	if p.Fresh != 0 {
		c.Fresh = p.Fresh
	}
	if p.Stale != 0 {
		c.Stale = p.Stale
	}
	return c, nil
}

func steps(filters []routing.Filter) (out []Step) {
	for _, f := range filters {
		out = append(out, Step{Filter: f.Name, Waiting: f.Waiting, KV: f.KV, Probability: f.Probability,
			Then: steps(f.Then), Else: steps(f.Else)})
	}
	return out
}

// tree is the shape that both releases share.
func tree(short, affinity, lowCost, capacity Step) []Step {
	least := []Step{{Filter: "least-queue"}, lowCost, {Filter: "least-kv"}}
	short.Then = []Step{affinity, {Filter: "least-queue"}, {Filter: "least-kv"}}
	short.Else = least
	capacity.Then = slices.Clone(least)
	capacity.Else = []Step{{Filter: filterDrop}}
	return []Step{{Filter: "critical", Then: []Step{short}, Else: []Step{capacity}}}
}
