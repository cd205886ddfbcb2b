package openai

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestReadUsage(t *testing.T) {
	cases := []struct {
		body string
		want Usage
		ok   bool
	}{
		{`{"usage":{"prompt_tokens":7,"completion_tokens":10,"total_tokens":17}}`, Usage{7, 10, 17, 0}, true},
		{`{"usage":{"prompt_tokens":7,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}`, Usage{7, 10, 17, 4}, true},
		{`{"usage":{"input_tokens":7,"output_tokens":2,"input_tokens_details":{"cached_tokens":3}}}`, Usage{7, 2, 9, 3}, true},
		{`{"type":"response.completed","response":{"usage":{"input_tokens":1,"output_tokens":2,"total_tokens":3}}}`, Usage{1, 2, 3, 0}, true},
		{`{"choices":[{"usage":{"prompt_tokens":7}}]}`, Usage{}, false},
		{`{"usage":{"total_tokens":56},"results":[]}`, Usage{56, 0, 56, 0}, true},
		{`{"usage":{"input_tokens":3,"cache_read_input_tokens":20,"cache_creation_input_tokens":7,"output_tokens":2}}`, Usage{30, 2, 32, 20}, true},
		{`{"usage":{"tokens":{"input_tokens":9,"output_tokens":8},"billed_units":{"input_tokens":5,"output_tokens":4},"cached_tokens":2}}`, Usage{5, 4, 9, 2}, true},
		{`{"usage":{"billed_units":{"input_tokens":5,"output_tokens":4},"tokens":{"input_tokens":9}}}`, Usage{5, 4, 9, 0}, true},
		{`{"meta":{"api_version":{"version":"1"},"tokens":{"input_tokens":9,"output_tokens":1}}}`, Usage{9, 1, 10, 0}, true},
		{`{"type":"message-end","delta":{"usage":{"billed_units":{"input_tokens":1,"output_tokens":2}}}}`, Usage{1, 2, 3, 0}, true},
		{`{"event_type":"stream-end","response":{"meta":{"billed_units":{"input_tokens":1,"output_tokens":2}}}}`, Usage{1, 2, 3, 0}, true},
		{`{"meta":{"billed_units":{"search_units":1}},"usage":{"type":"duration","seconds":4}}`, Usage{}, false},
		{`{"usage":{"prompt_tokens":null}}`, Usage{}, false},
		{`{"usage":null}`, Usage{}, false},
		{`{"usage":{"prompt_tokens":7}`, Usage{}, false},
		{`{"usage":{"prompt_tokens":7}} x`, Usage{}, false},
		{`[]`, Usage{}, false},
	}
	for _, c := range cases {
		got, ok := ReadUsage([]byte(c.body))
		if got != c.want || ok != c.ok {
			t.Errorf("%s: got %+v %v", c.body, got, ok)
		}
	}
}

const openAIStream = ": hello\n\n" +
	"data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\"\"}}],\"usage\":null}\n\n" +
	"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":10,\"total_tokens\":17}}\n\n" +
	"data: [DONE]\n\n"

// TestStreamEveryCut writes each stream cut in two at every place, and byte by
// byte: the reading must not depend on where frames split.
func TestStreamEveryCut(t *testing.T) {
	want := Usage{7, 10, 17, 0}
	streams := map[string]string{
		"LF":         openAIStream,
		"CRLF":       strings.ReplaceAll(openAIStream, "\n", "\r\n"),
		"CR":         strings.ReplaceAll(openAIStream, "\n", "\r"),
		"no space":   strings.ReplaceAll(openAIStream, "data: ", "data:"),
		"multi-line": strings.ReplaceAll(openAIStream, `,"usage":`, ",\ndata: \"usage\":\ndata:"),
		"named":      strings.ReplaceAll(openAIStream, "data: ", "event: x\nid: 4\ndata: "),
	}
	for name, stream := range streams {
		for cut := range len(stream) + 1 {
			var r StreamReader
			_, _ = r.Write([]byte(stream[:cut]))
			_, _ = r.Write([]byte(stream[cut:]))
			if u, ok := r.Usage(); !ok || u != want || !r.Done() {
				t.Fatalf("%s cut at %d: %+v %v done %v", name, cut, u, ok, r.Done())
			}
		}
		var r StreamReader
		for i := range len(stream) {
			_, _ = r.Write([]byte(stream[i : i+1]))
		}
		if u, ok := r.Usage(); !ok || u != want || !r.Done() {
			t.Fatalf("%s by bytes: %+v %v done %v", name, u, ok, r.Done())
		}
	}
}

