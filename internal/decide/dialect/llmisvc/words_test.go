package llmisvc

import (
	"slices"
	"testing"
)

func TestWords(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                 nil,
		"  --a  1\n--b=2\t":                {"--a", "1", "--b=2"},
		`--c '{"x": "y z"}' --d`:           {"--c", `{"x": "y z"}`, "--d"},
		`--c "{\"x\": \"$A ${B}\"}"`:       {"--c", `{"x": "$(A) $(B)"}`},
		`a'b'"c"d ''`:                      {"abcd", ""},
		`tcp://$(POD_IP):5557 $HOST:1 5$`:  {"tcp://$(POD_IP):5557", "$(HOST):1", "5$"},
		`'${LITERAL}' \$ONE \" a\ b`:       {"${LITERAL}", "$ONE", `"`, "a b"},
		"--long \\\n  --more":              {"--long", "--more"},
		`"unknown \escape"`:                {`unknown \escape`},
		`--kv_transfer_config '{"k":"v"}'`: {"--kv_transfer_config", `{"k":"v"}`},
	} {
		got, err := words(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`'open`, `"open`, "a; rm", "`a`", "$(rm -r)", "a | b", "a & b", "a > b", "\"$(rm -r)\"", "\"`rm`\""} {
		if got, err := words(text); err == nil {
			t.Errorf("%q is %q, want an error", text, got)
		}
	}
}

func FuzzWords(f *testing.F) {
	for _, s := range []string{`--a '{"b": 1}'`, `"$A ${B}`, `\`, "$(", "'\"'", `"\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := words(s)
		if err != nil {
			return
		}
		n := 0
		for _, w := range got {
			n += len(w)
		}
		if n > 2*len(s) { // $A becomes $(A)
			t.Errorf("%q became %q", s, got)
		}
	})
}
