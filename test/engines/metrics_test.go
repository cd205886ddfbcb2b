package engines

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

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

// sometimes are labels that only some pages of an engine have, and which.
var sometimes = map[string]string{
	"sglang dp_rank": "of several data-parallel ranks",
}

// reads fails unless a live page of metrics has every name that an engine's load
// is read by, of each figure the first, which is today's, and every label. It fails
// as well if a name that is thought to be gone is there, or a label that only other
// pages have.
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
	n.readsLabels(e, url)
}

// readsLabels is reads of labels: those by which series are told apart, or whose value is
// the figure.
func (n *node) readsLabels(e *scrape.Engine, url string) {
	n.t.Helper()
	page := n.send("GET", url, "").body
	need := func(name, label string, fits func(value string) bool) {
		n.t.Helper()
		why, there := sometimes[e.Name+" "+label], false
		all := labelled(page, name)
		for _, labels := range all {
			value, has := labels[label]
			there = there || has && fits(value)
		}
		switch {
		case why != "" && there:
			n.t.Errorf("%s: %s of %s has the label %s, which is listed as one %s", e.Name, name, url, label, why)
		case why == "" && !there && former[name] == "":
			n.t.Errorf("%s: %s of %s has no fitting label %s, which is read, in %v", e.Name, name, url, label, all)
		}
	}
	anything := func(string) bool { return true }
	number := func(value string) bool { _, err := strconv.ParseFloat(value, 64); return err == nil }
	for _, list := range [][]scrape.Metric{e.Waiting, e.Running, e.KV, e.Blocks, e.BlockTokens, e.AdapterSlots} {
		if len(list) == 0 {
			continue
		}
		m := list[0]
		if m.Label != "" {
			need(m.Name, m.Label, func(value string) bool { return value == m.Equals })
		}
		if m.Value != "" {
			need(m.Name, m.Value, number)
		}
	}
	if e.Adapters != "" {
		need(e.Adapters, scrape.AdapterLabels[0], number)
		need(e.Adapters, scrape.AdapterLabels[1], anything)
		need(e.Adapters, scrape.AdapterLabels[2], anything)
	}
	for _, label := range e.Total {
		need(e.Waiting[0].Name, label, anything)
	}
	for _, label := range append(slices.Clone(e.First), e.Rank) {
		if label != "" {
			need(e.Running[0].Name, label, number)
		}
	}
}

// labelled are the labels of each series of a name.
func labelled(page, name string) (all []map[string]string) {
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(line, name+"{")
		if !ok {
			continue
		}
		labels := map[string]string{}
		for _, m := range labelPair.FindAllStringSubmatch(rest[:strings.LastIndexByte(rest, '}')+1], -1) {
			labels[m[1]] = m[2]
		}
		all = append(all, labels)
	}
	return all
}

var labelPair = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)

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

// TestLabelled: the labels of a page are read as they are written.
func TestLabelled(t *testing.T) {
	const page = "a{x=\"1\",y=\"b, {c}\"} 2\nab{x=\"9\"} 1\n# a{x=\"8\"} 1\na 3\na{x=\"q\\\"}\",z=\"\"} 4\n"
	got := labelled(page, "a")
	if len(got) != 2 || got[0]["x"] != "1" || got[0]["y"] != "b, {c}" || got[1]["x"] != `q\"}` || len(got[1]) != 2 {
		t.Errorf("%q", got)
	}
}
