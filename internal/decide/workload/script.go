package workload

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	shells        = map[string]bool{"sh": true, "bash": true, "dash": true, "ash": true, "zsh": true, "ksh": true}
	textOption    = regexp.MustCompile(`^-[a-zA-Z]*c[a-zA-Z]*$`)
	python        = regexp.MustCompile(`^python[0-9.]*$`)
	assignment    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
	redirection   = regexp.MustCompile(`^[0-9]*&?[<>]`)
	beforeProgram = map[string]bool{"exec": true, "env": true, "nohup": true, "then": true, "do": true, "else": true, "if": true, "while": true, "until": true, "!": true, "{": true}
)

// scriptAt is which word is the text of a shell (sh -c TEXT), -1 for none.
func scriptAt(words []string) int {
	if len(words) > 1 && (words[0] == "-c" || words[0] == "-lc") && strings.ContainsAny(words[1], " \n") {
		return 1 // the shell is the image's entry point
	}
	shell := false
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case shells[path.Base(w)]:
			shell = true
		case !shell:
		case textOption.MatchString(w):
			at := i + 1 + strings.Count(w, "o") // -o has a word of its own
			for at < len(words) && strings.HasPrefix(words[at], "-") {
				at++
			}
			if at < len(words) {
				return at
			}
			return -1
		case !strings.HasPrefix(w, "-") && !strings.HasPrefix(w, "+"):
			shell = false // a file to run
		case strings.HasSuffix(w, "o"):
			i++
		}
	}
	return -1
}

// program is what words run, without what stands before it: assignments, exec, then.
func program(words []string) []string {
	i := slices.IndexFunc(words, func(w string) bool { return !beforeProgram[w] && !assignment.MatchString(w) })
	if i < 0 {
		return nil
	}
	return words[i:]
}

// runsEngine reports whether words run vLLM or SGLang: its program or its module.
func runsEngine(words []string) bool {
	words = program(words)
	if len(words) == 0 {
		return false
	}
	if name := path.Base(words[0]); !python.MatchString(name) {
		return name == "vllm" || name == "sglang"
	}
	at := slices.Index(words, "-m") + 1
	if at == 0 || at == len(words) {
		return false
	}
	module, _, _ := strings.Cut(words[at], ".")
	return module == "vllm" || module == "sglang"
}

// joinsRay reports whether words make a node of Ray, which takes no engine's flags.
func joinsRay(words []string) bool {
	words = program(words)
	return len(words) > 0 && path.Base(words[0]) == "ray"
}

// span is where a word lies in the text of a shell.
type span struct{ from, to int }

// script is the text of a shell and its commands.
type script struct {
	text     string
	commands [][]span
	words    [][]string // those of commands, without quotes
	at       int        // the command that runs the engine, else the last one
	engine   bool
}

var errUnread = errors.New("the script has a here-document or a quote without an end: write the engine's command as a list of words")

// readScript reads the text of a shell as far as it takes to find the engine's command.
func readScript(text string) (s script, err error) {
	s.text = text
	var words []span
	from := -1
	end := func(i int) {
		if from >= 0 {
			words, from = append(words, span{from, i}), -1
		}
	}
	cut := func(i int) {
		if end(i); len(words) > 0 {
			s.commands, words = append(s.commands, words), nil
		}
	}
	for i, n := 0, 0; i < len(text); i += n {
		n = 1
		switch c := text[i]; {
		case c == ' ' || c == '\t':
			end(i)
			continue
		case strings.HasPrefix(text[i:], "\\\n"):
			n = 2
			continue
		case strings.HasPrefix(text[i:], "<<"):
			return s, errUnread
		case c == '#' && from < 0:
			if n = strings.IndexByte(text[i:], '\n'); n < 0 {
				n = len(text) - i
			}
			continue
		case c == '&' && (i > 0 && strings.IndexByte("<>", text[i-1]) >= 0 || strings.HasPrefix(text[i+1:], ">")): // 2>&1, &>
		case strings.IndexByte("\n;|&()", c) >= 0:
			cut(i)
			continue
		default:
			if n = quoted(text[i:], 0); n < 0 {
				return s, errUnread
			}
		}
		if from < 0 {
			from = i
		}
	}
	cut(len(text))
	s.find()
	return s, nil
}

