package tensor

import (
	"encoding/json"
	"math"
	"strconv"
	"unicode/utf8"
)

// AppendResponse appends r's JSON to dst. Fields come in MLServer's order;
// unset ones are left out, except the id; empty parameters that are not nil stay. Floats are as short as they can be
// and read back the same; NaN and the infinities, which JSON lacks, are null.
// The only errors are *Error, for what JSON cannot say: BYTES that are not
// UTF-8, parameters of Go types it has no form for.
func AppendResponse(dst []byte, r *Response) ([]byte, error) {
	return appendResponse(dst, r, nil)
}

func appendResponse(dst []byte, r *Response, binary func(output string) bool) ([]byte, error) {
	var err error
	dst = append(dst, `{"model_name":`...)
	if dst, err = appendString(dst, r.ModelName); err != nil {
		return dst, err
	}
	if r.ModelVersion != "" {
		dst = append(dst, `,"model_version":`...)
		if dst, err = appendString(dst, r.ModelVersion); err != nil {
			return dst, err
		}
	}
	dst = append(dst, `,"id":`...)
	if dst, err = appendString(dst, r.ID); err != nil {
		return dst, err
	}
	if dst, err = appendParameters(dst, r.Parameters); err != nil {
		return dst, err
	}
	dst = append(dst, `,"outputs":`...)
	if dst, err = appendTensors(dst, r.Outputs, binary); err != nil {
		return dst, err
	}
	return append(dst, '}'), nil
}

