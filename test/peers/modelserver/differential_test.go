//go:build peers

package modelserver

import "testing"

// seed makes the requests; another one makes others.
const seed = 20

// TestMLServer sends the same requests to MLServer and to the binary, over the
// same model repository. Their answers are the same, or differ as
// differences.json says.
func TestMLServer(t *testing.T) {
	folder := repository(t)
	ours, theirs := startRoundhouse(t, folder), startMLServer(t, folder)
	ours.ready(t)
	theirs.ready(t)
	g := newGenerator(seed)
	g.routes()
	g.valid(160)
	g.special(1)
	g.schema(120)
	g.malformed(6)
	g.repositoryCalls()
	g.valid(20)
	counts := &tally{list: readDifferences(t)}
	for _, r := range g.all {
		a, b := theirs.ask(t, r), ours.ask(t, r)
		for _, d := range counts.count(r.kind, compare(a, b)) {
			t.Errorf("%s\n  %s", r, d)
		}
	}
	calls := compareCalls(t, g, theirs, ours, counts)
	counts.report(t, len(g.all)+calls)
}

// ready fails unless a server has loaded every model of the repository.
func (s *server) ready(t *testing.T) {
	t.Helper()
	index := s.index(t)
	for _, m := range index {
		if m.state != "READY" {
			t.Fatalf("%s: %s: %s: %s", s.name, m.name, m.state, m.reason)
		}
	}
	if len(index) != len(models) {
		t.Fatalf("%s has %d models, want %d", s.name, len(index), len(models))
	}
}
