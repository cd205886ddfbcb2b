package modelserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The prefixes of MLServer's variables.
const (
	serverPrefix = "MLSERVER_"
	modelPrefix  = "MLSERVER_MODEL_"
)

// Environment holds environment variables by upper-case name, as MLServer
// ignores their case.
type Environment map[string]string

// ReadEnvironment keeps MLServer's variables of environ ("KEY=value") and,
// where those lack them, of dotenv files, the first first. Files need not be
// there.
func ReadEnvironment(environ []string, files ...string) (Environment, error) {
	e := Environment{}
	for _, file := range slices.Backward(files) {
		if err := e.readFile(file); err != nil {
			return nil, err
		}
	}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		e.set(name, value)
	}
	return e, nil
}

func (e Environment) set(name, value string) {
	if name = strings.ToUpper(name); strings.HasPrefix(name, serverPrefix) {
		e[name] = value
	}
}

// readFile reads the lines NAME=value of a dotenv file. Lines that are not of
// the server are passed over, whatever they hold.
func (e Environment) readFile(path string) error {
	text, err := readSettingsFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for number, line := range strings.Split(string(text), "\n") {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		name = strings.TrimSpace(name)
		if !ok || !strings.HasPrefix(strings.ToUpper(name), serverPrefix) {
			continue
		}
		value, err := unquote(strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("%s:%d: %s: %w", path, number+1, name, err)
		}
		e.set(name, value)
	}
	return nil
}

// unquote reads the value of a dotenv line: in double quotes with escapes, in
// single quotes as it is, or bare up to a comment.
func unquote(value string) (string, error) {
	switch {
	case strings.HasPrefix(value, `"`):
		quoted, err := strconv.QuotedPrefix(value)
		if err != nil {
			return "", errors.New("the double quotes do not end, or hold an unknown escape")
		}
		return strconv.Unquote(quoted)
	case strings.HasPrefix(value, "'"):
		inside, _, ok := strings.Cut(value[1:], "'")
		if !ok {
			return "", errors.New("the single quotes do not end")
		}
		return inside, nil
	}
	value, _, _ = strings.Cut(value, " #")
	return strings.TrimSpace(value), nil
}

// kind is the type of a setting.
type kind uint8

const (
	kindText    kind = iota // a string
	kindNumber              // a number, also written as a string
	kindBoolean             // true, false, and the words for them
	kindJSON                // any JSON
	kindEither              // JSON or, in a variable, a string without quotes
)

// words are the ways to write a boolean.
var words = map[string]string{"true": "true", "1": "true", "yes": "true", "on": "true", "t": "true", "y": "true",
	"false": "false", "0": "false", "no": "false", "off": "false", "f": "false", "n": "false"}

// read turns a variable's value into JSON of the kind.
func (k kind) read(variable string) (json.RawMessage, error) {
	switch k {
	case kindText:
		return json.Marshal(variable)
	case kindBoolean:
		if word, ok := words[strings.ToLower(variable)]; ok {
			return json.RawMessage(word), nil
		}
		return nil, fmt.Errorf("%q is neither true nor false", variable)
	}
	if !json.Valid([]byte(variable)) {
		if k == kindEither {
			return json.Marshal(variable)
		}
		return nil, fmt.Errorf("%q is not JSON", variable)
	}
	return json.RawMessage(variable), nil
}

// loosen turns the string that stands for a number or boolean in a file into
// what it stands for.
func (k kind) loosen(raw json.RawMessage) json.RawMessage {
	if k != kindNumber && k != kindBoolean {
		return raw
	}
	var written string
	if json.Unmarshal(raw, &written) != nil {
		written = string(raw) // 0 and 1 for false and true
	}
	if read, err := k.read(written); err == nil {
		return read
	}
	return raw
}

// overlay fills the fields that raw lacks from the environment, and loosens
// those it has.
func (e Environment) overlay(raw map[string]json.RawMessage, prefix string, fields map[string]kind) error {
	for field, k := range fields {
		if _, set := raw[field]; set {
			raw[field] = k.loosen(raw[field])
			continue
		}
		name := prefix + strings.ToUpper(field)
		variable, ok := e[name]
		if !ok {
			continue
		}
		read, err := k.read(variable)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		raw[field] = read
	}
	return nil
}

// maxSettingsBytes bounds a settings file.
const maxSettingsBytes = 1 << 20

// readSettingsFile reads a file of bounded size.
func readSettingsFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSettingsBytes {
		return nil, fmt.Errorf("%s: a settings file is a regular file of at most %d bytes", path, maxSettingsBytes)
	}
	return os.ReadFile(path)
}

// readObject reads a JSON object from a file. The result is never nil.
func readObject(path string) (map[string]json.RawMessage, error) {
	raw := map[string]json.RawMessage{}
	text, err := readSettingsFile(path)
	if err != nil {
		return raw, err
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		line := 1
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			line += bytes.Count(text[:min(int(syntax.Offset), len(text))], []byte("\n"))
		}
		return map[string]json.RawMessage{}, fmt.Errorf("%s:%d: %w", path, line, err)
	}
	if raw == nil { // null in the file
		raw = map[string]json.RawMessage{}
	}
	return raw, nil
}

// fill unmarshals raw into target.
func fill(target any, raw map[string]json.RawMessage, path string) error {
	text, err := json.Marshal(raw)
	if err == nil {
		err = json.Unmarshal(text, target)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
