package llmisvc

import (
	"errors"
	"regexp"
	"strings"
)

// words splits a text as a shell does: at spaces outside of quotes. A variable
// becomes one that Kubernetes fills in a container's arguments. Nothing else of a
// shell's language is known, and what would run a command is an error.
func words(text string) ([]string, error) {
	var out []string
	var word strings.Builder
	begun := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			if begun {
				out, begun = append(out, word.String()), false
				word.Reset()
			}
			continue
		case c == '\\' && strings.HasPrefix(text[i+1:], "\n"): // the line goes on
			i++
			continue
		case c == '\\':
			if i++; i < len(text) {
				word.WriteByte(text[i])
			}
		case c == '\'':
			end := strings.IndexByte(text[i+1:], '\'')
			if end < 0 {
				return nil, errors.New("a single quote is not closed")
			}
			word.WriteString(text[i+1 : i+1+end])
			i += end + 1
		case c == '"':
			end, err := quoted(text[i+1:], &word)
			if err != nil {
				return nil, err
			}
			i += end + 1
		case strings.IndexByte("`;|&<>", c) >= 0 || c == '$' && strings.HasPrefix(text[i:], "$(") && !reference.MatchString(text[i:]):
			return nil, errors.New("a command of a shell stands in it, and none is run: write arguments alone")
		case c == '$':
			i += variable(text[i:], &word) - 1
		default:
			word.WriteByte(c)
		}
		begun = true
	}
	if begun {
		out = append(out, word.String())
	}
	return out, nil
}

// quoted writes what stands before the closing double quote, and returns where that
// is.
func quoted(text string, word *strings.Builder) (end int, err error) {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			return i, nil
		case '\\':
			if i+1 < len(text) && strings.IndexByte("\"\\$`", text[i+1]) >= 0 {
				i++
			}
			word.WriteByte(text[i])
		case '$':
			i += variable(text[i:], word) - 1
		default:
			word.WriteByte(c)
		}
	}
	return 0, errors.New("a double quote is not closed")
}

var (
	shellVariable = regexp.MustCompile(`^\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))`)
	reference     = regexp.MustCompile(`^\$\([A-Za-z_][A-Za-z0-9_]*\)`)
)

// variable writes the variable that text begins with, or its dollar, and returns the
// length of what it read.
func variable(text string, word *strings.Builder) int {
	if r := reference.FindString(text); r != "" {
		word.WriteString(r)
		return len(r)
	}
	m := shellVariable.FindStringSubmatch(text)
	if m == nil {
		word.WriteByte('$')
		return 1
	}
	word.WriteString("$(" + m[1] + m[2] + ")")
	return len(m[0])
}
