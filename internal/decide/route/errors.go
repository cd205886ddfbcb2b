package route

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of what an error lists.
const (
	maxListed    = 10  // names in one message
	maxSuggested = 3   // names that look like the one asked for
	maxDistance  = 3   // edits between a name and a suggestion
	maxQuoted    = 128 // bytes of the asked name that are repeated
)

// NotFoundError says that no service has the model's name.
type NotFoundError struct {
	Model string
	// Near are names that differ from Model by few letters, nearest first;
	// Known are the first names there are, and Total how many there are.
	Near  []string
	Known []string
	Total int
}

// Error names the model, what may have been meant and what there is.
func (e *NotFoundError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "model %q is not served here", shorten(e.Model))
	switch {
	case len(e.Near) > 0:
		fmt.Fprintf(&b, "; did you mean %s?", strings.Join(e.Near, " or "))
	case e.Total == 0:
		b.WriteString("; no service has been applied yet")
	default:
		b.WriteString("; there is " + listed(e.Known, e.Total))
	}
	return b.String()
}

// AmbiguousError says that several services have the model's bare name.
type AmbiguousError struct {
	Model      string
	Candidates []string // "namespace/name", sorted
}

// Error lists the candidates.
func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("model %q is served in %d namespaces; name one as namespace/name: %s",
		shorten(e.Model), len(e.Candidates), listed(e.Candidates, len(e.Candidates)))
}

// listed joins at most maxListed of the names and counts the rest of total.
func listed(names []string, total int) string {
	names = names[:min(len(names), maxListed)]
	s := strings.Join(names, ", ")
	if rest := total - len(names); rest > 0 {
		s += fmt.Sprintf(" and %d more", rest)
	}
	return s
}

func shorten(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	cut := maxQuoted
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

func (t *Table) notFound(model string) *NotFoundError {
	e := &NotFoundError{Model: model, Total: len(t.keys), Near: t.near(model)}
	for _, k := range t.keys[:min(len(t.keys), maxListed)] {
		e.Known = append(e.Known, t.Name(k))
	}
	return e
}

// near finds the names closest to model, compared with full names if model
// holds a slash, else with bare ones.
func (t *Table) near(model string) []string {
	if model == "" || len(model) > maxQuoted {
		return nil
	}
	type near struct {
		name string
		dist int
	}
	limit := min(maxDistance, max(1, len(model)/3))
	full := strings.Contains(model, "/")
	var found []near
	for _, k := range t.keys {
		compare := k.Name
		if full {
			compare = k.String()
		}
		if d := distance(model, compare, limit); d <= limit {
			found = append(found, near{t.Name(k), d})
		}
	}
	slices.SortStableFunc(found, func(a, b near) int { return a.dist - b.dist })
	var out []string
	for _, n := range found[:min(len(found), maxSuggested)] {
		out = append(out, n.name)
	}
	return out
}

// distance is the Levenshtein distance of a and b in bytes, or limit+1 as soon
// as it must be more than limit. Ignores case.
func distance(a, b string, limit int) int {
	if d := len(a) - len(b); d > limit || -d > limit {
		return limit + 1
	}
	a, b = strings.ToLower(a), strings.ToLower(b)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal, best := row[0], i+1
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(row[j]+1, row[j+1]+1, diagonal+cost)
			diagonal, row[j+1] = row[j+1], next
			best = min(best, next)
		}
		if best > limit {
			return limit + 1
		}
	}
	return min(row[len(b)], limit+1)
}
