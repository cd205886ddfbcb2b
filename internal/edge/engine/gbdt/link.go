package gbdt

import (
	"math"
	"slices"
)

// Link turns the margins of a row into the prediction its objective promises.
type Link uint8

// The link functions.
const (
	LinkIdentity    Link = iota
	LinkSigmoid          // 1/(1+exp(-slope*x)), each output by itself
	LinkSigmoidEach      // the same, the outputs being classes (one against all)
	LinkSoftmax          // class probabilities
	LinkArgmax           // the index of the largest margin, one output
	LinkExp              // exp(x)
	LinkStep             // 1 if x > 0, else 0
	LinkSoftplus         // log(1+exp(x))
	LinkSquare           // sign(x)*x², for a target trained under a square root
	LinkSort             // the margins in ascending order: quantiles that do not cross
	LinkIncrease         // each output is the one before plus softplus(x) and a sliver
	linkLast        = LinkIncrease
)

// apply transforms one row's margins in place and returns the prediction, a
// prefix of the same memory.
func (m *Model) apply(row []float64) []float64 {
	switch m.spec.Link {
	case LinkSoftmax:
		softmax(row)
	case LinkArgmax:
		row[0] = float64(argmax(row))
		return row[:1]
	case LinkSort:
		slices.Sort(row)
	case LinkIncrease:
		for i := 1; i < len(row); i++ {
			row[i] = row[i-1] + sliver + softplus(row[i])
		}
	case LinkIdentity:
	default:
		for i, x := range row {
			row[i] = m.spec.Link.scalar(x, m.spec.Slope)
		}
	}
	return row
}

// scalar applies a link that looks at one margin alone.
func (l Link) scalar(x, slope float64) float64 {
	switch l {
	case LinkSigmoid, LinkSigmoidEach:
		return 1 / (1 + math.Exp(-slope*x))
	case LinkExp:
		return math.Exp(x)
	case LinkStep:
		if x > 0 {
			return 1
		}
		return 0
	case LinkSoftplus:
		return softplus(x)
	case LinkSquare:
		return math.Copysign(x*x, x)
	}
	return x
}

// sliver keeps the outputs of LinkIncrease apart, as in XGBoost.
const sliver = 1e-6

// softplus is log(1+exp(x)) without overflow.
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

// softmax normalises a row of scores to probabilities, shifted by the largest
// so that the exponentials cannot overflow.
func softmax(row []float64) {
	top := row[argmax(row)]
	var sum float64
	for i, x := range row {
		row[i] = math.Exp(x - top)
		sum += row[i]
	}
	for i := range row {
		row[i] /= sum
	}
}

// argmax is the index of the first largest value.
func argmax(row []float64) int {
	best := 0
	for i, x := range row {
		if x > row[best] {
			best = i
		}
	}
	return best
}
