package selection

import (
	"cmp"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// version is a dotted version taken apart. OME's rules hold for every dialect:
// 1 = 1.0 = 1.0.0 = v1, and what follows the numbers must be the same.
type version struct {
	prefixed bool     // begins with a v
	parts    int      // how many numbers were written
	release  []string // digits without leading zeros; trailing zero components dropped
	suffix   string   // what follows the numbers ("-rc.1", ".dev0", "+build"), lower case
}

// parseVersion reads a version; ok is false when it does not begin with a
// number.
func parseVersion(s string) (v version, ok bool) {
	s = strings.ToLower(strings.TrimSpace(s))
	s, v.prefixed = strings.CutPrefix(s, "v")
	v.release, v.suffix = components(s)
	v.parts = len(v.release)
	for n := len(v.release); n > 0 && v.release[n-1] == ""; n-- {
		v.release = v.release[:n-1]
	}
	return v, v.parts > 0
}

// components takes the leading dotted numbers off s.
func components(s string) (numbers []string, rest string) {
	for {
		n := 0
		for n < len(s) && isDigit(s[n]) {
			n++
		}
		if n == 0 {
			return numbers, s
		}
		numbers = append(numbers, strings.TrimLeft(s[:n], "0"))
		s = s[n:]
		if len(s) < 2 || s[0] != '.' || !isDigit(s[1]) {
			return numbers, s
		}
		s = s[1:]
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// compare orders the numbers of two versions: -1, 0 or 1.
func (v version) compare(w version) int {
	for i := range max(len(v.release), len(w.release)) {
		a, b := at(v.release, i), at(w.release, i)
		if c := cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)); c != 0 {
			return c
		}
	}
	return 0
}

func at(s []string, i int) string {
	if i < len(s) {
		return s[i]
	}
	return ""
}

// ordered reports whether one of two versions can be above the other: both are
// releases, written alike.
func (v version) ordered(w version) bool {
	return v.suffix == "" && w.suffix == "" && v.parts == w.parts && v.prefixed == w.prefixed
}

// asked is a model's version, taken apart once for all entries.
type asked struct {
	text   string // "" when the model states none
	parsed version
	ok     bool
}

func ask(text string) asked {
	v, ok := parseVersion(text)
	return asked{strings.TrimSpace(text), v, ok}
}

// metBy reports whether a runtime's version meets the one asked for under an
// operator (runtime = / > / >= model). Versions with a suffix can only be equal,
// whatever the operator; so can those that do not begin with a number, as text
// without regard to case. "" meets none.
func (a asked) metBy(runtime string, op service.Operator) bool {
	v, ok := parseVersion(runtime)
	if !ok || !a.ok {
		return strings.EqualFold(strings.TrimSpace(runtime), a.text) && op != service.OperatorGreaterThan
	}
	c := v.compare(a.parsed)
	switch {
	case v.suffix != "" || a.parsed.suffix != "" || !compares(op):
		return c == 0 && v.suffix == a.parsed.suffix
	case !v.ordered(a.parsed):
		return false
	case op == service.OperatorGreaterThan:
		return c > 0
	}
	return c >= 0
}

// compares reports whether an operator orders versions.
func compares(op service.Operator) bool {
	return op == service.OperatorGreaterThan || op == service.OperatorGreaterThanOrEqual
}

// unordered returns why an operator finds no order between a runtime's version and
// the one asked for, "" where it does.
func (a asked) unordered(runtime string, op service.Operator) string {
	v, ok := parseVersion(runtime)
	switch {
	case !compares(op) || !ok || !a.ok || v.ordered(a.parsed):
		return ""
	case v.suffix != "" || a.parsed.suffix != "":
		return " (a version that is no release is only ever equal)"
	}
	return " (only versions written alike are above or below each other)"
}
