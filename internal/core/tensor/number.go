package tensor

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"unsafe"
)

// decimal is a JSON number taken apart: ±mantissa × 10^exponent. When more
// digits were written than a mantissa holds it is not exact, and text alone
// has the value.
type decimal struct {
	mantissa uint64
	exponent int
	negative bool
	exact    bool
	text     []byte // aliases the body
}

// maxExponent bounds the exponent that is counted; beyond it every number is
// zero or out of range, whatever its digits.
const maxExponent = 100_000

// decimal reads a number at pos into d, which is zero. It follows JSON's grammar: no leading zeros
// or plus sign, digits on both sides of a point.
func (s *scanner) decimal(d *decimal) *Error {
	data, start, i := s.data, s.pos, s.pos
	if i < len(data) && data[i] == '-' {
		d.negative = true
		i++
	}
	first := i
	var m uint64
	for i < len(data) && data[i]-'0' <= 9 {
		m = m*10 + uint64(data[i]-'0')
		i++
	}
	digits := i - first
	if digits == 0 || (digits > 1 && data[first] == '0') {
		s.pos = min(i, len(data))
		return s.syntax("a number")
	}
	if i < len(data) && data[i] == '.' {
		i++
		point := i
		m, i = fraction(data, i, m)
		if i == point {
			s.pos = i
			return s.syntax("a digit")
		}
		d.exponent = point - i
		digits += i - point
	}
	if i < len(data) && data[i]|0x20 == 'e' {
		e, end := exponent(data, i+1)
		if end < 0 {
			s.pos = i + 1
			return s.syntax("an exponent")
		}
		d.exponent += e
		i = end
	}
	d.mantissa, d.exact = m, digits <= 19
	d.text = data[start:i]
	s.pos = i
	return nil
}

// fraction reads the digits at i, four at once while there are so many, behind
// those in m; end is the place after them.
func fraction(data []byte, i int, m uint64) (extended uint64, end int) {
	for len(data)-i >= 4 {
		n, ok := fourDigits(binary.LittleEndian.Uint32(data[i:]))
		if !ok {
			break
		}
		m = m*10_000 + n
		i += 4
	}
	for i < len(data) && data[i]-'0' <= 9 {
		m = m*10 + uint64(data[i]-'0')
		i++
	}
	return m, i
}

// fourDigits reads four digits at once, the first in w's lowest byte: a digit
// is a byte of 0x30 to 0x39, which adding 6 leaves among the 0x30s.
func fourDigits(w uint32) (n uint64, ok bool) {
	if w&0xf0f0f0f0 != 0x30303030 || (w+0x06060606)&0xf0f0f0f0 != 0x30303030 {
		return 0, false
	}
	w -= 0x30303030
	w = (w*10 + w>>8) & 0x00ff00ff // two pairs
	return uint64((w*100 + w>>16) & 0xffff), true
}

// exponent reads what follows an 'e'; end is -1 if that is not a number.
func exponent(data []byte, i int) (e, end int) {
	negative := false
	if i < len(data) && (data[i] == '-' || data[i] == '+') {
		negative = data[i] == '-'
		i++
	}
	first := i
	for i < len(data) && data[i]-'0' <= 9 {
		if e < maxExponent {
			e = e*10 + int(data[i]-'0')
		}
		i++
	}
	if i == first {
		return 0, -1
	}
	if negative {
		e = -e
	}
	return e, i
}

// pow10 holds the powers of ten that are exact as float64.
var pow10 = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// scale holds 10^-22 to 10^18, each rounded once. No 64-bit mantissa times one
// of them leaves the range of normal float32s.
var scale = [...]float64{1e-22, 1e-21, 1e-20, 1e-19, 1e-18, 1e-17, 1e-16, 1e-15, 1e-14, 1e-13,
	1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1,
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18}

// float64 is d correctly rounded; ok is false out of range. One operation on
// two exact operands rounds once.
func (d *decimal) float64() (f float64, ok bool) {
	if d.exact && d.mantissa <= 1<<53 && d.exponent >= -22 && d.exponent <= 22 {
		f = float64(d.mantissa)
		if d.exponent < 0 {
			f /= pow10[-d.exponent]
		} else {
			f *= pow10[d.exponent]
		}
		if d.negative {
			f = -f
		}
		return f, true
	}
	f, err := strconv.ParseFloat(alias(d.text), 64)
	return f, err == nil
}

