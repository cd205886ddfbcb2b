package rawgrpc

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// nameField is the number of the field that names the model, in
// ModelInferRequest and in ModelMetadataRequest.
const nameField = 1

// maxName bounds a model's name, in bytes.
const maxName = 1024

// maxGroups is how deep groups may nest, as deep as protobuf's own readers go.
const maxGroups = protowire.DefaultRecursionLimit

// field is where a message names its model: the bytes [start, end) of the
// whole field, its tag included. An absent field is empty.
type field struct {
	name       string
	start, end int
}

// Why a message is no request.
var (
	errTruncated = errors.New("the message ends within a field")
	errVarint    = errors.New("the message has a varint of more than 64 bits")
	errTag       = errors.New("the message has a field without a valid number or type")
	errGroup     = errors.New("the message has a group that does not end as it began")
	errUTF8      = errors.New("the model's name is not UTF-8")
)

// scanName finds the model's name by stepping over a message's fields. As
// protobuf has it, the last of several counts. Nested messages are not looked
// into, so what passes may still be malformed. It takes time linear in the
// number of fields and holds nothing but the name.
func scanName(message mem.BufferSlice) (field, error) {
	c := cursor{parts: message}
	var found field
	for {
		start := c.at
		if c.ended() {
			return found, nil
		}
		number, kind, err := c.tag()
		if err != nil {
			return field{}, err
		}
		if number > protowire.MaxValidNumber {
			return field{}, errTag
		}
		if number != nameField || kind != protowire.BytesType {
			if err := c.skipValue(number, kind); err != nil {
				return field{}, err
			}
			continue
		}
		name, err := c.text()
		if err != nil {
			return field{}, err
		}
		found = field{name: name, start: start, end: c.at}
	}
}

// cursor reads a message that lies in several parts.
type cursor struct {
	parts mem.BufferSlice
	rest  []byte // of the part before parts
	at    int    // how much was read
}

// ended reports whether nothing remains.
func (c *cursor) ended() bool {
	for len(c.rest) == 0 {
		if len(c.parts) == 0 {
			return true
		}
		c.rest, c.parts = c.parts[0].ReadOnlyData(), c.parts[1:]
	}
	return false
}

func (c *cursor) varint() (uint64, error) {
	var v uint64
	for shift := 0; ; shift += 7 {
		if c.ended() {
			return 0, errTruncated
		}
		b := c.rest[0]
		c.rest = c.rest[1:]
		c.at++
		if shift == 63 && b > 1 {
			return 0, errVarint
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, nil
		}
	}
}

func (c *cursor) tag() (protowire.Number, protowire.Type, error) {
	v, err := c.varint()
	if err != nil {
		return 0, 0, err
	}
	if v>>3 > math.MaxInt32 || v>>3 == 0 {
		return 0, 0, errTag
	}
	return protowire.Number(v >> 3), protowire.Type(v & 7), nil
}

// skip steps over n bytes.
func (c *cursor) skip(n uint64) error {
	for n > 0 {
		if c.ended() {
			return errTruncated
		}
		step := min(n, uint64(len(c.rest)))
		c.rest = c.rest[step:]
		c.at += int(step)
		n -= step
	}
	return nil
}

// skipValue steps over a field's value, a group with all that is in it.
func (c *cursor) skipValue(number protowire.Number, kind protowire.Type) error {
	var open []protowire.Number // groups
	for {
		switch kind {
		case protowire.StartGroupType:
			if len(open) >= maxGroups {
				return errGroup
			}
			open = append(open, number)
		case protowire.EndGroupType:
			if len(open) == 0 || open[len(open)-1] != number {
				return errGroup
			}
			open = open[:len(open)-1]
		default:
			if err := c.skipScalar(kind); err != nil {
				return err
			}
		}
		if len(open) == 0 {
			return nil
		}
		var err error
		if number, kind, err = c.tag(); err != nil {
			return err
		}
	}
}

// skipScalar steps over a value that is no group.
func (c *cursor) skipScalar(kind protowire.Type) error {
	switch kind {
	case protowire.VarintType:
		_, err := c.varint()
		return err
	case protowire.Fixed32Type:
		return c.skip(4)
	case protowire.Fixed64Type:
		return c.skip(8)
	case protowire.BytesType:
		n, err := c.varint()
		if err != nil {
			return err
		}
		return c.skip(n)
	default:
		return errTag
	}
}

// text reads a string of at most maxName bytes.
func (c *cursor) text() (string, error) {
	n, err := c.varint()
	if err != nil {
		return "", err
	}
	if n > maxName {
		return "", fmt.Errorf("the model's name has %d bytes, more than %d", n, maxName)
	}
	buf := make([]byte, 0, n)
	for left := int(n); left > 0; {
		if c.ended() {
			return "", errTruncated
		}
		step := min(left, len(c.rest))
		buf = append(buf, c.rest[:step]...)
		c.rest = c.rest[step:]
		c.at += step
		left -= step
	}
	if !utf8.Valid(buf) {
		return "", errUTF8
	}
	return string(buf), nil
}
