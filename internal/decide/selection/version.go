package selection

import (
	"cmp"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// version is a dotted version taken apart: 1 = 1.0 = 1.0.0 = v1.
type version struct {
	release []string // digits without leading zeros; trailing zero components dropped
	stage   int      // -1 before the release (rc, dev), 0 the release, 1 after it (post)
	suffix  []string // runs of digits or of letters, lower case
}

// parseVersion reads the forms in use for formats and Python packages:
// semantic versions (1.2.3-rc.1+build) and PEP 440's (2.1.0rc1, 4.40.0.dev0,
// 1.0.post1). ok is false when it does not begin with a number.
func parseVersion(s string) (v version, ok bool) {
	s = strings.ToLower(strings.TrimSpace(s))
	s = strings.TrimPrefix(s, "v")
	s, _, _ = strings.Cut(s, "+") // build metadata orders nothing
	v.release, s = components(s)
	if len(v.release) == 0 {
		return version{}, false
	}
	for n := len(v.release); n > 0 && v.release[n-1] == ""; n-- {
		v.release = v.release[:n-1]
	}
	v.suffix = runs(s)
	if len(v.suffix) > 0 {
		v.stage = -1
		if v.suffix[0] == "post" {
			v.stage = 1
		}
	}
	return v, true
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

// runs cuts s into runs of digits and runs of letters; anything else parts
// them.
func runs(s string) []string {
	var out []string
	kind := 0
	for i := 0; i < len(s); i++ {
		k := 2
		switch c := s[i]; {
		case isDigit(c):
			k = 1
		case c == '.' || c == '-' || c == '_':
			k = 0
		}
		if k != 0 && k == kind {
			out[len(out)-1] += s[i : i+1]
		} else if k != 0 {
			out = append(out, s[i:i+1])
		}
		kind = k
	}
	return out
}

// compare orders two versions: -1, 0 or 1.
func (v version) compare(w version) int {
	for i := range max(len(v.release), len(w.release)) {
		if c := compareNumbers(at(v.release, i), at(w.release, i)); c != 0 {
			return c
		}
	}
	if c := cmp.Compare(v.stage, w.stage); c != 0 {
		return c
	}
	for i := range min(len(v.suffix), len(w.suffix)) {
		if c := compareRuns(v.suffix[i], w.suffix[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(v.suffix), len(w.suffix))
}

func at(s []string, i int) string {
	if i < len(s) {
		return s[i]
	}
	return ""
}

// compareNumbers compares digit strings of any length.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// compareRuns follows semantic versioning: numbers come before letters.
func compareRuns(a, b string) int {
	da, db := isDigit(a[0]), isDigit(b[0])
	switch {
	case da && db:
		return compareNumbers(a, b)
	case da:
		return -1
	case db:
		return 1
	}
	return cmp.Compare(a, b)
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

// metBy says whether a runtime's version meets the one asked for under an
// operator (runtime = / > / >= model). Versions that do not begin with a
// number can only be equal, as text without regard to case; so "" meets none.
func (a asked) metBy(runtime string, op service.Operator) bool {
	c := 0
	if runtime != a.text {
		v, ok := parseVersion(runtime)
		switch {
		case ok && a.ok:
			c = v.compare(a.parsed)
		case !strings.EqualFold(strings.TrimSpace(runtime), a.text):
			return false
		}
	}
	switch op {
	case service.OperatorGreaterThan:
		return c > 0
	case service.OperatorGreaterThanOrEqual:
		return c >= 0
	}
	return c == 0
}
