package openai

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestBodyReader(t *testing.T) {
	long := strings.Repeat(`[0.25,-1e-3,"\\\"usage\\\":{"],`, 5000)
	for _, c := range []struct {
		body string
		want Usage
		ok   bool
	}{
		{`{"data":[` + long + `0],"usage":{"prompt_tokens":7,"completion_tokens":10}}`, Usage{7, 10, 17, 0}, true},
		{` { "usage" : { "prompt_tokens" : 7 , "prompt_tokens_details":{"cached_tokens":4}} , "z":1}`, Usage{7, 0, 7, 4}, true},
		{`{"choices":[{"usage":{"prompt_tokens":7}}],"usage":null}`, Usage{}, false},
		{`{"text":"\"usage\":{\"prompt_tokens\":7}","usages":{"prompt_tokens":7},"x":"usage"}`, Usage{}, false},
		{`{"meta":{"billed_units":{"input_tokens":5,"output_tokens":4}}}`, Usage{5, 4, 9, 0}, true},
		{`{"usage":{"x":"` + strings.Repeat("y", maxUsage) + `","prompt_tokens":7}}`, Usage{}, false},
		{`{"usage":{"x":"` + strings.Repeat("y", maxUsage) + `"},"meta":{"tokens":{"input_tokens":1}}}`, Usage{1, 0, 1, 0}, true},
		{`["usage",{"usage":{"prompt_tokens":7}}]`, Usage{}, false},
		{`}}]]{"usage":{"prompt_tokens":7}}`, Usage{7, 0, 7, 0}, true},
		{`not JSON "`, Usage{}, false},
	} {
		for _, size := range []int{1, 2, 7, len(c.body)} {
			var r BodyReader
			for rest := []byte(c.body); len(rest) > 0; {
				n := min(size, len(rest))
				_, _ = r.Write(rest[:n])
				rest = rest[n:]
			}
			if u, ok := r.Usage(); u != c.want || ok != c.ok {
				t.Errorf("%.60s in parts of %d: %+v %v", c.body, size, u, ok)
			}
			if cap(r.value) > 2*maxUsage || cap(r.key) > 4*longestKey {
				t.Errorf("%.60s: keeps %d and %d bytes", c.body, cap(r.value), cap(r.key))
			}
		}
	}
}

// FuzzBodyReader compares with a reading of the whole body at once.
func FuzzBodyReader(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"usage":2}],"usage":{"prompt_tokens":1,"x":"\"}"},"meta":{"tokens":{"output_tokens":3}}}`), uint64(1))
	f.Add([]byte(`{"usage":{"prompt_tokens":1},"usage":{"total_tokens":2}}`), uint64(2))
	f.Fuzz(func(t *testing.T, body []byte, seed uint64) {
		if !json.Valid(body) || bytes.Contains(body, []byte(`\u`)) || len(body) > maxUsage/2 {
			return // keys are compared as they are written
		}
		var want usageReader
		d := json.NewDecoder(bytes.NewReader(body))
		if tok, _ := d.Token(); tok == json.Delim('{') {
			for d.More() {
				key, _ := d.Token()
				var raw json.RawMessage
				if err := d.Decode(&raw); err != nil {
					return // nests deeper than the decoder goes
				}
				if key == "usage" || key == "meta" {
					want.read([]byte(`{"` + key.(string) + `":` + string(raw) + `}`))
				}
			}
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		var r BodyReader
		for rest := body; len(rest) > 0; {
			n := 1 + rng.IntN(len(rest))
			_, _ = r.Write(rest[:n])
			rest = rest[n:]
		}
		if u, ok := r.Usage(); u != want.usage() || ok != want.seen {
			t.Fatalf("%q: %+v %v, want %+v %v", body, u, ok, want.usage(), want.seen)
		}
	})
}

func BenchmarkBodyReader(b *testing.B) {
	body := []byte(`{"data":[{"embedding":[` + strings.Repeat("0.0123456789,", 40000) + `1]}],"usage":{"prompt_tokens":7}}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		var r BodyReader
		_, _ = r.Write(body)
		if u, _ := r.Usage(); u.PromptTokens != 7 {
			b.Fatal(u)
		}
	}
}