// float32 is d correctly rounded; ok is false out of range.
func (d *decimal) float32() (float32, bool) {
	if d.exact && d.exponent >= -22 && d.exponent <= 18 {
		if f, ok := roundOnce(float64(d.mantissa) * scale[d.exponent+22]); ok {
			if d.negative {
				f = -f
			}
			return f, true
		}
	}
	f, err := strconv.ParseFloat(alias(d.text), 32)
	return float32(f), err == nil
}

// roundOnce rounds a mantissa times a power of ten to the nearest float32; ok is
// false where that cannot be told.
//
// wide is wrong by less than three units in its last place: the mantissa, the
// power and the product each round once. Rounding it again gives the right
// answer unless it lies that close to the middle between two float32s, which
// shows in the 29 bits that the conversion drops.
func roundOnce(wide float64) (f float32, ok bool) {
	const middle, slack = 1 << 28, 4
	low := int64(math.Float64bits(wide) & (1<<29 - 1))
	return float32(wide), low > middle+slack || low < middle-slack
}

// integer is the magnitude of d if it is whole; whole is false for a fraction
// and fits is false beyond uint64.
func (d *decimal) integer() (n uint64, whole, fits bool) {
	if d.exact && d.exponent == 0 {
		return d.mantissa, true, true
	}
	digits, exp := d.digits()
	if len(digits) == 0 {
		return 0, true, true
	}
	if exp < 0 {
		return 0, false, true
	}
	if len(digits)+exp > 20 {
		return 0, true, false
	}
	for ; exp > 0; exp-- {
		digits = append(digits, '0')
	}
	n, err := strconv.ParseUint(string(digits), 10, 64)
	return n, true, err == nil
}

// digits are those of d's text without leading and trailing zeros, and the
// exponent of the last.
func (d *decimal) digits() (digits []byte, exp int) {
	exp = d.exponent
	for _, c := range d.text {
		if c|0x20 == 'e' {
			break
		}
		if c >= '0' && c <= '9' && (c != '0' || len(digits) > 0) {
			digits = append(digits, c)
		}
	}
	for len(digits) > 0 && digits[len(digits)-1] == '0' {
		digits = digits[:len(digits)-1]
		exp++
	}
	return digits, exp
}

// alias views b as a string without a copy; b must not change while it lives.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

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
func plainNumber(data []byte, i int) (mantissa uint64, decimals int, sign uint32, next int) {
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
		decimals += n
		i += n
		if n < 8 || decimals == maxPlain {
			break
		}
	}
	if decimals == 0 || data[i] != ',' {
		return 0, 0, 0, -1
	}
	i++
	if data[i] == ' ' {
		i++
	}
	return mantissa, decimals, sign, i
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
	dst := values[:cap(values)]
	if limit >= 0 && limit < int64(len(dst)) {
		dst = dst[:limit]
	}
	for n < len(dst) {
		m, decimals, sign, next := plainNumber(data, pos)
		if next < 0 {
			break
		}
		f, ok := roundOnce(float64(int64(m)) * scale[22-decimals]) // m < 2^63
		if !ok {
			break
		}
		dst[n] = math.Float32frombits(math.Float32bits(f) | sign<<31)
		n, pos = n+1, next
	}
	s.pos = pos
	return dst[:n]
}

// plainFloat64s is plainFloat32s for doubles.
func plainFloat64s(s *scanner, values []float64, limit int64) []float64 {
	data, pos, n := s.data, s.pos, len(values)
	dst := values[:cap(values)]
	if limit >= 0 && limit < int64(len(dst)) {
		dst = dst[:limit]
	}
	for n < len(dst) {
		m, decimals, sign, next := plainNumber(data, pos)
		if next < 0 || m > 1<<53 {
			break
		}
		f := float64(int64(m)) / pow10[decimals]
		dst[n] = math.Float64frombits(math.Float64bits(f) | uint64(sign)<<63)
		n, pos = n+1, next
	}
	s.pos = pos
	return dst[:n]
}