// find finds the engine's command.
func (s *script) find() {
	s.at = len(s.commands) - 1
	for i, c := range s.commands {
		var plain []string
		for _, w := range c {
			plain = append(plain, unquote.Replace(s.text[w.from:w.to]))
		}
		s.words = append(s.words, plain)
		if runsEngine(plain) {
			s.at, s.engine = i, true
		}
	}
}

var unquote = strings.NewReplacer(`"`, "", "'", "", "\\\n", "")

// maxNesting is how deep quotes and substitutions may be in each other.
const maxNesting = 16

// quoted is how much of text, from its beginning, is one character, one quote or one
// substitution; -1 where that does not end.
func quoted(text string, depth int) int {
	closing, i := byte(0), 1
	switch {
	case text[0] == '\\':
		return min(2, len(text))
	case text[0] == '\'':
		if n := strings.IndexByte(text[1:], '\''); n >= 0 {
			return n + 2
		}
		return -1
	case text[0] == '"' || text[0] == '`':
		closing = text[0]
	case strings.HasPrefix(text, "$("):
		closing, i = ')', 2
	case strings.HasPrefix(text, "${"):
		closing, i = '}', 2
	case text[0] == '(' && depth > 0:
		closing = ')'
	default:
		return 1
	}
	if depth == maxNesting {
		return -1
	}
	for i < len(text) {
		switch c := text[i]; {
		case c == closing:
			return i + 1
		case closing == '"' && (c == '\'' || c == '('):
			i++
		default:
			n := quoted(text[i:], depth+1)
			if n < 0 {
				return -1
			}
			i += n
		}
	}
	return -1
}

// standing are the words of command number i that are a flag.
func (s *script) standing(i int, name string) (at []int) {
	if i < 0 {
		return nil
	}
	for k, w := range s.words[i] {
		if have, ok := flagName(w); ok && have == name {
			at = append(at, k)
		}
	}
	return at
}

// replace puts words in place of word number k of the engine's command, a flag, and of
// its value.
func (s *script) replace(k int, words []string) string {
	command, plain := s.commands[s.at], s.words[s.at]
	from, to := command[k].from, command[k].to
	if next := k + 1; next < len(plain) && !strings.Contains(plain[k], "=") {
		_, isFlag := flagName(plain[next])
		if !isFlag && plain[next] != "$@" && plain[next] != "$*" && !redirection.MatchString(plain[next]) {
			to = command[next].to
		}
	}
	return s.text[:from] + shellWords(words) + s.text[to:]
}

// add puts words at the end of the engine's command, where that is certain.
func (s *script) add(words []string) (string, error) {
	last := len(s.commands) - 1
	executed := func(words []string) bool {
		return slices.Contains(words[:len(words)-len(program(words))], "exec")
	}
	switch {
	case s.engine && s.at < last:
		return "", fmt.Errorf("%s cannot be added to the script: %q comes after the engine's command: write the flag into the script, where it is replaced, or make the engine's command the last", words[0], strings.Join(s.words[s.at+1], " "))
	case !s.engine && last != 0 && (last < 0 || !executed(s.words[last])):
		return "", fmt.Errorf("%s cannot be added to the script: none of its commands is known to be the engine's: write the flag into the script, where it is replaced, or start the server with exec as the last command", words[0])
	}
	end := s.commands[s.at][len(s.commands[s.at])-1].to
	return s.text[:end] + " " + shellWords(words) + s.text[end:], nil
}

func shellWords(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = shellWord(w)
	}
	return strings.Join(out, " ")
}

// doubleQuoted escapes what a shell reads inside double quotes, but for variables.
var doubleQuoted = strings.NewReplacer(`"`, `\"`, `\`, `\\`, "`", "\\`")

// shellWord quotes a word for a shell; a variable in it (${NAME}) is still filled in.
func shellWord(w string) string {
	switch {
	case strings.Contains(w, "${"):
		return `"` + doubleQuoted.Replace(w) + `"`
	case w != "" && !strings.ContainsAny(w, " \t\r\n\"'{}()[]*?;&|<>#~`\\!"):
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}
