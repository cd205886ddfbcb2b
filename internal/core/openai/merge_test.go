package openai

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestMerge(t *testing.T) {
	const was = `{ "seed": 12345678901234567890, "model":"llama","prompt": "a<b && \u00e9", "temperature":1.0}`
	for name, c := range map[string]struct{ was, now, want string }{
		"encoded anew": {was, `{"model":"llama","prompt":"a\u003cb \u0026\u0026 é","seed":12345678901234567000,"temperature":1}`, was},
		"another model": {was, `{"model":"llama-3","prompt":"a\u003cb \u0026\u0026 é","seed":12345678901234567000,"temperature":1}`,
			strings.Replace(was, `"llama"`, `"llama-3"`, 1)},
		"one more":     {`{"model":"m"}`, `{ "kv": {"a": [1, 2]} , "model" : "m"}`, `{"model":"m","kv":{"a": [1, 2]}}`},
		"another seed": {`{"model":"m","seed":7}`, `{"model":"m","seed":8}`, `{"model":"m","seed":8}`},
		"nested":       {`{"model":"m","x":{"a":1,"b":[true,null]}}`, `{"x":{"b":[true,null],"a":1.0},"model":"m"}`, `{"model":"m","x":{"a":1,"b":[true,null]}}`},
		// As it stands.
		"one less":      {`{"model":"m","seed":7}`, `{"model":"m"}`, ""},
		"twice":         {`{"model":"m","a":1,"a":2}`, `{"model":"m","a":2}`, ""},
		"twice now":     {`{"model":"m","a":1}`, `{"model":"m","a":1,"a":2}`, ""},
		"no object":     {`{"model":"m"}`, `[1]`, ""},
		"no JSON":       {`{"model":"m"}`, `{"model":"m"`, ""},
		"was no object": {`x`, `{}`, ""},
		"too long":      {`{"model":"m"}`, `{"model":"` + strings.Repeat("m", MaxMerged) + `"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, changed, ok := Merge([]byte(c.was), []byte(c.now))
			if ok != (c.want != "") || ok && string(got) != c.want || ok && changed != (c.want != c.was) {
				t.Errorf("%v %v %s, want %s", ok, changed, got, c.want)
			}
		})
	}
}

// FuzzMerge compares what a merged body means with what it was made of, by
// encoding/json.
func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":"x"}`), []byte(`{"b":"y","a":1.0}`))
	f.Add([]byte(`{"a":1}`), []byte(`{"a":1,"c":{}}`))
	f.Add([]byte(`{}`), []byte(` { "c" : [ ] } `))
	f.Add([]byte(`{"\u0061":"\ud800"}`), []byte(`{"a":"x","b":null}`))
	f.Fuzz(func(t *testing.T, was, now []byte) {
		merged, changed, ok := Merge(was, now)
		if !ok {
			return
		}
		var x, y map[string]any
		if err := json.Unmarshal(merged, &x); err != nil {
			t.Fatalf("%q of %q and %q: %v", merged, was, now, err)
		}
		if err := json.Unmarshal(now, &y); err != nil || !reflect.DeepEqual(x, y) {
			t.Errorf("%q of %q and %q", merged, was, now)
		}
		if !changed && string(merged) != string(was) {
			t.Errorf("%q is said to be %q", merged, was)
		}
	})
}
