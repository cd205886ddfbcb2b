package service

import "time"

// Scheduling is how requests find an endpoint: what an endpoint picker's
// configuration states. What is zero is left to the gateway.
type Scheduling struct {
	Picker     Picker      `json:"picker,omitzero"`
	Saturation Saturation  `json:"saturation,omitzero"`
	Queue      QueueBounds `json:"queue,omitzero"`
	// MaxConcurrency limits requests in flight per endpoint.
	MaxConcurrency int `json:"maxConcurrency,omitempty"`
	// PrefillTokens is how many tokens of a prompt must be new to an endpoint that
	// answers, for another to compute the prompt.
	PrefillTokens int64 `json:"prefillTokens,omitempty"`
}

// ConfigMapKey is one entry of a ConfigMap.
type ConfigMapKey struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// ConfigMap is a ConfigMap: its entries, from which replicas of one machine take
// variables, and among them configurations of endpoint pickers, by their keys, and the
// authorities of a store's certificate.
type ConfigMap struct {
	Meta        `json:",inline"`
	Data        map[string]string      `json:"data,omitempty"`
	Schedulings map[string]*Scheduling `json:"schedulings,omitempty"`
	// Authorities are the certificates of its key AuthoritiesKey, in PEM.
	Authorities string `json:"authorities,omitempty"`
}

// AuthoritiesKey is the key of KServe's ConfigMaps that has the authorities of a store's
// certificate.
const AuthoritiesKey = "cabundle.crt"

// Saturation is from when on an endpoint has no capacity: by the requests in its own
// queue, and the part of its KV memory in use.
type Saturation struct {
	QueueDepth float64 `json:"queueDepth,omitempty"`
	KVUsage    float64 `json:"kvUsage,omitempty"`
}

// Picker is how an endpoint is chosen.
type Picker struct {
	Preset string `json:"preset,omitempty"` // "" means the default
	// Filters and Scorers take the place of the preset's; none keeps them.
	Filters []Filter `json:"filters,omitempty"`
	Scorers []Scorer `json:"scorers,omitempty"`
	// Choice, Balance, Fresh and Stale replace the preset's; zero keeps them.
	Choice  string        `json:"choice,omitempty"`
	Balance float64       `json:"balance,omitempty"`
	Fresh   time.Duration `json:"fresh,omitempty"`
	Stale   time.Duration `json:"stale,omitempty"`
}

// Filter is one step of a picker.
type Filter struct {
	Name        string   `json:"name"`
	Waiting     int      `json:"waiting,omitempty"`
	KV          float64  `json:"kv,omitempty"`
	Probability float64  `json:"probability,omitempty"`
	Then        []Filter `json:"then,omitempty"` // with what it keeps
	Else        []Filter `json:"else,omitempty"` // where it keeps nothing
}

// Scorer is one part of a picker's rating.
type Scorer struct {
	Name   string  `json:"name"`
	Weight float64 `json:"weight"`
	Scale  float64 `json:"scale,omitempty"` // 0 is the scorer's own
}

// IsZero reports whether nothing is stated.
func (p Picker) IsZero() bool {
	return p.Preset == "" && len(p.Filters)+len(p.Scorers) == 0 && p.Choice == "" && p.Balance == 0 && p.Fresh == 0 && p.Stale == 0
}
