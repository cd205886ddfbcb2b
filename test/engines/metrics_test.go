package engines

import (
	"slices"

	"roundhouse.dev/roundhouse/internal/edge/scrape"
)

// former are names that only older releases have, with the figure's end there.
var former = map[string]string{
	"llamacpp:kv_cache_usage_ratio": "removed in the middle of 2025, without a successor",
}

// mlserverReads fails unless a live page of MLServer has the name by which the
// entry of roundhouse's own server knows it.
func (n *node) mlserverReads(url string) {
	n.t.Helper()
	at := slices.IndexFunc(scrape.Engines, func(e scrape.Engine) bool { return e.Name == "roundhouse" })
	name := scrape.Engines[at].Running[1].Name
	if _, there := n.figures(url)[name]; !there {
		n.t.Errorf("%s has no %s, by which the requests that run are read", url, name)
	}
}

// reads fails unless a live page of metrics has every name that an engine's load
// is read by: of each figure the first, which is today's. It fails as well if a
// name that is thought to be gone is there.
func (n *node) reads(engine, url string) {
	n.t.Helper()
	at := slices.IndexFunc(scrape.Engines, func(e scrape.Engine) bool { return e.Name == engine })
	if at < 0 {
		n.t.Fatalf("no engine %s is known", engine)
	}
	e := &scrape.Engines[at]
	names := map[string][]scrape.Metric{"waiting": e.Waiting, "running": e.Running, "KV": e.KV, "blocks": e.Blocks, "tokens of a block": e.BlockTokens, "slots of adapters": e.AdapterSlots}
	if e.Adapters != "" {
		names["adapters"] = []scrape.Metric{{Name: e.Adapters}}
	}
	page := n.figures(url)
	for figure, list := range names {
		if len(list) == 0 {
			continue
		}
		name := list[0].Name
		_, there := page[name]
		switch why := former[name]; {
		case why != "" && there:
			n.t.Errorf("%s: %s has %s, which is listed as %s", engine, url, name, why)
		case why == "" && !there:
			n.t.Errorf("%s: %s has no %s, by which %s is read", engine, url, name, figure)
		}
	}
}

// scraped waits until the load of replicas was read three times and no replica is one
// whose load cannot be read. Single readings may fail: Triton opens the port of its
// metrics a moment after it says that it is ready, and vLLM answers nothing while it
// compiles.
func (n *node) scraped() {
	n.t.Helper()
	n.eventually("the load is read", func() (bool, string) {
		a := n.send("GET", n.admin+"/metrics", "")
		sums, failing := n.figures(n.admin+"/metrics"), false
		for _, m := range servers.FindAllStringSubmatch(a.body, -1) {
			failing = failing || m[1] != "0"
		}
		return !failing && sums["roundhouse_scrape_duration_seconds_count"] >= 3+sums["roundhouse_scrape_failures_total"], a.body
	})
}
