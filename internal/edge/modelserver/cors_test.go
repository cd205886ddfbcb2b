package modelserver

import (
	"strings"
	"testing"
)

func TestCORS(t *testing.T) {
	pattern := `https://.*\.example\.org`
	with := func(c CORS) *site {
		return loaded(t, map[string]string{"m.fake": "fake double"}, func(config *Config) { config.Host, config.HTTP.CORS = "0.0.0.0", &c })
	}
	some := with(CORS{AllowOrigins: []string{"https://a.test"}, AllowOriginRegex: &pattern, AllowCredentials: true, AllowMethods: []string{"GET", "POST"},
		AllowHeaders: []string{"X-Mine"}, ExposeHeaders: []string{"Ce-Id"}, MaxAge: 600})
	all := with(CORS{AllowOrigins: []string{"*"}, AllowMethods: []string{"*"}, AllowHeaders: []string{"*"}, MaxAge: 1})
	none := loaded(t, map[string]string{"m.fake": "fake double"}, func(config *Config) { config.Host = "0.0.0.0" })
	const preflight, get = "OPTIONS /v2/models/only/infer", "GET /v2/models/only"
	tests := []struct {
		name    string
		site    *site
		line    string
		headers string // "Name: value" separated by |
		status  int
		want    string // the same; an empty value is none
	}{
		{"same origin", some, get, "X-None: 1", 200, "Access-Control-Allow-Origin: |Vary: "},
		{"listed", some, get, "Origin: https://a.test", 200, "Access-Control-Allow-Origin: https://a.test|Access-Control-Allow-Credentials: true|Access-Control-Expose-Headers: Ce-Id|Vary: Origin"},
		{"matching", some, get, "Origin: https://x.example.org", 200, "Access-Control-Allow-Origin: https://x.example.org"},
		{"matching in part", some, get, "Origin: https://x.example.org.evil.test", 200, "Access-Control-Allow-Origin: |Vary: Origin"},
		{"preflight", some, preflight, "Origin: https://a.test|Access-Control-Request-Method: POST|Access-Control-Request-Headers: x-mine, Content-Type", 200,
			"Access-Control-Allow-Origin: https://a.test|Access-Control-Allow-Methods: GET, POST|Access-Control-Max-Age: 600|Access-Control-Allow-Headers: Accept, Accept-Language, Content-Language, Content-Type, X-Mine"},
		{"preflight of another method", some, preflight, "Origin: https://a.test|Access-Control-Request-Method: PUT", 400, "Access-Control-Allow-Origin: https://a.test"},
		{"preflight of another header", some, preflight, "Origin: https://a.test|Access-Control-Request-Method: POST|Access-Control-Request-Headers: x-other", 400, ""},
		{"preflight of another origin", some, preflight, "Origin: https://b.test|Access-Control-Request-Method: POST", 400, "Access-Control-Allow-Origin: "},
		{"any origin", all, get, "Origin: https://b.test", 200, "Access-Control-Allow-Origin: *|Access-Control-Allow-Credentials: "},
		{"preflight of anything", all, preflight, "Origin: https://b.test|Access-Control-Request-Method: PUT|Access-Control-Request-Headers: x-other", 200,
			"Access-Control-Allow-Origin: *|Access-Control-Allow-Methods: DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT|Access-Control-Allow-Headers: x-other|Access-Control-Max-Age: 1"},
		{"off", none, get, "Origin: https://a.test", 200, "Access-Control-Allow-Origin: "},
		{"off, preflight", none, preflight, "Origin: https://a.test|Access-Control-Request-Method: POST", 204, "Access-Control-Allow-Origin: |Allow: POST"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			response, text := test.site.exchange(t, test.line, nil, strings.Split(test.headers, "|")...)
			if response.StatusCode != test.status {
				t.Errorf("%s %s, want %d", response.Status, text, test.status)
			}
			if test.status == 400 && !strings.Contains(string(text), `{"error":"Disallowed CORS`) {
				t.Errorf("%s", text)
			}
			for item := range strings.SplitSeq(test.want, "|") {
				name, want, ok := strings.Cut(item, ": ")
				if got := response.Header.Get(name); ok && got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
		})
	}
}
