package xgboost

import (
	"errors"
	"fmt"
)

// kind is the type of a value.
type kind uint8

const (
	kindNull kind = iota
	kindNumber
	kindText
	kindNumbers // an array of numbers; booleans and nulls count as such
	kindList    // an array of anything else; an empty array is kindNumbers
	kindObject
)

// String names the kind in messages.
func (k kind) String() string {
	return [...]string{"null", "a number", "a string", "an array of numbers", "an array", "an object"}[k]
}

// value is one value of a document, the same for JSON and UBJSON.
type value struct {
	kind    kind
	number  float64 // kindNumber; true is 1, false is 0
	text    string
	numbers []float64
	list    []value
	fields  map[string]value
}

const (
	// maxDepth bounds the nesting of a document; XGBoost's own have 8 levels.
	maxDepth = 32
	// maxValues bounds the strings, arrays and objects of a document, which
	// take more memory than they take bytes in a file. A tree has about 20.
	maxValues = 1 << 23
)

var (
	errDepth    = fmt.Errorf("nested deeper than %d levels", maxDepth)
	errValues   = fmt.Errorf("more than %d values", maxValues)
	errTrailing = errors.New("data after the end of the document")
	errEnd      = errors.New("the file ends too early")
)

// unused lists the fields of a tree that do not bear on predictions, read past
// but not kept: they are half of a file.
var unused = map[string]bool{
	"base_weights": true, "loss_changes": true, "sum_hessian": true, "parents": true, "cats": true,
}

// budget counts what a document may still hold.
type budget struct{ depth, values int }

// enter accounts for one more string, array or object, nested or not.
func (b *budget) enter() error {
	b.depth++
	b.values++
	if b.depth > maxDepth {
		return errDepth
	}
	if b.values > maxValues {
		return errValues
	}
	return nil
}

// leave ends the nesting enter began.
func (b *budget) leave() { b.depth-- }

// push appends an element to an array value, keeping numbers unboxed.
func (v *value) push(e value) error {
	if e.kind == kindNull || e.kind == kindNumber {
		if v.list != nil {
			return errors.New("an array mixes numbers and other values")
		}
		v.numbers = append(v.numbers, e.number)
		return nil
	}
	if v.numbers != nil {
		return errors.New("an array mixes numbers and other values")
	}
	v.kind = kindList
	v.list = append(v.list, e)
	return nil
}
