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
	"roundhouse.dev/roundhouse/internal/core/service"
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
	rank   string
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
				add(metrics[at].Name, use{metric: &metrics[at], first: e.First, total: e.Total, rank: e.Rank, slot: p.slots})
				own.figures[f] = append(own.figures[f], p.slots)
				p.slots++
			}
		}
		if e.Adapters != "" {
			add(e.Adapters, use{rank: e.Rank, slot: i})
		}
		p.engines = append(p.engines, own)
	}
	p.names = newNames(found)
	return p
}

// gathering collects the figures of one answer. It is reused.
type gathering struct {
	plan *plan
	// buckets are what is said without a rank, and behind it that of each rank.
	buckets []bucket
	used    int // of buckets
	ranks   int // that are asked for; under 2 they are one
}

// bucket is what is said of one rank.
type bucket struct {
	slots    []slot
	adapters []adapters
}

// slot is the sum of the series of a figure, of those that are of the first of ranks
// that all tell the same.
type slot struct {
	sum   float64
	n     int
	first int
}

func (s *slot) add(x float64, first int) {
	if s.n > 0 && first > s.first {
		return
	}
	if first < s.first {
		*s = slot{}
	}
	s.sum, s.n, s.first = s.sum+x, s.n+1, first
}

// adapters are the labels of the newest series so far.
type adapters struct {
	seen             bool
	at               float64
	max              string
	running, waiting []byte
}

func (g *gathering) start(p *plan, ranks int) {
	g.plan, g.ranks, g.used = p, ranks, 0
	g.bucket(0)
}

// bucket is that of a number, and those before it are there too.
func (g *gathering) bucket(n int) *bucket {
	for ; g.used <= n; g.used++ {
		if g.used == len(g.buckets) {
			g.buckets = append(g.buckets, bucket{})
		}
		b := &g.buckets[g.used]
		b.slots = append(b.slots[:0], make([]slot, g.plan.slots)...)
		if len(b.adapters) < len(g.plan.engines) {
			b.adapters = make([]adapters, len(g.plan.engines))
		}
		for i := range b.adapters {
			b.adapters[i].seen = false
		}
	}
	return &g.buckets[n]
}

// bucketOf is that of the rank that a sample is of.
func (g *gathering) bucketOf(s *sample, label string) *bucket {
	v, there := s.get(label)
	if label == "" || !there || len(v) == 0 {
		return g.bucket(0)
	}
	n, err := strconv.Atoi(string(v))
	if err != nil || n < 0 || n >= service.MaxDataParallelSize { // it numbers something else
		return g.bucket(0)
	}
	return g.bucket(n + 1)
}

// take takes one sample.
func (g *gathering) take(s *sample) {
	for i := range g.plan.uses[s.name] {
		u := &g.plan.uses[s.name][i]
		b := g.bucketOf(s, u.rank)
		if u.metric == nil {
			b.adapters[u.slot].take(s)
			continue
		}
		if x, first, ok := u.value(s); ok {
			b.slots[u.slot].add(x, first)
		}
	}
}

// value is the sample's figure, if it counts and is one; first is the lower the more it
// is of the first of ranks that all tell the same.
func (u *use) value(s *sample) (x float64, first int, ok bool) {
	if u.metric.Label != "" {
		if v, _ := s.get(u.metric.Label); string(v) != u.metric.Equals {
			return 0, 0, false
		}
	}
	for _, name := range u.total {
		if v, _ := s.get(name); len(v) > 0 {
			return 0, 0, false
		}
	}
	for _, rank := range u.first {
		if v, there := s.get(rank); there {
			n, err := strconv.ParseUint(string(v), 10, 16)
			if err != nil {
				return 0, 0, false
			}
			first += int(n)
		}
	}
	x = s.value
	if u.metric.Value != "" {
		v, _ := s.get(u.metric.Value)
		var err error
		if x, err = number(v); err != nil {
			return 0, 0, false // "None", in vLLM
		}
	}
	return max(0, x), first, !math.IsNaN(x)
}

