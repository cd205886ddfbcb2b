package gateway

import (
	"net/http"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// surface is whose words a request and its errors are in.
type surface int

const (
	surfaceOpenAI    surface = iota // {"error":{"message","type","param","code"}}
	surfaceV1                       // {"error":"…"}
	surfaceOIP                      // {"error":"…"}
	surfaceAnthropic                // {"type":"error","error":{"type","message"}}
	surfaceCohere                   // {"message":"…"}
)

// provider is OpenTelemetry's gen_ai.provider.name: whose API it is.
func (s surface) provider() string {
	switch s {
	case surfaceAnthropic:
		return "anthropic"
	case surfaceCohere:
		return "cohere"
	case surfaceOpenAI, surfaceV1, surfaceOIP:
	}
	return "openai"
}

// operations are the values of OpenTelemetry's gen_ai.operation.name by the
// path after "/v1/" or "/v2/"; the conventions' own where they have one.
var operations = map[string]string{
	"chat/completions":      "chat",
	"responses":             "chat",
	"messages":              "chat",
	"chat":                  "chat",
	"completions":           "text_completion",
	"embeddings":            "embeddings",
	"embed":                 "embeddings",
	"messages/count_tokens": "count_tokens",
	"rerank":                "rerank",
	"score":                 "score",
	"classify":              "classify",
	"pooling":               "pooling",
	"moderations":           "moderation",
	"images/generations":    "image_generation",
	"images/edits":          "image_edit",
	"images/variations":     "image_variation",
	"audio/speech":          "speech",
	"audio/transcriptions":  "transcription",
	"audio/translations":    "translation",
}

// operationOther is that of every other path whose body names the model.
const operationOther = "other"

// classify finds the surface of a path, escaped.
func (x *exchange) classify(path string) {
	path = strings.TrimPrefix(path, "/openai")
	rest, v1 := strings.CutPrefix(path, "/v1/")
	model, isModel := strings.CutPrefix(rest, "models/")
	_, explained := x.w.(*explained)
	switch {
	case v1 && isModel && (strings.HasSuffix(model, ":predict") || strings.HasSuffix(model, ":explain")):
		x.surface = surfaceV1
	case explained:
		x.surface = surfaceOIP // whose errors are one string
	case v1 && (rest == "messages" || strings.HasPrefix(rest, "messages/")),
		v1 && (rest == "models" || isModel) && x.r.Header.Get("Anthropic-Version") != "":
		x.surface = surfaceAnthropic
	case v1 && (rest == "chat" || rest == "embed"), cohereV2(path):
		x.surface = surfaceCohere
	case path == "/v2" || strings.HasPrefix(path, "/v2/"):
		x.surface = surfaceOIP
	}
}

// cohereV2 says whether a path below /v2 is Cohere's, not the Open Inference
// Protocol's.
func cohereV2(path string) bool {
	return path == "/v2/chat" || path == "/v2/embed" || path == "/v2/rerank"
}

// setOperation names what is asked for; path is "/v1/…" or "/v2/…".
func (x *exchange) setOperation(path string) {
	x.seen.Operation = operationOther
	if op, ok := operations[path[len("/v1/"):]]; ok {
		x.seen.Operation = op
	}
}

// open says which paths need no key: they tell only that the gateway runs.
func open(path string) bool {
	switch path {
	case "/", "/healthz", "/v2/health/live", "/v2/health/ready":
		return true
	}
	return false
}

// errorBody is an error in the surface's form.
func errorBody(s surface, status int, message, param, code string) []byte {
	switch s {
	case surfaceAnthropic:
		b := openai.AppendQuoted([]byte(`{"type":"error","error":{"type":`), anthropicType(status))
		b = openai.AppendQuoted(append(b, `,"message":`...), message)
		return append(b, "}}\n"...)
	case surfaceCohere:
		b := openai.AppendQuoted([]byte(`{"message":`), message)
		return append(b, "}\n"...)
	case surfaceV1, surfaceOIP:
		b := openai.AppendQuoted([]byte(`{"error":`), message)
		return append(b, "}\n"...)
	case surfaceOpenAI:
	}
	return openai.ErrorJSON(message, errorType(status), param, code)
}

func errorType(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return openai.TypeAuthentication
	case status == http.StatusForbidden:
		return openai.TypePermission
	case status == http.StatusNotFound:
		return openai.TypeNotFound
	case status == http.StatusTooManyRequests:
		return openai.TypeRateLimit
	case status >= 500:
		return openai.TypeServer
	default:
		return openai.TypeInvalidRequest
	}
}

// anthropicType is the type of an error of Anthropic's API.
func anthropicType(status int) string {
	switch status {
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return errorType(status)
}
