package modelserver

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// document fetches and validates an OpenAPI document.
func (s *site) document(t *testing.T, path string) *openapi3.T {
	t.Helper()
	status, text, _ := s.do(t, "GET "+path, "")
	if status != 200 {
		t.Fatalf("%s: %d %s", path, status, text)
	}
	document, err := openapi3.NewLoader().LoadFromData([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if err := document.Validate(t.Context()); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	base, err := url.Parse(s.url + path)
	if err != nil {
		t.Fatal(err)
	}
	server, err := base.Parse(document.Servers[0].URL)
	if err != nil || strings.TrimSuffix(server.String(), "/") != s.url {
		t.Errorf("%s: server %q is %v (%v), want %s", path, document.Servers[0].URL, server, err, s.url)
	}
	return document
}

func paths(d *openapi3.T) []string {
	list := d.Paths.InMatchingOrder()
	slices.Sort(list)
	return list
}

func TestDocuments(t *testing.T) {
	s := loaded(t, map[string]string{"m/model-settings.json": `{"name":"a b","implementation":"test.Fake","parameters":{"uri":"model.fake","version":"v1"}}`, "m/model.fake": "fake double"})
	whole := s.document(t, "/v2/docs/dataplane.json")
	repository := s.document(t, "/v2/docs/model_repository.json")

	// Every route is in a document and every path of a document is a route.
	var have []string
	for path := range routes(&api{}, &docs{}) {
		if strings.HasPrefix(path, "/v2") && !strings.Contains(path, "/docs") && path != "/v2/{$}" {
			have = append(have, path)
		}
	}
	slices.Sort(have)
	documented := append(paths(whole), paths(repository)...)
	slices.Sort(documented)
	if !slices.Equal(have, documented) {
		t.Errorf("routes    %v\ndocuments %v", have, documented)
	}
	ids := map[string]bool{}
	for _, d := range []*openapi3.T{whole, repository} {
		for path, item := range d.Paths.Map() {
			for method, operation := range item.Operations() {
				if routes(&api{}, &docs{})[path][method] == nil || ids[operation.OperationID] {
					t.Errorf("%s %s %s", method, path, operation.OperationID)
				}
				ids[operation.OperationID] = true
			}
		}
	}

	model := s.document(t, "/v2/models/a%20b/docs/dataplane.json")
	if got := paths(model); len(got) != 17 || got[0] != "/v2/models/a%20b" || got[len(got)-1] != "/v2/models/a%20b/versions/{model_version}/stats" {
		t.Errorf("paths of a model: %v", got)
	}
	if p := model.Paths.Value("/v2/models/a%20b/versions/{model_version}/ready").Parameters; len(p) != 1 || p[0].Value.Name != "model_version" {
		t.Errorf("parameters: %v", p)
	}
	version := s.document(t, "/v2/models/a%20b/versions/v1/docs/dataplane.json")
	if got := paths(version); len(got) != 8 || got[0] != "/v2/models/a%20b/versions/v1" || version.Info.Title != "Data Plane for Model a b (v1)" {
		t.Errorf("paths of a version: %v, title %q", got, version.Info.Title)
	}
	if p := version.Paths.Value(paths(version)[0]).Parameters; len(p) != 0 {
		t.Errorf("parameters of a version: %v", p)
	}
}

// TestAnswersFollowDocument checks answers against the document.
func TestAnswersFollowDocument(t *testing.T) {
	s := loaded(t, map[string]string{
		"good/model-settings.json":   settings("test.Fake", "model.fake", "v1"),
		"good/model.fake":            "fake echo",
		"broken/model-settings.json": settings("test.Fake", "model.fake", ""),
		"broken/model.fake":          "fake broken",
	})
	dataplane, repository := s.document(t, "/v2/docs/dataplane.json"), s.document(t, "/v2/docs/model_repository.json")
	const nested = `{"parameters":{"content_type":"np"},"inputs":[{"name":"x","shape":[2,1],"datatype":"BYTES","data":[["a"],[null]]}]}`
	tests := []struct {
		document               *openapi3.T
		method, template, path string
		body                   string
		status                 int
	}{
		{dataplane, "GET", "/v2", "/v2", "", 200},
		{dataplane, "GET", "/v2/health/live", "/v2/health/live", "", 200},
		{dataplane, "GET", "/v2/health/ready", "/v2/health/ready", "", 400},
		{dataplane, "GET", "/v2/models/{model_name}", "/v2/models/good", "", 200},
		{dataplane, "GET", "/v2/models/{model_name}", "/v2/models/broken", "", 400},
		{dataplane, "GET", "/v2/models/{model_name}", "/v2/models/none", "", 404},
		{dataplane, "GET", "/v2/models/{model_name}/ready", "/v2/models/good/ready", "", 200},
		{dataplane, "GET", "/v2/models/{model_name}/ready", "/v2/models/broken/ready", "", 400},
		{dataplane, "POST", "/v2/models/{model_name}/infer", "/v2/models/good/infer", ask, 200},
		{dataplane, "POST", "/v2/models/{model_name}/infer", "/v2/models/good/infer", nested, 200},
		{dataplane, "POST", "/v2/models/{model_name}/infer", "/v2/models/good/infer", `{"inputs":[{"shape":[1.5]}]}`, 422},
		{dataplane, "POST", "/v2/models/{model_name}/infer", "/v2/models/good/infer", strings.Replace(ask, "[2]", "[3]", 1), 400},
		{repository, "POST", "/v2/repository/index", "/v2/repository/index", `{"ready":false}`, 200},
		{repository, "POST", "/v2/repository/models/{model_name}/load", "/v2/repository/models/none/load", "", 404},
	}
	for _, test := range tests {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			item := test.document.Paths.Value(test.template)
			route := &routers.Route{Spec: test.document, Path: test.template, PathItem: item, Method: test.method, Operation: item.GetOperation(test.method)}
			r, err := http.NewRequest(test.method, s.url+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			input := &openapi3filter.RequestValidationInput{Request: r, Route: route, PathParams: map[string]string{"model_name": "good"}}
			if test.status == 200 && test.body != "" {
				if err := openapi3filter.ValidateRequest(t.Context(), input); err != nil {
					t.Errorf("request: %v", err)
				}
			}
			status, text, header := s.do(t, test.method+" "+test.path, test.body)
			if status != test.status {
				t.Fatalf("%d %s", status, text)
			}
			output := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: status, Header: header, Body: io.NopCloser(strings.NewReader(text)),
				Options: &openapi3filter.Options{IncludeResponseStatus: true}}
			if err := openapi3filter.ValidateResponse(t.Context(), output); err != nil {
				t.Errorf("answer %s: %v", text, err)
			}
		})
	}
}

