// Package orca reads load reports that servers put into the headers or the
// trailers of their answers: the Open Request Cost Aggregation standard,
// xds.data.orca.v3.OrcaLoadReport, in the forms that Envoy reads and that
// vLLM and Triton write.
//
//	endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3
//	endpoint-load-metrics: JSON {"named_metrics": {"kv_cache_usage_perc": 0.4}}
//	endpoint-load-metrics: BIN  <base64 of the message>
//	endpoint-load-metrics-bin:  <base64 of the message>
//
// vLLM and Triton report when a request asks for it, with the header
// [RequestHeader] and the value "TEXT" or "JSON".
package orca

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// The headers, in canonical form.
const (
	// Header holds a report with its form before it, BinaryHeader a binary one.
	Header       = "Endpoint-Load-Metrics"
	BinaryHeader = "Endpoint-Load-Metrics-Bin"
	// RequestHeader of a request asks for a report: "TEXT", "JSON" or "BIN".
	RequestHeader = "Endpoint-Load-Metrics-Format"
)

// Bounds of a report.
const (
	MaxBytes   = 16 << 10 // of a header
	MaxMetrics = 256      // in a report
)

// Report is the load of a server that one of its answers has. A field that is
// not said is negative.
type Report struct {
	// Waiting and Running count requests.
	Waiting, Running int
	// KV is the used part of KV memory, 0 to 1.
	KV float64
}

// metrics are the names of named metrics, by what they measure.
var metrics = map[string]func(*Report, float64){
	"kv_cache_usage_perc":  (*Report).setKV, // vLLM
	"gpu_cache_usage_perc": (*Report).setKV, // vLLM up to 0.9
	"kv_cache_utilization": (*Report).setKV, // Triton
	"token_usage":          (*Report).setKV, // SGLang's name
	"num_requests_waiting": (*Report).setWaiting,
	"waiting_queue_size":   (*Report).setWaiting,
	"num_requests_running": (*Report).setRunning,
}

func (r *Report) setKV(x float64)      { r.KV = min(1, max(0, x)) }
func (r *Report) setWaiting(x float64) { r.Waiting = count(x) }
func (r *Report) setRunning(x float64) { r.Running = count(x) }

func count(x float64) int { return int(min(math.MaxInt32, max(0, math.Round(x)))) }

// Parse reads the report among the headers, or trailers, that get gives by
// canonical name. ok is false when there is none that says something of the
// load, or when it is malformed.
func Parse(get func(name string) string) (r Report, ok bool) {
	r = Report{Waiting: -1, Running: -1, KV: -1}
	if v := get(BinaryHeader); v != "" {
		ok = r.binary(v)
	} else if v := get(Header); v != "" {
		ok = r.prefixed(v)
	}
	if !ok || (r.Waiting < 0 && r.Running < 0 && r.KV < 0) {
		return Report{Waiting: -1, Running: -1, KV: -1}, false
	}
	return r, true
}

// Over returns l with the report's figures in place of its own, as of now. l
// may be nil. A report with how many wait but not how many run leaves Running
// as it was.
func (r Report) Over(l *replica.Load, now time.Time) *replica.Load {
	var out replica.Load
	if l != nil {
		out = *l
	}
	out.At = now
	if r.Waiting >= 0 {
		out.Waiting, out.Tells.Queue = r.Waiting, true
	}
	if r.Running >= 0 {
		out.Running = r.Running
	}
	if r.KV >= 0 {
		out.KV, out.Tells.KV = r.KV, true
	}
	return &out
}

// prefixed reads a header whose form comes first. A header without form is
// that of earlier servers: text.
func (r *Report) prefixed(v string) bool {
	form, rest, _ := strings.Cut(v, " ")
	switch {
	case len(v) > MaxBytes:
		return false
	case strings.EqualFold(form, "TEXT"):
		return r.text(rest)
	case strings.EqualFold(form, "JSON"):
		return r.json(rest)
	case strings.EqualFold(form, "BIN"):
		return r.binary(rest)
	}
	return r.text(v)
}

// text reads "name=value, name=value". Earlier servers write a colon for the
// equals sign.
func (r *Report) text(v string) bool {
	if strings.Count(v, ",") >= MaxMetrics {
		return false
	}
	for entry := range strings.SplitSeq(v, ",") {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		at := strings.IndexAny(entry, "=:")
		if at < 0 {
			return false
		}
		x, err := strconv.ParseFloat(strings.TrimSpace(entry[at+1:]), 64)
		if err != nil || !r.metric(strings.TrimSpace(entry[:at]), x) {
			return false
		}
	}
	return true
}

// metric takes one metric of the text form.
func (r *Report) metric(name string, x float64) bool {
	if math.IsNaN(x) || math.IsInf(x, 0) || name == "" {
		return false
	}
	if named, ok := strings.CutPrefix(name, "named_metrics."); ok {
		if set := metrics[named]; set != nil {
			set(r, x)
		}
	}
	return true
}

// json reads protobuf's JSON form, names as in the message or in camel case.
func (r *Report) json(v string) bool {
	var body struct {
		Named map[string]float64 `json:"named_metrics"`
		Camel map[string]float64 `json:"namedMetrics"`
	}
	if json.Unmarshal([]byte(v), &body) != nil || len(body.Named)+len(body.Camel) > MaxMetrics {
		return false
	}
	for _, list := range []map[string]float64{body.Camel, body.Named} {
		for name, x := range list {
			if !r.metric("named_metrics."+name, x) {
				return false
			}
		}
	}
	return true
}

// namedMetrics is the field's number in OrcaLoadReport: map<string, double>.
const namedMetrics = 8

// binary reads base64, padded or not, of a message.
func (r *Report) binary(v string) bool {
	v = strings.TrimRight(strings.TrimSpace(v), "=")
	if len(v) > MaxBytes {
		return false
	}
	b, err := base64.RawStdEncoding.DecodeString(v)
	if err != nil {
		return false
	}
	seen := 0
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		if number != namedMetrics || kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return false
			}
			b = b[n:]
			continue
		}
		entry, n := protowire.ConsumeBytes(b)
		if seen++; n < 0 || seen > MaxMetrics || !r.entry(entry) {
			return false
		}
		b = b[n:]
	}
	return true
}

// entry reads one entry of a map: 1 is the key, 2 the value.
func (r *Report) entry(b []byte) bool {
	name, x := "", 0.0
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		size := 0
		switch {
		case number == 1 && kind == protowire.BytesType:
			var key []byte
			key, size = protowire.ConsumeBytes(b)
			name = string(key)
		case number == 2 && kind == protowire.Fixed64Type:
			var bits uint64
			bits, size = protowire.ConsumeFixed64(b)
			x = math.Float64frombits(bits)
		default:
			size = protowire.ConsumeFieldValue(number, kind, b)
		}
		if size < 0 {
			return false
		}
		b = b[size:]
	}
	return r.metric("named_metrics."+name, x)
}
