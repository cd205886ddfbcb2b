package xgboost

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// jsonReader reads JSON as XGBoost writes it: bare NaN and Infinity are
// numbers, which encoding/json refuses.
type jsonReader struct {
	data []byte
	pos  int
	budget
}

// parseJSON reads a whole document.
func parseJSON(data []byte) (value, error) {
	r := &jsonReader{data: data}
	v, err := r.value()
	if err == nil && r.next() != 0 {
		err = errTrailing
	}
	if err != nil {
		return value{}, fmt.Errorf("byte %d: %w", r.pos, err)
	}
	return v, nil
}

// next skips white space and gives the byte there without consuming it, 0 at
// the end.
func (r *jsonReader) next() byte {
	for ; r.pos < len(r.data); r.pos++ {
		switch c := r.data[r.pos]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// value reads one value.
func (r *jsonReader) value() (value, error) {
	switch c := r.next(); c {
	case 0:
		return value{}, errEnd
	case '{':
		return r.object()
	case '[':
		return r.array()
	case '"':
		text, err := r.text()
		return value{kind: kindText, text: text}, err
	}
	return r.bare()
}

// words are the values spelt as words.
var words = map[string]value{
	"true": {kind: kindNumber, number: 1}, "false": {kind: kindNumber},
	"null": {kind: kindNull, number: math.NaN()}, "NaN": {kind: kindNumber, number: math.NaN()},
	"Infinity":  {kind: kindNumber, number: math.Inf(1)},
	"-Infinity": {kind: kindNumber, number: math.Inf(-1)},
}

// maxBare bounds a number or word, in bytes: the old writers' full-precision
// numbers stay far below it.
const maxBare = 400

// bare reads a number or a word.
func (r *jsonReader) bare() (value, error) {
	start := r.pos
	for r.pos < len(r.data) && isBare(r.data[r.pos]) && r.pos-start <= maxBare {
		r.pos++
	}
	token := r.data[start:r.pos]
	if len(token) == 0 || len(token) > maxBare {
		return value{}, fmt.Errorf("unexpected %q", r.data[start])
	}
	if c := token[len(token)-1]; c >= '0' && c <= '9' || c == '.' {
		f, err := strconv.ParseFloat(string(token), 64)
		if err != nil {
			return value{}, fmt.Errorf("%q is not a number", token)
		}
		return value{kind: kindNumber, number: f}, nil
	}
	if v, ok := words[string(token)]; ok {
		return v, nil
	}
	return value{}, fmt.Errorf("unexpected %q", token)
}

// isBare reports whether c may be part of a number or word.
func isBare(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' ||
		c == '-' || c == '+' || c == '.'
}

// text reads a string at its opening quote.
func (r *jsonReader) text() (string, error) {
	if err := r.enter(); err != nil {
		return "", err
	}
	defer r.leave()
	start := r.pos
	escaped := false
	for r.pos++; r.pos < len(r.data); r.pos++ {
		switch r.data[r.pos] {
		case '\\':
			escaped = true
			r.pos++
		case '"':
			r.pos++
			raw := r.data[start:r.pos]
			if !escaped {
				return string(raw[1 : len(raw)-1]), nil
			}
			var text string
			if err := json.Unmarshal(raw, &text); err != nil {
				return "", fmt.Errorf("string: %w", err)
			}
			return text, nil
		}
	}
	r.pos = len(r.data)
	return "", errEnd
}

// object reads an object at its opening brace.
func (r *jsonReader) object() (value, error) {
	if err := r.enter(); err != nil {
		return value{}, err
	}
	defer r.leave()
	v := value{kind: kindObject, fields: map[string]value{}}
	err := r.sequence('}', func() error {
		if c := r.next(); c != '"' {
			return fmt.Errorf("expected a key, got %q", c)
		}
		key, err := r.text()
		if err != nil {
			return err
		}
		if c := r.next(); c != ':' {
			return fmt.Errorf("expected ':', got %q", c)
		}
		r.pos++
		member, err := r.value()
		if err == nil && !unused[key] {
			v.fields[key] = member
		}
		return err
	})
	return v, err
}

// array reads an array at its opening bracket.
func (r *jsonReader) array() (value, error) {
	if err := r.enter(); err != nil {
		return value{}, err
	}
	defer r.leave()
	v := value{kind: kindNumbers}
	err := r.sequence(']', func() error {
		e, err := r.value()
		if err != nil {
			return err
		}
		return v.push(e)
	})
	return v, err
}

// sequence reads items between the bracket at hand and the closing one,
// separated by commas.
func (r *jsonReader) sequence(closing byte, item func() error) error {
	r.pos++
	if r.next() == closing {
		r.pos++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		c := r.next()
		if c == 0 {
			return errEnd
		}
		r.pos++
		switch c {
		case closing:
			return nil
		case ',':
		default:
			return fmt.Errorf("expected ',' or %q, got %q", closing, c)
		}
	}
}
