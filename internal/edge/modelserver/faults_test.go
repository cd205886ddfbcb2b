package modelserver

import (
	"encoding/json"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// TestAllFaults lists what pydantic lists, with its types, places and order.
func TestAllFaults(t *testing.T) {
	for _, c := range []struct{ body, want, says string }{
		{`{"id": 5, "inputs": [{"name": 1, "shape": ["x", 1.5, null, "2", 3.0], "datatype": "FP31"}, 7], "outputs": [{}]}`,
			`id:string_type inputs.0.name:string_type inputs.0.shape.0:int_parsing inputs.0.shape.1:int_from_float inputs.0.shape.2:int_type inputs.0.datatype:enum inputs.0.data:missing inputs.1:model_attributes_type outputs.0.name:missing`,
			"id: Input should be a valid string; inputs.0.name: Input should be a valid string; "},
		{`{"parameters": {"content_type": 1, "headers": []}, "inputs": {}}`, `parameters.content_type:string_type parameters.headers:dict_type inputs:list_type`, "inputs: Input should be a valid list"},
		{`[]`, `:model_attributes_type`, "Input should be a valid dictionary"},
		{`{"inputs": [{"name":"x","shape":[1],"datatype":"FP32","data":[1]}], "outputs": [{"name": null}]}`, `outputs.0.name:string_type`, "outputs.0.name: "},
	} {
		_, err := tensor.DecodeRequest([]byte(c.body))
		if err == nil {
			t.Errorf("%s is decoded", c.body)
			continue
		}
		body := errorOf(allFaults(err, []byte(c.body)))
		var got []string
		for _, d := range body.Detail {
			path := strings.Trim(strings.ReplaceAll(strings.TrimPrefix(string(marshal(t, d.Loc)), `["body"`), ",", "."), "].")
			got = append(got, strings.ReplaceAll(path, `"`, "")+":"+d.Type)
		}
		if text := strings.Join(got, " "); text != c.want || !strings.Contains(body.Error, c.says) {
			t.Errorf("%s:\n%s: %s\nwant %s", c.body, text, body.Error, c.want)
		}
	}
	_, err := tensor.DecodeRequest([]byte(`{"inputs":[{"datatype":"FP31"}]}`))
	text := string(marshal(t, errorOf(allFaults(err, []byte(`{"inputs":[{"datatype":"FP31"}]}`)))))
	for _, part := range []string{`{"type":"missing","loc":["body","inputs",0,"name"],"msg":"Field required","input":{"datatype":"FP31"}}`,
		`"input":"FP31","ctx":{"expected":"'BOOL', 'UINT8',`} {
		if !strings.Contains(text, part) {
			t.Errorf("%s lacks %s", text, part)
		}
	}
	_, err = tensor.DecodeRequest([]byte(`{"inputs":`))
	text = string(marshal(t, errorOf(allFaults(err, []byte(`{"inputs":`)))))
	if !strings.Contains(text, `"msg":"JSON decode error","input":{},"ctx":{"error":"`) {
		t.Errorf("broken JSON: %s", text)
	}
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// FuzzAllFaults: a request that the decoder takes has no faults here, and there
// are never more than the bound.
func FuzzAllFaults(f *testing.F) {
	f.Add(`{"id":"1","parameters":{"content_type":"np","headers":{}},"inputs":[{"name":"x","shape":["1",1.0,-1],"datatype":"BYTES","data":["a"]}],"outputs":[{"name":"y"}]}`)
	f.Add(`{"inputs":[{"shape":[1e400,true]},[]]}`)
	f.Fuzz(func(t *testing.T, body string) {
		all := &faults{}
		all.request([]byte(body))
		if len(all.list) > maxFaults {
			t.Fatalf("%d faults", len(all.list))
		}
		if _, err := tensor.DecodeRequest([]byte(body)); err == nil && len(all.list) > 0 {
			t.Fatalf("%q is taken, but has %+v", body, all.list)
		}
	})
}
