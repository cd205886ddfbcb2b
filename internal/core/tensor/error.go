package tensor

import (
	"encoding/json"
	"fmt"
)

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
