package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// errUnknown: an answer has no known engine's metrics.
var errUnknown = errors.New("no metrics of a known engine")

// plan is what to look for in an answer: the names of one engine, or of all
// while it is not known which one it is.
type plan struct {
	names   names
	engines []*engine
	uses    [][]use // by index in names
	slots   int
}

// engine is an Engine with its figures' slots.
type engine struct {
	*Engine
	figures [figures][]int // slots, in order of preference
}

// The figures, as indexes.
const (
	waiting = iota
	running
	kv
	blocks
	blockTokens
	adapterSlots
	figures
)

// use is what a sample's name means to one figure.
type use struct {
	metric *Metric // nil: adapters
	first  []string
	total  []string
	slot   int // for adapters: the engine
}

// newPlan makes a plan for engines. The list is not kept, its engines are.
func newPlan(list []*Engine) *plan {
	p := &plan{}
	var found []string
	add := func(name string, u use) {
		at := slices.Index(found, name)
		if at < 0 {
			at = len(found)
			found = append(found, name)
			p.uses = append(p.uses, nil)
		}
		p.uses[at] = append(p.uses[at], u)
	}
	for i, e := range list {
		own := &engine{Engine: e}
		for f, metrics := range [figures][]Metric{waiting: e.Waiting, running: e.Running, kv: e.KV, blocks: e.Blocks, blockTokens: e.BlockTokens, adapterSlots: e.AdapterSlots} {
			for at := range metrics {
				add(metrics[at].Name, use{metric: &metrics[at], first: e.First, total: e.Total, slot: p.slots})
				own.figures[f] = append(own.figures[f], p.slots)
				p.slots++
			}
		}
		if e.Adapters != "" {
			add(e.Adapters, use{slot: i})
		}
		p.engines = append(p.engines, own)
	}
	p.names = newNames(found)
	return p
}

// gathering collects the figures of one answer. It is reused.
type gathering struct {
	plan     *plan
	slots    []slot
	adapters []adapters
}

type slot struct {
	sum float64
	n   int
}

// adapters are the labels of the newest series so far.
type adapters struct {
	seen             bool
	at               float64
	max              string
	running, waiting []byte
}

func (g *gathering) start(p *plan) {
	g.plan = p
	g.slots = append(g.slots[:0], make([]slot, p.slots)...)
	if len(g.adapters) < len(p.engines) {
		g.adapters = make([]adapters, len(p.engines))
	}
	for i := range g.adapters {
		g.adapters[i].seen = false
	}
}

// take takes one sample.
func (g *gathering) take(s *sample) {
	for i := range g.plan.uses[s.name] {
		u := &g.plan.uses[s.name][i]
		if u.metric == nil {
			g.adapters[u.slot].take(s)
			continue
		}
		if x, ok := u.value(s); ok {
			g.slots[u.slot].sum += x
			g.slots[u.slot].n++
		}
	}
}

// value is the sample's figure, if it counts and is one.
func (u *use) value(s *sample) (x float64, ok bool) {
	if u.metric.Label != "" {
		if v, _ := s.get(u.metric.Label); string(v) != u.metric.Equals {
			return 0, false
		}
	}
	for _, name := range u.total {
		if v, _ := s.get(name); len(v) > 0 {
			return 0, false
		}
	}
	for _, rank := range u.first {
		if v, there := s.get(rank); there && string(v) != "0" {
			return 0, false
		}
	}
	x = s.value
	if u.metric.Value != "" {
		v, _ := s.get(u.metric.Value)
		var err error
		if x, err = number(v); err != nil {
			return 0, false // "None", in vLLM
		}
	}
	return max(0, x), !math.IsNaN(x)
}

func (a *adapters) take(s *sample) {
	if math.IsNaN(s.value) || (a.seen && s.value < a.at) {
		return
	}
	of := func(name string) []byte { v, _ := s.get(name); return v }
	a.seen, a.at, a.max = true, s.value, string(of("max_lora"))
	a.running = append(a.running[:0], of("running_lora_adapters")...)
	a.waiting = append(a.waiting[:0], of("waiting_lora_adapters")...)
}

