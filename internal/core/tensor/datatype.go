package tensor

import "fmt"

// Datatype is the element type of a tensor, as the Open Inference Protocol
// names it. The zero value is no datatype.
type Datatype uint8

// The datatypes of the protocol. BF16 is Triton's addition.
const (
	NoDatatype Datatype = iota
	Bool
	Uint8
	Uint16
	Uint32
	Uint64
	Int8
	Int16
	Int32
	Int64
	FP16
	BF16
	FP32
	FP64
	Bytes
)

// datatypes holds, by Datatype, the protocol's name and the bytes of one
// element in binary form (0 where elements vary).
var datatypes = [...]struct {
	name string
	size int
}{
	NoDatatype: {"", 0},
	Bool:       {"BOOL", 1},
	Uint8:      {"UINT8", 1},
	Uint16:     {"UINT16", 2},
	Uint32:     {"UINT32", 4},
	Uint64:     {"UINT64", 8},
	Int8:       {"INT8", 1},
	Int16:      {"INT16", 2},
	Int32:      {"INT32", 4},
	Int64:      {"INT64", 8},
	FP16:       {"FP16", 2},
	BF16:       {"BF16", 2},
	FP32:       {"FP32", 4},
	FP64:       {"FP64", 8},
	Bytes:      {"BYTES", 0},
}

// ParseDatatype reads a datatype by its exact name; ok is false for others.
func ParseDatatype(name string) (d Datatype, ok bool) {
	for i := Bool; i <= Bytes; i++ {
		if datatypes[i].name == name {
			return i, true
		}
	}
	return NoDatatype, false
}

// String is the protocol's name of d; "" for none.
func (d Datatype) String() string {
	if int(d) >= len(datatypes) {
		return fmt.Sprintf("Datatype(%d)", uint8(d))
	}
	return datatypes[d].name
}

// Size is the number of bytes of one element in binary form; 0 for BYTES,
// whose elements vary, and for no datatype.
func (d Datatype) Size() int {
	if int(d) >= len(datatypes) {
		return 0
	}
	return datatypes[d].size
}

// Floating reports whether d can hold a missing value (NaN).
func (d Datatype) Floating() bool { return d >= FP16 && d <= FP64 }

// MarshalText writes the protocol's name.
func (d Datatype) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the protocol's name, or MLServer's and KServe's "" for
// a tensor without one.
func (d *Datatype) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*d = NoDatatype
		return nil
	}
	parsed, ok := ParseDatatype(string(text))
	if !ok {
		return fmt.Errorf("unknown datatype %q (have %s)", text, datatypeNames)
	}
	*d = parsed
	return nil
}

// datatypeNames lists the names for error messages.
const datatypeNames = "BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64, BYTES"
