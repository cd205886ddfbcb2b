package ort

import (
	"context"
	"unsafe"
)

// Session is a model ready to run. It is safe for concurrent use.
type Session struct {
	Inputs, Outputs []Port

	library *Library
	handle  unsafe.Pointer
}

// NewSession reads the model of a file. Its external data is looked for beside
// it. Errors are *Error.
func (l *Library) NewSession(path string) (*Session, error) {
	var options unsafe.Pointer
	if err := l.call(fnCreateSessionOptions, uintptr(unsafe.Pointer(&options))); err != nil {
		return nil, err
	}
	defer l.release(fnReleaseSessionOptions, options)
	if err := l.call(fnDisablePerSessionThreads, uintptr(options)); err != nil {
		return nil, err
	}
	s := &Session{library: l}
	file := cString(path)
	if err := l.call(fnCreateSession, uintptr(l.env), uintptr(unsafe.Pointer(file)), uintptr(options), uintptr(unsafe.Pointer(&s.handle))); err != nil {
		return nil, err
	}
	var err error
	if s.Inputs, err = s.ports(fnSessionGetInputCount, fnSessionGetInputName, fnSessionGetInputTypeInfo); err == nil {
		s.Outputs, err = s.ports(fnSessionGetOutputCount, fnSessionGetOutputName, fnSessionGetOutputTypeInfo)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close gives the model's memory back. No Run may be under way or follow.
func (s *Session) Close() {
	s.library.release(fnReleaseSession, s.handle)
	s.handle = nil
}

// Run computes the outputs of the given numbers, at least one, from inputs,
// one value for each of s.Inputs in order. The caller releases the values that
// are returned. When ctx ends, the run ends before its next node, with the
// context's error; other errors are *Error.
func (s *Session) Run(ctx context.Context, inputs []*Value, outputs []int) ([]*Value, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l := s.library
	var options unsafe.Pointer
	if err := l.call(fnCreateRunOptions, uintptr(unsafe.Pointer(&options))); err != nil {
		return nil, err
	}
	defer l.release(fnReleaseRunOptions, options)

	// One more than there are, so that there is always a first.
	inNames, in := make([]*byte, len(inputs)+1), make([]unsafe.Pointer, len(inputs)+1)
	for i, v := range inputs {
		inNames[i], in[i] = s.Inputs[i].name, v.handle
	}
	outNames, out := make([]*byte, len(outputs)+1), make([]unsafe.Pointer, len(outputs)+1)
	for i, number := range outputs {
		outNames[i] = s.Outputs[number].name
	}

	terminated := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(terminated)
		_ = l.call(fnRunOptionsSetTerminate, uintptr(options)) // it always succeeds
	})
	err := l.call(fnRun, uintptr(s.handle), uintptr(options),
		uintptr(unsafe.Pointer(&inNames[0])), uintptr(unsafe.Pointer(&in[0])), uintptr(len(inputs)),
		uintptr(unsafe.Pointer(&outNames[0])), uintptr(len(outputs)), uintptr(unsafe.Pointer(&out[0])))
	if !stop() {
		<-terminated // it uses the options
	}
	keep(inputs, inNames, outNames)
	values := make([]*Value, len(outputs))
	for i := range values {
		values[i] = &Value{library: l, handle: out[i]}
	}
	if err != nil {
		ReleaseAll(values)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return values, nil
}
