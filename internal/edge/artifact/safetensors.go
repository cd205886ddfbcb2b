package artifact

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/bits"
	"strings"
)

// tensorInfo is an entry of a safetensors header.
type tensorInfo struct {
	Dtype   string   `json:"dtype"`
	Shape   []uint64 `json:"shape"`
	Offsets []uint64 `json:"data_offsets"` // [begin, end) after the header
}

// safetensorsBits is the width of one element, by the format's type names.
var safetensorsBits = map[string]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// countSafetensors reads a safetensors file's header (its length as 8 bytes,
// little-endian, then that much JSON) and returns the number of weights. size is
// the file's; every tensor must lie within it. packed is the width in bits of
// quantised weights that are packed into larger integers, or 0.
func countSafetensors(r io.Reader, size, packed int64) (int64, error) {
	var prefix [8]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return 0, fmt.Errorf("%w: shorter than 8 bytes", errHeader)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > maxHeader || size < 8 || n > uint64(size)-8 {
		return 0, fmt.Errorf("%w: says it is %d bytes long in a file of %d", errHeader, n, size)
	}
	data := uint64(size) - 8 - n
	d := json.NewDecoder(io.LimitReader(r, int64(n)))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return 0, fmt.Errorf("%w: is no JSON object", errHeader)
	}
	var total uint64
	for d.More() {
		count, err := nextTensor(d, data, uint64(packed))
		if err != nil {
			return 0, err
		}
		if total += count; total > math.MaxInt64/2 {
			return 0, fmt.Errorf("%w: too many elements", errHeader)
		}
	}
	if _, err := d.Token(); err != nil {
		return 0, fmt.Errorf("%w: %w", errHeader, err)
	}
	return int64(total), nil
}

func nextTensor(d *json.Decoder, data, packed uint64) (uint64, error) {
	key, err := d.Token()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errHeader, err)
	}
	name, _ := key.(string)
	if name == "__metadata__" {
		var skip map[string]json.RawMessage
		if err := d.Decode(&skip); err != nil {
			return 0, fmt.Errorf("%w: __metadata__: %w", errHeader, err)
		}
		return 0, nil
	}
	var t tensorInfo
	if err := d.Decode(&t); err != nil {
		return 0, fmt.Errorf("%w: %s: %w", errHeader, clip(name), err)
	}
	count, err := t.elements(data)
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %w", errHeader, clip(name), err)
	}
	return weights(name, t.Dtype, count, packed), nil
}

// elements is the number of elements, checked against the bytes they take.
func (t *tensorInfo) elements(data uint64) (uint64, error) {
	count := uint64(1)
	for _, dim := range t.Shape {
		hi, lo := bits.Mul64(count, dim)
		if hi != 0 || lo > math.MaxInt64/64 {
			return 0, fmt.Errorf("shape %v is too large", t.Shape[:min(len(t.Shape), 8)])
		}
		count = lo
	}
	if len(t.Offsets) != 2 || t.Offsets[0] > t.Offsets[1] || t.Offsets[1] > data {
		return 0, fmt.Errorf("data_offsets lie outside the file")
	}
	if width := safetensorsBits[t.Dtype]; width != 0 && (count*width+7)/8 != t.Offsets[1]-t.Offsets[0] {
		return 0, fmt.Errorf("data_offsets do not fit the shape")
	}
	return count, nil
}

// weights is how many of the model's weights a tensor's elements stand for.
// Scales, zero points and orders of quantised weights are none; packed tensors
// hold several in one element.
func weights(name, dtype string, count, packed uint64) uint64 {
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch last {
	case "scales", "qzeros", "g_idx", "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point",
		"weight_g_idx", "input_scale", "absmax", "quant_map", "nested_absmax", "nested_quant_map":
		return 0
	case "qweight", "weight_packed":
		if width := safetensorsBits[dtype]; packed > 0 && packed < width {
			return count * (width / packed)
		}
	case "weight":
		if dtype == "U8" && packed == 4 {
			return count * 2
		}
	}
	switch {
	case strings.HasSuffix(last, "_scales"), strings.HasPrefix(last, "bitsandbytes__"):
		return 0
	case strings.HasSuffix(last, "_blocks") && dtype == "U8": // MXFP4: two in a byte
		return count * 2
	}
	return count
}
