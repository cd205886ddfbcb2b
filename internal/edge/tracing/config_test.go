package tracing

import (
	"fmt"
	"math"
	"reflect"
	"sort"
	"strings"
	"testing"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
)

// attributes are a list as text.
func attributes(list []*common.KeyValue) string {
	var out []string
	for _, kv := range list {
		out = append(out, kv.Key+"="+value(kv.Value))
	}
	return strings.Join(out, " ")
}

func value(v *common.AnyValue) string {
	switch v := v.Value.(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_IntValue:
		return fmt.Sprint(v.IntValue)
	case *common.AnyValue_BoolValue:
		return fmt.Sprint(v.BoolValue)
	case *common.AnyValue_DoubleValue:
		return fmt.Sprint(v.DoubleValue)
	case *common.AnyValue_ArrayValue:
		var out []string
		for _, item := range v.ArrayValue.Values {
			out = append(out, value(item))
		}
		return fmt.Sprint(out)
	}
	return "?"
}

func TestTarget(t *testing.T) {
	for _, c := range []struct {
		endpoint, protocol string
		want               target
		says               string
	}{
		{"collector:4317", "", target{ProtocolGRPC, false, "collector:4317", ""}, ""},
		{"[::1]:9", "", target{ProtocolGRPC, false, "[::1]:9", ""}, ""},
		{"collector:4318", ProtocolHTTP, target{ProtocolHTTP, false, "", "http://collector:4318/v1/traces"}, ""},
		{"http://c:4318", "", target{ProtocolHTTP, false, "", "http://c:4318/v1/traces"}, ""},
		{"https://c/otlp/traces", "", target{ProtocolHTTP, true, "", "https://c/otlp/traces"}, ""},
		{"http://c:4317", "", target{ProtocolGRPC, false, "c:4317", ""}, ""},
		{"https://c", ProtocolGRPC, target{ProtocolGRPC, true, "c:4317", ""}, ""},
		{"http://c:4317", ProtocolHTTP, target{ProtocolHTTP, false, "", "http://c:4317/v1/traces"}, ""},
		{"collector", "", target{}, "no port"},
		{"c:1/x", "", target{}, "not an address"},
		{"ftp://c", "", target{}, "ftp"},
		{"http://", "", target{}, "not a URL"},
		{"c:1", "http/json", target{}, `"http/json"`},
	} {
		config := DefaultConfig()
		config.Endpoint, config.Protocol = c.endpoint, c.protocol
		got, err := config.target()
		if got != c.want || (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %s: %+v (%v)", c.endpoint, c.protocol, got, err)
		}
		if bad := config.Validate(); (bad != nil) != (c.says != "") {
			t.Errorf("%s: %v", c.endpoint, bad)
		}
	}
}

func TestValidate(t *testing.T) {
	c := DefaultConfig()
	c.Endpoint = "c:1"
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	c.Sampler.Ratio, c.Batch, c.Limits, c.TLS = math.NaN(), BatchConfig{}, Limits{}, TLSConfig{CertFile: "x"}
	err := c.Validate()
	for _, field := range []string{"ratio", "maxQueue", "maxSize", "delay", "timeout", "retryFor", "maxAttributes", "maxEvents", "maxLinks", "maxValueBytes", "client certificate"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not say %s", err, field)
		}
	}
}

func TestEnvironment(t *testing.T) {
	base := DefaultConfig()
	for _, c := range []struct {
		name    string
		from    func(*Config)
		environ string
		want    func(*Config)
		says    []string
	}{
		{name: "nothing", environ: "HOME=/x"},
		{name: "all of it", environ: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318|OTEL_EXPORTER_OTLP_HEADERS=A=1,b=x%20y|OTEL_EXPORTER_OTLP_TRACES_HEADERS=b=2|OTEL_EXPORTER_OTLP_COMPRESSION=gzip|OTEL_EXPORTER_OTLP_TIMEOUT=3000|OTEL_EXPORTER_OTLP_CERTIFICATE=ca.pem|OTEL_SERVICE_NAME=s|OTEL_RESOURCE_ATTRIBUTES=k=v|OTEL_TRACES_SAMPLER=traceidratio|OTEL_TRACES_SAMPLER_ARG=0.5|OTEL_BSP_MAX_QUEUE_SIZE=7|OTEL_BSP_SCHEDULE_DELAY=10|OTEL_SPAN_LINK_COUNT_LIMIT=3",
			want: func(c *Config) {
				c.Endpoint, c.Headers, c.Gzip, c.Batch.Timeout, c.TLS.CAFile = "http://c:4318", map[string]string{"a": "1", "b": "2"}, true, 3*time.Second, "ca.pem"
				c.Service, c.Attributes, c.Sampler, c.Batch.MaxQueue, c.Batch.Delay, c.Limits.MaxLinks = "s", map[string]string{"k": "v"}, Sampler{false, 0.5}, 7, 10*time.Millisecond, 3
			}},
		{name: "base path", environ: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318/otlp/", want: func(c *Config) { c.Endpoint = "http://c:4318/otlp/v1/traces" }},
		{name: "for traces alone", environ: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c|OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://t/x|OTEL_EXPORTER_OTLP_PROTOCOL=grpc|OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf",
			want: func(c *Config) { c.Endpoint, c.Protocol = "http://t/x", ProtocolHTTP }},
		{name: "what was said stays", from: func(c *Config) { c.Endpoint, c.Service = "own:1", "own" }, environ: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c|OTEL_SERVICE_NAME=s",
			want: func(c *Config) { c.Endpoint, c.Service = "own:1", "own" }},
		{name: "disabled", from: func(c *Config) { c.Endpoint = "own:1" }, environ: "OTEL_SDK_DISABLED=TRUE", want: func(c *Config) { c.Endpoint = "" }},
		{name: "no exporter", from: func(c *Config) { c.Endpoint = "own:1" }, environ: "OTEL_TRACES_EXPORTER=none", want: func(c *Config) { c.Endpoint = "" }},
		{name: "parent", environ: "OTEL_TRACES_SAMPLER=parentbased_always_off", want: func(c *Config) { c.Sampler = Sampler{true, 0} }},
		{name: "empty is none", environ: "OTEL_TRACES_SAMPLER=|OTEL_BSP_MAX_QUEUE_SIZE= "},
		{name: "faults", environ: "OTEL_TRACES_SAMPLER=sometimes|OTEL_TRACES_SAMPLER_ARG=2|OTEL_BSP_MAX_QUEUE_SIZE=x|OTEL_EXPORTER_OTLP_COMPRESSION=zstd|OTEL_EXPORTER_OTLP_HEADERS=x",
			says: []string{"OTEL_TRACES_SAMPLER: ", "_ARG", "QUEUE_SIZE", "zstd", "HEADERS"}},
	} {
		want := base
		if c.from != nil {
			c.from(&want)
		}
		got, err := want.WithEnvironment(strings.Split(c.environ, "|"))
		if c.want != nil {
			c.want(&want)
		}
		if len(c.says) == 0 && (err != nil || !reflect.DeepEqual(got, want)) {
			t.Errorf("%s: %+v (%v)\nwant %+v", c.name, got, err, want)
		}
		sort.Strings(c.says)
		for _, says := range c.says {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v does not say %s", c.name, err, says)
			}
		}
	}
}
