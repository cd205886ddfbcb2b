package migrate

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// maxExpanded bounds what macros make of a configuration, which they could
	// double again and again.
	maxExpanded = 4 << 20
	// maxMacros bounds the macros of the whole and of a model.
	maxMacros = 200
	// portMark stands for ${PORT} until the command is made: nobody types it.
	portMark = "\ue000PORT\ue000"
)

// macro is a text or a number that stands for ${name}.
type macro struct {
	name  string
	value any
}

var (
	macroUse    = regexp.MustCompile(`\$\{([a-zA-Z0-9_-]+|env\.[a-zA-Z_][a-zA-Z0-9_]*)\}`)
	errExpanded = fmt.Errorf("its macros make more than %d bytes", maxExpanded)
)

// expandConfig expands the macros of a configuration in place: first those of a
// model, then the global ones, each of which may use those before it. A model whose
// macros cannot be expanded is in broken.
func expandConfig(doc *yaml.Node, raw map[string]any, variables map[string]string, broken map[string]error) error {
	global, err := macrosOf(child(doc, "macros"))
	if err != nil {
		return err
	}
	e := &expander{variables: variables}
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		if key == "models" || key == "macros" || key == "apiKeys" {
			continue
		}
		if raw[key], err = e.value(raw[key], global); errors.Is(err, errExpanded) {
			return err
		}
	}
	models, _ := raw["models"].(map[string]any)
	for _, id := range slices.Sorted(maps.Keys(models)) {
		fields, ok := models[id].(map[string]any)
		if !ok {
			broken[id] = errors.New("is no mapping")
			models[id] = map[string]any{}
			continue
		}
		own, err := macrosOf(child(child(child(doc, "models"), id), "macros"))
		if err != nil {
			broken[id] = err
			continue
		}
		if broken[id] = e.model(id, fields, global, own); errors.Is(broken[id], errExpanded) {
			return broken[id]
		}
	}
	return nil
}

// child is the value of a key in a mapping; nil where there is none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n != nil && n.Kind == yaml.DocumentNode && len(n.Content) == 1 {
		n = n.Content[0]
	}
	if n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// macrosOf reads macros in the order in which they are written.
func macrosOf(n *yaml.Node) ([]macro, error) {
	if n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n == nil {
		return nil, nil
	}
	if n.Kind != yaml.MappingNode || len(n.Content) > 2*maxMacros {
		return nil, fmt.Errorf("macros: want a mapping of at most %d", maxMacros)
	}
	var out []macro
	for i := 0; i+1 < len(n.Content); i += 2 {
		m := macro{name: n.Content[i].Value}
		if err := n.Content[i+1].Decode(&m.value); err != nil {
			return nil, fmt.Errorf("macros.%s: %w", m.name, err)
		}
		switch m.value.(type) {
		case string, int, int64, uint64, float64, bool:
		default:
			return nil, fmt.Errorf("macros.%s: is no text, number or true or false", m.name)
		}
		if strings.Contains(fmt.Sprint(m.value), "${"+m.name+"}") {
			return nil, fmt.Errorf("macros.%s: names itself", m.name)
		}
		out = append(out, m)
	}
	return out, nil
}

// expander puts values in the place of macros, within a bound for all of them.
type expander struct {
	variables map[string]string
	made      int
	lacks     string // a variable, or a macro, that is not known
}

// model expands a model's fields. Its macros come before the global ones of the same
// name, in their place.
func (e *expander) model(id string, fields map[string]any, global, own []macro) error {
	macros := append([]macro{{"MODEL_ID", id}}, global...)
	for _, m := range own {
		if i := slices.IndexFunc(macros, func(o macro) bool { return o.name == m.name }); i >= 0 {
			macros[i] = m
		} else {
			macros = append(macros, m)
		}
	}
	delete(fields, "macros")
	if cmd, ok := fields["cmd"].(string); ok {
		fields["cmd"] = withoutComments(cmd) // a comment names no macro
	}
	macros = append([]macro{{"PORT", portMark}}, macros...)
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		e.lacks = ""
		v, err := e.value(fields[key], macros)
		if err != nil {
			return err
		}
		fields[key] = v
		// Other keys change nothing of what is made.
		if e.lacks != "" && slices.Contains([]string{"cmd", "proxy", "env", "checkEndpoint", "useModelName", "aliases", "ttl"}, key) {
			if name, ok := strings.CutPrefix(e.lacks, "env."); ok {
				return fmt.Errorf("%s: it uses the variable %s: give --env %s to have its value written here", key, name, name)
			}
			return fmt.Errorf("%s: there is no macro ${%s}", key, e.lacks)
		}
	}
	return nil
}

