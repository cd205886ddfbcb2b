package tensor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// DecodeRequest reads the JSON of an inference request. Unknown fields are
// dropped, except inside parameters. Errors are *Error, with a path of the
// form inputs, 0, shape.
func DecodeRequest(body []byte) (*Request, error) {
	return decodeRequest(&scanner{data: body})
}

func decodeRequest(s *scanner) (*Request, error) {
	r := &Request{}
	seen := fields{known: requestFields}
	err := s.mapping(func(key []byte) *Error {
		name := seen.note(key)
		return s.fieldOf(name, func() *Error { return s.requestField(r, name) })
	})
	if err == nil {
		err = s.end()
	}
	if err == nil {
		err = seen.need("inputs")
	}
	if err == nil {
		err = s.endOfTail()
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (s *scanner) requestField(r *Request, name string) (err *Error) {
	switch name {
	case "id":
		r.ID, err = s.optionalString()
	case "parameters":
		r.Parameters, err = s.parameters()
	case "inputs":
		r.Inputs, err = s.tensors("input")
	case "outputs":
		r.Outputs, err = s.requestedOutputs()
	}
	return err
}

// DecodeResponse reads the JSON of an inference response.
func DecodeResponse(body []byte) (*Response, error) {
	return decodeResponse(&scanner{data: body})
}

func decodeResponse(s *scanner) (*Response, error) {
	r := &Response{}
	seen := fields{known: responseFields}
	err := s.mapping(func(key []byte) *Error {
		name := seen.note(key)
		return s.fieldOf(name, func() *Error { return s.responseField(r, name) })
	})
	if err == nil {
		err = s.end()
	}
	if err == nil {
		err = seen.need("outputs")
	}
	if err == nil {
		err = s.endOfTail()
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (s *scanner) responseField(r *Response, name string) (err *Error) {
	switch name {
	case "model_name":
		r.ModelName, err = s.optionalString()
	case "model_version":
		r.ModelVersion, err = s.optionalString()
	case "id":
		r.ID, err = s.optionalString()
	case "parameters":
		r.Parameters, err = s.parameters()
	case "outputs":
		r.Outputs, err = s.tensors("output")
	}
	return err
}

// The fields of the protocol's objects.
var (
	requestFields  = []string{"id", "parameters", "inputs", "outputs"}
	responseFields = []string{"model_name", "model_version", "id", "parameters", "outputs"}
	tensorFields   = []string{"name", "shape", "datatype", "parameters", "data"}
	outputFields   = []string{"name", "parameters"}
	fieldsV1       = []string{"instances", "inputs"}
)

// fields records which of an object's known fields were seen, as bits.
type fields struct {
	known []string
	seen  uint
	twice string
}

// note returns which of the known fields the key is, "" if none, and records
// it.
func (f *fields) note(key []byte) string {
	for i, name := range f.known {
		if string(key) != name {
			continue
		}
		if f.seen&(1<<i) != 0 {
			f.twice = name
		}
		f.seen |= 1 << i
		return name
	}
	return ""
}

// has reports whether a known field was seen.
func (f *fields) has(name string) bool { return f.seen&(1<<slices.Index(f.known, name)) != 0 }

// need checks that no field came twice, since readers disagree about which
// counts, and that the named ones came.
func (f *fields) need(names ...string) *Error {
	if f.twice != "" {
		return schemaError("value_error", fmt.Sprintf("Field %q is given twice", f.twice), nil).within(f.twice)
	}
	for _, name := range names {
		if !f.has(name) {
			return schemaError("missing", fmt.Sprintf("Field required: %s", name), nil).within(name)
		}
	}
	return nil
}

// fieldOf reads a known field with read, or skips an unknown one, and puts
// the field's name before the path of an error.
func (s *scanner) fieldOf(name string, read func() *Error) *Error {
	if name == "" {
		_, err := s.skip()
		return err
	}
	err := read()
	if err != nil && err.Type != "json_invalid" {
		return err.within(name)
	}
	return err
}

// optionalString reads a string, or null as "".
func (s *scanner) optionalString() (string, *Error) {
	if s.literal("null") {
		return "", nil
	}
	return s.str()
}

func (s *scanner) str() (string, *Error) {
	if s.space() != '"' {
		found, err := s.skip()
		if err != nil {
			return "", err
		}
		return "", schemaError("string_type", "Input should be a valid string", found)
	}
	text, err := s.text()
	return string(text), err
}

// list reads an array, or refuses what is none.
func (s *scanner) list(element func(i int) *Error) *Error {
	if s.space() != '[' {
		found, err := s.skip()
		if err != nil {
			return err
		}
		return schemaError("list_type", "Input should be a valid list", found)
	}
	return s.array(func(i int) *Error {
		err := element(i)
		if err != nil && err.Type != "json_invalid" {
			return err.within(i)
		}
		return err
	})
}

// parameters reads an object of any JSON, or null.
func (s *scanner) parameters() (Parameters, *Error) {
	if s.literal("null") {
		return nil, nil
	}
	found, err := s.skip()
	if err != nil {
		return nil, err
	}
	if found[0] != '{' {
		return nil, schemaError("dict_type", "Input should be a valid dictionary", found)
	}
	decoder := json.NewDecoder(bytes.NewReader(found))
	decoder.UseNumber()
	var p Parameters
	if err := decoder.Decode(&p); err != nil {
		return nil, schemaError("json_invalid", "JSON decode error: "+err.Error(), nil)
	}
	return p, nil
}

func (s *scanner) requestedOutputs() ([]RequestedOutput, *Error) {
	if s.literal("null") {
		return nil, nil
	}
	var outputs []RequestedOutput
	err := s.list(func(int) *Error {
		if len(outputs) == MaxTensors {
			return Errorf(KindInvalid, "more than %d requested outputs", MaxTensors)
		}
		var o RequestedOutput
		seen := fields{known: outputFields}
		if err := s.mapping(func(key []byte) *Error {
			name := seen.note(key)
			return s.fieldOf(name, func() (err *Error) {
				if name == "name" {
					o.Name, err = s.str()
				} else {
					o.Parameters, err = s.parameters()
				}
				return err
			})
		}); err != nil {
			return err
		}
		outputs = append(outputs, o)
		return seen.need("name")
	})
	return outputs, err
}

// mapping reads an object, or refuses what is none.
func (s *scanner) mapping(field func(key []byte) *Error) *Error {
	if s.space() != '{' {
		found, err := s.skip()
		if err != nil {
			return err
		}
		return schemaError("model_attributes_type", "Input should be a valid dictionary or object to extract fields from", found)
	}
	return s.object(field)
}

func (s *scanner) tensors(role string) ([]Tensor, *Error) {
	list := make([]Tensor, 0, 1)
	err := s.list(func(int) *Error {
		if len(list) == MaxTensors {
			return Errorf(KindInvalid, "more than %d %ss", MaxTensors, role)
		}
		list = append(list, Tensor{})
		return s.tensor(role, &list[len(list)-1])
	})
	return list, err
}

// tensor reads one tensor. Data that comes before its shape or datatype is
// stepped over and read at the end.
func (s *scanner) tensor(role string, t *Tensor) *Error {
	seen := fields{known: tensorFields}
	later := -1
	err := s.mapping(func(key []byte) *Error {
		name := seen.note(key)
		return s.fieldOf(name, func() (err *Error) {
			switch name {
			case "name":
				t.Name, err = s.str()
			case "shape":
				t.Shape, err = s.shape()
			case "datatype":
				t.Datatype, err = s.datatype()
			case "parameters":
				t.Parameters, err = s.parameters()
			case "data":
				if t.Datatype != NoDatatype && t.Shape != nil {
					return s.values(role, t)
				}
				later = s.pos
				_, err = s.skip()
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	if err := seen.need("name", "shape", "datatype"); err != nil {
		return err
	}
	if done, err := s.dataElsewhere(role, t, seen.has("data")); done || err != nil {
		return err
	}
	if err := seen.need("data"); err != nil {
		return err
	}
	if later >= 0 {
		second := scanner{data: s.data, pos: later, depth: s.depth + 1}
		if err := second.values(role, t); err != nil {
			return err.within("data")
		}
	}
	return nil
}

// dataElsewhere reads the data of a tensor that are not among its fields; done is false
// where they are to be.
func (s *scanner) dataElsewhere(role string, t *Tensor, given bool) (done bool, _ *Error) {
	binary, err := s.binaryValues(role, t)
	switch {
	case err != nil:
		return false, err
	case binary && given:
		return false, Errorf(KindInvalid, "%s %q has both data and %s", role, t.Name, binarySizeParameter)
	}
	return binary || !given && role == "input" && t.Parameters.InSharedMemory(), nil
}

func (s *scanner) datatype() (Datatype, *Error) {
	if s.space() == '"' {
		start := s.pos
		text, err := s.text()
		if err != nil {
			return NoDatatype, err
		}
		if d, ok := ParseDatatype(alias(text)); ok {
			return d, nil
		}
		return NoDatatype, schemaError("enum", "Input should be one of "+datatypeNames, s.data[start:s.pos])
	}
	found, err := s.skip()
	if err != nil {
		return NoDatatype, err
	}
	return NoDatatype, schemaError("enum", "Input should be one of "+datatypeNames, found)
}

// shape reads sizes: whole numbers, also written 1.0 or "1". A size of -1
// stands for what the data gives; others below zero are refused with it.
func (s *scanner) shape() ([]int64, *Error) {
	shape := make([]int64, 0, 4)
	err := s.list(func(int) *Error {
		if len(shape) == MaxDepth {
			return schemaError("too_long", fmt.Sprintf("a shape has at most %d sizes", MaxDepth), nil)
		}
		size, err := s.size()
		shape = append(shape, size)
		return err
	})
	return shape, err
}

func (s *scanner) size() (int64, *Error) {
	if s.numeric() {
		var d decimal
		if err := s.decimal(&d); err != nil {
			return 0, err
		}
		n, whole, fits := d.integer()
		switch {
		case !whole:
			return 0, schemaError("int_from_float", "Input should be a valid integer, got a number with a fractional part", d.text)
		case !fits || n > 1<<62:
			return 0, schemaError("int_parsing_size", "Unable to parse input string as an integer, exceeded maximum size", d.text)
		case d.negative:
			return -int64(n), nil
		}
		return int64(n), nil
	}
	found, err := s.skip()
	if err != nil {
		return 0, err
	}
	if found[0] == '"' {
		if n, err := strconv.ParseInt(string(found[1:len(found)-1]), 10, 63); err == nil {
			return n, nil
		}
		return 0, schemaError("int_parsing", "Input should be a valid integer, unable to parse string as an integer", found)
	}
	return 0, schemaError("int_type", "Input should be a valid integer", found)
}

// Kind is what went wrong in terms every protocol can answer.
type Kind uint8

// The kinds. REST answers 400, 422, 404 and 413; gRPC INVALID_ARGUMENT,
// FAILED_PRECONDITION, NOT_FOUND and RESOURCE_EXHAUSTED.
const (
	// KindInvalid is a request that can be read, but asks for what cannot be
	// done: data that does not fit its shape or datatype, a wrong number of
	// features.
	KindInvalid Kind = iota
	// KindSchema is a request that does not follow the protocol's schema.
	KindSchema
	// KindNotFound is a model, version or output that is not there.
	KindNotFound
	// KindTooLarge is a request over a limit.
	KindTooLarge
)

// Error is a request's fault. Decoders return no other errors.
type Error struct {
	Kind Kind
	// Type names a schema fault as clients of MLServer know it: missing,
	// enum, json_invalid, string_type, list_type, int_from_float …; empty for
	// other kinds.
	Type string
	// Path leads to the fault: field names and element numbers, outermost
	// first.
	Path []any
	// Message is what is wrong, complete in itself.
	Message string
	// Input is the JSON at fault, where it is short.
	Input json.RawMessage
}

// Error is the message.
func (e *Error) Error() string { return e.Message }

// Errorf makes an error of the given kind.
func Errorf(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

// within puts elements before the path of e.
func (e *Error) within(path ...any) *Error {
	e.Path = append(append([]any(nil), path...), e.Path...)
	return e
}

// maxInput bounds what of a request an error repeats, in bytes.
const maxInput = 128

// schemaError makes a schema fault; input is copied when short, else left out.
func schemaError(typ, message string, input []byte) *Error {
	e := &Error{Kind: KindSchema, Type: typ, Message: message}
	if len(input) > 0 && len(input) <= maxInput {
		e.Input = append(json.RawMessage(nil), input...)
	}
	return e
}
