package route

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

func key(s string) service.Key { return service.ParseKey(s) }

func table() *Table {
	return NewTable([]Entry{
		{Key: key("default/iris")},
		{Key: key("default/chat")},
		{Key: key("team-a/iris")},
		{Key: key("team-a/digits"), Host: "Numbers.Example.com:8443"},
	}, "example.com")
}

func TestResolve(t *testing.T) {
	for _, c := range []struct {
		host, model, want string
		named             bool
	}{
		{"", "chat", "default/chat", true},
		{"localhost:8080", "chat", "default/chat", true},
		{"", "team-a/iris", "team-a/iris", true},
		{"iris.default.example.com", "iris", "default/iris", true},
		{"IRIS.team-a.example.com.:80", "iris", "team-a/iris", true},
		{"iris.team-a.example.com", "", "team-a/iris", true},
		{"iris.team-a.example.com", "team-a/iris", "team-a/iris", true},
		{"iris.team-a.example.com", "an-adapter", "team-a/iris", false},
		{"numbers.example.com", "digits", "team-a/digits", true},
		{"digits.team-a.example.com", "digits", "team-a/digits", true}, // unknown host: the name decides
		{"[::1]:8080", "digits", "team-a/digits", true},
	} {
		got, err := table().Resolve(Query{Host: c.host, Model: c.model}, nil)
		if err != nil || got.Pool != routing.Service(key(c.want)) || got.Named != c.named {
			t.Errorf("Resolve(%q, %q) = %v, %v; want %s, named %v", c.host, c.model, got, err, c.want, c.named)
		}
	}
}

func TestResolveErrors(t *testing.T) {
	for _, c := range []struct{ model, want string }{
		{"iris", `model "iris" is served in 2 namespaces; name one as namespace/name: default/iris, team-a/iris`},
		{"digit", `model "digit" is not served here; did you mean digits?`},
		{"team-b/iris", `model "team-b/iris" is not served here; did you mean team-a/iris?`},
		{"irs", `model "irs" is not served here; did you mean default/iris or team-a/iris?`},
		{"llama", `model "llama" is not served here; the models are chat, digits, default/iris, team-a/iris`},
		{"", `model "" is not served here; the models are chat, digits, default/iris, team-a/iris`},
	} {
		_, err := table().Resolve(Query{Model: c.model}, nil)
		if err == nil || err.Error() != c.want {
			t.Errorf("Resolve(%q):\n got %v\nwant %s", c.model, err, c.want)
		}
	}
	var nf *NotFoundError
	if _, err := new(Table).Resolve(Query{Host: "x", Model: "m"}, nil); !errors.As(err, &nf) ||
		!strings.Contains(err.Error(), "no service has been applied") {
		t.Errorf("zero table: %v", err)
	}
}

func TestErrorsAreBounded(t *testing.T) {
	var entries []Entry
	for i := range 500 {
		entries = append(entries, Entry{Key: key(fmt.Sprintf("ns-%d/model", i))}, Entry{Key: key(fmt.Sprintf("default/m-%d", i))})
	}
	tab := NewTable(entries, "")
	for _, name := range []string{"model", "other", strings.Repeat("é", 1<<16), "m-1000"} {
		_, err := tab.Resolve(Query{Model: name}, nil)
		if err == nil || len(err.Error()) > 1000 {
			t.Errorf("Resolve(%.20q): %d bytes of error: %.200v", name, len(err.Error()), err)
		}
	}
}

func TestHostClaimedTwiceDecidesForNobody(t *testing.T) {
	tab := NewTable([]Entry{
		{Key: key("a/x"), Host: "same.example"},
		{Key: key("b/x"), Host: "same.example"},
		{Key: key("c/x"), Host: "same.example"},
		{Key: key("a/y")}, {Key: key("a/y"), Host: "late.example"},
	}, "")
	var amb *AmbiguousError
	if _, err := tab.Resolve(Query{Host: "same.example", Model: "x"}, nil); !errors.As(err, &amb) || len(amb.Candidates) != 3 {
		t.Errorf("got %v, want three candidates", err)
	}
	if got, err := tab.Resolve(Query{Host: "late.example"}, nil); err != nil || got.Pool != routing.Service(key("a/y")) {
		t.Errorf("last entry of a key: got %v, %v", got, err)
	}
	if n := len(tab.Keys()); n != 4 {
		t.Errorf("%d keys, want 4", n)
	}
}

// naive is the textbook recursion.
func naive(a, b string) int {
	if a == "" || b == "" {
		return len(a) + len(b)
	}
	if a[0] == b[0] {
		return naive(a[1:], b[1:])
	}
	return 1 + min(naive(a[1:], b), naive(a, b[1:]), naive(a[1:], b[1:]))
}

func TestDistance(t *testing.T) {
	words := []string{"", "a", "iris", "irsi", "ris", "risi", "digits", "digit", "ditigs", "xyz"}
	for _, a := range words {
		for _, b := range words {
			want := min(naive(a, b), maxDistance+1)
			if got := distance(a, b, maxDistance); got != want {
				t.Errorf("distance(%q, %q) = %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestResolveAllocatesNothing(t *testing.T) {
	tab := table()
	n := testing.AllocsPerRun(100, func() {
		if _, err := tab.Resolve(Query{Host: "localhost:8080", Model: "chat"}, nil); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
