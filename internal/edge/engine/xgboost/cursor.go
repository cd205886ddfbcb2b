package xgboost

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// cursor points into a document and knows the way it came, for messages. The
// first error of any cursor of a document is kept and makes every later read
// give zero values, so that a reader checks once.
type cursor struct {
	v    *value
	path string
	err  *error
}

// newCursor points at the root of a document.
func newCursor(v *value) cursor { return cursor{v: v, err: new(error)} }

// missing is what a failed read points at.
var missing value

// fail records an error at the cursor unless there is one already.
func (c cursor) fail(format string, args ...any) {
	if *c.err == nil {
		*c.err = fmt.Errorf("%s: %w", strings.TrimPrefix(c.path, "."), fmt.Errorf(format, args...))
	}
}

// want records an error unless the value has that kind.
func (c cursor) want(k kind) bool {
	if *c.err == nil && c.v.kind != k {
		c.fail("expected %v, got %v", k, c.v.kind)
	}
	return *c.err == nil
}

// has reports whether the cursor is at an object with that field.
func (c cursor) has(name string) bool {
	_, ok := c.v.fields[name]
	return ok
}

// field goes to a field that must be there.
func (c cursor) field(name string) cursor {
	next := cursor{v: &missing, path: c.path + "." + name, err: c.err}
	if !c.want(kindObject) {
		return next
	}
	v, ok := c.v.fields[name]
	if !ok {
		next.fail("missing")
		return next
	}
	next.v = &v
	return next
}

// items goes through an array of anything but numbers.
func (c cursor) items() []cursor {
	if c.v.kind == kindNumbers && len(c.v.numbers) == 0 || !c.want(kindList) {
		return nil
	}
	items := make([]cursor, len(c.v.list))
	for i := range items {
		items[i] = cursor{v: &c.v.list[i], path: c.path + "[" + strconv.Itoa(i) + "]", err: c.err}
	}
	return items
}

// text reads a string.
func (c cursor) text() string {
	if !c.want(kindText) {
		return ""
	}
	return c.v.text
}

// texts reads an array of strings.
func (c cursor) texts() []string {
	var texts []string
	for _, item := range c.items() {
		texts = append(texts, item.text())
	}
	return texts
}

// numbers reads an array of numbers, which must have that many unless n < 0.
func (c cursor) numbers(n int) []float64 {
	if !c.want(kindNumbers) {
		return nil
	}
	if n >= 0 && len(c.v.numbers) != n {
		c.fail("expected %d numbers, got %d", n, len(c.v.numbers))
		return nil
	}
	return c.v.numbers
}

// ints reads an array of integers that fit an int32 in either reading of their
// sign, with the count as in numbers.
func (c cursor) ints(n int) []int {
	numbers := c.numbers(n)
	ints := make([]int, len(numbers))
	for i, f := range numbers {
		if f != math.Trunc(f) || math.Abs(f) > math.MaxUint32 {
			c.fail("element %d is %v, not an index", i, f)
			return nil
		}
		ints[i] = int(f)
	}
	return ints
}

// parameter reads one of XGBoost's integer parameters, which it writes as
// strings, and checks that it lies between low and high.
func (c cursor) parameter(low, high int) int {
	if *c.err != nil {
		return low
	}
	text := c.v.text
	if c.v.kind == kindNumber {
		text = strconv.FormatFloat(c.v.number, 'f', -1, 64)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		c.fail("%q is not an integer", text)
		return low
	}
	if n < low || n > high {
		c.fail("%d is not between %d and %d", n, low, high)
		return low
	}
	return n
}
