package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// runtimeNames are the catalog's, one a line.
func (n *node) runtimeNames() []string {
	n.t.Helper()
	return strings.Fields(n.do("get", "runtimes", "-o", "name"))
}

// TestExplain: for an applied service, a file next to a running server and a
// file alone, every runtime is listed with its rank or the reason against it.
func TestExplain(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	file := write(t, t.TempDir(), "iris.yaml", irisManifest("iris", "{minReplicas: 0}"))
	runtimes := n.runtimeNames()
	if len(runtimes) < 3 {
		t.Fatalf("the catalog has %v", runtimes)
	}
	check := func(t *testing.T, text string) {
		t.Helper()
		matches(t, text, `(?m)^chosen +roundhouse-xgboost`)
		matches(t, text, `(?m)^1 +roundhouse-xgboost`)
		matches(t, text, `(?m)^- +roundhouse-lightgbm .*fails format`)
		matches(t, text, `framework +xgboost 3\.\d+\.\d+ +\(from iris.ubj\)`)
		for _, r := range runtimes {
			matches(t, text, `(?m)^(\d+|-) +`+r+` `)
		}
	}
	t.Run("a file, not applied", func(t *testing.T) {
		n := n.on(t)
		check(t, n.do("explain", "--all", file))
		check(t, n.do("explain", "--all", "-f", file))
		contains(t, n.do("get"), "No services found")
		brief := n.do("explain", file)
		matches(t, brief, `(?m)^1 +roundhouse-xgboost`)
		matches(t, brief, `(?m)^… and \d+ more do not match: --all lists them$`)
		if lines := strings.Count(brief, "\n"); lines > 25 {
			t.Errorf("%d lines are no brief answer:\n%s", lines, brief)
		}
	})
	t.Run("applied", func(t *testing.T) {
		n := n.on(t)
		n.do("apply", "-f", file)
		text := n.do("explain", "iris", "--all")
		check(t, text)
		matches(t, text, `runs on +roundhouse-xgboost \(catalog\)`)
		n.explainsInJSON(t, runtimes)
	})
	t.Run("unknown", func(t *testing.T) {
		fails(t, n.on(t).run("explain", "nobody"), 1, "no service default/nobody", "roundhouse get")
	})
	t.Run("no server", func(t *testing.T) {
		n := n.on(t)
		n.admin = "http://127.0.0.1:1"
		check(t, n.do("explain", "--all", file))
		fails(t, n.run("explain", "iris"), 1, "no server listens at http://127.0.0.1:1", "roundhouse up", "--server")
	})
}

func (n *node) explainsInJSON(t *testing.T, runtimes []string) {
	var out struct {
		Result struct {
			Chosen     struct{ Name string }
			Candidates []struct {
				Name string
				Rank int
			}
		}
	}
	raw := n.do("explain", "iris", "-o", "json")
	if err := json.Unmarshal([]byte(raw), &out); err != nil {
		t.Fatal(err)
	}
	if out.Result.Chosen.Name != "roundhouse-xgboost" {
		t.Errorf("chosen is %q", out.Result.Chosen.Name)
	}
	var listed []string
	for _, c := range out.Result.Candidates {
		listed = append(listed, c.Name)
		if (c.Rank == 1) != (c.Name == "roundhouse-xgboost") {
			t.Errorf("%s has rank %d", c.Name, c.Rank)
		}
	}
	slices.Sort(listed)
	slices.Sort(runtimes)
	if !slices.Equal(listed, runtimes) {
		t.Errorf("explained are %v, the catalog has %v", listed, runtimes)
	}
}
