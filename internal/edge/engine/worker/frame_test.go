package worker

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// pack lays a frame out as the protocol's table says.
func pack(header string, payload []byte) []byte {
	for len(header)%8 != 0 {
		header += " "
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(4+len(header)+len(payload)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(header)))
	return append(append(b, header...), payload...)
}

// bytesOf is what a sealed frame puts on the wire.
func bytesOf(f *frame) []byte {
	all := bytes.Clone(f.head)
	for _, part := range f.parts {
		all = append(all, part...)
	}
	return all
}

func TestFrames(t *testing.T) {
	large := bytes.Repeat([]byte("payload!"), 1<<20) // 8 MiB, beyond what is set aside at first
	stream := append(pack(`{"kind":"a"}`, nil), pack(`{"kind":"b"}`, large)...)
	stream = append(stream, pack(`{}`, []byte("x"))...)
	f := newFrameReader(bytes.NewReader(stream))
	f.limit.Store(1 << 30)
	for i, want := range []struct {
		header  string
		payload []byte
	}{{`{"kind":"a"}`, nil}, {`{"kind":"b"}`, large}, {`{}`, []byte("x")}} {
		header, payload, err := f.next()
		if err != nil || strings.TrimSpace(string(header)) != want.header || !bytes.Equal(payload, want.payload) {
			t.Errorf("frame %d: %s, %d bytes, %v", i, header, len(payload), err)
		}
	}
	if _, _, err := f.next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestFrameViolations(t *testing.T) {
	sizes := func(size, header uint32) []byte {
		return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, size), header)
	}
	for name, test := range map[string]struct {
		stream []byte
		says   string // of a violation; "" is another error
	}{
		"larger than allowed":   {sizes(maxHandshakeBytes, 8), "are allowed"},
		"the largest there is":  {sizes(1<<32-1, 8), "are allowed"},
		"header beyond frame":   {sizes(12, 16), "in a frame of 16"},
		"header of the maximum": {sizes(12, 1<<32-1), "a header of 4294967295"},
		"no room for a header":  {sizes(3, 0), "in a frame of 7"},
		"odd header":            {append(sizes(8, 4), "{}  "...), "no multiple of 8"},
		"cut in the sizes":      {[]byte{1, 2, 3}, ""},
		"cut in the header":     {sizes(100, 96), ""},
		"cut in the payload":    {pack("{}", []byte("12345678"))[:20], ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := newFrameReader(bytes.NewReader(test.stream)).next()
			var broken *protocolError
			if errors.As(err, &broken) != (test.says != "") || err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v", err)
			}
			if test.says == "" && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestNesting(t *testing.T) {
	for depth, ok := range map[int]bool{maxNesting - 1: true, maxNesting: false, 1 << 20: false} {
		text := `{"kind":"x","a":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + "}"
		if _, err := decode([]byte(text), nil); (err == nil) != ok {
			t.Errorf("depth %d: %v", depth+1, err)
		}
	}
	if err := checkNesting([]byte(`{"a":"` + strings.Repeat(`[{\"`, 1000) + `"}`)); err != nil {
		t.Errorf("brackets in a string: %v", err)
	}
}

// TestRequestFrame compares the header written by hand with encoding/json.
func TestRequestFrame(t *testing.T) {
	r := &tensor.Request{ID: "é\"\n", Parameters: tensor.Parameters{"headers": map[string]any{"x": "1"}},
		Inputs: []tensor.Tensor{floats(1, 2, 3),
			{Name: "s", Datatype: tensor.Bytes, Shape: []int64{1, 2}, Text: true, Parameters: tensor.Parameters{"content_type": "str"}, Data: tensor.Values{Bytes: [][]byte{[]byte("ab"), nil}}}},
		Outputs: []tensor.RequestedOutput{{Name: "a"}, {Name: "b", Parameters: tensor.Parameters{"binary_data": true}}}}
	f := control(kindInfer, "id", uint64(7), "model", "m#1")
	if err := f.withRequest(r); err != nil {
		t.Fatal(err)
	}
	if err := f.seal(1 << 20); err != nil {
		t.Fatal(err)
	}
	reader := newFrameReader(bytes.NewReader(bytesOf(f)))
	header, payload, err := reader.next()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"kind":"infer","id":7,"model":"m#1","request":{"id":"é\"\n","parameters":{"headers":{"x":"1"}},
		"inputs":[{"name":"x","shape":[3],"datatype":"FP32","offset":0,"length":12},
			{"name":"s","shape":[1,2],"datatype":"BYTES","offset":16,"length":10,"text":true,"parameters":{"content_type":"str"}}],
		"outputs":[{"name":"a"},{"name":"b","parameters":{"binary_data":true}}]}}`
	var got, expected any
	if err := json.Unmarshal(header, &got); err != nil {
		t.Fatalf("%v: %s", err, header)
	}
	if err := json.Unmarshal([]byte(want), &expected); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, expected) {
		t.Errorf("header %s", header)
	}
	if want := "\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x00\x00" + "\x02\x00\x00\x00ab\xff\xff\xff\xff"; string(payload[:26]) != want {
		t.Errorf("payload %q", payload)
	}
}

func TestTensorFaults(t *testing.T) {
	payload := []byte("\x02\x00\x00\x00ab\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	for text, says := range map[string]string{
		`{"name":"y","shape":[2],"datatype":"FP32","offset":0,"length":6}`:                                 "elements of FP32 take 4 bytes each, there are 6 bytes",
		`{"name":"y","shape":[1],"datatype":"FP32","offset":4,"length":4}`:                                 "not in the payload", // no multiple of 8
		`{"name":"y","shape":[1],"datatype":"FP32","offset":8,"length":18446744073709551615}`:              "not in the payload",
		`{"name":"y","shape":[-1],"datatype":"FP32","offset":0,"length":4}`:                                "shape [-1]",
		`{"name":"y","shape":[4294967296,4294967296],"datatype":"FP32","offset":0,"length":0}`:             "shape",
		`{"name":"y","shape":[1],"datatype":"COMPLEX","offset":0,"length":4}`:                              `"COMPLEX" is no datatype`,
		`{"name":"y","shape":[1],"datatype":"BYTES","offset":0,"length":4}`:                                "2 bytes announced, 0 left",
		`{"name":"y","shape":[2],"datatype":"BYTES","offset":0,"length":8}`:                                "ends inside the length of element 1",
		`{"name":"y","shape":[2],"datatype":"INT32","data":[1,null]}`:                                      "null is no INT32",
		`{"name":"y","shape":[3],"datatype":"INT32"}`:                                                      "data",
		`{"name":"y","shape":[1],"datatype":"FP32","offset":0,"length":4,"region":"shm"}`:                  "not in the payload",
		`{"name":"y","shape":[1],"datatype":"FP32","offset":0,"length":4,"parameters":"np"}`:               "parameters",
		`{"name":"y","shape":[` + strings.Repeat("1,", 40) + `1],"datatype":"FP32","offset":0,"length":4}`: "shape",
	} {
		m, err := decode([]byte(`{"kind":"result","id":1,"response":{"outputs":[`+text+`]}}`), payload)
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.response()
		var e *Error
		if !errors.As(err, &e) || e.Status != 500 || !strings.Contains(e.Message, says) {
			t.Errorf("%s: error %v does not say %q", text, err, says)
		}
	}
}

// TestAnswersAreTakenAsTheyAre: what a model's code answers need not fill its
// shape, and elements of BYTES may be any JSON.
func TestAnswersAreTakenAsTheyAre(t *testing.T) {
	payload := []byte("\x02\x00\x00\x00ab\x01\x00\x00\x00c\x00\x00\x00\x00\x00")
	for text, want := range map[string]string{
		`{"name":"y","shape":[102],"datatype":"BYTES","offset":0,"length":11,"text":true}`: `{"name":"y","shape":[102],"datatype":"BYTES","data":["ab","c"]}`,
		`{"name":"y","shape":[3],"datatype":"INT32","data":[1,2]}`:                         `{"name":"y","shape":[3],"datatype":"INT32","data":[1,2]}`,
		`{"name":"y","shape":[1],"datatype":"INT8","offset":0,"length":2}`:                 `{"name":"y","shape":[1],"datatype":"INT8","data":[2,0]}`,
		`{"name":"y","shape":[4],"datatype":"BOOL","offset":8,"length":1}`:                 `{"name":"y","shape":[4],"datatype":"BOOL","data":[false]}`,
		`{"name":"y","shape":[1],"datatype":"BYTES","data":[{"a":[1,"x"]},7,null]}`:        `{"name":"y","shape":[1],"datatype":"BYTES","data":[{"a":[1,"x"]},7,null]}`,
	} {
		m, err := decode([]byte(`{"kind":"result","id":1,"response":{"model_name":"m","id":"1","outputs":[`+text+`]}}`), payload)
		if err != nil {
			t.Fatal(err)
		}
		r, err := m.response()
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := tensor.AppendResponse(nil, r); err != nil || string(got) != `{"model_name":"m","id":"1","outputs":[`+want+`]}` {
			t.Errorf("%s is answered as %s (%v)", text, got, err)
		}
	}
}

// FuzzFrames reads whatever a worker may send, to the end, as conn does. It
// must neither panic nor keep more than it was sent.
func FuzzFrames(f *testing.F) {
	f.Add(pack(`{"kind":"result","id":1,"response":{"outputs":[{"name":"y","shape":[1],"datatype":"FP32","offset":0,"length":4}]}}`, []byte{0, 0, 128, 63}))
	f.Add(pack(`{"kind":"result","id":1,"response":{"outputs":[{"name":"y","shape":[2],"datatype":"BYTES","offset":0,"length":9,"text":true}]}}`, []byte("\x01\x00\x00\x00a\xff\xff\xff\xff")))
	f.Add(pack(`{"kind":"result","id":1,"response":{"parameters":{"a":[1,{}]},"outputs":[{"name":"y","shape":[2,1],"datatype":"INT8","data":[[1],[2]]}]}}`, nil))
	f.Add(pack(`{"kind":"result","id":1,"metadata":{"inputs":[{"name":"x","datatype":"FP64","shape":[-1,4]}],"parameters":{}},"handlers":[{"name":"p"}],"streams":true}`, nil))
	f.Add(pack(`{"kind":"metrics","registered":[{"name":"m"}],"observations":[["m",0.5],["m"],[1,2],[]]}`, nil))
	f.Add(pack(`{"kind":"error","id":1,"error":{"kind":"failed","status":999}}`, nil))
	f.Add(pack(`{"kind":"credit","id":2,"n":9223372036854775807}`, nil))
	f.Add(pack(`{"kind":"result","id":3,"http":{"status":99,"body":{"offset":8,"length":1}}}`, []byte("12345678")))
	f.Add([]byte("\xff\xff\xff\x00\x08\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		l := DefaultConfig().Limits
		c := newConn(nil, newFrameReader(bytes.NewReader(stream)), l, func(m *message) { report{to: discard{}}.metrics(nil, m) })
		calls := []*call{newCall(kindInfer, 0), newCall(kindStream, 0), newCall(kindCustom, 0), newCall(kindLoad, 0)}
		for _, call := range calls {
			if err := c.start(call, func(id uint64) (*frame, error) { return control(call.kind, "id", id), nil }); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.read() // any error will do
		for _, call := range calls {
			for {
				select {
				case m := <-call.messages:
					checkMessage(t, m, len(stream))
					continue
				default:
				}
				break
			}
		}
	})
}

type discard struct{}

func (discard) Register(_, _, _, _ string)            {}
func (discard) Observe(_, _, _ string, value float64) {}

// checkMessage uses a message in every way.
func checkMessage(t *testing.T, m *message, sent int) {
	if m.err == nil && m.Response != nil {
		if r, err := m.response(); err == nil {
			for i := range r.Outputs {
				out := &r.Outputs[i]
				if out.Len() > sent {
					t.Errorf("%d elements of %d bytes", out.Len(), sent)
				}
			}
		}
	}
	if m.Metadata != nil {
		_, _ = m.Metadata.metadata()
	}
	m.writeHTTP(discardHTTP{})
}

type discardHTTP struct{}

func (discardHTTP) Header() http.Header         { return http.Header{} }
func (discardHTTP) Write(b []byte) (int, error) { return len(b), nil }
func (discardHTTP) WriteHeader(int)             {}
