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
	var s splitter
	for len(text) > 0 {
		n, err := s.take(text)
		if err != nil {
			return nil, err
		}
		text = text[n:]
	}
	s.end()
	return s.out, nil
}

// splitter is a text that is being split.
type splitter struct {
	out   []string
	word  strings.Builder
	begun bool // a word, which may be empty
}

func (s *splitter) end() {
	if s.begun {
		s.out, s.begun = append(s.out, s.word.String()), false
		s.word.Reset()
	}
}

// take reads what rest begins with, and returns the length of that.
func (s *splitter) take(rest string) (n int, err error) {
	switch c := rest[0]; c {
	case ' ', '\t', '\n', '\r':
		s.end()
		return 1, nil
	case '\\':
		if strings.HasPrefix(rest, "\\\n") { // the line goes on
			return 2, nil
		}
		s.begun = true
		s.word.WriteString(rest[1:min(2, len(rest))])
		return min(2, len(rest)), nil
	case '\'':
		s.begun = true
		end := strings.IndexByte(rest[1:], '\'')
		if end < 0 {
			return 0, errors.New("a single quote is not closed")
		}
		s.word.WriteString(rest[1 : 1+end])
		return end + 2, nil
	case '"':
		s.begun = true
		end, err := quoted(rest[1:], &s.word)
		return end + 2, err
	case '`', ';', '|', '&', '<', '>':
		return 0, errCommand
	case '$':
		s.begun = true
		if strings.HasPrefix(rest, "$(") && !reference.MatchString(rest) {
			return 0, errCommand
		}
		return variable(rest, &s.word), nil
	default:
		s.begun = true
		s.word.WriteByte(c)
		return 1, nil
	}
}

var errCommand = errors.New("a command of a shell stands in it, and none is run: write arguments alone")

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
		case '`':
			return 0, errCommand
		case '$':
			if strings.HasPrefix(text[i:], "$(") && !reference.MatchString(text[i:]) {
				return 0, errCommand
			}
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
