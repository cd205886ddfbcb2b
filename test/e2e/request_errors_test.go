package e2e

import (
	"strings"
	"testing"
)

// TestBadRequests asks the gateway for what it must refuse, and for what its
// replica must.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	tensor := func(shape, datatype, data string) string {
		return `{"inputs":[{"name":"input-0","shape":` + shape + `,"datatype":"` + datatype + `","data":` + data + `}]}`
	}
	for name, c := range map[string]struct {
		path, body string
		status     int
		want       string
	}{
		"unknown model, v2":     {"/v2/models/nobody/infer", irisTensor, 404, `^{"error":"model \\"nobody\\" is not served here; the models are chat, digits, iris"}`},
		"unknown model, v1":     {"/v1/models/nobody:predict", irisRow, 404, `^{"error":"model \\"nobody\\" .*chat, digits, iris`},
		"unknown model, openai": {"/v1/chat/completions", `{"model":"nobody","messages":[]}`, 404, `^{"error":{"message":"model \\"nobody\\" .*"type":"not_found_error","param":"model","code":"model_not_found"}}`},
		"no model":              {"/v1/chat/completions", `{"messages":[]}`, 400, `"param":"model"`},
		"model twice":           {"/v1/chat/completions", `{"model":"chat","messages":[],"model":"chat"}`, 400, `appears twice.*"param":"model"`},
		"model is a number":     {"/v1/chat/completions", `{"model":7}`, 400, `"param":"model"`},
		"no JSON":               {"/v1/chat/completions", `{"model":`, 400, `"invalid_request_error"`},
		"too few features":      {"/v2/models/iris/infer", tensor("[1,3]", "FP32", "[1,2,3]"), 400, `expected 4 features per row, got 3`},
		"shape against data":    {"/v2/models/iris/infer", tensor("[2,4]", "FP32", "[1,2,3,4]"), 400, `(?i)shape|elements|values`},
		"negative shape":        {"/v2/models/iris/infer", tensor("[-2,4]", "FP32", "[1,2,3,4]"), 400, `(?i)shape`},
		"huge shape":            {"/v2/models/iris/infer", tensor("[9223372036854775807,9223372036854775807]", "FP32", "[1]"), 400, `(?i)shape`},
		"unknown datatype":      {"/v2/models/iris/infer", tensor("[1,4]", "FP99", "[1,2,3,4]"), 422, `datatype`},
		"words for numbers":     {"/v2/models/iris/infer", tensor("[1,4]", "FP32", `["a","b","c","d"]`), 400, `input-0|data`},
		"no inputs":             {"/v2/models/iris/infer", `{}`, 422, `inputs`},
		"ragged rows":           {"/v1/models/iris:predict", `{"instances":[[1,2,3,4],[1,2]]}`, 400, `.+`},
		"unknown path":          {"/v3/models", `{}`, 404, `error`},
	} {
		t.Run(name, func(t *testing.T) {
			a := n.on(t).post(c.path, c.body)
			if a.status != c.status && !(c.status == 400 && a.status == 422) {
				t.Errorf("want %d, got %s", c.status, a)
			}
			matches(t, a.body, c.want)
			if a.header.Get("X-Request-Id") == "" {
				t.Error("the answer has no X-Request-Id")
			}
		})
	}
	t.Run("a body over the limit", func(t *testing.T) {
		n := n.on(t)
		big := `{"inputs":[` + strings.Repeat(" ", 65<<20) + `]}`
		if a := n.post("/v2/models/iris/infer", big, "Expect", "100-continue"); a.status != 413 || !strings.Contains(a.body, "67108864") {
			t.Errorf("want 413 with the limit, got %s", a)
		}
	})
	n.infer("/v2/models/iris/infer", irisTensor) // and it serves on
}
