package picker

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// Config composes a policy. A field that is zero has its default.
type Config struct {
	// Name is for people.
	Name string `json:"name,omitempty"`
	// Filters are applied one after the other to the open endpoints.
	Filters []Step `json:"filters,omitempty"`
	// Scorers rate what the filters leave.
	Scorers []Scorer `json:"scorers,omitempty"`
	// Choice takes one: the best score ("best", the default; ties are broken
	// at random), any ("random"), or the next by turn ("round-robin").
	Choice string `json:"choice,omitempty"`

	// Balance bounds affinity: what an endpoint knows of prompts and sessions
	// counts in full up to the mean of requests, and for nothing from Balance
	// times the mean. Sole takes its place where the prompt goes on from
	// what no other knows as much of; the more know as much, the nearer the bound
	// is to Balance. > 1
	Balance float64 `json:"balance,omitempty"`
	Sole    float64 `json:"sole,omitempty"`
	// Slack is how many requests, with the one to come, an endpoint may have
	// whatever the mean. >= 1
	Slack int `json:"slack,omitempty"`
	// Fresh is up to which age a load is trusted in full, Stale from which on
	// it counts for nothing; its weight falls in between.
	Fresh time.Duration `json:"fresh,omitempty"`
	Stale time.Duration `json:"stale,omitempty"`
}

// Step is one filter. When it leaves something, that is what Then goes on
// with, else Else goes on with what the filter was given. What they leave goes
// to the next step.
type Step struct {
	// Filter is a filter's name; see docs/design/picking.md.
	Filter string `json:"filter"`
	// Waiting, KV and Probability are the thresholds of those filters that
	// have them: a number of requests, a part of the cache from 0 to 1, and
	// how often a soft filter does as it should.
	Waiting     int     `json:"waiting,omitempty"`
	KV          float64 `json:"kv,omitempty"`
	Probability float64 `json:"probability,omitempty"`

	Then []Step `json:"then,omitempty"`
	Else []Step `json:"else,omitempty"`
}

// Scorer rates endpoints from 0 to 1; the sum of all, times their weights, is
// what "best" compares.
type Scorer struct {
	// Name is a scorer's name; see docs/design/picking.md.
	Name string `json:"name"`
	// Weight is >= 0.
	Weight float64 `json:"weight"`
	// Scale is, for scorers of load, the difference that counts in full; a
	// wider spread in the pool counts in its place. In requests or tokens; for
	// prefix, the least number of blocks that a match is measured against.
	Scale float64 `json:"scale,omitempty"`
}

// The bounds of a configuration.
const (
	maxSteps   = 64
	maxDepth   = 8
	maxScorers = 16
)

// The choices.
const (
	choiceBest       = "best"
	choiceRandom     = "random"
	choiceRoundRobin = "round-robin"
)

var choices = []string{choiceBest, choiceRandom, choiceRoundRobin}

// Choices names the choices.
func Choices() []string { return slices.Clone(choices) }

// Scorers names what a Scorer can be.
func Scorers() []string { return names(scorers) }

// Filters names what a Step can be.
func Filters() []string { return names(filters) }

