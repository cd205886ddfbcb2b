package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

func TestAppendChanged(t *testing.T) {
	changes := []Change{{Key: "max_tokens", Value: []byte("1"), Add: true}, {Key: "stream", Value: []byte("false")},
		{Key: "kv", Value: []byte(`{"a":null}`), Add: true}}
	for _, c := range []struct{ body, want string }{
		{`{"model":"m"}`, `{"model":"m","max_tokens":1,"kv":{"a":null}}`},
		{"{\"model\":\"m\" ,\n\"max_tokens\" : 9007199254740993 , \"stream\":true\n}\n", "{\"model\":\"m\" ,\n\"max_tokens\" : 1 , \"stream\":false\n,\"kv\":{\"a\":null}}\n"},
		{`{"kv":[1,{"max_tokens":7}],"x":1.50,"max\u005ftokens":5}`, `{"kv":{"a":null},"x":1.50,"max\u005ftokens":1}`},
		{`{"stream":1,"stream":2}`, `{"stream":false,"stream":false,"max_tokens":1,"kv":{"a":null}}`},
		{` {}`, ` {"max_tokens":1,"kv":{"a":null}}`},
	} {
		got, err := AppendChanged([]byte("head "), []byte(c.body), changes...)
		if err != nil || string(got) != "head "+c.want {
			t.Errorf("%s becomes\n%s (%v), want\n%s", c.body, got, err, c.want)
		}
	}
	for body, want := range map[string]error{`[]`: ErrNotObject, `{"a":1`: ErrSyntax, `{} {}`: ErrTrailingData, ``: ErrSyntax, `{"a" 1}`: ErrSyntax} {
		if _, err := AppendChanged(nil, []byte(body), changes...); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", body, err, want)
		}
	}
}

func TestFind(t *testing.T) {
	body := []byte(`{"a":{"kv":1},"kv":2,"b":"kv","kv": {"x":[3]} }`)
	for key, want := range map[string]string{"kv": `{"x":[3]}`, "b": `"kv"`, "none": ""} {
		at, err := Find(body, key)
		if got := string(at.Of(body)); err != nil || got != want {
			t.Errorf("%s is %s (%v), want %s", key, got, err, want)
		}
	}
	if _, err := Find([]byte(`{"kv":`), "kv"); err == nil {
		t.Error("half an object has a member")
	}
}

// FuzzAppendChanged compares with decoding and encoding.
func FuzzAppendChanged(f *testing.F) {
	for _, s := range []string{`{"model":"m","max_tokens":3}`, `{}`, `{"a":[1,{"kv":2}],"kv":null}`, `[1]`, `{"kv":1,"kv":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		got, err := AppendChanged(nil, body, Change{Key: "kv", Value: []byte(`[7]`), Add: true}, Change{Key: "max_tokens", Value: []byte("1")})
		if !bytes.Equal(body, before) {
			t.Fatal("the body was changed")
		}
		var in, out map[string]json.RawMessage
		bad := json.Unmarshal(body, &in) != nil || in == nil
		if bad != (err != nil) {
			if errors.Is(err, ErrDepth) {
				return
			}
			t.Fatalf("%q: %v", body, err)
		}
		if bad {
			return
		}
		if err := json.Unmarshal(got, &out); err != nil {
			t.Fatalf("%q becomes %q: %v", body, got, err)
		}
		if _, ok := in["max_tokens"]; ok {
			in["max_tokens"] = json.RawMessage("1")
		}
		in["kv"] = json.RawMessage("[7]")
		if !reflect.DeepEqual(in, out) {
			t.Errorf("%q becomes %q", body, got)
		}
	})
}
