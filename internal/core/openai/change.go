package openai

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
