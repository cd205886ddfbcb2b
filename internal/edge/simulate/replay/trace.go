package replay

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/simulate"
)

// Request is one request of a trace.
type Request struct {
	At     time.Duration // since the trace's beginning; never before the one ahead
	Prompt int           // tokens, at least 1
	Output int           // tokens, at least 1
	// Keys are the chained hashes of the blocks of simulate.BlockTokens
	// tokens, of the prompt and, where known, of the output after it.
	Keys     []uint64
	Adapter  string
	Priority int32
	Session  string

	blocks []uint64 // as the picker cuts them
}

// Trace is requests in the order they come.
type Trace struct{ Requests []Request }

// maxRequests bounds a trace.
const maxRequests = 1_000_000

// maxTokens bounds a request's prompt and output.
const maxTokens = 1 << 20

// Validate returns what is wrong with a trace.
func (t *Trace) Validate() error {
	if len(t.Requests) == 0 || len(t.Requests) > maxRequests {
		return fmt.Errorf("the trace has %d requests: want 1 to %d", len(t.Requests), maxRequests)
	}
	for i := range t.Requests {
		r := &t.Requests[i]
		switch {
		case r.Prompt < 1 || r.Prompt > maxTokens || r.Output < 1 || r.Output > maxTokens:
			return fmt.Errorf("request %d has %d tokens in and %d out: want 1 to %d of both", i+1, r.Prompt, r.Output, maxTokens)
		case i > 0 && r.At < t.Requests[i-1].At || r.At < 0:
			return fmt.Errorf("request %d comes at %v, before the one ahead of it", i+1, r.At)
		}
	}
	return nil
}

// Scale divides the times by speed, more than 0.
func (t *Trace) Scale(speed float64) {
	for i := range t.Requests {
		t.Requests[i].At = time.Duration(float64(t.Requests[i].At) / speed)
	}
}

// pickerTokens is how many tokens one of the picker's blocks stands for.
const pickerTokens = 64

// pickerBlocks are the prompt's blocks as the picker hashes them: a chained
// hash stands for all the text before it, so every so many of Keys does.
func (r *Request) pickerBlocks() []uint64 {
	const each = pickerTokens / simulate.BlockTokens
	if r.blocks == nil {
		for i := each - 1; i < min(len(r.Keys), r.Prompt/simulate.BlockTokens); i += each {
			r.blocks = append(r.blocks, r.Keys[i])
		}
	}
	return r.blocks
}

// whole is the hash by which the picker knows the whole prompt: 0 for one without blocks.
func (r *Request) whole() uint64 {
	if len(r.pickerBlocks()) == 0 {
		return 0
	}
	return max(1, mix(r.Keys[min(len(r.Keys), r.Prompt/simulate.BlockTokens)-1], uint64(r.Prompt)))
}

// mooncakeTokens is how many tokens one hash id of Mooncake's traces covers.
const mooncakeTokens = 512

// maxLine bounds a line of a trace file.
const maxLine = 4 << 20

// ReadMooncake reads a trace as Mooncake publishes them: lines of JSON with
// timestamp (milliseconds), input_length, output_length (tokens) and hash_ids,
// one for each 512 tokens of the prompt; equal ids mean equal text up to their
// end. name is for errors.
func ReadMooncake(name string, in io.Reader) (*Trace, error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	t := &Trace{}
	n := 0
	for lines.Scan() {
		n++
		if len(lines.Bytes()) == 0 {
			continue
		}
		var line struct {
			Timestamp float64  `json:"timestamp"`
			Input     int      `json:"input_length"`
			Output    int      `json:"output_length"`
			Hashes    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		r := Request{At: time.Duration(line.Timestamp * float64(time.Millisecond)), Prompt: line.Input, Output: line.Output}
		if r.Prompt < 1 || r.Prompt > maxTokens || r.Output > maxTokens || r.Output < 0 || !(line.Timestamp >= 0 && line.Timestamp < 1e12) {
			return nil, fmt.Errorf("%s:%d: want a timestamp from 0, input_length 1 to %d and output_length up to that", name, n, maxTokens)
		}
		r.Output = max(r.Output, 1)
		r.Keys = expand(line.Hashes, r.Prompt)
		if t.Requests = append(t.Requests, r); len(t.Requests) > maxRequests {
			return nil, fmt.Errorf("%s:%d: more than %d requests", name, n, maxRequests)
		}
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("the line is longer than %d bytes", maxLine)
		}
		return nil, fmt.Errorf("%s:%d: %w", name, n+1, err)
	}
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

// expand makes the keys of the engine's small blocks from the hashes of large
// ones.
func expand(hashes []uint64, prompt int) []uint64 {
	const each = mooncakeTokens / simulate.BlockTokens
	full := min(prompt/simulate.BlockTokens, len(hashes)*each)
	keys := make([]uint64, full)
	for i := range keys {
		keys[i] = mix(hashes[i/each], uint64(i%each))
	}
	return keys
}

// mix hashes two words (the finalizer of SplitMix64 over a weighted sum).
func mix(a, b uint64) uint64 {
	z := a*0x9e3779b97f4a7c15 + b + 0x632be59bd9b4e019
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
