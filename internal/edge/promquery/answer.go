package promquery

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// errRefused is the error of a server that did not evaluate an expression.
var errRefused = errors.New("the server refuses the query")

// answer is what Prometheus' API answers to an instant query.
type answer struct {
	Status string `json:"status"`
	Error  string `json:"error"`
	Data   struct {
		Type   string          `json:"resultType"`
		Result json.RawMessage `json:"result"`
	} `json:"data"`
}

// parse reads the one number of an answer: a scalar, or a vector of one.
func parse(b []byte) (float64, error) {
	var a answer
	if err := json.Unmarshal(b, &a); err != nil {
		return 0, errors.New("not an answer of Prometheus' API: no JSON of its form")
	}
	switch {
	case a.Status == "error":
		return 0, fmt.Errorf("%w: %s", errRefused, clip(a.Error))
	case a.Status != "success":
		return 0, errors.New("not an answer of Prometheus' API: it has no status")
	}
	switch a.Data.Type {
	case "scalar":
		return value(a.Data.Result)
	case "vector":
		var series []struct {
			Value json.RawMessage `json:"value"`
		}
		switch err := json.Unmarshal(a.Data.Result, &series); {
		case err != nil:
			return 0, errors.New("not an answer of Prometheus' API: its vector cannot be read")
		case len(series) == 0:
			return 0, errors.New("the query has no result: there is no such series now; `or vector(0)` makes that 0")
		case len(series) > 1:
			return 0, fmt.Errorf("the query has %d results: write one with a single result, such as sum(…)", len(series))
		}
		return value(series[0].Value)
	}
	return 0, fmt.Errorf("the query has a result of type %q: write one whose result is a scalar or a vector of one", clip(a.Data.Type))
}

// value reads [time, "number"].
func value(raw json.RawMessage) (float64, error) {
	var sample []any
	if err := json.Unmarshal(raw, &sample); err != nil || len(sample) != 2 {
		return 0, errors.New("not an answer of Prometheus' API: a sample is no pair of a time and a value")
	}
	text, ok := sample[1].(string)
	if !ok {
		return 0, errors.New("not an answer of Prometheus' API: the value of a sample is no string")
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("the value %q is no number", clip(text))
	}
	return x, nil
}
