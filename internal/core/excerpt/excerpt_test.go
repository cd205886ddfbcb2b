package excerpt

import "testing"

func TestOf(t *testing.T) {
	for _, test := range []struct {
		text string
		most int
		want string
	}{
		{"", 0, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"aéb", 2, "a…"}, {"aéb", 3, "aé…"}, {"€", 2, "…"}, {"\xff", 1, "\xff"}, {"a\xffbc", 3, "ab…"},
	} {
		if got := Of(test.text, test.most); got != test.want {
			t.Errorf("Of(%q, %d) is %q, want %q", test.text, test.most, got, test.want)
		}
	}
}
