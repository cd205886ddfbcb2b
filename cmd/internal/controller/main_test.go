package controller

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// TestMisspeltCommand: what was meant is named.
func TestMisspeltCommand(t *testing.T) {
	for args, want := range map[string]string{
		"gatway":         `has no command "gatway"; did you mean gateway?`,
		"endpoint-pickr": `did you mean endpoint-picker?`,
		"somethingelse":  `has no command "somethingelse"` + "\n",
	} {
		var said bytes.Buffer
		if code := run(strings.Fields("controller "+args), io.Discard, &said); code != 2 || !strings.Contains(said.String(), want) {
			t.Errorf("%s: exit %d, %q", args, code, said.String())
		}
	}
}