// value expands what a configuration holds. A text that is one macro has its type.
func (e *expander) value(v any, macros []macro) (any, error) {
	switch v := v.(type) {
	case string:
		return e.text(v, macros)
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			name, err := e.text(key, macros)
			if err != nil {
				return nil, err
			}
			if out[fmt.Sprint(name)], err = e.value(v[key], macros); err != nil {
				return nil, err
			}
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			var err error
			if out[i], err = e.value(item, macros); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v, nil
}

func (e *expander) text(s string, macros []macro) (any, error) {
	for i := len(macros) - 1; i >= 0; i-- {
		use := "${" + macros[i].name + "}"
		n := strings.Count(s, use)
		if n == 0 {
			continue
		}
		if _, isText := macros[i].value.(string); s == use && !isText {
			return macros[i].value, nil
		}
		value := fmt.Sprint(macros[i].value)
		if e.made += len(s) + n*len(value); e.made > maxExpanded {
			return nil, errExpanded
		}
		s = strings.ReplaceAll(s, use, value)
	}
	if e.made += len(s); e.made > maxExpanded {
		return nil, errExpanded
	}
	return macroUse.ReplaceAllStringFunc(s, func(use string) string {
		name := macroUse.FindStringSubmatch(use)[1]
		if value, ok := e.variables[strings.TrimPrefix(name, "env.")]; ok && strings.HasPrefix(name, "env.") {
			return value
		}
		e.lacks = name
		return use
	}), nil
}

// withoutComments removes the lines of a command that are comments, and joins those
// that end in a backslash.
func withoutComments(cmd string) string {
	var out []string
	for line := range strings.SplitSeq(cmd, "\n") {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "#") {
			continue
		}
		if cut, ok := strings.CutSuffix(trimmed, `\`); ok {
			line = cut + " "
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// maxWords bounds a command.
const maxWords = 1000

// splitCommand splits a command line into words as a POSIX shell does, without
// anything else of a shell: nothing is run or replaced.
func splitCommand(cmd string) ([]string, error) {
	w := words{rest: []rune(withoutComments(cmd))}
	for len(w.rest) > 0 {
		w.next()
	}
	w.end()
	switch {
	case strings.ContainsRune(cmd, 0):
		return nil, errors.New("it has a zero byte")
	case w.quote != 0:
		return nil, errors.New("its quotes do not end")
	case len(w.out) == 0 || w.out[0] == "":
		return nil, errors.New("it is empty")
	case len(w.out) > maxWords:
		return nil, fmt.Errorf("%d words are more than a command may have (%d)", len(w.out), maxWords)
	}
	return w.out, nil
}

// words are the words of a command line that is being split.
type words struct {
	rest  []rune
	word  strings.Builder
	begun bool // a word, which may be empty
	quote rune // that is open; 0 for none
	out   []string
}

func (w *words) end() {
	if w.begun {
		w.out = append(w.out, w.word.String())
	}
	w.word.Reset()
	w.begun = false
}

// next takes the next character, or two of which the first escapes the second.
func (w *words) next() {
	r := w.rest[0]
	w.rest = w.rest[1:]
	switch {
	case w.quote != 0 && r == w.quote:
		w.quote = 0
		return
	case w.quote == 0 && (r == '\'' || r == '"'):
		w.quote, w.begun = r, true
		return
	case w.quote == 0 && strings.ContainsRune(" \t\r\n", r):
		w.end()
		return
	case r == '\\' && w.escapes():
		r = w.rest[0]
		w.rest = w.rest[1:]
	}
	w.word.WriteRune(r)
	w.begun = true
}

// escapes reports whether a backslash stands before a character that it escapes here.
func (w *words) escapes() bool {
	if len(w.rest) == 0 || w.quote == '\'' {
		return false
	}
	return w.quote == 0 || w.rest[0] == '"' || w.rest[0] == '\\'
}
