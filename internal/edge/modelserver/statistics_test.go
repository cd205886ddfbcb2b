package modelserver

import (
	"encoding/json"
	"testing"
)

// TestStatistics: what a model was asked is counted by version, alone and in batches, and
// in Triton's words.
func TestStatistics(t *testing.T) {
	s := loaded(t, map[string]string{
		"m/model-settings.json":     `{"name":"m","implementation":"test.Fake","cache_enabled":true,"parameters":{"uri":"m.fake","version":"v1"}}`,
		"m/m.fake":                  "fake double",
		"b/model-settings.json":     `{"name":"b","implementation":"test.Fake","max_batch_size":8,"max_batch_time":0.01,"parameters":{"uri":"m.fake","version":"v2"}}`,
		"b/m.fake":                  "fake double",
		"stats/model-settings.json": `{"name":"stats","implementation":"test.Fake","parameters":{"uri":"m.fake"}}`,
		"stats/m.fake":              "fake double",
	}, func(c *Config) { c.Cache = CacheConfig{Entries: 10, Bytes: 1 << 20} })
	for range 3 {
		s.want(t, "POST /v2/models/m/infer", ask, 200, "")
		s.want(t, "POST /v2/models/b/infer", ask, 200, "")
	}
	s.want(t, "POST /v2/models/m/infer", `{"inputs":[{"name":"x","shape":[3],"datatype":"FP32","data":["no"]}]}`, 400, "")
	read := func(path string) (all []ModelStatistics) {
		t.Helper()
		status, text, _ := s.do(t, "GET "+path, "")
		var got struct {
			Stats []ModelStatistics `json:"model_stats"`
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != 200 {
			t.Fatalf("%s: %d %s %v", path, status, text, err)
		}
		return got.Stats
	}
	m := read("/v2/models/m/stats")[0]
	if in := m.Infer; m.Version != "v1" || m.InferenceCount != 3 || m.ExecutionCount != 1 || in.Success.Count != 3 || in.CacheHit.Count != 2 || in.CacheMiss.Count != 1 || in.ComputeInfer.Count != 1 || m.LastInference == 0 {
		t.Errorf("%+v", m)
	}
	b := read("/v2/models/b/versions/v2/stats")[0]
	if in := b.Infer; b.InferenceCount != 3 || b.ExecutionCount != 3 || in.Queue.Count != 3 || in.ComputeInfer.Count != 3 || len(b.Batches) != 1 || b.Batches[0].BatchSize != 1 || b.Batches[0].ComputeInfer.Count != 3 {
		t.Errorf("%+v", b)
	}
	s.want(t, "GET /v2/models/nope/stats", "", 404, "nope")
	s.want(t, "GET /v2/models/m/versions/v9/stats", "", 404, "v9")
	s.want(t, "GET /v2/models/stats", "", 200, `"platform"`) // there is a model of the name
	s.want(t, "POST /v2/repository/models/stats/unload", "", 200, "")
	if all := read("/v2/models/stats"); len(all) != 2 || all[0].Name != "b" || all[1].Name != "m" {
		t.Errorf("all: %+v", all)
	}
}

// TestManyBatchSizes: statistics take bounded memory, whatever batches there are.
func TestManyBatchSizes(t *testing.T) {
	s := &statistics{}
	for n := range 2 * maxBatchSizes {
		s.executed(n+1, 1)
	}
	if got := s.of("m", ""); len(got.Batches) != maxBatchSizes || got.ExecutionCount != 2*maxBatchSizes {
		t.Errorf("%d sizes of %d executions", len(got.Batches), got.ExecutionCount)
	}
}

// TestTritonSettings: configuration, and settings that can be read only.
func TestTritonSettings(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake double"})
	s.want(t, "GET /v2/models/only/config", "", 200, `"max_batch_size":0`)
	s.want(t, "GET /v2/models/nope/config", "", 404, "nope")
	s.want(t, "GET /v2/trace/setting", "", 200, `"trace_level":["OFF"]`)
	s.want(t, "GET /v2/models/only/trace/setting", "", 200, `"trace_level":["OFF"]`)
	s.want(t, "GET /v2/models/nope/trace/setting", "", 404, "nope")
	s.want(t, "POST /v2/trace/setting", `{"trace_level":["TIMESTAMPS"]}`, 400, "read only")
	s.want(t, "GET /v2/logging", "", 200, `"log_verbose_level":1`) // the test's log takes everything
	s.want(t, "POST /v2/logging", `{"log_info":false}`, 400, "read only")
}
