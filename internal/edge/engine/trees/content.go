package trees

import (
	"slices"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// contentType is a content_type parameter; "" for none.
func contentType(p tensor.Parameters) string {
	name, _ := p["content_type"].(string)
	return name
}

// checkContent reports a content type by which MLServer's codecs would make of
// the request what no tree model takes: texts, bytes or times, or, with np, one
// array of several inputs. What a codec would make of numbers is read as they
// are: np is what they are anyway, and of pd every input is a column. Unknown
// content types change nothing, as in MLServer.
func (m *Model) checkContent(r *tensor.Request) error {
	for i := range r.Inputs {
		in := &r.Inputs[i]
		name := contentType(in.Parameters)
		if at := slices.IndexFunc(m.options.Inputs, func(t tensor.TensorMetadata) bool { return t.Name == in.Name }); name == "" && at >= 0 {
			name = contentType(m.options.Inputs[at].Parameters)
		}
		switch name {
		case "str", "base64", "datetime":
			return tensor.Errorf(tensor.KindInvalid, "input %q: the content type %q is not of numbers, which are all that model %q takes; leave it out, or use np or pd", in.Name, name, m.options.Name)
		}
	}
	name := contentType(r.Parameters)
	if name == "" {
		name = m.options.RequestContentType
	}
	switch {
	case name == "str":
		return tensor.Errorf(tensor.KindInvalid, "the request's content type %q is not of numbers, which are all that model %q takes; leave it out, or use np or pd", name, m.options.Name)
	case name == "np" && len(r.Inputs) > 1:
		return tensor.Errorf(tensor.KindInvalid, "There was an error encoding / decoding the payload: The 'np' codec only supports a single input tensor (%d were received)", len(r.Inputs))
	}
	for _, o := range r.Outputs {
		switch name := contentType(o.Parameters); name {
		case "str", "base64", "datetime":
			return tensor.Errorf(tensor.KindInvalid, "output %q: numbers cannot be given as content type %q; leave it out, or use np", o.Name, name)
		}
	}
	return nil
}