// AppendRequest appends r's JSON to dst, as a client sends it.
func AppendRequest(dst []byte, r *Request) ([]byte, error) {
	var err error
	dst = append(dst, '{')
	if r.ID != "" {
		dst = append(dst, `"id":`...)
		if dst, err = appendString(dst, r.ID); err != nil {
			return dst, err
		}
		dst = append(dst, ',')
	}
	dst = append(dst, `"inputs":`...)
	if dst, err = appendTensors(dst, r.Inputs, nil); err != nil {
		return dst, err
	}
	if dst, err = appendParameters(dst, r.Parameters); err != nil {
		return dst, err
	}
	if len(r.Outputs) > 0 {
		dst = append(dst, `,"outputs":[`...)
		for i, o := range r.Outputs {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"name":`...)
			if dst, err = appendString(dst, o.Name); err != nil {
				return dst, err
			}
			if dst, err = appendParameters(dst, o.Parameters); err != nil {
				return dst, err
			}
			dst = append(dst, '}')
		}
		dst = append(dst, ']')
	}
	return append(dst, '}'), nil
}

// appendTensors appends a list; those that binary, if not nil, picks have
// their binary_data_size in place of data.
func appendTensors(dst []byte, list []Tensor, binary func(name string) bool) ([]byte, error) {
	var err error
	dst = append(dst, '[')
	for i := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendTensor(dst, &list[i], binary != nil && binary(list[i].Name)); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

func appendTensor(dst []byte, t *Tensor, binary bool) ([]byte, error) {
	var err error
	dst = append(dst, `{"name":`...)
	if dst, err = appendString(dst, t.Name); err != nil {
		return dst, err
	}
	dst = append(dst, `,"shape":[`...)
	for i, size := range t.Shape {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, size, 10)
	}
	dst = append(dst, `],"datatype":"`...)
	dst = append(dst, t.Datatype.String()...)
	dst = append(dst, '"')
	if t.elsewhere() {
		dst, err = appendParameters(dst, t.Parameters)
		return append(dst, '}'), err
	}
	if binary {
		dst, err = appendParameters(dst, withSize(t.Parameters, t.RawSize()))
		return append(dst, '}'), err
	}
	if dst, err = appendParameters(dst, t.Parameters); err != nil {
		return dst, err
	}
	dst = append(dst, `,"data":`...)
	if t.Written != nil && t.Written.Dims != nil {
		shape := make([]int64, len(t.Written.Dims))
		for i, n := range t.Written.Dims {
			shape[i] = int64(n)
		}
		dst, err = t.appendNested(dst, shape, 0, t.Len())
	} else {
		dst, err = t.appendFlat(dst, 0, t.Len())
	}
	return append(dst, '}'), err
}

// appendParameters appends a ,"parameters" member, unless p is nil.
func appendParameters(dst []byte, p Parameters) ([]byte, error) {
	switch {
	case p == nil:
		return dst, nil
	case len(p) == 0:
		return append(dst, `,"parameters":{}`...), nil
	}
	text, err := json.Marshal(p)
	if err != nil {
		return dst, Errorf(KindInvalid, "parameters have no JSON form: %v", err)
	}
	return append(append(dst, `,"parameters":`...), text...), nil
}

// appendFlat appends elements from (with) to (without) as one array.
func (t *Tensor) appendFlat(dst []byte, from, to int) ([]byte, error) {
	v := &t.Data
	switch t.Datatype {
	case Bool:
		return appendList(dst, v.Bool[from:to], strconv.AppendBool), nil
	case Uint8:
		return appendList(dst, v.Uint8[from:to], appendUnsigned), nil
	case Uint16:
		return appendList(dst, v.Uint16[from:to], appendUnsigned), nil
	case Uint32:
		return appendList(dst, v.Uint32[from:to], appendUnsigned), nil
	case Uint64:
		return appendList(dst, v.Uint64[from:to], appendUnsigned), nil
	case Int8:
		return appendList(dst, v.Int8[from:to], appendSigned), nil
	case Int16:
		return appendList(dst, v.Int16[from:to], appendSigned), nil
	case Int32:
		return appendList(dst, v.Int32[from:to], appendSigned), nil
	case Int64:
		return appendList(dst, v.Int64[from:to], appendSigned), nil
	case FP16, BF16, FP32:
		return appendList(dst, v.Float32[from:to], appendFloat32), nil
	case FP64:
		return appendList(dst, v.Float64[from:to], appendFloat64), nil
	}
	return t.appendTexts(dst, from, to)
}

// appendTexts is appendFlat of BYTES.
func (t *Tensor) appendTexts(dst []byte, from, to int) ([]byte, error) {
	dst = append(dst, '[')
	for i, text := range t.Data.Bytes[from:to] {
		if i > 0 {
			dst = append(dst, ',')
		}
		if text == nil {
			dst = append(dst, "null"...)
			continue
		}
		if t.Written.Marked(from + i) {
			dst = append(dst, text...)
			continue
		}
		var err error
		if dst, err = appendString(dst, alias(text)); err != nil {
			return dst, Errorf(KindInvalid, "output %q: element %d is not UTF-8, which JSON needs; ask for base64 or binary data", t.Name, from+i)
		}
	}
	return append(dst, ']'), nil
}

func appendList[T any](dst []byte, values []T, one func([]byte, T) []byte) []byte {
	dst = append(dst, '[')
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = one(dst, v)
	}
	return append(dst, ']')
}

func appendUnsigned[T uint8 | uint16 | uint32 | uint64](dst []byte, v T) []byte {
	return strconv.AppendUint(dst, uint64(v), 10)
}

func appendSigned[T int8 | int16 | int32 | int64](dst []byte, v T) []byte {
	return strconv.AppendInt(dst, int64(v), 10)
}

func appendFloat32(dst []byte, v float32) []byte { return appendFloat(dst, float64(v), 32) }
func appendFloat64(dst []byte, v float64) []byte { return appendFloat(dst, v, 64) }

// appendFloat writes v, a whole number with ".0" so that a reader takes it
// for a float.
func appendFloat(dst []byte, v float64, bits int) []byte {
	abs := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return append(dst, "null"...)
	case abs < 1<<24 && v == math.Trunc(v):
		if v == 0 && math.Signbit(v) {
			return append(dst, "-0.0"...)
		}
		return append(strconv.AppendInt(dst, int64(v), 10), ".0"...)
	case abs < 1e-6 || abs >= 1e16:
		return strconv.AppendFloat(dst, v, 'e', -1, bits)
	case abs >= 1<<24 && v == math.Trunc(v):
		return append(strconv.AppendFloat(dst, v, 'f', -1, bits), ".0"...)
	}
	return strconv.AppendFloat(dst, v, 'f', -1, bits)
}

const hexDigits = "0123456789abcdef"

// appendString appends s quoted; it fails if s is not UTF-8.
func appendString(dst []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return dst, Errorf(KindInvalid, "%q is not UTF-8, which JSON needs", s)
	}
	dst = append(dst, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, `\n`...)
		case '\t':
			dst = append(dst, `\t`...)
		case '\r':
			dst = append(dst, `\r`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(append(dst, s[from:]...), '"'), nil
}
