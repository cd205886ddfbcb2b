// Package pickerconfig reads EndpointPickerConfig, the configuration of the endpoint
// pickers of llm-d and of the Gateway API Inference Extension: a file, or a part of
// an LLMInferenceService. A plugin that has a counterpart here is mapped to it; each
// other one is a problem with its place.
package pickerconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// Kind is the kind, and APIVersions are those of the projects that have it.
const Kind = "EndpointPickerConfig"

// APIVersions are the versions that are read, which are alike.
var APIVersions = []string{"inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1"}

type config struct {
	metav1.TypeMeta    `json:",inline"`
	FeatureGates       []string     `json:"featureGates"`
	Plugins            []plugin     `json:"plugins"`
	SchedulingProfiles []profile    `json:"schedulingProfiles"`
	SaturationDetector *pluginRef   `json:"saturationDetector"`
	DataLayer          *dataLayer   `json:"dataLayer"`
	FlowControl        *flowControl `json:"flowControl"`
	Parser             *pluginRef   `json:"parser"`
}

type plugin struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Parameters map[string]any `json:"parameters"`
}

type profile struct {
	Name    string      `json:"name"`
	Plugins []pluginRef `json:"plugins"`
}

type pluginRef struct {
	PluginRef string   `json:"pluginRef"`
	Weight    *float64 `json:"weight"`
}

type dataLayer struct {
	InjectDefaults *bool        `json:"injectDefaults"`
	Sources        []dataSource `json:"sources"`
	Discovery      *pluginRef   `json:"discovery"`
}

type dataSource struct {
	PluginRef  string      `json:"pluginRef"`
	Extractors []pluginRef `json:"extractors"`
}

type flowControl struct {
	MaxBytes                  *quantity        `json:"maxBytes"`
	MaxRequests               *quantity        `json:"maxRequests"`
	DefaultRequestTTL         *metav1.Duration `json:"defaultRequestTTL"`
	DefaultPriorityBand       *band            `json:"defaultPriorityBand"`
	PriorityBands             []band           `json:"priorityBands"`
	UsageLimitPolicyPluginRef string           `json:"usageLimitPolicyPluginRef"`
}

type band struct {
	Priority          int       `json:"priority"`
	MaxBytes          *quantity `json:"maxBytes"`
	MaxRequests       *quantity `json:"maxRequests"`
	FairnessPolicyRef string    `json:"fairnessPolicyRef"`
	OrderingPolicyRef string    `json:"orderingPolicyRef"`
}

// Schemas are the kind's, of all versions. No API server keeps it.
var Schemas = func() (out []manifest.Schema) {
	for _, v := range APIVersions {
		out = append(out, manifest.Schema{APIVersion: v, Kind: Kind, Shape: reflect.TypeFor[config](), OneMachine: "is a file of an endpoint picker: give it to endpoint-picker --config-file",
			Read: func(r *manifest.Reader, m any, o *manifest.Object) {
				o.Kind = manifest.KindScheduling
				o.Scheduling = (&reader{Report: r.Report, at: strict.Join}).read("", m.(*config))
			}})
	}
	return append(out, configMapSchema)
}()

// configMap is a ConfigMap as it is written.
type configMap struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Data            map[string]string `json:"data"`
	BinaryData      any               `json:"binaryData"`
	Immutable       bool              `json:"immutable"`
}

// configMapSchema reads ConfigMaps, which may have such configurations. An API server's
// are read where a service names one, and kubectl applies them.
var configMapSchema = manifest.Schema{APIVersion: "v1", Kind: "ConfigMap", Shape: reflect.TypeFor[configMap](), OneMachine: "is applied with kubectl, and read where a service names it",
	Read: func(r *manifest.Reader, m any, o *manifest.Object) { readConfigMap(r, m.(*configMap), o) }}

