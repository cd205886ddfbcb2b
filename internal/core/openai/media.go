package openai

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// What pictures and sound count as, in tokens.
const (
	// patch is the edge in pixels of what a vision model makes one token of.
	patch = 28
	// maxMediaTokens is the most that one picture or recording counts as:
	// servers scale larger ones down.
	maxMediaTokens = 4096
	// imageBytes and otherBytes are for those whose size in pixels cannot be
	// read: bytes of a compressed picture, and of sound and documents, that make
	// a token.
	imageBytes, otherBytes = 256, 1024

	// bytesPerToken is the usual length of a token of text.
	bytesPerToken = 4
	// minMedia is the shortest text in base64 that is looked at; longest is the
	// longest beginning of a data URI ahead of it.
	minMedia, longest = 512, 128
	// maxHeader is how much of a picture is searched for its size.
	maxHeader = 64 << 10
)

// appendText appends the parts of value, raw JSON, with a placeholder for every
// file in base64 that it holds: as many bytes as text of the file's tokens has,
// the same for the same file.
func appendText(dst [][]byte, value []byte) [][]byte {
	for {
		start, end := findMedia(value)
		if start == end {
			return append(dst, value)
		}
		dst = append(dst, value[:start], placeholder(value[start:end]))
		value = value[end:]
	}
}

// findMedia is the first file in base64: a data URI, or the "data" of a source
// (Anthropic) or a recording (input_audio). start == end when there is none.
func findMedia(value []byte) (start, end int) {
	start, end = findAfter(value, []byte(";base64,"), inDataURI)
	limit := value
	if start < end {
		limit = value[:start]
	}
	if s, e := findAfter(limit, []byte(`"data"`), isDataMember); s < e {
		return s, e
	}
	return start, end
}

// findAfter returns the first long text in base64 that starts as begins
// matches, after a mark.
func findAfter(value, mark []byte, begins func(value []byte, at, after int) int) (start, end int) {
	for from := 0; ; {
		at := bytes.Index(value[from:], mark)
		if at < 0 {
			return 0, 0
		}
		at += from
		from = at + len(mark)
		start = begins(value, at, from)
		if start < 0 {
			continue
		}
		length := bytes.IndexByte(value[start:], '"')
		if length < 0 {
			length = len(value) - start
		}
		if length >= minMedia && isBase64(value[start:start+64]) {
			return start, start + length
		}
	}
}

// inDataURI finds the file of a string that begins "data:", ahead of the mark.
func inDataURI(value []byte, at, after int) int {
	head := value[max(0, at-longest):at]
	quote := bytes.LastIndexByte(head, '"')
	if quote < 0 || !bytes.HasPrefix(head[quote+1:], []byte("data:")) || quote > 0 && head[quote-1] == '\\' {
		return -1
	}
	return after
}

// isDataMember finds the string that is the value of the key "data".
func isDataMember(value []byte, _, after int) int {
	colon := false
	for i, c := range value[after:] {
		switch {
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
		case c == ':' && !colon:
			colon = true
		case c == '"' && colon:
			return after + i + 1
		default:
			return -1
		}
	}
	return -1
}

func isBase64(text []byte) bool {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '+', c == '/', c == '-', c == '_', c == '=':
		case c == '\\' && i+1 < len(text) && text[i+1] == '/': // an escape that JSON allows
			i++
		default:
			return false
		}
	}
	return true
}

// placeholder is text of as many tokens as the file has.
func placeholder(file []byte) []byte {
	out := make([]byte, 0, bytesPerToken*mediaTokens(file)+8)
	h := xxhash.Sum64(file)
	for len(out) < cap(out)-8 {
		out = binary.LittleEndian.AppendUint64(out, h)
		h = h*0x9e3779b97f4a7c15 + 1
	}
	return out[:cap(out)-8]
}

// mediaTokens estimates what a file in base64 counts as: a picture by its size
// in pixels.
func mediaTokens(file []byte) int {
	size := len(file) / 4 * 3
	head := make([]byte, 0, min(size, maxHeader)+4)
	if n := min(len(file), maxHeader/3*4) / 4 * 4; bytes.IndexByte(file[:n], '\\') < 0 {
		head = head[:cap(head)]
		n, _ = base64.StdEncoding.Decode(head, file[:n])
		head = head[:n]
	}
	width, height, picture := dimensions(head)
	tokens := size / otherBytes
	switch {
	case width > 0 && height > 0:
		tokens = ((width + patch - 1) / patch) * ((height + patch - 1) / patch)
	case picture:
		tokens = size / imageBytes
	}
	return max(1, min(tokens, maxMediaTokens))
}

// dimensions is the size in pixels of a PNG, GIF, WebP or JPEG, 0 where it
// cannot be read; picture reports whether it is one of them.
func dimensions(b []byte) (width, height int, picture bool) {
	le, be := binary.LittleEndian, binary.BigEndian
	switch {
	case len(b) < 30:
		return 0, 0, false
	case bytes.HasPrefix(b, []byte("\x89PNG\r\n\x1a\n")):
		return int(be.Uint32(b[16:]) & 0xfffff), int(be.Uint32(b[20:]) & 0xfffff), true
	case bytes.HasPrefix(b, []byte("GIF8")):
		return int(le.Uint16(b[6:])), int(le.Uint16(b[8:])), true
	case bytes.HasPrefix(b, []byte("\xff\xd8")):
		width, height = jpegSize(b)
		return width, height, true
	case string(b[:4]) != "RIFF" || string(b[8:12]) != "WEBP":
		return 0, 0, false
	}
	switch string(b[12:16]) {
	case "VP8 ":
		return int(le.Uint16(b[26:]) & 0x3fff), int(le.Uint16(b[28:]) & 0x3fff), true
	case "VP8L":
		v := le.Uint32(b[21:])
		return int(v&0x3fff) + 1, int(v>>14&0x3fff) + 1, true
	case "VP8X":
		return int(le.Uint32(b[24:])&0xffffff) + 1, int(le.Uint32(b[26:])>>8) + 1, true
	}
	return 0, 0, true
}

// jpegSize is the size in a JPEG's frame header, which follows other segments.
func jpegSize(b []byte) (width, height int) {
	for i := 2; i+9 <= len(b) && b[i] == 0xff; {
		kind := b[i+1]
		if kind == 0xff { // padding
			i++
			continue
		}
		if kind >= 0xc0 && kind <= 0xcf && kind != 0xc4 && kind != 0xc8 && kind != 0xcc {
			return int(binary.BigEndian.Uint16(b[i+7:])), int(binary.BigEndian.Uint16(b[i+5:]))
		}
		i += 2 + int(binary.BigEndian.Uint16(b[i+2:]))
	}
	return 0, 0
}
