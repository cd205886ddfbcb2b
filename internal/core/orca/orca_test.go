package orca

import (
	"encoding/base64"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// message is an OrcaLoadReport with these named metrics, and with fields that
// are none of our business around them.
func message(named map[string]float64) string {
	b := protowire.AppendTag(nil, 1, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, math.Float64bits(0.5))
	for name, x := range named {
		entry := protowire.AppendTag(nil, 1, protowire.BytesType)
		entry = protowire.AppendString(entry, name)
		entry = protowire.AppendTag(entry, 2, protowire.Fixed64Type)
		entry = protowire.AppendFixed64(entry, math.Float64bits(x))
		b = protowire.AppendTag(b, namedMetrics, protowire.BytesType)
		b = protowire.AppendBytes(b, entry)
	}
	b = protowire.AppendTag(b, 3, protowire.VarintType)
	b = protowire.AppendVarint(b, 7)
	return base64.StdEncoding.EncodeToString(b)
}

func TestParse(t *testing.T) {
	none := Report{-1, -1, -1}
	vllm := map[string]float64{"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3}
	for _, c := range []struct {
		name, header, value string
		want                Report
		ok                  bool
	}{
		{"text", Header, "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3", Report{3, -1, 0.25}, true},
		{"text among others", Header, "TEXT cpu_utilization=0.3, mem_utilization=0.8,named_metrics.num_requests_running=2", Report{-1, 2, -1}, true},
		{"lower case", Header, "text named_metrics.kv_cache_utilization=0.5", Report{-1, -1, 0.5}, true},
		{"colons, no form", Header, "cpu_utilization:0.3,named_metrics.kv_cache_utilization:1.5", Report{-1, -1, 1}, true},
		{"json", Header, `JSON {"cpu_utilization": 0.3, "named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3, "x": 1}}`, Report{3, -1, 0.25}, true},
		{"json in camel case", Header, `JSON {"namedMetrics": {"num_requests_waiting": 3}}`, Report{3, -1, -1}, true},
		{"binary", Header, "BIN " + message(vllm), Report{3, -1, 0.25}, true},
		{"binary header", BinaryHeader, message(vllm), Report{3, -1, 0.25}, true},
		{"binary without padding", BinaryHeader, strings.TrimRight(message(vllm), "="), Report{3, -1, 0.25}, true},
		{"negative", Header, "TEXT named_metrics.num_requests_waiting=-4", Report{0, -1, -1}, true},
		{"huge", Header, "TEXT named_metrics.num_requests_waiting=1e300", Report{math.MaxInt32, -1, -1}, true},
		{"none", "X-Other", "1", none, false},
		{"nothing of ours", Header, "TEXT cpu_utilization=0.3", none, false},
		{"NaN", Header, "TEXT named_metrics.kv_cache_usage_perc=NaN", none, false},
		{"infinite", Header, "TEXT named_metrics.kv_cache_usage_perc=inf", none, false},
		{"no value", Header, "TEXT named_metrics.kv_cache_usage_perc", none, false},
		{"half of it good", Header, "TEXT named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=x", none, false},
		{"not JSON", Header, "JSON {", none, false},
		{"strings in JSON", Header, `JSON {"named_metrics": {"kv_cache_usage_perc": "a"}}`, none, false},
		{"not base64", BinaryHeader, "%%", none, false},
		{"cut", BinaryHeader, message(vllm)[:16], none, false},
		{"too long", Header, "TEXT named_metrics.kv_cache_usage_perc=0.5," + strings.Repeat(" ", MaxBytes), none, false},
		{"too many", Header, "TEXT named_metrics.kv_cache_usage_perc=0.5" + strings.Repeat(",a=1", MaxMetrics), none, false},
	} {
		got, ok := Parse(func(name string) string {
			if name == c.header {
				return c.value
			}
			return ""
		})
		if got != c.want || ok != c.ok {
			t.Errorf("%s: %+v, %v; want %+v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestOver(t *testing.T) {
	now := time.Unix(100, 0)
	before := &replica.Load{At: time.Unix(50, 0), Waiting: 1, Running: 2, KV: 0.5, Blocks: 10}
	after := Report{Waiting: 3, Running: -1, KV: -1}.Over(before, now)
	if *after != (replica.Load{At: now, Waiting: 3, Running: 2, KV: 0.5, Blocks: 10, Tells: replica.Figures{Queue: true}}) || before.Waiting != 1 {
		t.Errorf("%+v over %+v", after, before)
	}
	if first := (Report{-1, 4, 0.25}).Over(nil, now); *first != (replica.Load{At: now, Running: 4, KV: 0.25, Tells: replica.Figures{KV: true}}) {
		t.Errorf("%+v", first)
	}
}

// FuzzParse: whatever a header holds, fields are in range.
func FuzzParse(f *testing.F) {
	f.Add("TEXT named_metrics.kv_cache_usage_perc=0.25", "")
	f.Add(`JSON {"named_metrics":{"num_requests_waiting":3}}`, "")
	f.Add("", message(map[string]float64{"kv_cache_usage_perc": 0.25}))
	f.Fuzz(func(t *testing.T, text, binary string) {
		r, ok := Parse(func(name string) string { return map[string]string{Header: text, BinaryHeader: binary}[name] })
		if !ok && r != (Report{-1, -1, -1}) {
			t.Errorf("refused, and yet %+v", r)
		}
		if r.Waiting < -1 || r.Running < -1 || math.IsNaN(r.KV) || (r.KV < 0 && r.KV != -1) || r.KV > 1 {
			t.Errorf("out of range: %+v", r)
		}
	})
}
