package surface

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
	"testing"
)

func TestFind(t *testing.T) {
	for path, want := range map[string]struct {
		kind      Kind
		surface   Surface
		operation string
		model     string
		target    string // where a replica serves it as "org/m", with the prefix /openai
	}{
		"/":                                {Banner, OpenAI, "", "", ""},
		"/v1/chat/completions":             {ModelInBody, OpenAI, "chat", "", "/openai/v1/chat/completions"},
		"/openai/v1/chat/completions":      {ModelInBody, OpenAI, "chat", "", "/openai/v1/chat/completions"},
		"/v1/audio/new":                    {ModelInBody, OpenAI, "other", "", "/openai/v1/audio/new"},
		"/tokenize":                        {ModelInBody, OpenAI, "other", "", "/tokenize"},
		"/detokenize":                      {ModelInBody, OpenAI, "other", "", "/detokenize"},
		"/tokenizer_info":                  {Unknown, OpenAI, "", "", "/tokenizer_info"},
		"/v1/messages":                     {ModelInBody, Anthropic, "chat", "", "/openai/v1/messages"},
		"/v2/chat/":                        {ModelInBody, Cohere, "chat", "", "/v2/chat"},
		"/v1/load_lora_adapter":            {Unlisted, OpenAI, "", "", "/v1/load_lora_adapter"},
		"/v1/models/":                      {ListModels, OpenAI, "", "", ""},
		"/v1/models/m":                     {DescribeModel, OpenAI, "", "m", ""},
		"/v1/models/m:predict":             {ModelInPath, V1, "", "m", "/v1/models/org%2Fm:predict"},
		"/v2/models/a%2Fm/infer":           {ModelInPath, OIP, "", "a%2Fm", "/v2/models/org%2Fm/infer"},
		"/v2/models/m/versions/1/ready":    {ModelReady, OIP, "", "m", ""},
		"/v2/models/m/":                    {ModelInPath, OIP, "", "m", "/v2/models/org%2Fm"},
		"/v2/repository/models/m/load":     {RepositoryLoad, OIP, "", "m", ""},
		"/v2/repository/models/m/download": {NotFound, OIP, "", "m", ""},
		"/v2/nothing":                      {NotFound, OIP, "", "", ""},
		"/metrics":                         {Unknown, OpenAI, "", "", "/metrics"},
	} {
		c := Find(path, path, false)
		if path == "/v2/models/a%2Fm/infer" {
			c = Find(path, "/v2/models/a/m/infer", false)
		}
		if got := c.Target("/openai", "org/m"); c.Kind != want.kind || c.Surface != want.surface || c.Operation != want.operation || c.Model != want.model || got != want.target && want.target != "" {
			t.Errorf("%s: %+v, target %q", path, c, got)
		}
		if forwards := c.Kind.Forwards(); forwards && len(c.Methods) > 0 && c.Infers != (c.Methods[0] == "POST") {
			t.Errorf("%s: takes %v, infers %v", path, c.Methods, c.Infers)
		}
	}
	for _, path := range []string{"/v1/models", "/v1/models/m"} {
		if c := Find(path, path, true); c.Surface != Anthropic {
			t.Errorf("%s for Anthropic's clients is %+v", path, c)
		}
	}
}

// FuzzParseForm compares with mime/multipart: where both accept, they agree on
// the model.
func FuzzParseForm(f *testing.F) {
	for _, s := range []string{
		"--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n",
		"pre\r\n--b\r\nA: b\r\nContent-Disposition: form-data; name=x\r\n\r\n\r\n--b\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--b--",
		"--b--", "--b\r\n\r\n", "", "--b\r\nContent-Disposition: form-data; name=model\r\n\r\nm", "--b  \r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--b--",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := parseForm(body, "b")
		if err != nil {
			return
		}
		if span := got.ModelSpan.Of(body); !bytes.Equal(span, got.Model) {
			t.Fatalf("span %q, model %q", span, got.Model)
		}
		var models []string
		for r := multipart.NewReader(bytes.NewReader(body), "b"); ; {
			p, err := r.NextRawPart()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return
			}
			v, err := io.ReadAll(p)
			if err != nil {
				return
			}
			if p.FormName() == "model" {
				models = append(models, string(v))
			}
		}
		if len(models) == 1 && models[0] != string(got.Model) {
			t.Fatalf("got %q, multipart says %q", got.Model, models)
		}
	})
}
