package selection

import (
	"fmt"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestBrief: the ranked are all there, the nearest misses with what they lack,
// and nobody is left out of the count.
func TestBrief(t *testing.T) {
	rules := func(failed ...string) (out []Rule) {
		for _, name := range []string{"format", "size", "host"} {
			o := Rule{Name: name, Pass: true, Why: "fits"}
			for _, f := range failed {
				if f == name {
					o.Pass, o.Why = false, name+" does not fit"
				}
			}
			out = append(out, o)
		}
		return out
	}
	one := func(rank int, failed ...string) Candidate {
		return Candidate{Name: fmt.Sprintf("r%d", rank), Scope: service.ScopeCatalog, Rank: rank, Why: "why", Rules: rules(failed...)}
	}
	r := Result{Reason: NoSupportingRuntime, Message: "no runtime matches"}
	r.Candidates = append(r.Candidates, one(1), one(2))
	if got := r.Brief(); strings.Contains(got, "more") || strings.Count(got, "\n") != 6 {
		t.Errorf("without misses:\n%s", got)
	}
	for i, failed := range [][]string{{"host"}, {"size"}, {"format"}, {"format"}, {"format"}, {"size"}, {"format", "host"}, {"size", "host"}, {"format", "size"}} {
		c := one(0, failed...)
		c.Name = fmt.Sprintf("miss%d", i)
		r.Candidates = append(r.Candidates, c)
	}
	got := r.Brief()
	for _, want := range []string{"\n1   r1     catalog    why\n2   r2     catalog    why\n", "-   miss0", "FAIL  host", "-   miss1", "-   miss2", "FAIL  format",
		"… and 6 more do not match: --all lists them\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "miss3") || strings.Contains(got, " ok ") {
		t.Errorf("too much:\n%s", got)
	}
}
