// Package pickerconfig reads EndpointPickerConfig, the configuration of the endpoint
// pickers of llm-d and of the Gateway API Inference Extension: a file, or a part of
// an LLMInferenceService. A plugin that has a counterpart here is mapped to it; each
// other one is a problem with its place.
package pickerconfig

import (
	"encoding/json"
	"errors"
	"reflect"
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
		out = append(out, manifest.Schema{APIVersion: v, Kind: Kind, Shape: reflect.TypeFor[config](), OneMachine: true,
			Read: func(r *manifest.Reader, m any, o *manifest.Object) {
				o.Kind = manifest.KindScheduling
				o.Scheduling = (&reader{Report: r.Report, at: strict.Join}).read("", m.(*config))
			}})
	}
	return out
}()

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
		var parsed any
		if err := yaml.Unmarshal([]byte(text), &parsed); err != nil {
			r.Warnf(path, "has no effect: it is not YAML: %v", err)
			return nil
		}
		v = parsed
	}
	var c config
	raw, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		r.Warnf(path, "has no effect: it is no %s: %s", Kind, manifest.Clip(err.Error()))
		return nil
	}
	return (&reader{Report: r, at: strict.Key, tolerant: true}).read(path, &c)
}