func TestStreamAnthropic(t *testing.T) {
	var r StreamReader
	_, _ = r.Write([]byte("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n"))
	if u, ok := r.Usage(); !ok || u != (Usage{30, 15, 45, 5}) {
		t.Errorf("got %+v %v", u, ok)
	}
}

func TestStreamUnfinished(t *testing.T) {
	var r StreamReader
	_, _ = r.Write([]byte("data: {\"usage\":{\"prompt_tokens\":3}}\n\ndata: [DONE]"))
	if r.Done() {
		t.Error("done before the line ended")
	}
	r.Finish()
	if u, _ := r.Usage(); !r.Done() || u.PromptTokens != 3 {
		t.Errorf("%+v done %v", u, r.Done())
	}
}

// TestStreamBound passes a line and an event over the bound: memory stays
// bounded, the events after them count.
func TestStreamBound(t *testing.T) {
	var r StreamReader
	chunk := []byte(strings.Repeat("x", 10_000))
	check := func() {
		t.Helper()
		if cap(r.line) > 2*MaxEvent || cap(r.data) > 2*MaxEvent {
			t.Fatalf("buffers of %d and %d bytes", cap(r.line), cap(r.data))
		}
	}
	_, _ = r.Write([]byte(`data: {"usage":{"prompt_tokens":9},"x":"`))
	for range 100 {
		_, _ = r.Write(chunk)
		check()
	}
	_, _ = r.Write([]byte("\"}\n\n"))
	for range 100 {
		_, _ = r.Write([]byte("data: " + string(chunk) + "\n"))
		check()
	}
	_, _ = r.Write([]byte("\ndata: {\"big\":\"" + strings.Repeat("y", MaxEvent) + "\",\"usage\":{\"prompt_tokens\":8}}\n\n"))
	if u, ok := r.Usage(); ok {
		t.Fatalf("read from an event over the bound: %+v", u)
	}
	_, _ = r.Write([]byte(openAIStream))
	if u, ok := r.Usage(); !ok || u.TotalTokens != 17 || !r.Done() {
		t.Errorf("got %+v %v", u, ok)
	}
	if cap(r.line) > keptBuffer || cap(r.data) > keptBuffer {
		t.Errorf("keeps %d and %d bytes when idle", cap(r.line), cap(r.data))
	}
}

// naiveStream reads a whole stream at once.
func naiveStream(stream []byte) (Usage, bool, bool) {
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(stream))
	var r usageReader
	done := false
	var data []string
	for line := range strings.SplitSeq(text, "\n") {
		value, isData := strings.CutPrefix(line, "data")
		switch {
		case line == "":
			if event := strings.Join(data, "\n"); strings.TrimSpace(event) == "[DONE]" && data != nil {
				done = true
			} else if strings.Contains(event, `_tokens"`) && json.Valid([]byte(event)) {
				r.read([]byte(event))
			}
			data = nil
		case isData && (value == "" || value[0] == ':'):
			value = strings.TrimPrefix(value, ":")
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	return r.usage(), r.seen, done
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(openAIStream), uint64(1))
	f.Add([]byte(strings.ReplaceAll(openAIStream, "\n", "\r\n")), uint64(2))
	f.Add([]byte("data\r\rdata:[DONE]\n\n\r\n: x\ndata:  [DONE]\r\r"), uint64(3))
	f.Add([]byte("data: {\"usage\":{\ndata:\"prompt_tokens\":4}}\n\n"), uint64(4))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		if len(stream) > MaxEvent/2 {
			return
		}
		// The naive reading ends an unfinished line; keep both to whole events.
		stream = append(bytes.Clone(stream), "\n\n"...)
		rng := rand.New(rand.NewPCG(seed, 0))
		var r StreamReader
		for rest := stream; len(rest) > 0; {
			n := 1 + rng.IntN(len(rest))
			_, _ = r.Write(rest[:n])
			rest = rest[n:]
		}
		u, ok := r.Usage()
		wantU, wantOK, wantDone := naiveStream(stream)
		if u != wantU || ok != wantOK || r.Done() != wantDone {
			t.Fatalf("%q: %+v %v %v, want %+v %v %v", stream, u, ok, r.Done(), wantU, wantOK, wantDone)
		}
	})
}
