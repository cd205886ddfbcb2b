package openai

import (
	"bytes"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// entryTypes are the types of a message's parts that an encoder computes: those that
// llm-d's sidecar has computed apart. Each has its payload in the member of that name.
var entryTypes = [...]string{"image_url", "audio_url", "video_url", "input_audio"}

// AppendEntries appends a hash of each picture, sound and video in messages, the raw
// JSON of a chat's, in their order and at most most of them. A URL counts once however
// often it is there, as for llm-d's sidecar, which encodes it once.
func AppendEntries(dst []uint64, messages []byte, most int) []uint64 {
	e := entryParser{s: scanner{data: messages}, found: dst, most: len(dst) + most}
	if e.most > len(dst) && e.s.peek() == '[' {
		e.s.elements(e.message)
	}
	return e.found
}

// entryParser finds the entries while its scanner passes over the messages.
type entryParser struct {
	s     scanner
	found []uint64
	most  int
}

func (e *entryParser) message() bool {
	s := &e.s
	if s.peek() != '{' {
		return s.value()
	}
	return s.object(func(key []byte, _ int) bool {
		if string(key) == "content" && s.peek() == '[' {
			return s.elements(e.part)
		}
		return s.value()
	})
}

// part consumes one part of a message's content. It returns false, which ends the walk,
// once there are enough entries.
func (e *entryParser) part() bool {
	s := &e.s
	if s.peek() != '{' {
		return s.value()
	}
	var kind Span
	var payloads [len(entryTypes)]Span
	if !s.object(func(key []byte, _ int) bool {
		if string(key) == "type" {
			return readSpan(s, &kind)
		}
		if i := slices.Index(entryTypes[:], string(key)); i >= 0 {
			return readSpan(s, &payloads[i])
		}
		return s.value()
	}) {
		return false
	}
	for i, name := range entryTypes {
		if is(kind.Of(s.data), name) {
			e.add(payloads[i].Of(s.data))
		}
	}
	return len(e.found) < e.most
}

// is reports whether a value is that string.
func is(value []byte, text string) bool {
	if len(value) < 2 || value[0] != '"' {
		return false
	}
	if bytes.IndexByte(value, '\\') >= 0 {
		return string(unquote(value)) == text
	}
	return string(value[1:len(value)-1]) == text
}

// add notes an entry, unless its URL was there before.
func (e *entryParser) add(payload []byte) {
	url, err := Find(payload, "url")
	if err != nil || url.Empty() {
		e.found = append(e.found, xxhash.Sum64(payload))
		return
	}
	if h := xxhash.Sum64(url.Of(payload)); !slices.Contains(e.found, h) {
		e.found = append(e.found, h)
	}
}
