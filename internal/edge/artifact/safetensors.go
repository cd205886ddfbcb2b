package artifact

import (
	"fmt"
	"io"
	"math"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/safetensors"
)

// ReadSafetensors reads the header at the start of a safetensors file of size
// bytes, and not a byte more.
func ReadSafetensors(r io.Reader, size int64) (*safetensors.Header, error) {
	var prefix [safetensors.PrefixBytes]byte
	if size < int64(len(prefix)) {
		return nil, fmt.Errorf("%w: shorter than %d bytes", safetensors.ErrMalformed, len(prefix))
	}
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, fmt.Errorf("the length of the header: %w", err)
	}
	n, err := safetensors.Length(prefix[:], size)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, n)
	if _, err := io.ReadFull(r, raw); err != nil {
		return nil, fmt.Errorf("the header of %d bytes: %w", n, err)
	}
	return safetensors.Parse(raw, size)
}

// countSafetensors reads a safetensors file's header and returns the number of
// weights. packed is the width in bits of quantised weights that are packed
// into larger integers, or 0.
func countSafetensors(r io.Reader, size, packed int64) (int64, error) {
	h, err := ReadSafetensors(r, size)
	if err != nil {
		return 0, err
	}
	var total uint64
	for i := range h.Tensors {
		t := &h.Tensors[i]
		total += weights(t.Name, t.Dtype, uint64(t.Elements()), uint64(packed))
		if total > math.MaxInt64/2 {
			return 0, fmt.Errorf("%w: too many elements", safetensors.ErrMalformed)
		}
	}
	return int64(total), nil
}

// weights is how many of the model's weights a tensor's elements stand for.
// Scales, zero points and orders of quantised weights are none; packed tensors
// hold several in one element.
func weights(name string, dtype safetensors.Dtype, count, packed uint64) uint64 {
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch last {
	case "scales", "qzeros", "g_idx", "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point",
		"weight_g_idx", "input_scale", "absmax", "quant_map", "nested_absmax", "nested_quant_map":
		return 0
	case "qweight", "weight_packed":
		if width := uint64(dtype.Bits()); packed > 0 && packed < width {
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
