package batch

import (
	"runtime"
	"strings"
	"testing"
)

// TestInstances: what can be sent with others', and what goes alone.
func TestInstances(t *testing.T) {
	for body, want := range map[string]int{
		`{"instances":[1]}`: 1, `{ "instances" : [ [1,2], {"a":"]"}, null ] }`: 3, `{"instances":[1,2,3,4]}`: 0, `{"instances":[[1,2,3,4,5]]}`: 1,
		`{"instances":[]}`: 0, `{"instances":null}`: 0, `{"instances":7}`: 0, `{"instances":{"a":1}}`: 0, `{}`: 0, `[1]`: 0, ``: 0, `{"inputs":[1]}`: 0,
		`{"instances":[1],"x":1}`: 0, `{"instances":[1],"instances":[2]}`: 0, `{"instances":[1]`: 0, `{"instances":[1}`: 0, `{"instances":[1]}]`: 0,
	} {
		got, ok := Instances([]byte(body), 3)
		if len(got) != want || ok != (want > 0) {
			t.Errorf("%s: %q, %t", body, got, ok)
		}
	}
}

// TestDenseInstances: very many short instances or predictions take about
// the memory of their body.
func TestDenseInstances(t *testing.T) {
	list := "[0" + strings.Repeat(",0", 1<<20) + "]"
	for name, tt := range map[string]struct {
		body string
		do   func(body []byte) bool
	}{
		"instances":   {`{"instances":` + list + `}`, func(body []byte) bool { _, ok := Instances(body, 32); return ok }},
		"predictions": {`{"predictions":` + list + `}`, func(body []byte) bool { _, err := SplitPredictions(body, "", []int{1, 2}); return err == nil }},
	} {
		var before, after runtime.MemStats
		body := []byte(tt.body)
		runtime.ReadMemStats(&before)
		ok := tt.do(body)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; ok || took > uint64(4*len(body)) {
			t.Errorf("%s: %t, %d bytes took %d", name, ok, len(body), took)
		}
	}
}

// TestSplitPredictions: each request gets as many as it had instances.
func TestSplitPredictions(t *testing.T) {
	out, err := SplitPredictions([]byte(`{"a":1,"predictions":[1, {"b":[2]},3]}`), "id", []int{1, 2})
	if err != nil || string(out[0]) != `{"message":"","batchId":"id","predictions":[1]}` || string(out[1]) != `{"message":"","batchId":"id","predictions":[{"b":[2]},3]}` {
		t.Errorf("%s %v", out, err)
	}
	for answer, why := range map[string]string{`{"predictions":[1,2,3]`: "not JSON", `{"predictions":[1,2]}`: "2 predictions", `{}`: "0 predictions",
		`{"predictions":{"#":3}}`: "no list"} {
		if _, err := SplitPredictions([]byte(answer), "id", []int{1, 2}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %s", answer, err, why)
		}
	}
}
