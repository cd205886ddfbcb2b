package modelserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// This file finds all that is wrong with a request's schema, as pydantic does
// for MLServer. The decoder stops at the first fault, which is all that a good
// request costs; a bad one is looked at again here.

// The bounds on looking again: the largest body, how many faults are reported, and
// the largest value that a fault repeats, in bytes.
const (
	maxFaultyBody  = 1 << 20
	maxFaults      = 32
	maxFaultyInput = 512
)

// schemaError is a request with faults of its schema: the decoder's, and all.
type schemaError struct {
	first *tensor.Error
	all   []errorDetail
}

func (e *schemaError) Error() string { return e.first.Error() }
func (e *schemaError) Unwrap() error { return e.first }

// allFaults adds all faults of an inference request's body to the decoder's
// error. body is not kept.
func allFaults(err error, body []byte) error {
	first, ok := errors.AsType[*tensor.Error](err)
	if !ok || first.Kind != tensor.KindSchema || len(body) > maxFaultyBody {
		return err
	}
	f := &faults{}
	f.request(body)
	if len(f.list) == 0 {
		return err // one that only the decoder knows, as broken JSON
	}
	return &schemaError{first, f.list}
}

// faults collects faults, in the order of pydantic: that of the models' fields.
type faults struct{ list []errorDetail }

// add notes a fault of the value at a path.
func (f *faults) add(kind, message string, input json.RawMessage, ctx map[string]any, path ...any) {
	if len(f.list) == maxFaults {
		return
	}
	if len(input) > maxFaultyInput {
		input = nil
	}
	f.list = append(f.list, errorDetail{Type: kind, Loc: append([]any{"body"}, path...), Message: message, Input: append(json.RawMessage(nil), input...), Context: ctx})
}

// object reads an object; false if it is none.
func (f *faults) object(raw json.RawMessage, path ...any) (map[string]json.RawMessage, bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || fields == nil {
		f.add("model_attributes_type", "Input should be a valid dictionary or object to extract fields from", raw, nil, path...)
		return nil, false
	}
	return fields, true
}

// required gives a field, and notes when it is not there.
func (f *faults) required(of json.RawMessage, fields map[string]json.RawMessage, name string, path []any) (json.RawMessage, []any, bool) {
	at := append(path[:len(path):len(path)], name)
	raw, ok := fields[name]
	if !ok {
		f.add("missing", "Field required", of, nil, at...)
	}
	return raw, at, ok
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// each reads the elements of a list.
func (f *faults) each(raw json.RawMessage, path []any, element func(raw json.RawMessage, path []any)) {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || list == nil {
		f.add("list_type", "Input should be a valid list", raw, nil, path...)
		return
	}
	for i, item := range list {
		element(item, append(path[:len(path):len(path)], i))
	}
}

func (f *faults) text(raw json.RawMessage, path []any) {
	if len(raw) == 0 || raw[0] != '"' {
		f.add("string_type", "Input should be a valid string", raw, nil, path...)
	}
}

// request looks at an InferenceRequest.
func (f *faults) request(body json.RawMessage) {
	if !json.Valid(body) {
		return
	}
	fields, ok := f.object(body)
	if !ok {
		return
	}
	if id := fields["id"]; !isNull(id) {
		f.text(id, []any{"id"})
	}
	f.parameters(fields["parameters"], []any{"parameters"})
	if inputs, at, ok := f.required(body, fields, "inputs", nil); ok {
		f.each(inputs, at, f.input)
	}
	if outputs := fields["outputs"]; !isNull(outputs) {
		f.each(outputs, []any{"outputs"}, func(raw json.RawMessage, path []any) {
			if output, ok := f.object(raw, path...); ok {
				if name, at, ok := f.required(raw, output, "name", path); ok {
					f.text(name, at)
				}
				f.parameters(output["parameters"], append(path[:len(path):len(path)], "parameters"))
			}
		})
	}
}

// input looks at a RequestInput.
func (f *faults) input(raw json.RawMessage, path []any) {
	fields, ok := f.object(raw, path...)
	if !ok {
		return
	}
	if name, at, ok := f.required(raw, fields, "name", path); ok {
		f.text(name, at)
	}
	if shape, at, ok := f.required(raw, fields, "shape", path); ok {
		f.each(shape, at, f.integer)
	}
	if datatype, at, ok := f.required(raw, fields, "datatype", path); ok {
		f.datatype(datatype, at)
	}
	f.parameters(fields["parameters"], append(path[:len(path):len(path)], "parameters"))
	f.required(raw, fields, "data", path)
}

// expectedDatatypes are named as pydantic names an enum's values.
const expectedDatatypes = "'BOOL', 'UINT8', 'UINT16', 'UINT32', 'UINT64', 'INT8', 'INT16', 'INT32', 'INT64', 'FP16', 'BF16', 'FP32', 'FP64' or 'BYTES'"

func (f *faults) datatype(raw json.RawMessage, path []any) {
	var name string
	if json.Unmarshal(raw, &name) == nil && raw[0] == '"' {
		if _, ok := tensor.ParseDatatype(name); ok {
			return
		}
	}
	f.add("enum", "Input should be "+expectedDatatypes, raw, map[string]any{"expected": expectedDatatypes}, path...)
}

// integer looks at a size.
func (f *faults) integer(raw json.RawMessage, path []any) {
	const valid = "Input should be a valid integer"
	text, quoted := "", false
	switch raw[0] {
	case '"':
		_ = json.Unmarshal(raw, &text) // it is valid
		text, quoted = strings.TrimSpace(text), true
	case 't', 'f': // pydantic's true is 1
		return
	case 'n', '[', '{':
		f.add("int_type", valid, raw, nil, path...)
		return
	default:
		text = string(raw)
	}
	number, ok := new(big.Float).SetString(text)
	switch {
	case !ok || len(text) > 4300:
		f.add("int_parsing", valid+", unable to parse string as an integer", raw, nil, path...)
	case number.IsInt():
	case quoted:
		f.add("int_parsing", valid+", unable to parse string as an integer", raw, nil, path...)
	default:
		f.add("int_from_float", valid+", got a number with a fractional part", raw, nil, path...)
	}
}

// parameters looks at Parameters, which may be left out.
func (f *faults) parameters(raw json.RawMessage, path []any) {
	if isNull(raw) {
		return
	}
	fields, ok := f.object(raw, path...)
	if !ok {
		return
	}
	if contentType := fields["content_type"]; !isNull(contentType) {
		f.text(contentType, append(path[:len(path):len(path)], "content_type"))
	}
	if headers := fields["headers"]; !isNull(headers) && headers[0] != '{' {
		f.add("dict_type", "Input should be a valid dictionary", headers, nil, append(path[:len(path):len(path)], "headers")...)
	}
}

// summary is all faults in a line.
func (e *schemaError) summary() string {
	var parts []string
	for _, d := range e.all {
		part := d.Message
		if path := d.Loc[1:]; len(path) > 0 {
			steps := make([]string, len(path))
			for i, step := range path {
				steps[i] = fmt.Sprint(step)
			}
			part = strings.Join(steps, ".") + ": " + part
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}