// address finds the addresses in a page.
var address = regexp.MustCompile(`(?:src|href)="([^"]*)"|"url":"([^"]*)"`)

// TestPages follows every address of the pages, also behind a proxy that shows
// the server under a path.
func TestPages(t *testing.T) {
	s := loaded(t, map[string]string{"m/model-settings.json": settings("test.Fake", "model.fake", "v1"), "m/model.fake": "fake double"},
		func(c *Config) { c.HTTP.RootPath = "/api" })
	for _, page := range []string{"/v2/docs", "/v2/models/m/docs", "/v2/models/m/versions/v1/docs", "/api/v2/docs", "/api/v2/models/m/docs"} {
		status, text, header := s.do(t, "GET "+page, "")
		if status != 200 || header.Get("Content-Type") != "text/html; charset=utf-8" {
			t.Fatalf("%s: %d %s", page, status, text)
		}
		base := &url.URL{Path: page}
		found := address.FindAllStringSubmatch(text, -1)
		if len(found) < 5 {
			t.Errorf("%s: %d addresses in %s", page, len(found), text)
		}
		for _, f := range found {
			target, err := base.Parse(f[1] + f[2])
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(page, "/api") && !strings.HasPrefix(target.Path, "/api/") {
				t.Errorf("%s: %s leaves the root path", page, f[0])
			}
			if status, text, _ := s.do(t, "GET "+target.Path, ""); status != 200 || len(text) < 100 {
				t.Errorf("%s: %s: %d, %d bytes", page, target.Path, status, len(text))
			}
		}
	}
	if _, text, _ := s.do(t, "GET /v2/models/m/versions/v1/docs", ""); !strings.Contains(text, "<title>Model server: m (v1)</title>") {
		t.Errorf("title: %s", text)
	}
}

// TestAssetForms checks that a file is the same compressed and plain.
func TestAssetForms(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake double"})
	plain, text := s.exchange(t, "GET /v2/docs/assets/swagger-ui-bundle.js", nil)
	small, packed := s.exchange(t, "GET /v2/docs/assets/swagger-ui-bundle.js", nil, "Accept-Encoding: gzip")
	if small.Header.Get("Content-Encoding") != "gzip" || plain.Header.Get("Content-Encoding") != "" {
		t.Fatalf("encodings %q and %q", small.Header.Get("Content-Encoding"), plain.Header.Get("Content-Encoding"))
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := io.ReadAll(z)
	if err != nil || !bytes.Equal(unpacked, text) || !bytes.Contains(text, []byte("SwaggerUIBundle")) {
		t.Errorf("the forms differ (%v)", err)
	}
}

func TestDocumentIsStable(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake double"})
	_, first, _ := s.do(t, "GET /v2/docs/dataplane.json", "")
	_, second, _ := s.do(t, "GET /v2/docs/dataplane.json", "")
	if first != second || !json.Valid([]byte(first)) {
		t.Error("the document changes from one request to the next")
	}
}
