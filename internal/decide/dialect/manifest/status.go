package manifest

import (
	"encoding/json"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Fields collects a status, leaving out what is empty.
type Fields map[string]any

func (f Fields) Str(name, v string) {
	if v != "" {
		f[name] = v
	}
}

func (f Fields) Num(name string, v int64) {
	if v != 0 {
		f[name] = v
	}
}

func (f Fields) Sub(name string, v Fields) {
	if len(v) > 0 {
		f[name] = map[string]any(v)
	}
}

func (f Fields) Time(name string, t time.Time) {
	if !t.IsZero() {
		f[name] = t.UTC().Format(time.RFC3339)
	}
}

// Conditions lists conditions under their dialect's names. A condition that
// rename maps to "" is left out.
func Conditions(in []service.Condition, rename map[string]string) []any {
	out := []any{}
	for _, c := range in {
		name := c.Type
		if n, ok := rename[name]; ok {
			name = n
		}
		if name == "" {
			continue
		}
		f := Fields{"type": name, "status": c.Status}
		f.Str("reason", c.Reason)
		f.Str("message", c.Message)
		f.Time("lastTransitionTime", c.Since)
		out = append(out, map[string]any(f))
	}
	return out
}

// Decoded fills what it can of a T.
func Decoded[T any](v any) (out T) {
	raw, err := json.Marshal(v)
	if err != nil {
		return out
	}
	_ = json.Unmarshal(raw, &out) // what does not fit stays out
	return out
}

// Condition is a condition as every dialect writes it.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"lastTransitionTime"`
}

// HubConditions reads conditions, whose types rename maps to the hub's; others are left
// out.
func HubConditions(in []Condition, rename map[string]string) []service.Condition {
	var out []service.Condition
	for _, c := range in {
		if r, ok := rename[c.Type]; ok {
			c.Type = r
		}
		if slices.Contains(conditionTypes, c.Type) {
			out = append(out, service.Condition(c))
		}
	}
	return out
}

var conditionTypes = []string{service.ConditionReady, service.ConditionSelected, service.ConditionPredictorReady,
	service.ConditionIngressReady, service.ConditionStopped}
