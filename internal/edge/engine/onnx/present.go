package onnx

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/ort"
)

// present makes output i from v.
func (a *answer) present(i int, p ort.Port, v *ort.Value) error {
	var err error
	t := &a.Outputs[i]
	switch p.Type.Kind {
	case ort.Tensor:
		*t, err = a.tensor(v)
	case ort.Map:
		*t, err = a.table(p, []*ort.Value{v})
		if err == nil {
			t.Shape = t.Shape[1:]
		}
	default:
		*t, err = a.sequence(p, v)
	}
	t.Name = p.Name
	return err
}

// add puts raw into the payload.
func (a *answer) add(d tensor.Datatype, shape []int64, raw []byte) wireTensor {
	offset, length := a.payload.add(raw)
	return wireTensor{Datatype: d.String(), Shape: shape, Offset: &offset, Length: length}
}

// tensor presents a tensor, without copying it unless it holds strings.
func (a *answer) tensor(v *ort.Value) (wireTensor, error) {
	d, shape, raw, text, err := elements(v)
	if err != nil {
		return wireTensor{}, err
	}
	t := a.add(d, shape, raw)
	t.Text = text
	return t, nil
}

// elements returns a tensor's elements in the payload's encoding; text reports
// whether they are UTF-8 strings.
func elements(v *ort.Value) (d tensor.Datatype, shape []int64, raw []byte, text bool, err error) {
	if d, shape, err = v.Shape(); err != nil {
		return d, shape, nil, false, err
	}
	if d != tensor.Bytes {
		raw, err = v.Raw(d, shape)
		return d, shape, raw, false, err
	}
	list, err := v.Strings(shape)
	raw, text = rawStrings(list)
	return d, shape, raw, text, err
}

// rawStrings encodes BYTES elements for the payload.
func rawStrings(list [][]byte) (raw []byte, text bool) {
	text = true
	for _, e := range list {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(len(e)))
		raw = append(raw, e...)
		text = text && utf8.Valid(e)
	}
	return raw, text
}

// sequence presents a sequence, whose elements live as long as the answer.
func (a *answer) sequence(p ort.Port, v *ort.Value) (wireTensor, error) {
	n, err := v.Len()
	if err != nil {
		return wireTensor{}, err
	}
	list := make([]*ort.Value, n)
	for i := range list {
		if list[i], err = v.At(i); err != nil {
			return wireTensor{}, err
		}
		a.values = append(a.values, list[i])
	}
	if p.Type.Element.Kind == ort.Map {
		return a.table(p, list)
	}
	return a.stack(p, list)
}

// stack presents tensors of one shape as one.
func (a *answer) stack(p ort.Port, list []*ort.Value) (wireTensor, error) {
	var all []byte
	var first []int64
	text := true
	for i, v := range list {
		_, shape, raw, isText, err := elements(v)
		if err != nil {
			return wireTensor{}, err
		}
		if i == 0 {
			first = shape
		} else if !slices.Equal(first, shape) {
			return wireTensor{}, fault(kindFailed, "output %q is a sequence of tensors of the shapes %v and %v: only those of one shape can be sent", p.Name, first, shape)
		}
		all = append(all, raw...)
		text = text && isText
	}
	t := a.add(p.Type.Element.Datatype, append([]int64{int64(len(list))}, first...), all)
	t.Text = text && p.Type.Element.Datatype == tensor.Bytes
	return t, nil
}

// classes names the parameter that holds the keys of maps.
const classes = "classes"

// table presents maps with the same keys as rows, with the keys, in order, in
// a parameter.
func (a *answer) table(p ort.Port, rows []*ort.Value) (wireTensor, error) {
	kind := p.Type
	if kind.Kind == ort.Sequence {
		kind = *kind.Element
	}
	var all []byte
	var keys []byte
	width, text := int64(0), true
	t := wireTensor{}
	for i, row := range rows {
		k, values, isText, err := entries(row)
		if err != nil {
			return t, err
		}
		if i == 0 {
			keys, width = k.raw, k.n
			t.Parameters = map[string]any{classes: k.list}
		} else if !slices.Equal(keys, k.raw) {
			return t, fault(kindFailed, "output %q: its maps have different keys, so they are no tensor; export the model without ZipMap (options={'zipmap': False})", p.Name)
		}
		all = append(all, values...)
		text = text && isText
	}
	parameters := t.Parameters
	t = a.add(kind.Datatype, []int64{int64(len(rows)), width}, all)
	t.Parameters, t.Text = parameters, text && kind.Datatype == tensor.Bytes
	return t, nil
}

// mapKeys are the keys of a map, in ascending order.
type mapKeys struct {
	n    int64
	raw  []byte
	list any // []int64 or []string
}

// entries reads a map.
func entries(v *ort.Value) (k mapKeys, values []byte, text bool, err error) {
	keys, err := v.At(0)
	if err != nil {
		return k, nil, false, err
	}
	defer keys.Release()
	elementsOfMap, err := v.At(1)
	if err != nil {
		return k, nil, false, err
	}
	defer elementsOfMap.Release()
	d, shape, raw, _, err := elements(keys)
	if err != nil {
		return k, nil, false, err
	}
	k.n, _ = tensor.Elements(shape)
	k.raw = slices.Clone(raw)
	k.list = keyList(d, k)
	_, _, raw, text, err = elements(elementsOfMap)
	return k, slices.Clone(raw), text, err
}

// keyList returns the keys as a parameter's value.
func keyList(d tensor.Datatype, k mapKeys) any {
	t := tensor.Tensor{Datatype: d, Shape: []int64{k.n}}
	if t.SetRaw(k.raw) != nil {
		return nil // not possible: the library gave both
	}
	if d == tensor.Int64 {
		return t.Data.Int64
	}
	list := make([]string, k.n)
	for i, e := range t.Data.Bytes {
		list[i] = string(e)
	}
	return list
}
