package selection

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// maxMisses is how many runtimes that will not do Brief tells the reasons of.
const maxMisses = 3

// Brief prints the result as Explain does, shorter: the ranked candidates with
// why each has its rank, the nearest misses with what each lacks, and of all
// others how many fail by which rules.
func (r Result) Brief() string {
	var b strings.Builder
	r.head(&b)
	width := r.nameWidth()
	misses := 0
	rest := map[string]int{}
	for i := range r.Candidates {
		c := &r.Candidates[i]
		failed := c.failed()
		if len(failed) == 0 {
			c.heading(&b, width)
			continue
		}
		if misses++; misses > maxMisses {
			rest[strings.Join(failed, " and ")]++
			continue
		}
		c.heading(&b, width)
		for _, rule := range c.Rules {
			if !rule.Pass {
				fmt.Fprintf(&b, "      FAIL  %-11s  %s\n", rule.Name, rule.Why)
			}
		}
	}
	if more := misses - maxMisses; more > 0 {
		kinds := slices.SortedFunc(maps.Keys(rest), func(a, b string) int {
			if rest[a] != rest[b] {
				return rest[b] - rest[a]
			}
			return strings.Compare(a, b)
		})
		var parts []string
		for _, k := range kinds[:min(len(kinds), maxMisses)] {
			parts = append(parts, fmt.Sprintf("%d fail %s", rest[k], k))
		}
		if len(kinds) > maxMisses {
			parts = append(parts, "others for other reasons")
		}
		fmt.Fprintf(&b, "… and %d more that will not do (%s): --all tells of every one\n", more, strings.Join(parts, ", "))
	}
	return b.String()
}

// failed are the rules that a candidate fails.
func (c *Candidate) failed() (out []string) {
	for _, r := range c.Rules {
		if !r.Pass {
			out = append(out, r.Name)
		}
	}
	return out
}
