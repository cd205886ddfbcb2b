package strict

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

// describe returns what a node is, for "expected …, got …".
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	v := excerpt.Of(n.Value, 60)
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "the number " + v
	case "!!bool":
		return "the boolean " + v
	case "!!null":
		return "nothing"
	case "!!str", "!!timestamp":
		return strconv.Quote(v)
	}
	return fmt.Sprintf("%q with the tag %s", v, excerpt.Of(n.Tag, 40))
}

// isString: dates are strings in a manifest, though YAML has a type for them.
func isString(n *yaml.Node) bool {
	tag := n.ShortTag()
	return n.Kind == yaml.ScalarNode && (tag == "!!str" || tag == "!!timestamp")
}

// Duration is a string that says how long, with a unit: a number alone is none.
type Duration string

// scalar checks a scalar against a basic type.
func (d *decoder) scalar(n *yaml.Node, t reflect.Type, path string) (any, bool) {
	switch t.Kind() {
	case reflect.Bool:
		if v, ok := boolean(n); ok {
			return v, true
		}
		return d.mismatch(n, path, "true or false")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return d.integer(n, t, path)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v, ok := d.integer(n, reflect.TypeFor[int64](), path)
		if i, _ := v.(int64); ok && (i < 0 || reflect.Zero(t).OverflowUint(uint64(i))) {
			return d.mismatch(n, path, fmt.Sprintf("an integer of %d bits, 0 or more", t.Bits()))
		}
		return v, ok
	case reflect.Float32, reflect.Float64:
		if v, ok := number(n); ok {
			return v, true
		}
		return d.mismatch(n, path, "a number")
	case reflect.String, reflect.Slice:
		if isString(n) {
			return n.Value, true
		}
		if t == reflect.TypeFor[Duration]() {
			return d.mismatch(n, path, "a duration such as 10s or 1m30s")
		}
		return d.mismatch(n, path, "a string")
	}
	return d.mismatch(n, path, t.String())
}

func (d *decoder) mismatch(n *yaml.Node, path, want string) (any, bool) {
	hint := ""
	switch {
	case want == "a string" && n.Kind == yaml.ScalarNode:
		hint = fmt.Sprintf(": write %q in quotes", excerpt.Of(n.Value, 60))
	case strings.HasPrefix(want, "a duration") && n.ShortTag() == "!!int" && n.Kind == yaml.ScalarNode:
		hint = fmt.Sprintf(": write %ss for seconds", excerpt.Of(n.Value, 60))
	}
	d.problem(n, path, "expected %s, got %s%s", want, describe(n), hint)
	return nil, false
}

func (d *decoder) integer(n *yaml.Node, t reflect.Type, path string) (any, bool) {
	var i int64
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || n.Decode(&i) != nil {
		return d.mismatch(n, path, "an integer")
	}
	if reflect.Zero(t).OverflowInt(i) {
		return d.mismatch(n, path, fmt.Sprintf("an integer of %d bits", t.Bits()))
	}
	return i, true
}

// boolean reads YAML 1.1's words too, as Kubernetes does.
func boolean(n *yaml.Node) (v, ok bool) {
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode || tag != "!!bool" && tag != "!!str" ||
		n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
		return false, false
	}
	switch strings.ToLower(n.Value) {
	case "true", "yes", "on", "y":
		return true, true
	case "false", "no", "off", "n":
		return false, true
	}
	return false, false
}

// number is a scalar as a JSON number.
func number(n *yaml.Node) (json.Number, bool) {
	if n.Kind != yaml.ScalarNode {
		return "", false
	}
	switch n.ShortTag() {
	case "!!int":
		var i int64
		if n.Decode(&i) == nil {
			return json.Number(strconv.FormatInt(i, 10)), true
		}
		var u uint64
		if n.Decode(&u) == nil {
			return json.Number(strconv.FormatUint(u, 10)), true
		}
	case "!!float":
		var f float64
		if n.Decode(&f) == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return json.Number(strconv.FormatFloat(f, 'g', -1, 64)), true
		}
	}
	return "", false
}

// free converts a value of any shape.
func (d *decoder) free(n *yaml.Node, path string) (any, bool) {
	switch n.Kind {
	case yaml.MappingNode:
		return d.mapping(n, reflect.TypeFor[map[string]any](), path)
	case yaml.SequenceNode:
		return d.list(n, reflect.TypeFor[[]any](), path)
	}
	if isString(n) {
		return n.Value, true
	}
	if v, ok := number(n); ok {
		return v, true
	}
	if v, ok := boolean(n); ok {
		return v, true
	}
	return d.mismatch(n, path, "a plain value")
}

// wanted describes the types that read themselves.
var wanted = map[reflect.Type]string{
	reflect.TypeFor[resource.Quantity]():  `a quantity such as 500m, 2 or "16Gi"`,
	reflect.TypeFor[intstr.IntOrString](): "an integer or a string",
	reflect.TypeFor[metav1.Time]():        "a time such as 2006-01-02T15:04:05Z",
	reflect.TypeFor[metav1.MicroTime]():   "a time such as 2006-01-02T15:04:05.000000Z",
	reflect.TypeFor[metav1.Duration]():    "a duration such as 90s, 5m or 1h30m",
}

// custom gives the value to a type that reads JSON itself.
func (d *decoder) custom(n *yaml.Node, t reflect.Type, path string) (any, bool) {
	want, named := wanted[t]
	if !named {
		want = "a " + t.Name()
	} else if n.Kind != yaml.ScalarNode {
		return d.mismatch(n, path, want)
	}
	if t == reflect.TypeFor[resource.Quantity]() && !QuantityBounded(n.Value) {
		return d.mismatch(n, path, want)
	}
	v, ok := d.free(n, path)
	if !ok {
		return nil, false
	}
	raw, err := json.Marshal(v)
	if err == nil {
		err = reflect.New(t).Interface().(json.Unmarshaler).UnmarshalJSON(raw)
	}
	if err != nil {
		return d.mismatch(n, path, want)
	}
	return v, true
}

// QuantityBounded reports whether resource.ParseQuantity may be given the text: an
// exponent could make it build numbers of millions of digits.
func QuantityBounded(s string) bool {
	if len(s) > 64 {
		return false
	}
	i := strings.LastIndexAny(s, "eE")
	if i < 0 || i == len(s)-1 {
		return true
	}
	exp, err := strconv.Atoi(s[i+1:])
	return err != nil || exp >= -30 && exp <= 30
}
