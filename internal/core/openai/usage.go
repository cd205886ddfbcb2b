package openai

import "bytes"

// Usage is what an answer cost, in tokens.
type Usage struct {
	PromptTokens     int64 // all of the prompt, cached tokens included
	CompletionTokens int64
	TotalTokens      int64 // as stated; the sum of the two when it is not
	CachedTokens     int64 // prompt tokens that were read from a prefix cache
}

// ReadUsage finds the usage of an answer's JSON body in any of the APIs' words:
//
//   - OpenAI's "usage" with prompt_tokens and completion_tokens, or input_tokens
//     and output_tokens; of a rerank total_tokens alone;
//   - Anthropic's, whose input_tokens leave out what the cache gave
//     (cache_read_input_tokens) and took (cache_creation_input_tokens);
//   - Cohere's "usage" or "meta" with billed_units, else tokens.
//
// It is a member of the outermost object, or of its "response", "message" or
// "delta" (the last events of streams). ok is false when no count is found or
// body is not valid JSON.
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
	s   scanner
	sum Usage
	// Anthropic's cached tokens, which its input_tokens leave out.
	cacheRead, cacheWritten int64
	// total, billed: total_tokens, billed_units were given; seen: any count.
	total, billed, seen bool
}

func (r *usageReader) usage() Usage {
	u := r.sum
	u.PromptTokens += r.cacheRead + r.cacheWritten
	u.CachedTokens += r.cacheRead
	switch {
	case !r.total || r.cacheRead+r.cacheWritten > 0:
		u.TotalTokens = u.PromptTokens + u.CompletionTokens
	case u.PromptTokens == 0:
		u.PromptTokens = max(u.TotalTokens-u.CompletionTokens, 0)
	}
	return u
}

// read merges the usage of one JSON text; nothing is merged if it is invalid.
func (r *usageReader) read(body []byte) bool {
	next := *r
	next.s = scanner{data: body}
	s := &next.s
	if s.peek() != '{' || !s.object(next.body) {
		return false
	}
	if s.peek(); s.pos != len(s.data) {
		return false
	}
	next.s = scanner{} // keep nothing of body
	*r = next
	return true
}

// body reads a member of the body: usage may be inside a response or message.
func (r *usageReader) body(key []byte, at int) bool {
	s := &r.s
	switch string(key) {
	case "response", "message", "delta":
		if s.peek() == '{' {
			return s.object(r.object)
		}
	}
	return r.object(key, at)
}

// object reads a member of an object that may hold usage.
func (r *usageReader) object(key []byte, _ int) bool {
	s := &r.s
	if s.peek() == '{' {
		switch string(key) {
		case "usage":
			return s.object(r.field)
		case "meta":
			return s.object(r.cohere)
		}
	}
	return s.value()
}

func (r *usageReader) field(key []byte, at int) bool {
	switch string(key) {
	case "total_tokens":
		r.total = true
		return r.count(&r.sum.TotalTokens)
	case "cache_read_input_tokens":
		return r.count(&r.cacheRead)
	case "cache_creation_input_tokens":
		return r.count(&r.cacheWritten)
	case "cached_tokens":
		return r.count(&r.sum.CachedTokens)
	case "prompt_tokens_details", "input_tokens_details":
		if r.s.peek() == '{' {
			return r.s.object(r.detail)
		}
	case "tokens", "billed_units":
		return r.cohere(key, at)
	}
	return r.promptOrCompletion(key, at)
}

// promptOrCompletion reads the two counts that every API has.
func (r *usageReader) promptOrCompletion(key []byte, _ int) bool {
	switch string(key) {
	case "prompt_tokens", "input_tokens":
		return r.count(&r.sum.PromptTokens)
	case "completion_tokens", "output_tokens":
		return r.count(&r.sum.CompletionTokens)
	}
	return r.s.value()
}

// cohere reads a member of Cohere's usage: billed counts replace used
// counts, as OpenTelemetry's conventions ask.
func (r *usageReader) cohere(key []byte, _ int) bool {
	s := &r.s
	billed := string(key) == "billed_units"
	if s.peek() != '{' || !billed && (r.billed || string(key) != "tokens") {
		return s.value()
	}
	r.billed = r.billed || billed
	return s.object(r.promptOrCompletion)
}

func (r *usageReader) detail(key []byte, _ int) bool {
	if string(key) == "cached_tokens" {
		return r.count(&r.sum.CachedTokens)
	}
	return r.s.value()
}

// count reads one count; null is none.
func (r *usageReader) count(to *int64) bool {
	if c := r.s.peek(); c >= '0' && c <= '9' {
		r.seen = true
	}
	return readCount(&r.s, to)
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

	events int64
}

// Usage returns the usage seen so far, last values winning; ok is false while
// none has been seen.
func (r *StreamReader) Usage() (u Usage, ok bool) { return r.usage.usage(), r.usage.seen }

// Events is how many events with data have passed, "[DONE]" aside: about one
// for every token of most engines.
func (r *StreamReader) Events() int64 { return r.events }

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
	if r.skip {
		r.events++
	} else if r.hasData {
		r.events++
		if string(bytes.TrimSpace(r.data)) == "[DONE]" {
			r.done = true
			r.events--
		} else if bytes.Contains(r.data, []byte(`_tokens"`)) {
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