// load is what the answer said, and whose names it used. The error is
// errUnknown when it used nobody's.
func (g *gathering) load(at time.Time) (*replica.Load, *Engine, error) {
	best, most := -1, 0
	for i, e := range g.plan.engines {
		n := 0
		for _, slots := range e.figures[:blocks] {
			if _, ok := g.figure(slots); ok {
				n++
			}
		}
		if n > most {
			best, most = i, n
		}
	}
	if best < 0 {
		return nil, nil, g.plan.unknown()
	}
	e := g.plan.engines[best]
	l := &replica.Load{At: at, Batches: e.Batches}
	l.Waiting, l.Running = g.count(e.figures[waiting]), g.count(e.figures[running])
	l.Blocks = g.count(e.figures[blocks])
	_, l.Tells.Queue = g.figure(e.figures[waiting])
	if s, ok := g.figure(e.figures[kv]); ok {
		l.Tells.KV = true
		l.KV = min(1, s.sum/float64(s.n))
	}
	if s, ok := g.figure(e.figures[blockTokens]); ok {
		l.BlockTokens = whole(s.sum / float64(s.n))
	}
	if a := &g.adapters[best]; e.Adapters != "" && a.seen {
		l.Adapters = a.value()
	} else if n := g.count(e.figures[adapterSlots]); n > 0 {
		l.Adapters = &replica.Adapters{Max: n}
	}
	return l, e.Engine, nil
}

// unknown is errUnknown with what was looked for.
func (p *plan) unknown() error {
	known := make([]string, len(p.engines))
	for i, e := range p.engines {
		known[i] = e.Name
	}
	return fmt.Errorf("%w (%s)", errUnknown, strings.Join(known, ", "))
}

// figure is the first slot that something was found for.
func (g *gathering) figure(slots []int) (slot, bool) {
	for _, i := range slots {
		if g.slots[i].n > 0 {
			return g.slots[i], true
		}
	}
	return slot{}, false
}

func (g *gathering) count(slots []int) int {
	s, _ := g.figure(slots)
	return whole(s.sum)
}

func whole(x float64) int { return int(min(math.MaxInt32, math.Round(x))) }

func (a *adapters) value() *replica.Adapters {
	limit, err := strconv.Atoi(a.max)
	if err != nil {
		limit = 0
	}
	return &replica.Adapters{Running: split(a.running), Waiting: split(a.waiting), Max: max(0, limit)}
}

// split reads "a, b".
func split(list []byte) (out []string) {
	for name := range bytes.SplitSeq(list, []byte(",")) {
		if name = bytes.TrimSpace(name); len(name) > 0 {
			out = append(out, string(name))
		}
	}
	return out
}

// Metric is where one figure is found.
type Metric struct {
	Name string
	// Label and Equals restrict the series, where Label is not "".
	Label, Equals string
	// Value names the label whose value is the figure; "": the sample's value.
	Value string
}

// Engine has the names of an engine's load metrics. Of each list the first
// metric that an answer has counts, so newer names come first.
type Engine struct {
	// Name is how a target states its engine.
	Name string
	// Path is that of the metrics, where the target's URL has none.
	Path string
	// Series of Waiting, Running and Blocks add up, those of KV and
	// BlockTokens are averaged: an engine may be several in one server.
	Waiting, Running, KV, Blocks, BlockTokens []Metric
	// Adapters is vLLM's metric of LoRA adapters: of its series the one with
	// the largest value, a time, is the present one. "": none.
	Adapters string
	// AdapterSlots is how many adapters fit into a batch, where Adapters has no
	// such number.
	AdapterSlots []Metric
	// Batches: what waits is gathered into batches.
	Batches bool
	// Total are labels that break a figure down: only series that lack them, or
	// have "", count.
	Total []string
	// First are labels that number ranks which all tell the same: only series
	// that lack them, or have "0", count.
	First []string
}

