package batch

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

func request(t *testing.T, body string) *tensor.Request {
	t.Helper()
	r, err := tensor.DecodeRequest([]byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

func response(t *testing.T, body string) *tensor.Response {
	t.Helper()
	r, err := tensor.DecodeResponse([]byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

func requests(t *testing.T, bodies ...string) []*tensor.Request {
	t.Helper()
	var out []*tensor.Request
	for _, b := range bodies {
		out = append(out, request(t, b))
	}
	return out
}

func text(t *testing.T, v any) string {
	t.Helper()
	var out []byte
	var err error
	switch v := v.(type) {
	case *tensor.Request:
		out, err = tensor.AppendRequest(nil, v)
	case *tensor.Response:
		out, err = tensor.AppendResponse(nil, v)
	default:
		out, err = json.Marshal(v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestGuide pins the two examples of MLServer's guide: parameters of inputs
// merged into lists, lists of an output split.
func TestGuide(t *testing.T) {
	in := requests(t,
		`{"id":"a","inputs":[{"name":"parameters-np","shape":[1],"datatype":"BYTES","data":["x"],"parameters":{"custom-param":"value-1"}}]}`,
		`{"id":"b","inputs":[{"name":"parameters-np","shape":[1],"datatype":"BYTES","data":["y"],"parameters":{"custom-param":"value-2"}}]}`)
	got, _, err := Merge(in)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"a","inputs":[{"name":"parameters-np","shape":[2],"datatype":"BYTES","parameters":{"custom-param":["value-1","value-2"]},"data":["x","y"]}]}`
	if text(t, got) != want {
		t.Errorf("merged\n%s\nwant\n%s", text(t, got), want)
	}

	_, layout, err := Merge(requests(t,
		`{"id":"1","inputs":[{"name":"foo","shape":[1,3],"datatype":"INT32","data":[1,2,3]}]}`,
		`{"id":"2","inputs":[{"name":"foo","shape":[1,3],"datatype":"INT32","data":[4,5,6]}]}`,
		`{"id":"3","inputs":[{"name":"foo","shape":[1,3],"datatype":"INT32","data":[7,8,9]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	out, err := Split(response(t, `{"model_name":"m","id":"1","outputs":[{"name":"foo","datatype":"INT32","shape":[3,3],
		"data":[1,2,3,4,5,6,7,8,9],"parameters":{"content_type":"np","foo":["foo_1","foo_2"],"bar":["bar_1","bar_2","bar_3"]}}]}`), layout)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		`{"model_name":"m","id":"1","outputs":[{"name":"foo","shape":[1,3],"datatype":"INT32","parameters":{"bar":"bar_1","content_type":"np","foo":"foo_1"},"data":[1,2,3]}]}`,
		`{"model_name":"m","id":"2","outputs":[{"name":"foo","shape":[1,3],"datatype":"INT32","parameters":{"bar":"bar_2","content_type":"np","foo":"foo_2"},"data":[4,5,6]}]}`,
		`{"model_name":"m","id":"3","outputs":[{"name":"foo","shape":[1,3],"datatype":"INT32","parameters":{"bar":"bar_3","content_type":"np"},"data":[7,8,9]}]}`,
	} {
		if got := text(t, out[i]); got != want {
			t.Errorf("response %d:\n%s\nwant\n%s", i, got, want)
		}
	}
}

// TestParameters shows what requests' own parameters become and how they come
// back from a model that answers with its request's parameters.
func TestParameters(t *testing.T) {
	const inputs = `"inputs":[{"name":"x","shape":[2,1],"datatype":"FP32","data":[1,2]}]`
	for _, c := range []struct {
		name         string
		in, back     []string
		merged       string
		responseOnly string // the model's answer, if not the merged ones
	}{
		{"alike", []string{`{"a":1}`, `{"a":1}`}, []string{`{"a":1}`, `{"a":1}`}, `{"a":1}`, ""},
		{"differing", []string{`{"a":1}`, `{"a":2}`}, []string{`{"a":1}`, `{"a":2}`}, `{"a":[1,1,2,2]}`, ""},
		{"one without", []string{`{}`, `{"a":"123"}`}, []string{`null`, `{"a":"123"}`}, `{"a":[null,null,"123","123"]}`, ""},
		{"lists", []string{`{"a":[1]}`, `{"a":[2,3]}`}, []string{`{"a":[1]}`, `{"a":[2,3]}`}, `{"a":[[1],[1],[2,3],[2,3]]}`, ""},
		{"headers", []string{`{"headers":{"a":"1"},"content_type":"np"}`, `{"headers":{"a":"2"},"content_type":"np"}`},
			[]string{`{"content_type":"np","headers":{"a":"2"}}`, `{"content_type":"np","headers":{"a":"2"}}`},
			`{"content_type":"np","headers":{"a":"2"}}`, ""},
		{"a list of the model's own", []string{`{"a":1}`, `{"a":1}`}, []string{`{"labels":[1,2,3,4]}`, `{"labels":[1,2,3,4]}`},
			`{"a":1}`, `{"labels":[1,2,3,4]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := requests(t, `{"id":"0","parameters":`+c.in[0]+`,`+inputs+`}`, `{"id":"1","parameters":`+c.in[1]+`,`+inputs+`}`)
			merged, layout, err := Merge(in)
			if err != nil {
				t.Fatal(err)
			}
			if got := text(t, merged.Parameters); got != c.merged {
				t.Errorf("merged into %s, want %s", got, c.merged)
			}
			answer := &tensor.Response{Parameters: merged.Parameters, Outputs: merged.Inputs}
			if c.responseOnly != "" {
				answer.Parameters = response(t, `{"outputs":[],"parameters":`+c.responseOnly+`}`).Parameters
			}
			out, err := Split(answer, layout)
			if err != nil {
				t.Fatal(err)
			}
			for i := range out {
				if got := text(t, out[i].Parameters); got != c.back[i] {
					t.Errorf("%d gets %s back, want %s", i, got, c.back[i])
				}
			}
		})
	}
}

// TestWritten: what code sees of a batch is what each of its requests wrote, one
// after the other, and requests that nest otherwise have batches of their own.
func TestWritten(t *testing.T) {
	in := requests(t, `{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[[1,2.5]]}]}`,
		`{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[0.5,1],[2,2.5]]}]}`)
	merged, _, err := Merge(in)
	if err != nil {
		t.Fatal(err)
	}
	w := merged.Inputs[0].Written
	if w == nil || !reflect.DeepEqual(w.Dims, []int{3, 2}) || !reflect.DeepEqual(w.Marks, []byte{0b011001}) {
		t.Errorf("written %+v", w)
	}
	if w := in[0].Inputs[0].Written; !reflect.DeepEqual(w.Dims, []int{1, 2}) {
		t.Errorf("the first request was changed: %+v", w)
	}
	flat := request(t, `{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2.5]}]}`)
	if _, _, err := Merge([]*tensor.Request{in[0], flat}); err == nil {
		t.Error("nested and flat data share a batch")
	}
	odd := request(t, `{"inputs":[{"name":"x","shape":[11],"datatype":"BYTES","data":["a text"]}]}`)
	if _, _, ok := KeyOf(odd); ok {
		t.Error("data that do not fill their shape share a batch")
	}
	_, layout, err := Merge(requests(t, `{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["a"]}]}`, `{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["b"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	parts, err := Split(response(t, `{"outputs":[{"name":"y","shape":[2],"datatype":"BYTES","data":["a",{"b":1}]}]}`), layout)
	if err != nil || !strings.Contains(text(t, parts[0]), `"data":["a"]`) || !strings.Contains(text(t, parts[1]), `"data":[{"b":1}]`) {
		t.Errorf("answered %s and %s (%v)", text(t, parts[0]), text(t, parts[1]), err)
	}
}

// TestLone: a request alone goes and comes as it is, whatever its rows.
func TestLone(t *testing.T) {
	in := request(t, `{"id":"a","parameters":{"p":[1,2]},"inputs":[{"name":"x","shape":[],"datatype":"FP32","data":[1],"parameters":{"q":"123"}}]}`)
	merged, layout, err := Merge([]*tensor.Request{in})
	if err != nil || merged != in {
		t.Fatalf("%v, %v", merged, err)
	}
	answer := response(t, `{"model_name":"m","id":"z","parameters":{"p":[1,2]},"outputs":[{"name":"y","shape":[7],"datatype":"BOOL","data":[1,0,1,0,1,0,1]}]}`)
	out, err := Split(answer, layout)
	if err != nil || len(out) != 1 || out[0].ID != "a" {
		t.Fatalf("%v, %v", out, err)
	}
	if out[0].ID = "z"; !reflect.DeepEqual(out[0], answer) {
		t.Errorf("answered %v", text(t, out[0]))
	}
}

// TestKey lists what does and does not share a batch with one request.
func TestKey(t *testing.T) {
	const base = `{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}`
	for _, c := range []struct {
		name, with string
		share      bool
	}{
		{"more rows", `{"inputs":[{"name":"x","shape":[2,2,2],"datatype":"FP32","data":[1,2,3,4,5,6,7,8]}]}`, false},
		{"another number of rows", `{"inputs":[{"name":"x","shape":[2,4],"datatype":"FP32","data":[1,2,3,4,5,6,7,8]}]}`, true},
		{"another width", `{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}`, false},
		{"another datatype", `{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP64","data":[1,2,3,4]}]}`, false},
		{"another name", `{"inputs":[{"name":"y","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}`, false},
		{"an input's content type", `{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4],"parameters":{"content_type":"np"}}]}`, false},
		{"the request's content type", `{"parameters":{"content_type":"np"},"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}`, false},
		{"custom parameters", `{"parameters":{"a":1},"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4],"parameters":{"b":2}}]}`, true},
		{"a requested output", `{"outputs":[{"name":"y"}],"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}`, false},
		{"two inputs", `{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]},{"name":"y","shape":[1],"datatype":"BOOL","data":[1]}]}`, false},
	} {
		in := requests(t, base, c.with)
		one, _, ok := KeyOf(in[0])
		two, _, too := KeyOf(in[1])
		if !ok || !too || (one == two) != c.share {
			t.Errorf("%s: keys %q and %q, share %v", c.name, one, two, c.share)
		}
		if _, _, err := Merge(in); (err == nil) != c.share {
			t.Errorf("%s: merged with error %v", c.name, err)
		}
	}
	same := requests(t, base, base)
	if same[1].Inputs[0].Text = true; alike(same) == nil {
		t.Error("text shares a batch with bytes")
	}
	for _, alone := range []string{
		`{"inputs":[]}`,
		`{"inputs":[{"name":"x","shape":[],"datatype":"FP32","data":[1]}]}`,
		`{"inputs":[{"name":"x","shape":[0,4],"datatype":"FP32","data":[]}]}`,
		`{"inputs":[{"name":"x","shape":[4611686018427387904,0],"datatype":"FP32","data":[]}]}`,
		`{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]},{"name":"y","shape":[2],"datatype":"FP32","data":[1,2]}]}`,
	} {
		if _, _, ok := KeyOf(request(t, alone)); ok {
			t.Errorf("%s shares a batch", alone)
		}
	}
}

// TestWrongAnswers: a model that answers a batch in another number of rows, or
// with tensors that are not whole, answers nobody.
func TestWrongAnswers(t *testing.T) {
	const in = `{"id":"a","inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}`
	_, layout, err := Merge(requests(t, in, in))
	if err != nil || layout.Requests() != 2 || layout.Rows() != 2 {
		t.Fatal(layout, err)
	}
	for want, out := range map[string]tensor.Tensor{
		"a batch of 2 rows":   {Name: "y", Datatype: tensor.Bool, Shape: []int64{3}, Data: tensor.Values{Bool: make([]bool, 3)}},
		"of shape []":         {Name: "y", Datatype: tensor.Bool, Data: tensor.Values{Bool: make([]bool, 1)}},
		"its 3 elements":      {Name: "y", Datatype: tensor.Bool, Shape: []int64{2, 2}, Data: tensor.Values{Bool: make([]bool, 3)}},
		"shape [2 -1] does":   {Name: "y", Datatype: tensor.Bool, Shape: []int64{2, -1}, Data: tensor.Values{Bool: make([]bool, 2)}},
		"hold its 0 elements": {Name: "y", Shape: []int64{2}},
	} {
		if _, err := Split(&tensor.Response{Outputs: []tensor.Tensor{out}}, layout); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", out, err, want)
		}
	}
}
