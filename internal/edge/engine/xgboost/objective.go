package xgboost

import (
	"math"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
)

// objective is what a training objective means for predictions.
type objective struct {
	link gbdt.Link
	// toMargin takes base_score, which files keep in the space of the
	// prediction, to margins in place; nil if they are the same.
	toMargin func([]float64)
}

// objectives are the objectives whose predictions are known.
var objectives = map[string]objective{
	"reg:squarederror":     {},
	"reg:linear":           {},
	"reg:squaredlogerror":  {},
	"reg:pseudohubererror": {},
	"reg:absoluteerror":    {},
	"reg:quantileerror":    {},
	"reg:expectileerror":   {gbdt.LinkIncrease, decrease},
	"reg:logistic":         {gbdt.LinkSigmoid, logits},
	"reg:gamma":            {gbdt.LinkExp, logs},
	"reg:tweedie":          {gbdt.LinkExp, logs},
	"count:poisson":        {gbdt.LinkExp, logs},
	"binary:logistic":      {gbdt.LinkSigmoid, logits},
	"binary:logitraw":      {},
	"binary:hinge":         {gbdt.LinkStep, nil},
	"multi:softmax":        {gbdt.LinkArgmax, nil},
	"multi:softprob":       {gbdt.LinkSoftmax, nil},
	"rank:pairwise":        {},
	"rank:ndcg":            {},
	"rank:map":             {},
	"survival:cox":         {gbdt.LinkExp, logs},
	"survival:aft":         {gbdt.LinkExp, logs},
}

// meaning finds an objective. Where releases differ, a file means what the
// release that wrote it says.
func meaning(name string, root cursor) (objective, bool) {
	o, ok := objectives[name]
	release := version(root)
	switch {
	case name == "binary:logitraw" && release < 2000:
		o.toMargin = logits
	case name == "reg:quantileerror" && release >= 3004:
		o.link = gbdt.LinkSort
	}
	return o, ok
}

// epsilon is the distance XGBoost keeps from the edges of a domain.
const epsilon = 1e-6

// logits takes probabilities, kept away from 0 and 1, through the inverse of
// the sigmoid.
func logits(scores []float64) {
	for i, p := range scores {
		p = min(max(p, epsilon), 1-epsilon)
		scores[i] = single(-math.Log(1/p - 1))
	}
}

// logs takes the natural logarithm.
func logs(scores []float64) {
	for i, x := range scores {
		scores[i] = single(math.Log(x))
	}
}

// decrease is the inverse of gbdt.LinkIncrease: the first score stays, each
// other becomes the inverse softplus of its step from the one before.
func decrease(scores []float64) {
	for i := len(scores) - 1; i > 0; i-- {
		step := max(scores[i]-scores[i-1]-epsilon, epsilon)
		scores[i] = single(step + math.Log(-math.Expm1(-step)))
	}
}

// single rounds to float32, in which XGBoost computes.
func single(x float64) float64 { return float64(float32(x)) }
