package route

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Bounds of what an error lists.
const (
	maxListed    = 10  // names in one message
	maxSuggested = 3   // names that look like the one asked for
	maxDistance  = 3   // edits between a name and a suggestion
	maxQuoted    = 128 // bytes of the asked name that are repeated
)

// NotFoundError reports that nothing answers to the model's name.
type NotFoundError struct {
	Model string
	// Pool is the pool that was asked, "namespace/name"; "" when none was.
	Pool string
	// Service is the service that was asked, "namespace/name"; "" when none was.
	Service string
	// Near are names that differ from Model by few letters, nearest first;
	// Known are the first names there are, and Total how many there are.
	Near  []string
	Known []string
	Total int
}

// Error names the model, what may have been meant and what there is.
func (e *NotFoundError) Error() string {
	var b strings.Builder
	where := "here"
	if e.Pool != "" {
		where = "by pool " + e.Pool
	} else if e.Service != "" {
		where = "by service " + e.Service
	}
	fmt.Fprintf(&b, "model %q is not served %s", excerpt.Of(e.Model, maxQuoted), where)
	switch {
	case len(e.Near) > 0:
		fmt.Fprintf(&b, "; did you mean %s?", strings.Join(e.Near, " or "))
	case e.Total == 0 && e.Service != "":
		b.WriteString(", which has no model yet")
	case e.Total == 0:
		b.WriteString("; no service has been applied yet")
	default:
		b.WriteString("; the models are " + listed(e.Known, e.Total))
	}
	return b.String()
}

// AmbiguousError reports that the model's name means several things.
type AmbiguousError struct {
	Model      string
	Candidates []string // "namespace/name", sorted
	// Hosts are those of pools that each know the full name; then they tell
	// and Candidates do not.
	Hosts []string
	// Services reports that they are those of services, which each have an adapter
	// of the name.
	Services bool
}

// Error lists the candidates.
func (e *AmbiguousError) Error() string {
	if len(e.Hosts) > 0 {
		what := "served by %d pools"
		if e.Services {
			what = "an adapter of %d services"
		}
		return fmt.Sprintf("model %q is "+what+"; send the request to the host of one: %s",
			excerpt.Of(e.Model, maxQuoted), len(e.Hosts), listed(e.Hosts, len(e.Hosts)))
	}
	return fmt.Sprintf("model %q is served in %d namespaces; name one as namespace/name: %s",
		excerpt.Of(e.Model, maxQuoted), len(e.Candidates), listed(e.Candidates, len(e.Candidates)))
}

// MissingModelError reports that a request names no model and its pool goes by
// models.
type MissingModelError struct {
	Pool  service.Key
	Known []string
}

// Error lists what may be named.
func (e *MissingModelError) Error() string {
	return fmt.Sprintf("the request names no model, and pool %s serves %s: set \"model\"", e.Pool, listed(e.Known, len(e.Known)))
}

// BackendError reports that an object sends the request where nothing is.
type BackendError struct {
	Object  string // "HTTPRoute default/llm-route"
	Message string
}

// Error names the object and what it lacks.
func (e *BackendError) Error() string { return e.Object + ": " + e.Message }

// listed joins at most maxListed of the names and counts the rest of total.
func listed(names []string, total int) string {
	names = names[:min(len(names), maxListed)]
	s := strings.Join(names, ", ")
	if rest := total - len(names); rest > 0 {
		s += fmt.Sprintf(" and %d more", rest)
	}
	return s
}

func (t *Table) notFound(model string) *NotFoundError {
	e := &NotFoundError{Model: model}
	full := strings.Contains(model, "/")
	var compared []string
	shown := func(c *claim) string {
		if len(t.bare[c.key.Name]) > 1 {
			return c.key.String()
		}
		return c.key.Name
	}
	all := slices.CompactFunc(slices.Clone(t.all), func(a, b *claim) bool { return a.key == b.key })
	e.Total = len(all)
	for _, c := range all {
		compare := c.key.Name
		if full {
			compare = c.key.String()
		}
		compared = append(compared, compare)
	}
	for _, c := range all[:min(len(all), maxListed)] {
		e.Known = append(e.Known, shown(c))
	}
	for _, i := range nearest(model, compared) {
		e.Near = append(e.Near, shown(all[i]))
	}
	return e
}

func (p *pool) notFound(model string) *NotFoundError {
	e := &NotFoundError{Model: model, Pool: p.ref.Key.String(), Total: len(p.names)}
	e.Known = p.names[:min(len(p.names), maxListed)]
	for _, i := range nearest(model, p.names) {
		e.Near = append(e.Near, p.names[i])
	}
	return e
}

func (t *Table) ambiguous(model string, claims []*claim) *AmbiguousError {
	e := &AmbiguousError{Model: model}
	for _, c := range claims {
		e.Candidates = append(e.Candidates, c.key.String())
	}
	if e.Candidates = slices.Compact(e.Candidates); len(e.Candidates) == 1 {
		for _, c := range claims {
			if c.pool == nil {
				e.Hosts, e.Services = append(e.Hosts, t.hostOf[c.of]), true
				continue
			}
			e.Hosts = append(e.Hosts, Host(c.pool.ref.Key, t.domain))
		}
	}
	return e
}

// notFound returns a message that ref is not among the existing objects, with
// the name that may have been meant.
func notFound(ref routing.Ref, existing []service.Key) string {
	kind, same := "service", make([]string, 0, len(existing))
	if ref.Pool {
		kind = "pool"
	}
	for _, k := range existing {
		if k.Namespace == ref.Namespace {
			same = append(same, k.Name)
		}
	}
	text := fmt.Sprintf("there is no %s %s", kind, ref.Key)
	if i := nearest(ref.Name, same); len(i) > 0 {
		return text + fmt.Sprintf("; did you mean %s?", same[i[0]])
	}
	for _, name := range same {
		if strings.HasPrefix(name, ref.Name+"-") || strings.HasPrefix(ref.Name, name+"-") {
			return text + fmt.Sprintf("; did you mean %s?", name)
		}
	}
	return text
}

// nearest are the indexes of the names closest to one, at most maxSuggested.
func nearest(name string, names []string) []int {
	if name == "" || len(name) > maxQuoted {
		return nil
	}
	limit := min(maxDistance, max(1, len(name)/3))
	var found []int
	dist := map[int]int{}
	for i, n := range names {
		if d := distance(name, n, limit); d <= limit {
			found, dist[i] = append(found, i), d
		}
	}
	slices.SortStableFunc(found, func(a, b int) int { return cmp.Compare(dist[a], dist[b]) })
	return found[:min(len(found), maxSuggested)]
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

// Missing reports that what ref names is not among the services and pools there
// are, with what may have been meant; "" where it is.
func Missing(ref routing.Ref, services, pools []service.Key) string {
	existing := services
	if ref.Pool {
		existing = pools
	}
	if slices.Contains(existing, ref.Key) {
		return ""
	}
	return notFound(ref, existing)
}
