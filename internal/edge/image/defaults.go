package image

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

var fieldName = pattern(`^[A-Za-z][A-Za-z0-9_]*$`)

// settingsEnv reads a settings file as the variables that mean the same:
// the prefix and the field's name in capitals, with text as it is and anything
// else as JSON. The parameters of a model are fields like the others; null is
// no setting.
func settingsEnv(file, prefix string) ([]string, error) {
	text, err := readBounded(file, maxSettingsBytes)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if parameters, found := fields["parameters"]; found && prefix == "MLSERVER_MODEL_" {
		var inner map[string]json.RawMessage
		if err := json.Unmarshal(parameters, &inner); err != nil {
			return nil, fmt.Errorf("%s: parameters: %w", file, err)
		}
		delete(fields, "parameters")
		for name, value := range inner {
			if _, twice := fields[name]; !twice {
				fields[name] = value
			}
		}
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !fieldName().MatchString(name) {
			return nil, fmt.Errorf("%s: %q cannot be a setting: letters, digits and underscores can", file, name)
		}
		value, err := envValue(fields[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, name, err)
		}
		if value != "null" {
			env = append(env, prefix+strings.ToUpper(name)+"="+value)
		}
	}
	return env, nil
}

// envValue is a JSON value as a variable has it.
func envValue(raw json.RawMessage) (string, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil && raw[0] == '"' {
		if strings.ContainsAny(text, "\x00\r\n") {
			return "", fmt.Errorf("%q: a variable has one line", text)
		}
		return text, nil
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return "", err
	}
	return compact.String(), nil
}
