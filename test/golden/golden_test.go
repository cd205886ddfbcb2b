package golden

import "testing"

func TestDifference(t *testing.T) {
	for _, c := range []struct{ name, want, got, is string }{
		{"equal", "a\nb\n", "a\nb\n", ""},
		{"another line", "a\nb\n", "a\nc\n", "2:\nwant \"b\"\ngot  \"c\""},
		{"fewer lines", "a\nb", "a", "2:\nwant \"b\"\ngot  (no more lines)"},
		{"more lines", "a", "a\nb", "2:\nwant (no more lines)\ngot  \"b\""},
	} {
		if is := difference(c.want, c.got); is != c.is {
			t.Errorf("%s: %q, not %q", c.name, is, c.is)
		}
	}
}