// Engines are those that are known. An engine is data: to know another, add it
// here.
var Engines = []Engine{
	{
		// Also the engine simulator.
		Name:        "vllm",
		Path:        "/metrics",
		Waiting:     []Metric{{Name: "vllm:num_requests_waiting"}},
		Running:     []Metric{{Name: "vllm:num_requests_running"}},
		KV:          []Metric{{Name: "vllm:kv_cache_usage_perc"}, {Name: "vllm:gpu_cache_usage_perc"}},
		Blocks:      []Metric{{Name: "vllm:cache_config_info", Value: "num_gpu_blocks"}},
		BlockTokens: []Metric{{Name: "vllm:cache_config_info", Value: "block_size"}},
		Adapters:    "vllm:lora_requests_info",
	},
	{
		Name:        "sglang",
		Path:        "/metrics",
		Waiting:     []Metric{{Name: "sglang:num_queue_reqs"}},
		Running:     []Metric{{Name: "sglang:num_running_reqs"}},
		KV:          []Metric{{Name: "sglang:token_usage"}},
		Blocks:      []Metric{{Name: "sglang:num_pages"}, {Name: "sglang:cache_config_info", Value: "num_pages"}}, // the latter before 0.5.11
		BlockTokens: []Metric{{Name: "sglang:page_size"}, {Name: "sglang:cache_config_info", Value: "page_size"}},
		// It has no metric that names the adapters.
		AdapterSlots: []Metric{{Name: "sglang:lora_pool_slots_total"}},
		Total:        []string{"priority"}, // with priority scheduling
		First:        []string{"tp_rank", "pp_rank"},
	},
	{
		Name:        "trtllm-serve",
		Path:        "/prometheus/metrics", // /metrics is JSON of its iterations
		Waiting:     []Metric{{Name: "trtllm_num_requests_waiting"}},
		Running:     []Metric{{Name: "trtllm_num_requests_running"}},
		KV:          []Metric{{Name: "trtllm_kv_cache_utilization"}},
		Blocks:      []Metric{{Name: "trtllm_kv_cache_max_blocks"}},
		BlockTokens: []Metric{{Name: "trtllm_kv_cache_tokens_per_block"}},
	},
	{
		Name:        "triton-trtllm",
		Path:        "/metrics",
		Waiting:     []Metric{{Name: "nv_trt_llm_request_metrics", Label: "request_type", Equals: "waiting"}},
		Running:     []Metric{{Name: "nv_trt_llm_request_metrics", Label: "request_type", Equals: "scheduled"}},
		KV:          []Metric{{Name: "nv_trt_llm_kv_cache_block_metrics", Label: "kv_cache_block_type", Equals: "fraction"}},
		Blocks:      []Metric{{Name: "nv_trt_llm_kv_cache_block_metrics", Label: "kv_cache_block_type", Equals: "max"}},
		BlockTokens: []Metric{{Name: "nv_trt_llm_kv_cache_block_metrics", Label: "kv_cache_block_type", Equals: "tokens_per"}},
	},
	{
		// Triton with any other backend, which does not tell what it works on.
		Name:    "triton",
		Path:    "/metrics",
		Waiting: []Metric{{Name: "nv_inference_pending_request_count"}},
		Batches: true,
	},
	{
		// llama-server, which tells with --metrics alone.
		Name:    "llamacpp",
		Path:    "/metrics",
		Waiting: []Metric{{Name: "llamacpp:requests_deferred"}},
		Running: []Metric{{Name: "llamacpp:requests_processing"}},
		KV:      []Metric{{Name: "llamacpp:kv_cache_usage_ratio"}}, // until the middle of 2025
	},
	{
		// roundhouse serve, and MLServer, which tells only of REST.
		Name:    "roundhouse",
		Path:    "/metrics",
		Waiting: []Metric{{Name: "roundhouse_requests_waiting"}},
		Running: []Metric{{Name: "roundhouse_requests_running"}, {Name: "rest_server_requests_in_progress"}},
	},
}
