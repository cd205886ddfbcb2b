package strict

import (
	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

// pair is one key of a mapping with its value.
type pair struct {
	name       string
	key, value *yaml.Node
}

// pairs lists a mapping's keys in order, merge keys (<<) unfolded: a key
// stated here wins over a merged one, and an earlier merge over a later one.
// A repeated key is a problem, since one of the two would be lost.
func (d *decoder) pairs(n *yaml.Node, path, want string) ([]pair, bool) {
	if n.Kind != yaml.MappingNode {
		d.problem(n, path, "expected %s, got %s", want, describe(n))
		return nil, false
	}
	var out []pair
	var merges []*yaml.Node
	seen := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind == yaml.ScalarNode && k.ShortTag() == "!!merge" {
			merges = append(merges, v)
			continue
		}
		if k = d.enter(k, path); k == nil {
			continue
		}
		if k.Kind != yaml.ScalarNode {
			d.problem(k, path, "a key must be a word, got %s", describe(k))
			continue
		}
		if first, twice := seen[k.Value]; twice {
			d.problem(n.Content[i], Join(path, excerpt.Of(k.Value, 80)),
				"stated twice, first on line %d: remove one", d.position(first).Line)
			continue
		}
		seen[k.Value] = n.Content[i]
		out = append(out, pair{k.Value, n.Content[i], v})
	}
	for _, m := range merges {
		for _, p := range d.merged(m, path) {
			if _, stated := seen[p.name]; !stated {
				seen[p.name] = p.key
				out = append(out, p)
			}
		}
	}
	return out, true
}

// merged lists the pairs of what a merge key names: a mapping, or a list of
// mappings.
func (d *decoder) merged(n *yaml.Node, path string) []pair {
	d.depth++
	defer func() { d.depth-- }()
	if n = d.enter(n, path); n == nil {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		out, _ := d.pairs(n, path, "a mapping to merge")
		return out
	}
	var out []pair
	for _, c := range n.Content {
		if c = d.enter(c, path); c == nil {
			return nil
		}
		got, _ := d.pairs(c, path, "a mapping to merge")
		out = append(out, got...)
	}
	return out
}
