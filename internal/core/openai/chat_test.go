package openai

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"testing"
)

// TestAsChat: the chats are those that vLLM 0.32 makes. test/engines has a real one
// render both and compares the tokens.
func TestAsChat(t *testing.T) {
	var cases []struct {
		Name, Path string
		Body, Chat json.RawMessage
	}
	raw, err := os.ReadFile("testdata/chats.json")
	if err == nil {
		err = json.Unmarshal(raw, &cases)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		got, ok := AsChat(c.Path, c.Body)
		if want := string(c.Chat) != "null"; ok != want {
			t.Errorf("%s: a chat is made: %t, want %t", c.Name, ok, want)
			continue
		}
		if ok && !reflect.DeepEqual(exact(t, got), exact(t, c.Chat)) {
			t.Errorf("%s: the chat is\n%s\nwant\n%s", c.Name, got, c.Chat)
		}
	}
	const same = `{"prompt": "a",  "model":"m"}`
	if got, ok := AsChat("/v1/chat/completions", []byte(same)); !ok || string(got) != same {
		t.Errorf("a chat becomes %s", got)
	}
}

// exact is a JSON value with its numbers as they are written.
func exact(t *testing.T, raw []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return v
}

// FuzzAsChat: whatever a body is, it becomes a chat or none.
func FuzzAsChat(f *testing.F) {
	raw, err := os.ReadFile("testdata/chats.json")
	var cases []struct{ Body json.RawMessage }
	if err == nil {
		err = json.Unmarshal(raw, &cases)
	}
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range cases {
		f.Add([]byte(c.Body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/v1/messages", "/v1/responses"} {
			chat, ok := AsChat(path, body)
			var c struct{ Messages []struct{ Role string } }
			if ok && (json.Unmarshal(chat, &c) != nil || len(c.Messages) == 0 || c.Messages[0].Role == "") {
				t.Errorf("%s: %q becomes %q", path, body, chat)
			}
		}
	})
}
