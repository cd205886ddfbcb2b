package tracing

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The prefixes of OpenTelemetry's variables for exporters; those for traces
// alone win over those for all signals.
const (
	otlpPrefix   = "OTEL_EXPORTER_OTLP_"
	tracesPrefix = "OTEL_EXPORTER_OTLP_TRACES_"
)

// WithEnvironment returns c with the settings of OpenTelemetry's variables in
// environ ("NAME=value"). They override c, except the endpoint, and Service if c's
// is not the default: settings of this program override those of all programs.
// OTEL_SDK_DISABLED=true and OTEL_TRACES_EXPORTER=none remove the endpoint. An
// empty variable counts as absent.
func (c Config) WithEnvironment(environ []string) (Config, error) {
	e := environment{values: map[string]string{}}
	for _, pair := range environ {
		if name, value, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "OTEL_") && strings.TrimSpace(value) != "" {
			e.values[name] = strings.TrimSpace(value)
		}
	}
	if len(e.values) == 0 {
		return c, nil
	}
	e.endpoint(&c)
	e.exporter(&c)
	e.resource(&c)
	e.sampler(&c.Sampler)
	e.milliseconds(&c.Batch.Delay, "OTEL_BSP_SCHEDULE_DELAY")
	e.milliseconds(&c.Batch.Timeout, "OTEL_BSP_EXPORT_TIMEOUT")
	e.milliseconds(&c.Batch.Timeout, otlpPrefix+"TIMEOUT", tracesPrefix+"TIMEOUT")
	e.number(&c.Batch.MaxQueue, "OTEL_BSP_MAX_QUEUE_SIZE")
	e.number(&c.Batch.MaxSize, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE")
	e.number(&c.Limits.MaxAttributes, "OTEL_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT")
	e.number(&c.Limits.MaxValueBytes, "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT")
	e.number(&c.Limits.MaxEvents, "OTEL_SPAN_EVENT_COUNT_LIMIT")
	e.number(&c.Limits.MaxLinks, "OTEL_SPAN_LINK_COUNT_LIMIT")
	if strings.EqualFold(e.values["OTEL_SDK_DISABLED"], "true") || e.values["OTEL_TRACES_EXPORTER"] == "none" {
		c.Endpoint = ""
	}
	return c, errors.Join(e.errs...)
}

// environment holds variables and the errors found in them.
type environment struct {
	values map[string]string
	errs   []error
}

// last returns the value of the last of the named variables that is set.
func (e *environment) last(names ...string) (name, value string) {
	for _, n := range names {
		if v, ok := e.values[n]; ok {
			name, value = n, v
		}
	}
	return name, value
}

func (e *environment) wrong(name string, format string, args ...any) {
	e.errs = append(e.errs, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
}

func (e *environment) number(to *int, names ...string) {
	if name, value := e.last(names...); value != "" {
		n, err := strconv.Atoi(value)
		if err != nil || n <= 0 {
			e.wrong(name, "%q is not a number above 0", value)
			return
		}
		*to = n
	}
}

func (e *environment) milliseconds(to *time.Duration, names ...string) {
	n := 0
	if e.number(&n, names...); n > 0 {
		*to = time.Duration(n) * time.Millisecond
	}
}

// endpoint sets where spans are sent, unless c has an endpoint.
func (e *environment) endpoint(c *Config) {
	if _, protocol := e.last(otlpPrefix+"PROTOCOL", tracesPrefix+"PROTOCOL"); protocol != "" && c.Protocol == "" {
		c.Protocol = protocol
	}
	if c.Endpoint != "" {
		return
	}
	name, value := e.last(otlpPrefix+"ENDPOINT", tracesPrefix+"ENDPOINT")
	c.Endpoint = value
	// The endpoint for all signals is a base URL, to which each adds its path.
	if u, err := url.Parse(value); err == nil && name == otlpPrefix+"ENDPOINT" && strings.Trim(u.Path, "/") != "" && c.Protocol != ProtocolGRPC {
		c.Endpoint = strings.TrimSuffix(value, "/") + tracesPath
	}
}

// exporter sets how spans are sent.
func (e *environment) exporter(c *Config) {
	for _, name := range []string{otlpPrefix + "HEADERS", tracesPrefix + "HEADERS"} {
		if headers := e.pairs(name); len(headers) > 0 {
			c.Headers = maps.Clone(c.Headers)
			if c.Headers == nil {
				c.Headers = map[string]string{}
			}
			for key, value := range headers {
				c.Headers[strings.ToLower(key)] = value
			}
		}
	}
	switch name, value := e.last(otlpPrefix+"COMPRESSION", tracesPrefix+"COMPRESSION"); value {
	case "", "none":
	case "gzip":
		c.Gzip = true
	default:
		e.wrong(name, "%q is not known; have gzip and none", value)
	}
	for suffix, file := range map[string]*string{"CERTIFICATE": &c.TLS.CAFile, "CLIENT_CERTIFICATE": &c.TLS.CertFile, "CLIENT_KEY": &c.TLS.KeyFile} {
		if _, value := e.last(otlpPrefix+suffix, tracesPrefix+suffix); value != "" {
			*file = value
		}
	}
}

// resource sets the resource attributes of the spans: the service's name,
// version and others.
func (e *environment) resource(c *Config) {
	if attributes := e.pairs("OTEL_RESOURCE_ATTRIBUTES"); len(attributes) > 0 {
		all := maps.Clone(c.Attributes)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, attributes)
		c.Attributes = all
	}
	if c.Service == DefaultConfig().Service {
		for _, name := range []string{c.Attributes["service.name"], e.values["OTEL_SERVICE_NAME"]} {
			if name != "" {
				c.Service = name
			}
		}
	}
}

// pairs reads key=value,key=value with percent signs as in URLs.
func (e *environment) pairs(name string) map[string]string {
	pairs := map[string]string{}
	for item := range strings.SplitSeq(e.values[name], ",") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		key, value, ok := strings.Cut(item, "=")
		decoded, err := url.PathUnescape(strings.TrimSpace(value))
		if key = strings.TrimSpace(key); !ok || key == "" || err != nil {
			e.wrong(name, "one of its items is not key=value")
			continue
		}
		pairs[key] = decoded
	}
	return pairs
}

// sampler reads which traces are recorded.
func (e *environment) sampler(s *Sampler) {
	const name = "OTEL_TRACES_SAMPLER"
	ratio := 1.0
	if argument := e.values[name+"_ARG"]; argument != "" {
		var err error
		if ratio, err = strconv.ParseFloat(argument, 64); err != nil || !(ratio >= 0 && ratio <= 1) {
			e.wrong(name+"_ARG", "%q is not 0 to 1", argument)
			ratio = 1
		}
	}
	switch value := e.values[name]; value {
	case "":
	case "always_on":
		*s = Sampler{false, 1}
	case "always_off":
		*s = Sampler{false, 0}
	case "traceidratio":
		*s = Sampler{false, ratio}
	case "parentbased_always_on":
		*s = Sampler{true, 1}
	case "parentbased_always_off":
		*s = Sampler{true, 0}
	case "parentbased_traceidratio":
		*s = Sampler{true, ratio}
	default:
		e.wrong(name, "%q is not known; have always_on, always_off, traceidratio, each also with parentbased_ before it", value)
	}
}
