package workload

import "strings"

// flag is one option of a command line as written: its words in order.
type flag struct {
	name  string // normalized; "" for leading positional words
	words []string
}

// MergeArgs lays a service's arguments over a runtime's by flag: a flag the
// service states takes the place of the runtime's, a new one is appended. A
// flag that stands more than once on either side is repeatable, and all its
// occurrences are kept, the runtime's first. Positional words before the
// first flag are kept from both.
//
// "--a=1", "--a 1" and "-a 1" are read alike, and "-" and "_" inside a name
// are one: servers in this field accept either.
func MergeArgs(runtime, service []string) []string {
	if len(service) == 0 {
		return runtime
	}
	base, over := parseArgs(runtime), parseArgs(service)
	repeated := map[string]bool{}
	for _, side := range [][]flag{base, over} {
		seen := map[string]bool{}
		for _, f := range side {
			repeated[f.name] = repeated[f.name] || seen[f.name]
			seen[f.name] = true
		}
	}
	replaces := map[string][]string{}
	for _, f := range over {
		if f.name != "" && !repeated[f.name] {
			replaces[f.name] = f.words
		}
	}
	var out []string
	placed := map[string]bool{}
	for _, f := range base {
		if words, ok := replaces[f.name]; ok {
			out = append(out, words...)
			placed[f.name] = true
			continue
		}
		out = append(out, f.words...)
		if f.name == "" { // the service's positional words follow the runtime's
			out = append(out, positional(over)...)
			placed[""] = true
		}
	}
	if !placed[""] {
		out = append(append([]string{}, positional(over)...), out...)
	}
	for _, f := range over {
		if f.name != "" && !placed[f.name] {
			out = append(out, f.words...)
		}
	}
	return out
}

func positional(fs []flag) []string {
	if len(fs) > 0 && fs[0].name == "" {
		return fs[0].words
	}
	return nil
}

// parseArgs groups words by the flag they belong to: without knowing a
// program's flags, a word after a flag is its value.
func parseArgs(words []string) []flag {
	var out []flag
	for _, w := range words {
		if name, ok := flagName(w); ok {
			out = append(out, flag{name: name, words: []string{w}})
			continue
		}
		if len(out) == 0 {
			out = append(out, flag{})
		}
		last := &out[len(out)-1]
		last.words = append(last.words, w)
	}
	return out
}

// flagName is the normalized name of a word that is a flag; negative numbers
// and a lone "-" are values.
func flagName(w string) (string, bool) {
	if len(w) < 2 || w[0] != '-' || w == "--" {
		return "", false
	}
	if c := w[1]; c >= '0' && c <= '9' || c == '.' {
		return "", false
	}
	name, _, _ := strings.Cut(w, "=")
	return strings.ReplaceAll(name, "_", "-"), true
}
