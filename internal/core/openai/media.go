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
	// maxMediaTokens is the most that one picture or document counts as: servers
	// scale larger ones down. maxSoundTokens is that of sound: an hour.
	maxMediaTokens, maxSoundTokens = 4096, 3600 * soundTokens
	// imageBytes and otherBytes are for those whose size in pixels, or length, cannot
	// be read: bytes of a compressed picture, and of sound and documents, that make a
	// token.
	imageBytes, otherBytes = 256, 1024
	// remoteTokens is what a picture counts as that a server is to fetch: one of 1,024
	// pixels a side. Nothing is fetched here.
	remoteTokens = ((1024 + patch - 1) / patch) * ((1024 + patch - 1) / patch)
	// maxPlaceholders bounds the text that stands for the files of one prompt; those
	// beyond count as nothing. A million tokens is more than any server takes.
	maxPlaceholders = 4 << 20

	// bytesPerToken is the usual length of a token of text.
	bytesPerToken = 4
	// minMedia is the shortest text in base64 that is looked at; longest is the
	// longest beginning of a data URI ahead of it, and of what is between a picture's
	// key and its URL.
	minMedia, longest = 512, 128
	// maxHeader is how much of a file is searched for its size.
	maxHeader = 64 << 10
)

// appendText appends the parts of value, raw JSON, with a placeholder for every
// file that it holds in base64 or by its URL: as many bytes as text of the file's
// tokens has, the same for the same file. left is what is left of maxPlaceholders.
func appendText(dst [][]byte, value []byte, left *int) [][]byte {
	f := finder{value: value}
	from := 0
	for {
		m, found := f.next(from)
		if !found {
			return append(dst, value[from:])
		}
		file, tokens := value[m.start:m.end], remoteTokens
		if m.kind == remote {
			dst = append(dst, value[from:m.end])
		} else {
			dst, tokens = append(dst, value[from:m.start]), mediaTokens(file)
		}
		tokens = min(tokens, *left/bytesPerToken)
		*left -= tokens * bytesPerToken
		dst = append(dst, placeholder(file, tokens))
		from = m.end
	}
}

// media is a file within a text: in base64, or its URL.
type media struct{ kind, start, end int }

// The kinds of media, by how they are found: each is one search through the text.
const (
	inline = iota // a data URI, or the "data" of a source (Anthropic) or a recording (input_audio)
	remote        // "image_url", or the "url" in one or in a source
	kinds
)

// marks begin with quotes, which are rare in what is long.
var marks = [kinds][]byte{inline: []byte(`"data`), remote: []byte(`"http`)}

// finder finds the files of a text in their order. Each kind is searched for once
// over the text.
type finder struct {
	value []byte
	at    [kinds]struct {
		media
		known bool
	}
}

// next is the first file that begins at from or later.
func (f *finder) next(from int) (first media, found bool) {
	for kind := range f.at {
		a := &f.at[kind]
		if !a.known || a.start < from && a.start < a.end {
			a.known, a.kind = true, kind
			a.start, a.end = f.find(kind, from)
		}
		if a.start < a.end && (!found || a.start < first.start) {
			first, found = a.media, true
		}
	}
	return first, found
}

// find is the first file of a kind; start == end when there is none.
func (f *finder) find(kind, from int) (start, end int) {
	for {
		at := bytes.Index(f.value[from:], marks[kind])
		if at < 0 {
			return 0, 0
		}
		at += from
		from = at + len(marks[kind])
		if kind == inline {
			start = inlineAt(f.value, at, from)
		} else {
			start = remoteAt(f.value, at)
		}
		if start < 0 {
			continue
		}
		length := bytes.IndexByte(f.value[start:], '"')
		if length < 0 {
			length = len(f.value) - start
		}
		if kind == remote && isURL(f.value[start:start+length]) || kind == inline && length >= minMedia && isBase64(f.value[start:start+64]) {
			return start, start + length
		}
	}
}

func isURL(text []byte) bool {
	return bytes.HasPrefix(text, []byte("http://")) || bytes.HasPrefix(text, []byte("https://"))
}

// inlineAt is where the file begins of a string that begins there, as a data URI, or
// whose key ends there; -1 for neither.
func inlineAt(value []byte, at, after int) int {
	if after < len(value) && value[after] == '"' {
		return isMember(value, after+1)
	}
	if at > 0 && value[at-1] == '\\' || after >= len(value) || value[after] != ':' {
		return -1
	}
	mark := []byte(";base64,")
	head := value[after:min(len(value), after+longest)]
	i := bytes.Index(head, mark)
	if i < 0 || bytes.IndexByte(head[:i], '"') >= 0 {
		return -1
	}
	return after + i + len(mark)
}

// remoteAt is where the string begins that a quote begins there, if it is the value of
// "image_url", or of "url" in one (OpenAI) or in a "source" (Anthropic); else -1.
func remoteAt(value []byte, at int) int {
	head := bytes.TrimRight(value[max(0, at-longest):at], " \t\r\n")
	head, ok := bytes.CutSuffix(head, []byte(":"))
	head = bytes.TrimRight(head, " \t\r\n")
	switch {
	case !ok:
		return -1
	case bytes.HasSuffix(head, []byte(`"image_url"`)):
	case !bytes.HasSuffix(head, []byte(`"url"`)), !bytes.Contains(head, []byte(`"image_url"`)) && !bytes.Contains(head, []byte(`"source"`)):
		return -1
	}
	return at + 1
}

// isMember finds the string that is the value of the key that ends there.
func isMember(value []byte, after int) int {
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

// placeholder is text of so many tokens for a file.
func placeholder(file []byte, tokens int) []byte {
	out := make([]byte, 0, bytesPerToken*tokens+8)
	h := xxhash.Sum64(file)
	for len(out) < cap(out)-8 {
		out = binary.LittleEndian.AppendUint64(out, h)
		h = h*0x9e3779b97f4a7c15 + 1
	}
	return out[:cap(out)-8]
}

// mediaTokens estimates what a file in base64 counts as: a picture by its size
// in pixels, sound by its length.
func mediaTokens(file []byte) int {
	size := len(file) / 4 * 3
	head := decoded(file[:min(len(file), maxHeader/3*4)/4*4])
	width, height, picture := dimensions(head)
	tokens := size / otherBytes
	switch {
	case width > 0 && height > 0:
		tokens = ((width + patch - 1) / patch) * ((height + patch - 1) / patch)
	case picture:
		tokens = size / imageBytes
	default:
		tail := func() []byte { return decoded(lastOf(file, maxHeader/3*4)) }
		if s := seconds(head, size, tail); s > 0 {
			return max(1, min(int(min(s, 1e6)*soundTokens), maxSoundTokens, size/leastSound))
		}
	}
	return max(1, min(tokens, maxMediaTokens))
}

// decoded is text in base64, nil where it has escapes.
func decoded(text []byte) []byte {
	if bytes.IndexByte(text, '\\') >= 0 {
		return nil
	}
	out := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, _ := base64.StdEncoding.Decode(out, text)
	return out[:n]
}

// lastOf is at most n bytes of the end of a text in base64, in whole groups.
func lastOf(text []byte, n int) []byte {
	text = text[:len(text)/4*4]
	return text[max(0, len(text)-n)/4*4:]
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
