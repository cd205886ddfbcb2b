package batch

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tidwall/gjson"
)

// Instances are those of a KServe v1 request that can be sent with others': it states
// nothing else, and at most most of them. They are counted before they are decoded,
// which takes many times the memory of a body of short ones.
func Instances(body []byte, most int) (instances []json.RawMessage, ok bool) {
	fields, count := 0, 0
	gjson.ParseBytes(body).ForEach(func(_, list gjson.Result) bool {
		fields++
		list.ForEach(func(_, _ gjson.Result) bool {
			count++
			return count <= most
		})
		return fields == 1 && count <= most
	})
	if fields != 1 || count == 0 || count > most {
		return nil, false
	}
	var in map[string]json.RawMessage
	if json.Unmarshal(body, &in) != nil || json.Unmarshal(in["instances"], &instances) != nil || len(instances) == 0 {
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
	if !json.Valid(answer) {
		return nil, errors.New("the model's answer to a batch is not JSON")
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	list := gjson.GetBytes(answer, "predictions")
	if n := int(list.Get("#").Int()); n != total { // of which there may be far too many to decode
		return nil, fmt.Errorf("the model answered %d predictions to a batch of %d instances", n, total)
	}
	var predictions []json.RawMessage
	if err := json.Unmarshal([]byte(list.Raw), &predictions); err != nil {
		return nil, fmt.Errorf("the model's predictions for a batch are no list: %w", err)
	}
	out := make([][]byte, len(counts))
	for i, n := range counts {
		b, err := json.Marshal(gathered{BatchID: id, Predictions: predictions[:n]})
		if err != nil {
			return nil, err
		}
		out[i], predictions = b, predictions[n:]
	}
	return out, nil
}
