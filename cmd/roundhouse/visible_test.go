package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// TestVisible: a character may come in pieces, and what JSON says stays the same.
func TestVisible(t *testing.T) {
	const in = "ein\tSatz – 漢字 🙂\nred \x1b[31m, title \x1b]0;x\x07, C1 \u009b2J, bell \x7f, back\b\r, turned \u202e, broken \xff\x9b."
	const want = "ein\tSatz – 漢字 🙂\nred \\u001b[31m, title \\u001b]0;x\\u0007, C1 \\u009b2J, bell \\u007f, back\\u0008\\u000d, turned \\u202e, broken \ufffd\ufffd."
	for size := 1; size < len(in); size++ {
		var out bytes.Buffer
		v := &visible{to: &out}
		for at := 0; at < len(in); at += size {
			piece := in[at:min(at+size, len(in))]
			if n, err := v.Write([]byte(piece)); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if out.String() != want {
			t.Fatalf("by %d bytes: %q", size, out.String())
		}
	}
	if got := visibly(in); got != want { // as errors are printed
		t.Errorf("at once: %q", got)
	}
}

// TestStatusIsVisible: what a status says neither moves the cursor nor looks like
// another service's line.
func TestStatusIsVisible(t *testing.T) {
	const bad = "\x1b]0;owned\x07\x1b[2J down\nprod  other  True\fprod\vx\u009b1m"
	s := admin.Service{Namespace: "prod", Name: "iris", Rendered: "a: b\n", Status: service.Status{Conditions: []service.Condition{
		{Type: service.ConditionReady, Status: "False", Reason: "Failed", Message: bad}}, Model: service.ModelStatus{LastFailure: &service.Failure{Reason: "Failed", Message: bad}}}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/iris"):
			_ = json.NewEncoder(w).Encode(s)
		default:
			_ = json.NewEncoder(w).Encode([]admin.Service{s})
		}
	}))
	t.Cleanup(server.Close)
	for _, args := range [][]string{{"get"}, {"get", "-o", "wide"}, {"get", "iris"}, {"describe", "iris"}} {
		text, err := runHere(t, append(args, "--server", server.URL, "--data-dir", t.TempDir())...)
		if err != nil {
			t.Fatal(args, err)
		}
		if !strings.Contains(text, "down prod other") || strings.ContainsAny(text, "\x1b\x07\f\v\u009b") {
			t.Errorf("%v: %q", args, text)
		}
	}
}
