package openai

import "unicode/utf8"

// Error types of OpenAI's API.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeAuthentication = "authentication_error"
	TypePermission     = "permission_error"
	TypeNotFound       = "not_found_error"
	TypeRateLimit      = "rate_limit_error"
	TypeServer         = "server_error"
)

// ErrorJSON builds OpenAI's error body,
// {"error":{"message","type","param","code"}}; an empty param or code is null.
func ErrorJSON(message, typ, param, code string) []byte {
	b := make([]byte, 0, 64+len(message)+len(typ)+len(param)+len(code))
	b = append(b, `{"error":{"message":`...)
	b = AppendQuoted(b, message)
	b = append(b, `,"type":`...)
	b = AppendQuoted(b, typ)
	b = append(b, `,"param":`...)
	b = appendQuotedOrNull(b, param)
	b = append(b, `,"code":`...)
	b = appendQuotedOrNull(b, code)
	return append(b, "}}\n"...)
}

func appendQuotedOrNull(b []byte, v string) []byte {
	if v == "" {
		return append(b, "null"...)
	}
	return AppendQuoted(b, v)
}

// AppendQuoted appends v as a JSON string. Only what JSON requires is escaped
// (quotes, backslashes, control characters); invalid UTF-8 becomes U+FFFD.
func AppendQuoted(b []byte, v string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range v {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, '\\', 'n')
		case r == '\t':
			b = append(b, '\\', 't')
		case r == '\r':
			b = append(b, '\\', 'r')
		case r < 0x20:
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
