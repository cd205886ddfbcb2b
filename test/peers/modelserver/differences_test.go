//go:build peers

package modelserver

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/design/mlserver-differences.md from differences.json")

// intended is a difference that is meant. It explains a difference if all of
// its patterns match; a pattern matches the whole of its text.
type intended struct {
	ID         string `json:"id"`
	Requests   string `json:"requests"`   // their kinds
	Path       string `json:"path"`       // where answers differ
	MLServer   string `json:"mlserver"`   // what MLServer says there
	Ours       string `json:"ours"`       // what we say
	Difference string `json:"difference"` // for people
	Reason     string `json:"reason"`

	patterns [4]*regexp.Regexp
	used     int // differences that it explained
}

// readDifferences reads the list.
func readDifferences(t *testing.T) []*intended {
	t.Helper()
	text, err := os.ReadFile("differences.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []*intended
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&list); err != nil {
		t.Fatalf("differences.json: %v", err)
	}
	seen := map[string]bool{}
	for _, d := range list {
		if d.ID == "" || d.Difference == "" || d.Reason == "" || seen[d.ID] {
			t.Fatalf("differences.json: %q: wants an id of its own, a difference and a reason", d.ID)
		}
		seen[d.ID] = true
		for i, pattern := range []string{d.Requests, d.Path, d.MLServer, d.Ours} {
			if d.patterns[i], err = regexp.Compile(`^(?s:` + pattern + `)$`); err != nil {
				t.Fatalf("differences.json: %q: %v", d.ID, err)
			}
		}
	}
	return list
}

func (d *intended) explains(kind string, found difference) bool {
	for i, text := range []string{kind, found.path, found.theirs, found.ours} {
		if !d.patterns[i].MatchString(text) {
			return false
		}
	}
	return true
}

// tally counts how exchanges compared.
type tally struct {
	list             []*intended
	identical, meant int
}

// count notes one exchange and gives the differences that nothing explains.
func (c *tally) count(kind string, found []difference) (unexplained []difference) {
	if len(found) == 0 {
		c.identical++
		return nil
	}
	var by []*intended
	for _, f := range found {
		i := slices.IndexFunc(c.list, func(d *intended) bool { return d.explains(kind, f) })
		if i < 0 {
			unexplained = append(unexplained, f)
			continue
		}
		by = append(by, c.list[i])
	}
	if len(unexplained) > 0 {
		return unexplained
	}
	c.meant++
	slices.SortFunc(by, func(a, b *intended) int { return strings.Compare(a.ID, b.ID) })
	for _, d := range slices.Compact(by) {
		d.used++
	}
	return nil
}

// report prints the counts. An entry that explained nothing is out of date.
func (c *tally) report(t *testing.T, all int) {
	t.Helper()
	t.Logf("%d requests: %d answered identically, %d with intended differences, %d otherwise", all, c.identical, c.meant, all-c.identical-c.meant)
	for _, d := range c.list {
		t.Logf("  %4d %s", d.used, d.ID)
		if d.used == 0 && *seed == usual {
			t.Errorf("differences.json: %q explains nothing: remove it, or have a request show it", d.ID)
		}
	}
}

// page is the list as documentation.
const page = "../../../docs/design/mlserver-differences.md"

// TestDifferencesPage keeps the page and the list the same.
func TestDifferencesPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Where answers differ from MLServer's\n\n" +
		"`test/peers/modelserver` sends the same requests to `roundhouse serve` and to MLServer over the same model repository and compares status, headers and body. " +
		"The differences in this table are intended. The test fails on any other difference, and on an entry of the table that no request shows. " +
		"The table is generated from `test/peers/modelserver/differences.json` (`go test -tags peers ./test/peers/modelserver -run TestDifferencesPage -update`).\n\n" +
		"| Id | Difference | Why |\n|---|---|---|\n")
	for _, d := range readDifferences(t) {
		_, _ = fmt.Fprintf(&b, "| %s | %s | %s |\n", d.ID, d.Difference, d.Reason)
	}
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Errorf("%s is not what differences.json says: run this test with -update", page)
	}
}
