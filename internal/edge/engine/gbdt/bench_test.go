package gbdt_test

import (
	"math/rand/v2"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
)

// fullForest grows complete trees with random splits over rows of uniform
// values in [0, 1): every decision is as likely as the other, the worst case
// for branch prediction.
func fullForest(tb testing.TB, trees, depth, features int) *gbdt.Model {
	tb.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	forest, err := gbdt.NewForest(features, 1)
	if err != nil {
		tb.Fatal(err)
	}
	iterations := []int{0}
	for range trees {
		tree := gbdt.Tree{Weight: 1}
		inner := 1<<depth - 1
		child := func(i int) int {
			if i < inner {
				return i
			}
			return ^(i - inner)
		}
		for i := range inner {
			tree.Splits = append(tree.Splits, gbdt.Split{
				Feature: random.IntN(features), Threshold: float64(random.Float32()),
				Left: child(2*i + 1), Right: child(2*i + 2), Missing: gbdt.MissingNaN,
			})
		}
		for range inner + 1 {
			tree.Leaves = append(tree.Leaves, random.NormFloat64())
		}
		if err := forest.Add(&tree); err != nil {
			tb.Fatal(err)
		}
		iterations = append(iterations, forest.Trees())
	}
	spec := gbdt.Spec{
		Features: features, Margins: 1, Single: true, Link: gbdt.LinkSigmoid,
		Iterations: iterations, BestIteration: -1,
	}
	m, err := gbdt.New(spec, forest)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// BenchmarkPredict measures 100 trees of depth 6; the goal is at most 5 µs a
// row.
func BenchmarkPredict(b *testing.B) {
	const features = 30
	m := fullForest(b, 100, 6, features)
	random := rand.New(rand.NewPCG(3, 4))
	rows := make([]float32, 4096*features)
	for i := range rows {
		rows[i] = random.Float32()
	}
	for _, n := range []int{1, 1024} {
		name := map[int]string{1: "row", 1024: "batch"}[n]
		b.Run(name, func(b *testing.B) {
			dst := make([]float32, n)
			b.ReportAllocs()
			at := 0
			for b.Loop() {
				if at+n > 4096 {
					at = 0
				}
				if err := gbdt.Predict(m, dst, rows[at*features:(at+n)*features], n); err != nil {
					b.Fatal(err)
				}
				at += n
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/1e3/float64(b.N)/float64(n), "µs/row")
		})
	}
}
