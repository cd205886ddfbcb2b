package xgboost

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// FuzzParse reads hostile files. Whatever is taken must predict.
func FuzzParse(f *testing.F) {
	f.Add([]byte(tiny))
	f.Add([]byte("{L\x00\x00\x00\x00\x00\x00\x00\x07learner{L\x00\x00\x00\x00\x00\x00\x00\x01a[$l#L\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01}}"))
	paths, err := filepath.Glob("testdata/*.[ju][sb]*")
	if err != nil || len(paths) == 0 {
		f.Fatalf("no fixtures: %v", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data)
		if err == nil {
			predictOdd(t, m)
		}
	})
}

// FuzzJSON compares the reader with encoding/json on what both take, and the
// UBJSON reader with it by way of a plain encoder.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(tiny))
	f.Add([]byte(`{"a": [1, -2.5e-3, true, null], "b": ["x", "\u00fcé\n", {}], "c": [], "d": {"e": [[], [[1]]]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, err := parseJSON(data)
		var theirs any
		if err != nil || json.Unmarshal(data, &theirs) != nil {
			return
		}
		want, err := plain(theirs)
		if err != nil {
			return // an array that mixes kinds, which ours may see as numbers only after another error
		}
		if !same(ours, want) {
			t.Fatalf("%s: got %+v, want %+v", data, ours, want)
		}
		again, err := parseUBJ(encode(nil, want))
		if err != nil || !same(again, want) {
			t.Fatalf("%s through UBJSON: got %+v (%v), want %+v", data, again, err, want)
		}
	})
}

// plain turns what encoding/json gives into a value.
func plain(x any) (value, error) {
	switch x := x.(type) {
	case nil:
		return value{kind: kindNull, number: math.NaN()}, nil
	case bool:
		if x {
			return value{kind: kindNumber, number: 1}, nil
		}
		return value{kind: kindNumber}, nil
	case float64:
		return value{kind: kindNumber, number: x}, nil
	case string:
		return value{kind: kindText, text: x}, nil
	case []any:
		v := value{kind: kindNumbers}
		for _, e := range x {
			element, err := plain(e)
			if err == nil {
				err = v.push(element)
			}
			if err != nil {
				return value{}, err
			}
		}
		return v, nil
	}
	v := value{kind: kindObject, fields: map[string]value{}}
	for key, e := range x.(map[string]any) {
		member, err := plain(e)
		if err != nil {
			return value{}, err
		}
		if !unused[key] {
			v.fields[key] = member
		}
	}
	return v, nil
}

// same compares values; invalid UTF-8, which encoding/json replaces, counts as
// equal to anything.
func same(a, b value) bool {
	bits := func(v value) []uint64 {
		list := []uint64{math.Float64bits(v.number)}
		for _, n := range v.numbers {
			list = append(list, math.Float64bits(n))
		}
		return list
	}
	if a.kind != b.kind || !reflect.DeepEqual(bits(a), bits(b)) || len(a.list) != len(b.list) {
		return false
	}
	if a.text != b.text && !bytes.ContainsRune([]byte(b.text), '\uFFFD') {
		return false
	}
	for i := range a.list {
		if !same(a.list[i], b.list[i]) {
			return false
		}
	}
	for key, member := range b.fields {
		other, ok := a.fields[key]
		if bytes.ContainsRune([]byte(key), '\uFFFD') {
			continue
		}
		if !ok || !same(other, member) {
			return false
		}
	}
	return true
}

// encode writes a value as UBJSON.
func encode(b []byte, v value) []byte {
	text := func(s string) {
		b = append(b, 'L')
		b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	switch v.kind {
	case kindNull:
		b = append(b, 'Z')
	case kindNumber:
		b = binary.BigEndian.AppendUint64(append(b, 'D'), math.Float64bits(v.number))
	case kindText:
		b = append(b, 'S')
		text(v.text)
	case kindNumbers:
		b = binary.BigEndian.AppendUint64(append(b, "[$D#L"...), uint64(len(v.numbers)))
		for _, n := range v.numbers {
			b = binary.BigEndian.AppendUint64(b, math.Float64bits(n))
		}
	case kindList:
		b = append(b, '[')
		for _, e := range v.list {
			b = encode(b, e)
		}
		b = append(b, ']')
	case kindObject:
		b = append(b, '{')
		for key, member := range v.fields {
			text(key)
			b = encode(b, member)
		}
		b = append(b, '}')
	}
	return b
}
