package inference

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestTyped: lines become one message between quotes and in a paste.
func TestTyped(t *testing.T) {
	type line struct {
		text   string
		pasted bool
	}
	for name, c := range map[string]struct {
		lines []line
		want  string
	}{
		"one line":                  {[]line{{"hello", false}}, "hello"},
		"a command":                 {[]line{{"  /bye", false}}, " /bye"},
		"quoted":                    {[]line{{`"""first`, false}, {"", false}, {`last"""`, false}}, " first\n\nlast"},
		"quoted on one line":        {[]line{{`"""/bye"""`, false}}, " /bye"},
		"a paste":                   {[]line{{"first", true}, {"  second", true}, {"", false}}, "first\n  second"},
		"a paste with quotes in it": {[]line{{`"""doc`, true}, {"end", false}}, "\"\"\"doc\nend"},
	} {
		var m typed
		for i, l := range c.lines {
			if whole := m.add(l.text, l.pasted); whole != (i == len(c.lines)-1) {
				t.Errorf("%s: after %q the message is whole: %t", name, l.text, whole)
			}
		}
		if got := m.text(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestOrders: what lines that begin with a slash do.
func TestOrders(t *testing.T) {
	c := &Conversation{messages: []message{{"user", "hi"}, {"assistant", "hello"}}}
	for _, step := range []struct{ line, says string }{
		{"/set", "No parameter is set"},
		{"/set temperature 0.7", "temperature is 0.7."},
		{"/set stop END", `stop is "END".`},
		{"/set seed 7", "seed is 7."},
		{"/set", "seed 7\nstop \"END\"\ntemperature 0.7"},
		{"/set seed", "seed is the server's again."},
		{"/set messages []", "no parameter"},
		{"/system", "no system message"},
		{"/system Be brief.", "is set"},
		{"/system", "system: Be brief."},
		{"/nothing", "/help lists them"},
		{"/help", "/system [TEXT]"},
	} {
		word, rest, _ := strings.Cut(step.line, " ")
		if got := c.order(word, rest); !strings.Contains(got, step.says) {
			t.Errorf("%s: %q, want %q", step.line, got, step.says)
		}
	}
	if c.messages[0] != (message{"system", "Be brief."}) || len(c.messages) != 3 {
		t.Errorf("the conversation is %v", c.messages)
	}
	if got, _ := json.Marshal(c.parameters); string(got) != `{"stop":"END","temperature":0.7}` {
		t.Errorf("the parameters are %s", got)
	}
	c.order("/clear", "")
	if len(c.messages) != 0 {
		t.Errorf("after /clear: %v", c.messages)
	}
}