func (c Config) withDefaults() Config {
	def(&c.Choice, choiceBest)
	def(&c.Balance, 1.5)
	def(&c.Sole, 4)
	def(&c.Slack, 2)
	def(&c.Fresh, 2*time.Second)
	def(&c.Stale, 20*time.Second)
	return c
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Validate returns what is wrong, with the field's path and what may have been
// meant.
func (c Config) Validate() error {
	c = c.withDefaults()
	if !slices.Contains(choices, c.Choice) {
		return unknown("choice", c.Choice, choices)
	}
	n := 0
	if err := validSteps("filters", c.Filters, 1, &n); err != nil {
		return err
	}
	if err := c.validScorers(); err != nil {
		return err
	}
	switch {
	case !(c.Balance > 1) || c.Balance > 1e6:
		return fmt.Errorf("balance is %v: write a factor above 1", c.Balance)
	case !(c.Sole > 1) || c.Sole > 1e6:
		return fmt.Errorf("sole is %v: write a factor above 1", c.Sole)
	case c.Slack < 0:
		return fmt.Errorf("slack is %d: write a number of requests above 0", c.Slack)
	case c.Fresh < 0:
		return fmt.Errorf("fresh is %v: write a duration above 0", c.Fresh)
	case c.Stale <= c.Fresh:
		return fmt.Errorf("stale is %v: write more than fresh, which is %v", c.Stale, c.Fresh)
	}
	return nil
}

func (c *Config) validScorers() error {
	if len(c.Scorers) > 0 && c.Choice != choiceBest {
		return fmt.Errorf("scorers: they have no effect, since the choice is %s: leave them out, or write choice: best", c.Choice)
	}
	if len(c.Scorers) > maxScorers {
		return fmt.Errorf("scorers: %d of them, at most %d are allowed", len(c.Scorers), maxScorers)
	}
	for i, s := range c.Scorers {
		path := fmt.Sprintf("scorers[%d]", i)
		if _, ok := scorers[s.Name]; !ok {
			return unknown(path+".name", s.Name, names(scorers))
		}
		if !(s.Weight >= 0) || s.Weight > 1e6 {
			return fmt.Errorf("%s.weight is %v: write a number from 0 to 1000000", path, s.Weight)
		}
		if !(s.Scale >= 0) || math.IsInf(s.Scale, 1) {
			return fmt.Errorf("%s.scale is %v: write a number above 0, or leave it out", path, s.Scale)
		}
	}
	return nil
}

func validSteps(path string, steps []Step, depth int, n *int) error {
	if depth > maxDepth && len(steps) > 0 {
		return fmt.Errorf("%s: filters nest deeper than %d levels", path, maxDepth)
	}
	for i, s := range steps {
		at := fmt.Sprintf("%s[%d]", path, i)
		if *n++; *n > maxSteps {
			return fmt.Errorf("%s: more than %d filters", at, maxSteps)
		}
		f, ok := filters[s.Filter]
		if !ok {
			return unknown(at+".filter", s.Filter, names(filters))
		}
		if err := f.takes(s); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		if err := validSteps(at+".then", s.Then, depth+1, n); err != nil {
			return err
		}
		if err := validSteps(at+".else", s.Else, depth+1, n); err != nil {
			return err
		}
	}
	return nil
}

// unknown names what there is and, if one is near, what was probably meant.
func unknown(path, got string, have []string) error {
	hint := "write one of " + strings.Join(have, ", ")
	for _, h := range have {
		if near(got, h) {
			hint = fmt.Sprintf("did you mean %q?", h)
		}
	}
	if len(got) > 64 {
		got = got[:64] + "…"
	}
	return fmt.Errorf("%s: there is no %q; %s", path, got, hint)
}

// near reports whether a is b but for case, punctuation, or up to two edits.
func near(a, b string) bool {
	if len(a) > 64 {
		return false
	}
	plain := strings.NewReplacer("-", "", "_", "", " ", "", ".", "")
	a, b = plain.Replace(strings.ToLower(a)), plain.Replace(strings.ToLower(b))
	if a == b {
		return true
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)] <= min(2, len(b)/3)
}

func names[T any](m map[string]T) []string {
	var out []string
	for n := range m {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// Default is the name of the policy for pools that name none.
const Default = "default"

// SharedPrefixes is the policy for replicas that share what they have computed of
// prompts: it is read faster from a replica's own GPU than from the others' store,
// which is worth no queue.
const SharedPrefixes = "shared-prefixes"

// PredictedLatency is the policy that goes by how long endpoints are predicted to
// take, and by the default's scorers until enough is known.
const PredictedLatency = "predicted-latency"

// Presets names the presets.
func Presets() []string {
	return []string{Default, PredictedLatency, SharedPrefixes, "least-request", "llm-d", "round-robin", "seed-50", "v0.3-128"}
}

// Preset is the configuration of that name; "" is Default's.
func Preset(name string) (Config, error) {
	c := Config{Name: name}
	switch name {
	case "", Default:
		c.Name = Default
		c.Filters = []Step{{Filter: filterRoom}}
		c.Scorers = []Scorer{
			{Name: "queue", Weight: 2},
			{Name: "running", Weight: 1},
			{Name: "tokens", Weight: 1.5},
			{Name: "kv", Weight: 1},
			{Name: "prefix", Weight: 5},
			{Name: "lora", Weight: 3},
			{Name: "session", Weight: 10},
		}
	case PredictedLatency:
		c.Filters = []Step{{Filter: filterRoom}}
		c.Scorers = []Scorer{
			{Name: "queue", Weight: 1},
			{Name: "running", Weight: 1},
			{Name: "tokens", Weight: 0.75},
			{Name: "kv", Weight: 1},
			{Name: "latency", Weight: 1},
			{Name: "prefix", Weight: 5},
			{Name: "lora", Weight: 3},
			{Name: "session", Weight: 10},
		}
	case "llm-d":
		c.Scorers = []Scorer{{Name: "llm-d-queue", Weight: 2}, {Name: "llm-d-kv", Weight: 2}, {Name: "llm-d-prefix", Weight: 3}}
	case SharedPrefixes:
		c.Filters = []Step{{Filter: filterRoom}}
		c.Scorers = []Scorer{
			{Name: "queue", Weight: 2},
			{Name: "running", Weight: 1},
			{Name: "tokens", Weight: 1.5},
			{Name: "kv", Weight: 1},
			{Name: "prefix", Weight: 1},
			{Name: "lora", Weight: 3},
			{Name: "session", Weight: 2},
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
