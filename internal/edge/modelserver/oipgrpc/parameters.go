package oipgrpc

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// fromParameter is a parameter's value as JSON's decoder would give it, so that
// models see the same whatever the protocol.
func fromParameter(p *oip.InferParameter) (any, error) {
	switch v := p.GetParameterChoice().(type) {
	case *oip.InferParameter_BoolParam:
		return v.BoolParam, nil
	case *oip.InferParameter_StringParam:
		return v.StringParam, nil
	case *oip.InferParameter_Int64Param:
		return json.Number(strconv.FormatInt(v.Int64Param, 10)), nil
	case *oip.InferParameter_Uint64Param:
		return json.Number(strconv.FormatUint(v.Uint64Param, 10)), nil
	case *oip.InferParameter_DoubleParam:
		if math.IsNaN(v.DoubleParam) || math.IsInf(v.DoubleParam, 0) {
			return nil, tensor.Errorf(tensor.KindInvalid, "a parameter is %v; parameters are finite numbers", v.DoubleParam)
		}
		text := strconv.FormatFloat(v.DoubleParam, 'g', -1, 64)
		if !strings.ContainsAny(text, ".e") {
			text += ".0" // so that a reader takes it for a float
		}
		return json.Number(text), nil
	}
	return nil, nil
}

// toParameter is the opposite: numbers in the first form that holds them. Lists
// and objects, for which the protocol has no form, are their JSON as a string;
// null, and what is not JSON, is nil.
func toParameter(value any) *oip.InferParameter {
	switch v := value.(type) {
	case nil:
		return nil
	case bool:
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_BoolParam{BoolParam: v}}
	case string:
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_StringParam{StringParam: strings.ToValidUTF8(v, "\ufffd")}}
	}
	text, err := json.Marshal(value)
	if err != nil || string(text) == "null" {
		return nil
	}
	if c := text[0]; c == '-' || c-'0' <= 9 {
		return numberParameter(value, string(text))
	}
	return toParameter(string(text))
}

func numberParameter(value any, text string) *oip.InferParameter {
	_, isFloat := value.(float64)
	if i, err := strconv.ParseInt(text, 10, 64); err == nil && !isFloat {
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_Int64Param{Int64Param: i}}
	}
	if u, err := strconv.ParseUint(text, 10, 64); err == nil && !isFloat {
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_Uint64Param{Uint64Param: u}}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return toParameter(text)
	}
	return &oip.InferParameter{ParameterChoice: &oip.InferParameter_DoubleParam{DoubleParam: f}}
}

// parametersOf is p in the protocol's form.
func parametersOf(p tensor.Parameters) map[string]*oip.InferParameter {
	if len(p) == 0 {
		return nil
	}
	out := make(map[string]*oip.InferParameter, len(p))
	for name, value := range p {
		if v := toParameter(value); v != nil && utf8.ValidString(name) {
			out[name] = v
		}
	}
	return out
}

// The fields of an entry of a map.
const (
	entryKey   = 1
	entryValue = 2
)

// readParameter adds an entry of a message's parameters to p.
func readParameter(p *tensor.Parameters, entry []byte) error {
	key, value := "", &oip.InferParameter{}
	r := reader{rest: entry}
	for r.next() {
		var err error
		switch {
		case r.kind != protowire.BytesType:
		case r.number == entryKey:
			key, err = r.text()
		case r.number == entryValue:
			// An unset oneof keeps what an earlier value set, as a merge does.
			err = proto.UnmarshalOptions{Merge: true}.Unmarshal(r.value, value)
		}
		if err != nil {
			return malformed(err)
		}
	}
	if r.err != nil {
		return r.err
	}
	v, err := fromParameter(value)
	if err != nil {
		return err
	}
	if *p == nil {
		*p = tensor.Parameters{}
	}
	(*p)[key] = v
	return nil
}

// appendParameters appends p as the map of a field.
func appendParameters(dst []byte, field protowire.Number, p tensor.Parameters) ([]byte, error) {
	for name, v := range parametersOf(p) {
		text, err := proto.Marshal(v)
		if err != nil {
			return dst, err
		}
		size := protowire.SizeTag(entryKey) + protowire.SizeBytes(len(name)) + protowire.SizeTag(entryValue) + protowire.SizeBytes(len(text))
		dst = protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.BytesType), uint64(size))
		dst = appendText(dst, entryKey, name)
		dst = protowire.AppendBytes(protowire.AppendTag(dst, entryValue, protowire.BytesType), text)
	}
	return dst, nil
}

// appendText appends a string field.
func appendText(dst []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(dst, field, protowire.BytesType), text)
}
