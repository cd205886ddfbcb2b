package network

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestCORS(t *testing.T) {
	some := &CORS{Origins: []string{"https://a.test"}, OriginPattern: regexp.MustCompile(`^(?:https://.*\.example\.org)$`), Methods: []string{"GET", "POST"},
		Headers: []string{"X-Mine"}, Exposed: []string{"Ce-Id"}, Credentials: true, MaxAge: 600}
	all := &CORS{Origins: []string{"*"}, Methods: []string{"*"}, Headers: []string{"*"}, MaxAge: 1}
	for _, test := range []struct {
		name string
		c    *CORS
		r    CORSRequest
		want string // header fields, then what is refused
	}{
		{"no origin", some, CORSRequest{Method: "GET"}, " []"},
		{"listed", some, CORSRequest{Method: "GET", Origin: "https://a.test"},
			"Access-Control-Allow-Credentials: true|Access-Control-Allow-Origin: https://a.test|Access-Control-Expose-Headers: Ce-Id|Vary: Origin []"},
		{"pattern", some, CORSRequest{Method: "GET", Origin: "https://x.example.org"},
			"Access-Control-Allow-Credentials: true|Access-Control-Allow-Origin: https://x.example.org|Access-Control-Expose-Headers: Ce-Id|Vary: Origin []"},
		{"pattern in part", some, CORSRequest{Method: "GET", Origin: "https://x.example.org.evil.test"}, "Vary: Origin []"},
		{"preflight", some, CORSRequest{"OPTIONS", "https://a.test", "POST", "x-mine, Content-Type"},
			"Access-Control-Allow-Credentials: true|Access-Control-Allow-Headers: Accept, Accept-Language, Content-Language, Content-Type, X-Mine|" +
				"Access-Control-Allow-Methods: GET, POST|Access-Control-Allow-Origin: https://a.test|Access-Control-Max-Age: 600|Vary: Origin []"},
		{"preflight of all that is refused", some, CORSRequest{"OPTIONS", "https://b.test", "PUT", "x-other"}, "Vary: Origin [origin method headers]"},
		{"any", all, CORSRequest{Method: "GET", Origin: "https://b.test"}, "Access-Control-Allow-Origin: * []"},
		{"preflight of anything", all, CORSRequest{"OPTIONS", "https://b.test", "PUT", "x-other"},
			"Access-Control-Allow-Headers: x-other|Access-Control-Allow-Methods: DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT|" +
				"Access-Control-Allow-Origin: *|Access-Control-Max-Age: 1 []"},
	} {
		h := map[string][]string{}
		refused := test.c.Answer(h, test.r)
		var fields []string
		for _, name := range slices.Sorted(maps.Keys(h)) {
			fields = append(fields, name+": "+strings.Join(h[name], ";"))
		}
		if got := fmt.Sprint(strings.Join(fields, "|"), " ", refused); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
