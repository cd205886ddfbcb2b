package wire

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	var pipe bytes.Buffer
	w := NewWriter(&pipe, 10)
	messages := []Message{
		{ID: 1, Key: []byte{0xff, 0}, Headers: []Header{{"a", []byte("b")}, {"", []byte{0xfe}}}, Value: []byte("0123456789")},
		{Stop: true, Value: []byte{}},
		{ID: 1 << 60, Failed: true, Value: []byte("x")},
	}
	for _, m := range messages {
		if err := w.Write(m); err != nil {
			t.Fatal(err)
		}
	}
	whole := bytes.Clone(pipe.Bytes())
	r := NewReader(&pipe, 10)
	for _, want := range messages {
		if got, err := r.Next(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v (%v), want %+v", got, err, want)
		}
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if err := w.Write(Message{Value: make([]byte, 11)}); !errors.Is(err, ErrTooLarge) || pipe.Len() != 0 {
		t.Errorf("too large a value: %v, %d bytes written", err, pipe.Len())
	}
	if err := w.Write(Message{Key: make([]byte, MaxHeaderBytes)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large a key: %v", err)
	}
	if _, err := NewReader(bytes.NewReader(whole[:20]), 10).Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a frame cut off: %v", err)
	}
}

func FuzzNext(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02\x00\x00\x00\x01{}x"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in), 100)
		for {
			m, err := r.Next()
			if err != nil {
				return
			}
			var out bytes.Buffer
			if err := NewWriter(&out, 100).Write(m); err != nil {
				t.Fatalf("%+v cannot be written: %v", m, err)
			}
			again, err := NewReader(&out, 100).Next()
			if err != nil || !bytes.Equal(again.Value, m.Value) || again.ID != m.ID {
				t.Fatalf("%+v became %+v (%v)", m, again, err)
			}
		}
	})
}
