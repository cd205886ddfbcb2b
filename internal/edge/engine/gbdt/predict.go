package gbdt

import (
	"fmt"
	"math"
)

// Number is the element type of rows and of predictions.
type Number interface{ float32 | float64 }

// block is how many rows pass through a group of trees before the next group:
// enough to use what a large forest brings into the cache, few enough for the
// sums to stay there.
const block = 32

// Predict writes the predictions of n rows into dst: NumOutputs values a row,
// in the space the objective promises (probabilities, class label, mean). Rows
// are row-major, NumFeatures values each; NaN is a missing value. A model that
// computes in float32 rounds float64 input first, as XGBoost does. An error
// has ErrShape in its chain; dst is then untouched.
func Predict[Out, In Number](m *Model, dst []Out, rows []In, n int) error {
	if err := m.check(len(dst), len(rows), n, m.NumOutputs()); err != nil {
		return err
	}
	run(m, dst, rows, n, true)
	return nil
}

// Margin is Predict without the link function: NumMargins raw scores a row.
func Margin[Out, In Number](m *Model, dst []Out, rows []In, n int) error {
	if err := m.check(len(dst), len(rows), n, m.NumMargins()); err != nil {
		return err
	}
	run(m, dst, rows, n, false)
	return nil
}

// check checks the lengths of a call with n rows and that many values a row.
func (m *Model) check(dst, rows, n, width int) error {
	features := m.spec.Features
	switch {
	case n < 0:
		return fmt.Errorf("%w: %d rows", ErrShape, n)
	case n == 0 && rows == 0 && dst == 0:
		return nil
	case n > 0 && rows%n == 0 && rows/n != features:
		return fmt.Errorf("%w: expected %d features per row, got %d", ErrShape, features, rows/n)
	case n > math.MaxInt/features || rows != n*features:
		return fmt.Errorf("%w: expected %d rows of %d features, got %d values", ErrShape, n, features, rows)
	case n > math.MaxInt/width || dst != n*width:
		return fmt.Errorf("%w: expected room for %d rows of %d outputs, got %d", ErrShape, n, width, dst)
	}
	return nil
}

// run predicts block by block into sums, then moves them to dst. Its few
// allocations are per call, bounded by the block.
func run[Out, In Number](m *Model, dst []Out, rows []In, n int, link bool) {
	margins, features := m.spec.Margins, m.spec.Features
	sums := make([]float64, min(n, block)*margins)
	narrow := narrower[In](m, min(n, block))
	for len(rows) > 0 {
		k := min(len(rows)/features, block)
		part := sums[:k*margins]
		for i := 0; i < len(part); i += margins {
			copy(part[i:], m.base)
		}
		if narrow != nil {
			for i, x := range rows[:k*features] {
				narrow[i] = float32(x)
			}
			score(m, part, narrow[:k*features])
		} else {
			score(m, part, rows[:k*features])
		}
		dst = emit(m, dst, part, link)
		rows = rows[k*features:]
	}
}

// narrower gives room to round a block of float64 rows to float32 where the
// model computes in that, else nil.
func narrower[In Number](m *Model, n int) []float32 {
	if _, wide := any(In(0)).(float64); m.spec.Single && wide {
		return make([]float32, n*m.spec.Features)
	}
	return nil
}

// score adds to sums each row's values from the trees or weights.
func score[T Number](m *Model, sums []float64, rows []T) {
	features, margins := m.spec.Features, m.spec.Margins
	if m.forest == nil {
		for len(rows) > 0 {
			linear(m, sums[:margins], rows[:features])
			rows, sums = rows[features:], sums[margins:]
		}
		return
	}
	for trees := m.forest.trees[:m.trees]; len(trees) > 0; {
		group := trees[:min(len(trees), lanes)]
		trees = trees[len(group):]
		for i, j := 0, 0; i < len(rows); i, j = i+features, j+margins {
			add(m.forest, group, rows[i:i+features:i+features], sums[j:j+margins:j+margins], m.spec.Single)
		}
	}
}

// linear adds the linear booster's answer for a row: bias, then every present
// feature in order. XGBoost alone has it, so the arithmetic is float32.
func linear[T Number](m *Model, sums []float64, row []T) {
	margins := len(sums)
	bias := m.weights[len(row)*margins:]
	for j := range sums {
		sum := float32(bias[j]) + float32(sums[j])
		for i, x := range row {
			if !math.IsNaN(float64(x)) {
				sum += float32(x) * float32(m.weights[i*margins+j])
			}
		}
		sums[j] = float64(sum)
	}
}

// emit moves finished sums to dst, averaged and through the link if asked, and
// returns the rest of dst.
func emit[Out Number](m *Model, dst []Out, sums []float64, link bool) []Out {
	if link && m.spec.Average && m.rounds > 0 {
		for i := range sums {
			sums[i] /= float64(m.rounds)
		}
	}
	for len(sums) > 0 {
		row := sums[:m.spec.Margins]
		sums = sums[m.spec.Margins:]
		if link {
			row = m.apply(row)
		}
		for i, x := range row {
			if m.spec.Single {
				x = float64(float32(x))
			}
			dst[i] = Out(x)
		}
		dst = dst[len(row):]
	}
	return dst
}