func (a *adapters) take(s *sample) {
	if math.IsNaN(s.value) || (a.seen && s.value < a.at) {
		return
	}
	of := func(name string) []byte { v, _ := s.get(name); return v }
	a.seen, a.at, a.max = true, s.value, string(of(AdapterLabels[0]))
	a.running = append(a.running[:0], of(AdapterLabels[1])...)
	a.waiting = append(a.waiting[:0], of(AdapterLabels[2])...)
}

// AdapterLabels are those of an engine's Adapters: how many fit into a batch, which run,
// and which wait.
var AdapterLabels = [...]string{"max_lora", "running_lora_adapters", "waiting_lora_adapters"}

// loads is what the answer said of each rank, or of all together where none are asked
// for, and whose names it used. The error is errUnknown when it used nobody's.
func (g *gathering) loads(at time.Time) ([]*replica.Load, *Engine, error) {
	best, most := -1, 0
	for i, e := range g.plan.engines {
		n := 0
		for _, slots := range e.figures[:blocks] {
			for rank := range g.used {
				if _, ok := g.figure(rank, slots); ok {
					n++
					break
				}
			}
		}
		if n > most {
			best, most = i, n
		}
	}
	if best < 0 {
		return nil, nil, g.plan.unknown()
	}
	e := g.plan.engines[best].Engine
	if g.ranks < 2 {
		if g.used == 1 {
			return []*replica.Load{g.load(0, best, at)}, e, nil
		}
		all := make([]*replica.Load, 0, g.used)
		for rank := 1; rank < g.used; rank++ {
			all = append(all, g.load(rank, best, at))
		}
		return []*replica.Load{replica.Sum(all)}, e, nil
	}
	out := make([]*replica.Load, g.ranks)
	for n := range out {
		rank := n + 1
		if rank >= g.used { // the answer has no labels of ranks, or not of this one
			rank = 0
		}
		out[n] = g.load(rank, best, at)
	}
	return out, e, nil
}

// load is what was said of one bucket's rank in an engine's names; nil where nothing was.
func (g *gathering) load(rank, engine int, at time.Time) *replica.Load {
	e := g.plan.engines[engine]
	if !slices.ContainsFunc(e.figures[:blocks], func(slots []int) bool { _, ok := g.figure(rank, slots); return ok }) {
		return nil
	}
	l := &replica.Load{At: at, Batches: e.Batches}
	l.Waiting, l.Running = g.count(rank, e.figures[waiting]), g.count(rank, e.figures[running])
	l.Blocks = g.count(rank, e.figures[blocks])
	_, l.Tells.Queue = g.figure(rank, e.figures[waiting])
	if s, ok := g.figure(rank, e.figures[kv]); ok {
		l.Tells.KV = true
		l.KV = min(1, s.sum/float64(s.n))
	}
	if s, ok := g.figure(rank, e.figures[blockTokens]); ok {
		l.BlockTokens = whole(s.sum / float64(s.n))
	}
	a := &g.buckets[rank].adapters[engine]
	if !a.seen {
		a = &g.buckets[0].adapters[engine]
	}
	if e.Adapters != "" && a.seen {
		l.Adapters = a.value()
	} else if n := g.count(rank, e.figures[adapterSlots]); n > 0 {
		l.Adapters = &replica.Adapters{Max: n}
	}
	return l
}

// unknown is errUnknown with what was looked for.
func (p *plan) unknown() error {
	known := make([]string, len(p.engines))
	for i, e := range p.engines {
		known[i] = e.Name
	}
	return fmt.Errorf("%w (%s)", errUnknown, strings.Join(known, ", "))
}

// figure is the first slot that something was found for, of a bucket's rank or, where
// nothing is said of that, without a rank.
func (g *gathering) figure(rank int, slots []int) (slot, bool) {
	for _, b := range [...]int{rank, 0} {
		for _, i := range slots {
			if s := g.buckets[b].slots[i]; s.n > 0 {
				return s, true
			}
		}
	}
	return slot{}, false
}

func (g *gathering) count(rank int, slots []int) int {
	s, _ := g.figure(rank, slots)
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
	// Rank is the label that numbers data-parallel ranks, each with a queue and a
	// memory of its own; what has no such label holds for each.
	Rank string
	// First are labels that number ranks which all tell the same: only series
	// that lack them, or have the lowest numbers, count.
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
		Rank:        "engine",
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
		Rank:         "dp_rank",
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
