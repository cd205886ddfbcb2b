//go:build peers

package modelserver

import (
	"flag"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// usual is the seed whose requests show every intended difference.
const usual = 20

var seed = flag.Uint64("seed", usual, "makes the requests that are compared; another one makes others")

// batches is how many requests are sent at once to models that are batched.
const batches = 8

// TestMLServer sends the same requests to MLServer and to the binary, over the
// same model repository: with models in MLServer's own process, and in workers.
// Their answers are the same, or differ as differences.json says.
func TestMLServer(t *testing.T) {
	folder := repository(t, "more")
	counts := &tally{list: readDifferences(t)}
	all := 0
	for _, c := range []struct {
		workers string
		make    func(*generator)
	}{
		{"0", func(g *generator) {
			g.routes()
			g.valid(160)
			g.special(1)
			g.schema(120)
			g.malformed(6)
			g.contents(25)
			g.arguments(6)
			g.encodings()
			g.runtimes(4)
			g.customs()
			g.repositoryCalls()
			g.valid(20)
			g.boosters(3)
		}},
		{"1", func(g *generator) {
			g.valid(20)
			g.contents(6)
			g.arguments(2)
			g.runtimes(2)
			g.customs()
		}},
	} {
		t.Run("workers="+c.workers, func(t *testing.T) {
			env := "MLSERVER_PARALLEL_WORKERS=" + c.workers
			ours, theirs := startRoundhouse(t, folder, env), startMLServer(t, folder, env)
			if n := ours.ready(t); n != theirs.ready(t) || n < len(models) {
				t.Fatalf("%d models, and another number in MLServer", n)
			}
			g := newGenerator(*seed)
			c.make(g)
			for _, r := range g.all {
				a, b := askBoth(t, theirs, ours, r)
				for _, d := range counts.count(r.kind, compare(a, b)) {
					t.Errorf("%s\n  %s\n  %s", r.kind, r.curl(ours.http), d)
				}
			}
			all += len(g.all) + compareTogether(t, newGenerator(*seed), theirs, ours, counts) + compareCalls(t, g, theirs, ours, counts)
		})
	}
	counts.report(t, all)
}

// compareTogether sends requests to models that are batched, several at once:
// some of one form, which share a batch, and some of several.
func compareTogether(t *testing.T, g *generator, theirs, ours *server, counts *tally) int {
	t.Helper()
	for i, name := range []string{"batched", "batched-sklearn", "batched-xgboost", "batched", "batched-sklearn"} {
		for range batches {
			kind, input := "together/"+name, g.flat("x", pick(g, 1, 2), "FP64")
			if i > 2 {
				kind, input = "together-mixed/"+name, g.tensor("x", pick(g, 1, 2), 4, pick(g, "FP32", "FP64"))
			}
			body := object{"inputs": []any{input}}
			if g.chance(2) {
				body["id"] = pick(g, "a", "42", "x-1")
			}
			g.post(kind, named(name), body)
		}
	}
	for group := range slices.Chunk(g.all, batches) {
		a, b := askTogether(t, theirs, group), askTogether(t, ours, group)
		for j, r := range group {
			for _, d := range counts.count(r.kind, compare(a[j], b[j])) {
				t.Errorf("%s, with %d others\n  %s\n  %s", r.kind, batches-1, r.curl(ours.http), d)
			}
		}
	}
	return len(g.all)
}

// askTogether sends requests at once.
func askTogether(t *testing.T, s *server, group []request) []answer {
	t.Helper()
	answers := make([]answer, len(group))
	var wait sync.WaitGroup
	for i, r := range group {
		wait.Go(func() { answers[i] = s.ask(t, r) })
	}
	wait.Wait()
	return answers
}

// askBoth sends a request to both servers.
func askBoth(t *testing.T, theirs, ours *server, r request) (a, b answer) {
	t.Helper()
	var wait sync.WaitGroup
	wait.Go(func() { a = theirs.ask(t, r) })
	b = ours.ask(t, r)
	wait.Wait()
	return a, b
}

// ready fails unless a server has loaded every model of the repository; it gives
// their number.
func (s *server) ready(t *testing.T) int {
	t.Helper()
	index := s.index(t)
	for _, m := range index {
		if m.state != "READY" {
			t.Fatalf("%s: %s: %s: %s", s.name, m.name, m.state, m.reason)
		}
	}
	return len(index)
}

// curl is a request as a line for a shell, to a server that has the repository.
func (r request) curl(address string) string {
	line := []string{"curl -sS -i"}
	if r.method != http.MethodGet {
		line = append(line, "-X "+r.method)
	}
	for name, value := range r.header {
		line = append(line, "-H "+quoted(name+": "+value))
	}
	if _, ok := r.header["Content-Type"]; !ok && r.body != "" {
		line = append(line, "-H 'Content-Type:'")
	}
	if r.body != "" {
		line = append(line, "--data-binary "+quoted(r.body))
	}
	return strings.Join(append(line, quoted("http://"+address+r.path)), " ")
}

// quoted is a text as one word of a shell.
func quoted(text string) string {
	plain := true
	for _, b := range []byte(text) {
		plain = plain && b >= ' ' && b != 0x7f
	}
	if plain {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	var b strings.Builder
	for _, c := range []byte(text) {
		const hex = "0123456789abcdef"
		if c < ' ' || c >= 0x7f || c == '\'' || c == '\\' {
			_, _ = b.WriteString(`\x` + string([]byte{hex[c>>4], hex[c&15]}))
		} else {
			_ = b.WriteByte(c)
		}
	}
	return "$'" + b.String() + "'"
}
