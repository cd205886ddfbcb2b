package modelserver

import (
	"fmt"
	"maps"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// headersParameter is the parameter that holds a request's or response's
// headers. What a client writes there itself is overwritten.
const headersParameter = "headers"

// SetHeaders puts the headers a request came with, by lower-case name, into
// its parameters.
func SetHeaders(r *tensor.Request, headers map[string]any) {
	if r.Parameters == nil {
		r.Parameters = tensor.Parameters{}
	}
	r.Parameters[headersParameter] = headers
}

// TakeHeaders gives the headers that a response asks for, as the model wrote
// their names, and removes them from its parameters. The response's own
// parameters are not changed: a model may share them between answers.
func TakeHeaders(r *tensor.Response) map[string]string {
	value, ok := r.Parameters[headersParameter]
	if !ok {
		return nil
	}
	r.Parameters = maps.Clone(r.Parameters)
	delete(r.Parameters, headersParameter)
	headers := map[string]string{}
	switch list := value.(type) {
	case map[string]any:
		for name, v := range list {
			headers[name] = fmt.Sprint(v)
		}
	case map[string]string:
		maps.Copy(headers, list)
	}
	return headers
}
