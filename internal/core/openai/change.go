package openai

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// Change is a new value of one member of a body's outermost object.
type Change struct {
	Key   string
	Value []byte // raw JSON
	// Add appends the member to a body that has none; without it such a body
	// stays as it is.
	Add bool
}

// AppendChanged appends body to dst with its members changed, every other byte
// as it was: a value takes the old one's place, and a new member goes to the
// end of the object. A member that the body gives twice is changed twice. At
// most 64 changes, of different keys. The error is a *BodyError: the body is no
// JSON object.
func AppendChanged(dst, body []byte, changes ...Change) ([]byte, error) {
	var found uint64
	from, members := 0, 0
	end, err := walk(body, func(key []byte, value Span) {
		members++
		for i := range changes {
			if c := &changes[i]; string(key) == c.Key {
				dst = append(append(dst, body[from:value.Start]...), c.Value...)
				from = value.End
				found |= 1 << i
			}
		}
	})
	if err != nil {
		return nil, err
	}
	dst = append(dst, body[from:end]...)
	for i := range changes {
		c := &changes[i]
		if !c.Add || found&(1<<i) != 0 {
			continue
		}
		if members++; members > 1 {
			dst = append(dst, ',')
		}
		dst = append(append(AppendQuoted(dst, c.Key), ':'), c.Value...)
	}
	return append(dst, body[end:]...), nil
}

// Find returns where the value of a member of a body's outermost object is: the
// last, if the body gives several; the zero Span when it gives none. The error
// is AppendChanged's.
func Find(body []byte, key string) (Span, error) {
	var at Span
	_, err := walk(body, func(k []byte, value Span) {
		if string(k) == key {
			at = value
		}
	})
	return at, err
}

// walk visits the members of the object that body is, and returns where its
// closing brace is.
func walk(body []byte, visit func(key []byte, value Span)) (end int, err error) {
	s := &scanner{data: body}
	if s.peek() != '{' {
		if s.value() {
			s.fail(ErrNotObject, 0)
		}
		return 0, s.err
	}
	ok := s.object(func(key []byte, _ int) bool {
		at := s.pos
		if !s.value() {
			return false
		}
		visit(key, Span{at, s.pos})
		return true
	})
	if !ok {
		return 0, s.err
	}
	end = s.pos - 1
	if s.peek(); s.pos != len(s.data) {
		s.fail(ErrTrailingData, s.pos)
		return 0, s.err
	}
	return end, nil
}

// Bounds of Merge.
const (
	// MaxMerged is the longest body that Merge reads.
	MaxMerged = 1 << 20
	// maxMergedMembers is how many members it may have.
	maxMergedMembers = 256
)

// Merge says in the bytes of was what somebody else made of it in now: a member
// of the outermost object that means the same in both is left as was has it,
// since those who decode and encode a body spoil long integers, and another is
// now's. changed is false if all of them mean the same; was is the body then. ok
// is false where now can be had as it stands only: a body is no object, has a
// member twice or too many, or is too long; a member is gone, or more than 64
// are others.
//
// Numbers mean the same if they do as float64, as most who decode JSON have them.
func Merge(was, now []byte) (merged []byte, changed, ok bool) {
	if len(was) > MaxMerged || len(now) > MaxMerged {
		return nil, false, false
	}
	before, ok := members(was)
	if !ok {
		return nil, false, false
	}
	after, ok := members(now)
	if !ok {
		return nil, false, false
	}
	for key := range before {
		if _, there := after[key]; !there {
			return nil, false, false
		}
	}
	var changes []Change
	_, err := walk(now, func(key []byte, value Span) {
		old, there := before[string(key)]
		if !there || !same(old.Of(was), value.Of(now)) {
			changes = append(changes, Change{Key: string(key), Value: bytes.TrimSpace(value.Of(now)), Add: true})
		}
	})
	switch {
	case err != nil || len(changes) > 64:
		return nil, false, false
	case len(changes) == 0:
		return was, false, true
	}
	merged, err = AppendChanged(make([]byte, 0, len(was)+len(now)/8), was, changes...)
	return merged, true, err == nil
}

// members are those of the object that body is, if each is there once.
func members(body []byte) (map[string]Span, bool) {
	out, ok := map[string]Span{}, true
	_, err := walk(body, func(key []byte, value Span) {
		if _, twice := out[string(key)]; twice || len(out) >= maxMergedMembers {
			ok = false
			return
		}
		out[string(key)] = value
	})
	return out, ok && err == nil
}

// same reports whether two values of JSON mean the same.
func same(a, b []byte) bool {
	if a, b = bytes.TrimSpace(a), bytes.TrimSpace(b); bytes.Equal(a, b) {
		return true
	}
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
