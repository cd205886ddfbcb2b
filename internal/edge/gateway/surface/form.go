package surface

import (
	"bytes"
	"errors"
	"mime"
	"net/textproto"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// ParseBody finds what a body names and asks, by its Content-Type. form reports
// that the body is a multipart form and not JSON.
func ParseBody(contentType string, body []byte) (q openai.Request, form bool, err error) {
	if contentType != TypeJSON {
		if t, params, err := mime.ParseMediaType(contentType); err == nil && t == "multipart/form-data" {
			parsed, err := parseForm(body, params["boundary"])
			if err != nil {
				return openai.Request{}, true, err
			}
			return *parsed, true, nil
		}
	}
	q, err = openai.Parse(body)
	return q, false, err
}

// TypeJSON is the usual Content-Type, which need not be parsed.
const TypeJSON = "application/json"

// What can be wrong with a multipart form, as audio and image requests are.
var (
	errForm           = errors.New("the body is no multipart/form-data as its Content-Type says")
	errFormModel      = errors.New(`the form has no field "model"`)
	errFormModelTwice = errors.New(`the form has two fields "model"`)
)

// maxPartHeader bounds one part's header, in bytes.
const maxPartHeader = 8 << 10

// parseForm finds the field "model" of a multipart form (RFC 7578) without
// copying it. ModelSpan is the bare value, without quotes.
func parseForm(body []byte, boundary string) (*openai.Request, error) {
	if boundary == "" {
		return nil, errForm
	}
	delimiter := []byte("\r\n--" + boundary)
	rest, ok := bytes.CutPrefix(body, delimiter[2:])
	if !ok {
		_, after, found := bytes.Cut(body, delimiter)
		if !found {
			return nil, errForm
		}
		rest = after
	}
	var req *openai.Request
	for {
		if bytes.HasPrefix(rest, []byte("--")) {
			break // the closing delimiter
		}
		part, after, found := bytes.Cut(rest, delimiter)
		header, value, split := bytes.Cut(part, []byte("\r\n\r\n"))
		if !found || !split || len(header) > maxPartHeader || !endsLine(header) {
			return nil, errForm
		}
		name, ok := fieldName(header)
		if !ok {
			return nil, errForm
		}
		if name == "model" {
			if req != nil {
				return nil, errFormModelTwice
			}
			at := len(body) - len(rest) + len(header) + len("\r\n\r\n")
			req = &openai.Request{Model: value, ModelSpan: openai.Span{Start: at, End: at + len(value)}}
		}
		rest = after
	}
	if req == nil || len(req.Model) == 0 {
		return nil, errFormModel
	}
	return req, nil
}

// endsLine reports whether what follows a delimiter ends the line, white space
// aside. (A part without a header ends it with its value's separator.)
func endsLine(b []byte) bool {
	b = bytes.TrimLeft(b, " \t")
	return len(b) == 0 || bytes.HasPrefix(b, []byte("\r\n"))
}

// fieldName is the name in a part's Content-Disposition, "" if there is none.
// It is not ok where parsers disagree on whether it is "model": then the key
// could be asked about one model and a replica for another.
func fieldName(header []byte) (name string, ok bool) {
	found := false
	for i, line := range bytes.Split(header, []byte("\r\n")) {
		if bytes.ContainsAny(line, "\r\n\x00") || i > 0 && len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
			return "", false // a line end of some, or a folded line
		}
		key, value, split := bytes.Cut(line, []byte(":"))
		if !split || textproto.CanonicalMIMEHeaderKey(string(bytes.TrimSpace(key))) != "Content-Disposition" {
			continue
		}
		if found {
			return "", false
		}
		found = true
		_, params, err := mime.ParseMediaType(string(bytes.TrimSpace(value)))
		if err != nil && bytes.Contains(bytes.ToLower(value), []byte("model")) {
			return "", false
		}
		if err == nil {
			name = params["name"]
		}
	}
	return name, true
}
