// Package surface is the gateway's APIs as data: which paths each has, how a call
// finds its model and how an error is written. Nothing here does I/O.
package surface

import (
	"net/http"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// Surface is the API that a request and its errors are written in.
type Surface int

// The surfaces, with the form of their errors.
const (
	OpenAI    Surface = iota // {"error":{"message","type","param","code"}}
	V1                       // {"error":"…"}
	OIP                      // {"error":"…"}
	Anthropic                // {"type":"error","error":{"type","message"}}
	Cohere                   // {"message":"…"}
)

// Provider is OpenTelemetry's gen_ai.provider.name: whose API it is.
func (s Surface) Provider() string {
	switch s {
	case Anthropic:
		return "anthropic"
	case Cohere:
		return "cohere"
	case OpenAI, V1, OIP:
	}
	return "openai"
}

// ErrorBody is an error in the surface's form. OpenAI's alone has param and code.
func ErrorBody(s Surface, status int, message, param, code string) []byte {
	switch s {
	case Anthropic:
		b := openai.AppendQuoted([]byte(`{"type":"error","error":{"type":`), AnthropicType(status))
		b = openai.AppendQuoted(append(b, `,"message":`...), message)
		return append(b, "}}\n"...)
	case Cohere:
		b := openai.AppendQuoted([]byte(`{"message":`), message)
		return append(b, "}\n"...)
	case V1, OIP:
		b := openai.AppendQuoted([]byte(`{"error":`), message)
		return append(b, "}\n"...)
	case OpenAI:
	}
	return openai.ErrorJSON(message, ErrorType(status), param, code)
}

// ErrorType is the type of an error of OpenAI's API.
func ErrorType(status int) string {
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

// AnthropicType is the type of an error of Anthropic's API.
func AnthropicType(status int) string {
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
	return ErrorType(status)
}
