package batch

import (
	"encoding/json"
	"fmt"
)

// Instances are those of a KServe v1 request that can be sent with others': it states
// nothing else.
func Instances(body []byte) (instances []json.RawMessage, ok bool) {
	var in map[string]json.RawMessage
	if json.Unmarshal(body, &in) != nil || len(in) != 1 {
		return nil, false
	}
	if json.Unmarshal(in["instances"], &instances) != nil || len(instances) == 0 {
		return nil, false
	}
	return instances, true
}

// JoinInstances makes one KServe v1 request of several.
func JoinInstances(of [][]json.RawMessage) ([]byte, error) {
	var all []json.RawMessage
	for _, instances := range of {
		all = append(all, instances...)
	}
	return json.Marshal(map[string][]json.RawMessage{"instances": all})
}

// gathered is the answer to one of several KServe v1 requests that were sent as one,
// in KServe's form.
type gathered struct {
	Message     string            `json:"message"`
	BatchID     string            `json:"batchId"`
	Predictions []json.RawMessage `json:"predictions"`
}

// SplitPredictions makes of the answer to joined requests the answer to each: counts
// are how many instances each had.
func SplitPredictions(answer []byte, id string, counts []int) ([][]byte, error) {
	var in struct {
		Predictions []json.RawMessage `json:"predictions"`
	}
	if err := json.Unmarshal(answer, &in); err != nil {
		return nil, fmt.Errorf("the model's answer to a batch is not JSON: %w", err)
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	if len(in.Predictions) != total {
		return nil, fmt.Errorf("the model answered %d predictions to a batch of %d instances", len(in.Predictions), total)
	}
	out := make([][]byte, len(counts))
	for i, n := range counts {
		b, err := json.Marshal(gathered{BatchID: id, Predictions: in.Predictions[:n]})
		if err != nil {
			return nil, err
		}
		out[i], in.Predictions = b, in.Predictions[n:]
	}
	return out, nil
}
