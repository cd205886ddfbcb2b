package openai

import "bytes"

// Usage is what an answer cost, in tokens.
type Usage struct {
	PromptTokens     int64 // prompt_tokens, or input_tokens
	CompletionTokens int64 // completion_tokens, or output_tokens
	TotalTokens      int64 // total_tokens; the sum of the two when absent
	CachedTokens     int64 // prompt tokens that were read from a prefix cache
}

// ReadUsage finds the usage of an answer's JSON body: member "usage" of the
// outermost object, or of its "response" or "message" (the last events of the
// Responses and Anthropic streams). ok is false when there is none, when it is
// null, or when body is not valid JSON.
func ReadUsage(body []byte) (u Usage, ok bool) {
	var r usageReader
	if !r.read(body) {
		return Usage{}, false
	}
	return r.usage(), r.seen
}

// usageReader merges the usage objects it meets, field by field: Anthropic's
// stream gives the input in its first event and the output in a later one.
type usageReader struct {
	s     scanner
	sum   Usage
	total bool // total_tokens was given
	seen  bool
}

func (r *usageReader) usage() Usage {
	u := r.sum
	if !r.total {
		u.TotalTokens = u.PromptTokens + u.CompletionTokens
	}
	return u
}

// read merges the usage of one JSON text; nothing is merged if it is invalid.
func (r *usageReader) read(body []byte) bool {
	next := *r
	next.s = scanner{data: body}
	s := &next.s
	if s.peek() != '{' || !s.object(next.outer) {
		return false
	}
	if s.peek(); s.pos != len(s.data) {
		return false
	}
	next.s = scanner{} // keep nothing of body
	*r = next
	return true
}

func (r *usageReader) outer(key []byte, at int) bool {
	s := &r.s
	switch string(key) {
	case "response", "message":
		if s.peek() == '{' {
			return s.object(r.inner)
		}
	}
	return r.inner(key, at)
}

func (r *usageReader) inner(key []byte, _ int) bool {
	s := &r.s
	if string(key) == "usage" && s.peek() == '{' {
		r.seen = true
		return s.object(r.field)
	}
	return s.value()
}

func (r *usageReader) field(key []byte, _ int) bool {
	s := &r.s
	switch string(key) {
	case "prompt_tokens", "input_tokens":
		return readCount(s, &r.sum.PromptTokens)
	case "completion_tokens", "output_tokens":
		return readCount(s, &r.sum.CompletionTokens)
	case "total_tokens":
		r.total = true
		return readCount(s, &r.sum.TotalTokens)
	case "cache_read_input_tokens":
		return readCount(s, &r.sum.CachedTokens)
	case "prompt_tokens_details", "input_tokens_details":
		if s.peek() == '{' {
			return s.object(r.detail)
		}
	}
	return s.value()
}

func (r *usageReader) detail(key []byte, _ int) bool {
	if string(key) == "cached_tokens" {
		return readCount(&r.s, &r.sum.CachedTokens)
	}
	return r.s.value()
}

// Bounds of a StreamReader, in bytes.
const (
	// MaxEvent is the longest event that is looked into; a longer one is passed
	// over without being kept.
	MaxEvent = 256 << 10
	// keptBuffer is what a StreamReader keeps between events.
	keptBuffer = 4 << 10
)

// StreamReader watches a text/event-stream as it passes by and remembers its
// usage. Write it every chunk, cut anywhere; it copies what it keeps, never
// more than [MaxEvent] bytes for a line and as much for an event. The zero
// value is ready. Not for concurrent use.
type StreamReader struct {
	usage   usageReader
	done    bool
	afterCR bool // the last byte was a CR: a LF that follows ends no line

	line     []byte // the beginning of a line whose end has not come
	data     []byte // the data lines of the event so far, joined by LF
	hasData  bool
	skipLine bool // the line is over the bound
	skip     bool // the event is over the bound
}

// Usage returns the usage seen so far, last values winning; ok is false while
// none has been seen.
func (r *StreamReader) Usage() (u Usage, ok bool) { return r.usage.usage(), r.usage.seen }

// Done reports whether "data: [DONE]" has passed.
func (r *StreamReader) Done() bool { return r.done }

// Write takes the next chunk. It never fails.
func (r *StreamReader) Write(p []byte) (int, error) {
	n := len(p)
	if r.afterCR && n > 0 {
		r.afterCR = false
		if p[0] == '\n' {
			p = p[1:]
		}
	}
	for len(p) > 0 {
		// Lines end in LF, CR LF or CR. Cutting at LF first and at CR within
		// keeps the work linear.
		lf := bytes.IndexByte(p, '\n')
		if lf < 0 {
			r.segment(p, false)
			r.afterCR = p[len(p)-1] == '\r'
			break
		}
		r.segment(p[:lf], true)
		p = p[lf+1:]
	}
	return n, nil
}

// Finish tells that the stream has ended, so that a last event without its
// empty line counts.
func (r *StreamReader) Finish() {
	if len(r.line) > 0 || r.skipLine {
		r.endLine(nil)
	}
	r.endEvent()
}

// segment takes bytes without LF; ended tells that a LF followed them.
func (r *StreamReader) segment(p []byte, ended bool) {
	for {
		cr := bytes.IndexByte(p, '\r')
		if cr < 0 {
			break
		}
		r.endLine(p[:cr])
		p = p[cr+1:]
		if len(p) == 0 {
			return // CR LF, or a CR whose LF may come in the next chunk
		}
	}
	if ended {
		r.endLine(p)
		return
	}
	if r.skipLine || len(r.line)+len(p) > MaxEvent {
		r.skipLine, r.line = true, nil
		return
	}
	r.line = append(r.line, p...)
}

// endLine takes the last part of a line.
func (r *StreamReader) endLine(p []byte) {
	if r.skipLine || len(r.line)+len(p) > MaxEvent {
		r.skipLine, r.line = false, nil
		r.skip, r.data = true, nil
		return
	}
	line := p
	if len(r.line) > 0 {
		r.line = append(r.line, p...)
		line = r.line
	}
	r.takeLine(line)
	r.line = emptied(r.line)
}

func (r *StreamReader) takeLine(line []byte) {
	if len(line) == 0 {
		r.endEvent()
		return
	}
	value, found := bytes.CutPrefix(line, []byte("data"))
	if !found || (len(value) > 0 && value[0] != ':') || r.skip {
		return // a comment or another field
	}
	value = bytes.TrimPrefix(value, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	if len(r.data)+len(value)+1 > MaxEvent {
		r.skip, r.data = true, nil
		return
	}
	if r.hasData {
		r.data = append(r.data, '\n')
	}
	r.data = append(r.data, value...)
	r.hasData = true
}

func (r *StreamReader) endEvent() {
	if !r.skip && r.hasData {
		if string(bytes.TrimSpace(r.data)) == "[DONE]" {
			r.done = true
		} else if bytes.Contains(r.data, []byte(`"usage"`)) {
			r.usage.read(r.data)
		}
	}
	r.skip, r.hasData = false, false
	r.data = emptied(r.data)
}

// emptied keeps a small buffer for the next use and lets go of a large one.
func emptied(b []byte) []byte {
	if cap(b) > keptBuffer {
		return nil
	}
	return b[:0]
}
