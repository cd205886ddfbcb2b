package tensor

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// Long arrays hold numbers as "12.345,": plainNumber reads those and leaves every
// other to the readers of elements.go.

// power10 holds the powers of ten that eight digits can be moved up by.
var power10 = [...]uint64{1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}

// maxPlain is how many digits after the point plainNumber reads: with the two
// before it, as many as a mantissa holds exactly.
const maxPlain = 16

// plainNumber reads a number of one or two digits, a point and 1 to maxPlain digits,
// with a comma behind it: mantissa × 10^-places. next is the place after the
// comma and one space, if there is one; -1 if something else stands at i.
func plainNumber(data []byte, i int) (mantissa uint64, places int, sign uint32, next int) {
	if i < 0 || len(data)-i < 3+maxPlain+8 { // so that nothing below looks beyond the end
		return 0, 0, 0, -1
	}
	// Signs follow no pattern, so they are computed with and not branched on.
	sign = (uint32(data[i]^'-') - 1) >> 31
	i += int(sign)
	mantissa = uint64(data[i] - '0')
	if i++; data[i] != '.' {
		tens := mantissa
		mantissa = uint64(data[i] - '0')
		if i++; tens == 0 || tens > 9 || mantissa > 9 || data[i] != '.' {
			return 0, 0, 0, -1
		}
		mantissa += tens * 10
	} else if mantissa > 9 {
		return 0, 0, 0, -1
	}
	i++
	for {
		digits, n := eightDigits(binary.LittleEndian.Uint64(data[i:]))
		mantissa = mantissa*power10[n] + digits
		places += n
		i += n
		if n < 8 || places == maxPlain {
			break
		}
	}
	if places == 0 || data[i] != ',' {
		return 0, 0, 0, -1
	}
	i++
	if data[i] == ' ' {
		i++
	}
	return mantissa, places, sign, i
}

// eightDigits reads the digits that w begins with, the first in its lowest
// byte: their value and number. The sums of pairs, then of fours, then of all
// are had by one multiplication each (Lemire, "Number parsing at a gigabyte
// per second", 2021, after Khadzhay).
func eightDigits(w uint64) (value uint64, n int) {
	w ^= 0x3030303030303030                                                           // a digit's byte is now 0 to 9
	other := ((w & 0x7f7f7f7f7f7f7f7f) + 0x7676767676767676 | w) & 0x8080808080808080 // the top bit of every byte above 9
	n = bits.TrailingZeros64(other) / 8
	if n == 0 {
		return 0, 0
	}
	w <<= 64 - 8*n // zeros before what is there
	w = w*10 + w>>8
	const lanes = 0x000000ff000000ff
	return ((w&lanes)*0x000f424000000064 + (w>>16&lanes)*0x0000271000000001) >> 32, n
}

// plainFloat32s appends numbers from pos as long as they are plain, fewer than
// limit (-1: any number), and there is room for them.
func plainFloat32s(s *scanner, values []float32, limit int64) []float32 {
	data, pos, n := s.data, s.pos, len(values)
	room := values[:cap(values)]
	if limit >= 0 && limit < int64(len(room)) {
		room = room[:limit]
	}
	for n < len(room) {
		m, places, sign, next := plainNumber(data, pos)
		if next < 0 {
			break
		}
		f, ok := roundOnce(float64(int64(m)) * scale[22-places]) // m < 2^63
		if !ok {
			break
		}
		room[n] = math.Float32frombits(math.Float32bits(f) | sign<<31)
		n, pos = n+1, next
	}
	s.pos = pos
	return room[:n]
}

// plainFloat64s is plainFloat32s for doubles.
func plainFloat64s(s *scanner, values []float64, limit int64) []float64 {
	data, pos, n := s.data, s.pos, len(values)
	room := values[:cap(values)]
	if limit >= 0 && limit < int64(len(room)) {
		room = room[:limit]
	}
	for n < len(room) {
		m, places, sign, next := plainNumber(data, pos)
		if next < 0 || m > 1<<53 {
			break
		}
		f := float64(int64(m)) / pow10[places]
		room[n] = math.Float64frombits(math.Float64bits(f) | uint64(sign)<<63)
		n, pos = n+1, next
	}
	s.pos = pos
	return room[:n]
}
