// Package ort runs ONNX models through the C API of ONNX Runtime, whose shared
// library it loads at run time. It needs no cgo: docs/design/onnx.md explains
// why and what it costs.
//
// A fault of the library's own code takes the process down with it: run it in
// one that nothing else depends on. Handles of the library are held as
// unsafe.Pointer; what they point to is never in Go's memory.
package ort

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// apiVersion is the version of the API asked for: that of ONNX Runtime 1.8.
// Every later library has it, because the table of its functions only grows.
const apiVersion = 8

// function is the place of a function in the table OrtApi.
type function int

// The functions used here, as onnxruntime_c_api.h orders them.
const (
	fnGetErrorCode                   function = 1
	fnGetErrorMessage                function = 2
	fnCreateSession                  function = 7
	fnRun                            function = 9
	fnCreateSessionOptions           function = 10
	fnSessionGetInputCount           function = 30
	fnSessionGetOutputCount          function = 31
	fnSessionGetInputTypeInfo        function = 33
	fnSessionGetOutputTypeInfo       function = 34
	fnSessionGetInputName            function = 36
	fnSessionGetOutputName           function = 37
	fnCreateRunOptions               function = 39
	fnRunOptionsSetTerminate         function = 46
	fnCreateTensorAsOrtValue         function = 48
	fnCreateTensorWithDataAsOrtValue function = 49
	fnGetTensorMutableData           function = 51
	fnFillStringTensor               function = 52
	fnGetStringTensorDataLength      function = 53
	fnGetStringTensorContent         function = 54
	fnCastTypeInfoToTensorInfo       function = 55
	fnGetOnnxTypeFromTypeInfo        function = 56
	fnGetTensorElementType           function = 60
	fnGetDimensionsCount             function = 61
	fnGetDimensions                  function = 62
	fnGetTensorTypeAndShape          function = 65
	fnGetValueType                   function = 67
	fnCreateCPUMemoryInfo            function = 69
	fnAllocatorFree                  function = 76
	fnGetAllocatorWithDefaultOptions function = 78
	fnGetValue                       function = 80
	fnGetValueCount                  function = 81
	fnReleaseStatus                  function = 93
	fnReleaseSession                 function = 95
	fnReleaseValue                   function = 96
	fnReleaseRunOptions              function = 97
	fnReleaseTypeInfo                function = 98
	fnReleaseTensorTypeAndShapeInfo  function = 99
	fnReleaseSessionOptions          function = 100
	fnCastTypeInfoToMapTypeInfo      function = 103
	fnCastTypeInfoToSequenceTypeInfo function = 104
	fnGetMapKeyType                  function = 105
	fnGetMapValueType                function = 106
	fnGetSequenceElementType         function = 107
	fnCreateEnvWithGlobalThreadPools function = 119
	fnDisablePerSessionThreads       function = 120
	fnCreateThreadingOptions         function = 121
	fnReleaseThreadingOptions        function = 122
	fnSetGlobalIntraOpNumThreads     function = 147
	fnSetGlobalInterOpNumThreads     function = 148
	fnSetGlobalSpinControl           function = 149
	functions                                 = 150
)

// Library is ONNX Runtime. There is at most one in a process and it is never
// unloaded. It is safe for concurrent use.
type Library struct {
	// Path is what was loaded, Version the library's own word: "1.20.1".
	Path, Version string

	table     *[functions]uintptr
	env       unsafe.Pointer
	memory    unsafe.Pointer // describes the CPU's
	allocator unsafe.Pointer // of what the library returns
}

var loaded struct {
	sync.Mutex
	library *Library
}

// Open loads the library of the path, or of the name if it has no slash, and
// has all sessions share a pool of that many threads. Once it has succeeded,
// later calls give the same library whatever they ask for.
func Open(path string, threads int) (*Library, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.library != nil {
		return loaded.library, nil
	}
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	base, err := purego.Dlsym(handle, "OrtGetApiBase")
	if err != nil {
		return nil, fmt.Errorf("%s is not ONNX Runtime: %w", path, err)
	}
	l := &Library{Path: path}
	root := (*struct{ getAPI, getVersion uintptr })(foreign(invoke(base)))
	l.Version = text(foreign(invoke(root.getVersion)))
	l.table = (*[functions]uintptr)(foreign(invoke(root.getAPI, apiVersion)))
	if l.table == nil {
		return nil, fmt.Errorf("%s: ONNX Runtime %s is too old; 1.8 or later is needed", path, l.Version)
	}
	if err := l.prepare(threads); err != nil {
		return nil, err
	}
	loaded.library = l
	return l, nil
}

// logFatal is the severity from which the library logs. Errors come back from
// the call that met them; in the log they would stand once more.
const logFatal = 4

// prepare makes what all sessions share.
func (l *Library) prepare(threads int) error {
	var options unsafe.Pointer
	if err := l.call(fnCreateThreadingOptions, uintptr(unsafe.Pointer(&options))); err != nil {
		return err
	}
	defer l.release(fnReleaseThreadingOptions, options)
	name := cString("roundhouse")
	for _, err := range []error{
		l.call(fnSetGlobalIntraOpNumThreads, uintptr(options), uintptr(threads)),
		l.call(fnSetGlobalInterOpNumThreads, uintptr(options), 1),
		// Threads that wait must not burn what other models could use.
		l.call(fnSetGlobalSpinControl, uintptr(options), 0),
		l.call(fnCreateEnvWithGlobalThreadPools, logFatal, uintptr(unsafe.Pointer(name)), uintptr(options), uintptr(unsafe.Pointer(&l.env))),
		l.call(fnCreateCPUMemoryInfo, 0, 0, uintptr(unsafe.Pointer(&l.memory))),
		l.call(fnGetAllocatorWithDefaultOptions, uintptr(unsafe.Pointer(&l.allocator))),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// Error is a failure that the library reports.
type Error struct {
	Code    int // the library's OrtErrorCode
	Message string
}

// The codes that say whose fault an Error is.
const (
	CodeInvalidArgument = 2
	CodeNoSuchFile      = 3
	CodeNoModel         = 4
	CodeInvalidProtobuf = 7
	CodeNotImplemented  = 9
	CodeInvalidGraph    = 10
)

// Error is the message.
func (e *Error) Error() string { return e.Message }

// call calls a function that returns a status.
//
//go:uintptrescapes
func (l *Library) call(f function, args ...uintptr) error {
	r, _, _ := purego.SyscallN(l.table[f], args...)
	if r == 0 {
		return nil
	}
	status := foreign(r)
	defer l.release(fnReleaseStatus, status)
	return &Error{
		Code:    int(int32(invoke(l.table[fnGetErrorCode], r))),
		Message: text(foreign(invoke(l.table[fnGetErrorMessage], r))),
	}
}

// release calls one of the functions that give a handle back.
func (l *Library) release(f function, handle unsafe.Pointer) {
	if handle != nil {
		invoke(l.table[f], uintptr(handle))
	}
}

// invoke calls a function by its address.
//
//go:uintptrescapes
func invoke(address uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(address, args...)
	return r
}

// foreign is the address of memory outside of Go's as a pointer.
func foreign(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// cString is s as C has it.
func cString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}

// maxText bounds the texts read from the library.
const maxText = 64 << 10

// text copies a C string.
func text(p unsafe.Pointer) string {
	if p == nil {
		return ""
	}
	n := 0
	for n < maxText && *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}

// keep keeps the memory of values, which only a C call has seen, until here.
func keep(values ...any) {
	for _, v := range values {
		runtime.KeepAlive(v)
	}
}