func readConfigMap(r *manifest.Reader, m *configMap, o *manifest.Object) {
	o.Kind = manifest.KindConfigMap
	o.ConfigMap = &service.ConfigMap{Meta: r.Meta(m.Metadata, false, true), Schedulings: map[string]*service.Scheduling{}}
	o.Key = o.ConfigMap.Key
	o.ConfigMap.Data = m.Data
	total := 0
	for _, key := range slices.Sorted(maps.Keys(m.Data)) {
		if total += len(m.Data[key]); !manifest.KeyName(key) {
			r.Errorf(strict.Key("data", key), "is not a key: use up to 253 letters, digits, '-', '_' and '.'")
		}
		if v, err := decoded(m.Data[key]); err == nil && isConfig(v) {
			o.ConfigMap.Schedulings[key] = ReadInline(r.Report, strict.Key("data", key), v)
		}
	}
	if pem := m.Data[service.AuthoritiesKey]; strings.Contains(pem, "-----BEGIN CERTIFICATE-----") {
		o.ConfigMap.Authorities = pem
	} else if pem != "" {
		r.Errorf(strict.Key("data", service.AuthoritiesKey), "has no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----")
	}
	if total > maxConfigMap {
		r.Errorf("data", "has values of %d bytes: a ConfigMap has up to %d", total, maxConfigMap)
	}
}

// maxConfigMap is how large Kubernetes lets the values of a ConfigMap be together.
const maxConfigMap = 1 << 20

// isConfig reports whether a document says that it is such a configuration.
func isConfig(v any) bool {
	m, _ := v.(map[string]any)
	version, _ := m["apiVersion"].(string)
	return m["kind"] == Kind && slices.Contains(APIVersions, version)
}

// decoded is a text's YAML. The parser is another's: a fault of it on hostile input costs
// one text and not the program.
func decoded(text string) (v any, err error) {
	defer func() {
		if e := recover(); e != nil {
			err = fmt.Errorf("%v", e)
		}
	}()
	err = yaml.Unmarshal([]byte(text), &v)
	return v, err
}

// quantity is a resource.Quantity that no exponent makes build numbers of millions of
// digits: inline, no strict decoder reads it before.
type quantity struct{ resource.Quantity }

// UnmarshalJSON implements json.Unmarshaler.
func (q *quantity) UnmarshalJSON(raw []byte) error {
	if !strict.QuantityBounded(strings.Trim(string(raw), `"`)) {
		return errors.New(`a quantity such as 2 or "16Gi" is expected`)
	}
	return q.Quantity.UnmarshalJSON(raw)
}

// ReadInline reads a configuration that a manifest has at a path, as a mapping or as
// text. What is wrong with it are warnings, since the service serves without it;
// paths in it are in brackets. Nil if nothing of it can be read.
func ReadInline(r *manifest.Report, path string, v any) *service.Scheduling {
	if text, ok := v.(string); ok {
		parsed, err := decoded(text)
		if err != nil {
			r.Warnf(path, "has no effect: it is not YAML: %v", err)
			return nil
		}
		v = parsed
	}
	var c config
	var node yaml.Node
	raw, err := json.Marshal(v)
	if err == nil {
		err = yaml.Unmarshal(raw, &node) // which JSON is
	}
	if err != nil || len(node.Content) != 1 || node.Content[0].Kind != yaml.MappingNode {
		r.Warnf(path, "has no effect: it is no %s, which is a mapping", Kind)
		return nil
	}
	_, problems := strict.Decode(node.Content[0], 0, &c)
	for _, p := range problems {
		r.Warnf(inBrackets(path, p.Path), "has no effect: %s", p.Message)
	}
	return (&reader{Report: r, at: strict.Key, tolerant: true}).read(path, &c)
}

// inBrackets is the path of a configuration's field, below the root in brackets.
func inBrackets(root, path string) string {
	for part := range strings.SplitSeq(path, ".") {
		name, index, listed := strings.Cut(part, "[")
		if root = strict.Key(root, name); listed {
			root += "[" + index
		}
	}
	return root
}
