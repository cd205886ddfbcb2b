package openai

import (
	"bytes"
	"encoding/binary"
)

const (
	// soundTokens is how many tokens models make of a second of sound.
	soundTokens = 25
	// leastSound is the fewest bytes of sound that make a token, whatever a file says of
	// its length: 8 kbit/s.
	leastSound = 1000 / soundTokens
)

// seconds is how long sound lasts, by the beginning of its file, and for Ogg by its
// end: WAV, MP3, FLAC or Ogg; 0 where it is none of them or does not say. size is the
// file's in bytes.
func seconds(head []byte, size int, tail func() []byte) float64 {
	switch {
	case len(head) < 64:
		return 0
	case string(head[:4]) == "RIFF" && string(head[8:12]) == "WAVE":
		return wavSeconds(head, size)
	case string(head[:4]) == "fLaC":
		v := binary.BigEndian.Uint64(head[18:]) // 20 bits of the rate, 8 of others, 36 of the samples
		return quotient(float64(v&(1<<36-1)), float64(v>>44))
	case string(head[:4]) == "OggS":
		return oggSeconds(head, tail())
	case string(head[:3]) == "ID3", head[0] == 0xff && head[1]&0xe0 == 0xe0:
		return mp3Seconds(head, size)
	}
	return 0
}

func quotient(a, b float64) float64 {
	if !(a > 0 && b > 0) {
		return 0
	}
	return a / b
}

// wavSeconds goes by the bytes of a second that the format states, and the length of
// the samples, or of the file where that is not known yet as it is written.
func wavSeconds(b []byte, size int) float64 {
	rate := 0.0
	for i := 12; i+20 <= len(b); {
		length := int(binary.LittleEndian.Uint32(b[i+4:]))
		switch string(b[i : i+4]) {
		case "fmt ":
			rate = float64(binary.LittleEndian.Uint32(b[i+16:]))
		case "data":
			return quotient(float64(max(0, min(length, size-i-8))), rate)
		}
		i += 8 + length + length&1
	}
	return quotient(float64(size), rate)
}

// oggSeconds goes by the position that the last page states, in samples of the rate
// that the first one does.
func oggSeconds(head, tail []byte) float64 {
	at := bytes.LastIndex(tail, []byte("OggS"))
	if at < 0 || at+14 > len(tail) {
		return 0
	}
	samples := binary.LittleEndian.Uint64(tail[at+6:])
	if samples > 1<<62 { // the page ends no packet
		return 0
	}
	first := head[28:]
	switch {
	case bytes.HasPrefix(first, []byte("OpusHead")):
		return quotient(float64(samples), 48_000)
	case bytes.HasPrefix(first, []byte("\x01vorbis")):
		return quotient(float64(samples), float64(binary.LittleEndian.Uint32(first[12:])))
	}
	return 0
}

// The bitrates of MPEG audio, layer 3, in kbit/s, and the rates of its samples.
var (
	mpeg1Bitrates = [16]int{0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0}
	mpeg2Bitrates = [16]int{0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0}
	sampleRates   = [4]int{44100, 48000, 32000, 0}
)

// mp3Seconds goes by the frames that a Xing header counts, or by the first frame's
// bitrate.
func mp3Seconds(b []byte, size int) float64 {
	at := 0
	if string(b[:3]) == "ID3" { // a length of four times seven bits
		at = 10 + int(b[6]&0x7f)<<21 + int(b[7]&0x7f)<<14 + int(b[8]&0x7f)<<7 + int(b[9]&0x7f)
	}
	if at+48 > len(b) || b[at] != 0xff || b[at+1]&0xe6 != 0xe2 { // a frame of layer 3
		return 0
	}
	f := b[at:]
	rate, perFrame, bitrates := sampleRates[f[2]>>2&3], 1152.0, &mpeg1Bitrates
	switch f[1] >> 3 & 3 {
	case 3: // MPEG 1
	case 2:
		rate, perFrame, bitrates = rate/2, 576, &mpeg2Bitrates
	default: // 2.5
		rate, perFrame, bitrates = rate/4, 576, &mpeg2Bitrates
	}
	side := f[4:min(len(f), 48)]
	for _, name := range []string{"Xing", "Info"} {
		if i := bytes.Index(side, []byte(name)); i >= 0 && 4+i+12 <= len(f) && f[4+i+7]&1 != 0 {
			return quotient(float64(binary.BigEndian.Uint32(f[4+i+8:]))*perFrame, float64(rate))
		}
	}
	return quotient(float64(max(0, size-at)), float64(bitrates[f[2]>>4]*1000/8))
}
