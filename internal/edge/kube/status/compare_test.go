package status

import (
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestLongTexts: a message repeats what a manifest says, however long that is.
// What is written of it fits, stays the same, and is text.
func TestLongTexts(t *testing.T) {
	long := "no runtime lists the format \"" + strings.Repeat("é", 1<<20) + "\""
	status := func() map[string]any {
		return map[string]any{"modelStatus": map[string]any{"lastFailureInfo": map[string]any{"message": long, "exitCode": 1}},
			"conditions": []any{map[string]any{"type": "Ready", "message": long}, map[string]any{"type": "Other", "message": "short"}}, "url": "http://x"}
	}
	got, err := plain(status())
	if err != nil {
		t.Fatal(err)
	}
	conditions := got["conditions"].([]any)
	for _, m := range []any{conditions[0].(map[string]any)["message"], got["modelStatus"].(map[string]any)["lastFailureInfo"].(map[string]any)["message"]} {
		if text := m.(string); len(text) > maxText || len(text) < maxText-8 || !utf8.ValidString(text) || !strings.HasSuffix(text, "é…") {
			t.Errorf("%d bytes, ending in %q", len(text), text[len(text)-8:])
		}
	}
	if conditions[1].(map[string]any)["message"] != "short" || got["url"] != "http://x" {
		t.Errorf("%v", got)
	}
	if again, err := plain(status()); err != nil || !same(again, got, nil) || !reflect.DeepEqual(again, got) {
		t.Errorf("it would be written again: %v", err)
	}
}

// TestNoticesStay: the notice of an installation that stands back is no reason
// to write, and does not hide one.
func TestNoticesStay(t *testing.T) {
	ready := map[string]any{"type": "Ready", "status": "True"}
	want := map[string]any{"conditions": []any{ready}}
	notice := map[string]any{"type": ConditionManaged, "status": "False"}
	if have := map[string]any{"conditions": []any{notice, ready}}; !same(want, have, nil) || len(have["conditions"].([]any)) != 2 {
		t.Errorf("written for a notice: %v", have)
	}
	if same(want, map[string]any{"conditions": []any{notice, map[string]any{"type": "Ready", "status": "False"}}}, nil) {
		t.Error("a change is not seen beside a notice")
	}
}
