package gbdt_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
)

// naive answers for one tree by recursion over the tree as given: the plain
// reading of Split's and LinearLeaf's comments, to check the flat forest with.
type naive struct {
	tree    *gbdt.Tree
	outputs int
	single  bool
}

// leaf finds the leaf below a child.
func (o naive) leaf(child int, row []float64) int {
	if child < 0 {
		return ^child
	}
	s := &o.tree.Splits[child]
	left := o.left(s, row[s.Feature])
	if left {
		return o.leaf(s.Left, row)
	}
	return o.leaf(s.Right, row)
}

// left decides one split.
func (o naive) left(s *gbdt.Split, x float64) bool {
	if s.Categories != nil {
		if math.IsNaN(x) {
			return s.DefaultLeft
		}
		if o.single && x < 0 {
			return false
		}
		for code := range len(s.Categories) * 32 {
			if float64(code) == math.Trunc(x) {
				return s.Categories[code/32]>>(code%32)&1 == 1
			}
		}
		return false
	}
	zero := math.IsNaN(x) || math.Abs(x) <= 1e-35
	switch {
	case s.Missing == gbdt.MissingNaN && math.IsNaN(x), s.Missing == gbdt.MissingZero && zero:
		return s.DefaultLeft
	case math.IsNaN(x):
		x = 0
	}
	return x <= s.Threshold
}

// add adds the tree's answer to the sums.
func (o naive) add(sums, row []float64) {
	leaf := o.leaf(o.tree.Root, row)
	if o.tree.Vector {
		for j := range sums {
			sums[j] += o.tree.Weight * o.tree.Leaves[leaf*o.outputs+j]
		}
		return
	}
	v := o.tree.Leaves[leaf]
	if o.tree.Linear != nil {
		l := o.tree.Linear[leaf]
		sum, whole := l.Constant, true
		for i, f := range l.Features {
			sum += l.Coefficients[i] * row[f]
			whole = whole && !math.IsNaN(row[f])
		}
		if whole {
			v = sum
		}
	}
	sums[o.tree.Output] += o.tree.Weight * v
}

// randomTree grows a tree of any shape with any kind of split.
func randomTree(r *rand.Rand, features, outputs int) *gbdt.Tree {
	t := &gbdt.Tree{Weight: 1, Output: r.IntN(outputs), Vector: r.IntN(4) == 0}
	if r.IntN(3) == 0 {
		t.Weight = r.Float64()
	}
	leaves := 0
	var grow func(depth int) int
	grow = func(depth int) int {
		if depth == 0 || r.IntN(5) == 0 {
			leaves++
			return ^(leaves - 1)
		}
		i := len(t.Splits)
		t.Splits = append(t.Splits, randomSplit(r, features))
		left, right := grow(depth-1), grow(depth-1)
		t.Splits[i].Left, t.Splits[i].Right = left, right
		return i
	}
	t.Root = grow(7)
	width := 1
	if t.Vector {
		width = outputs
	}
	for range leaves * width {
		t.Leaves = append(t.Leaves, r.NormFloat64())
	}
	if !t.Vector && r.IntN(3) == 0 {
		for range leaves {
			n := r.IntN(3)
			l := gbdt.LinearLeaf{Constant: r.NormFloat64()}
			for range n {
				l.Features = append(l.Features, r.IntN(features))
				l.Coefficients = append(l.Coefficients, r.NormFloat64())
			}
			t.Linear = append(t.Linear, l)
		}
	}
	return t
}

// randomSplit makes a split without children.
func randomSplit(r *rand.Rand, features int) gbdt.Split {
	s := gbdt.Split{
		Feature: r.IntN(features), Threshold: float64(r.IntN(9) - 4),
		Missing: gbdt.Missing(r.IntN(3)), DefaultLeft: r.IntN(2) == 0,
	}
	if r.IntN(3) == 0 {
		s.Categories = []uint32{r.Uint32(), r.Uint32()}[:1+r.IntN(2)]
	}
	return s
}

// odd are the values that decide differently from their neighbours.
var odd = []float64{math.NaN(), 0, math.Copysign(0, -1), 1e-36, -1e-36, 1e-34, -0.5, -1, -1.5, 63, 64, 65, 1e300,
	math.Inf(1), math.Inf(-1)}

// TestForestAgainstNaive compares random forests with the naive reading.
func TestForestAgainstNaive(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for round := range 60 {
		features, outputs := 1+r.IntN(6), 1+r.IntN(3)
		single := round%2 == 0
		forest, err := gbdt.NewForest(features, outputs)
		if err != nil {
			t.Fatal(err)
		}
		var trees []naive
		iterations := []int{0}
		for range r.IntN(25) {
			tree := randomTree(r, features, outputs)
			trees = append(trees, naive{tree, outputs, single})
			if err := forest.Add(tree); err != nil {
				t.Fatal(err)
			}
			iterations = append(iterations, len(trees))
		}
		m, err := gbdt.New(gbdt.Spec{Features: features, Margins: outputs, Single: single,
			Iterations: iterations, Base: []float64{0.5}, BestIteration: -1}, forest)
		if err != nil {
			t.Fatal(err)
		}
		checkAgainstNaive(t, r, m, trees)
	}
}

// checkAgainstNaive compares a model on random rows.
func checkAgainstNaive(t *testing.T, r *rand.Rand, m *gbdt.Model, trees []naive) {
	t.Helper()
	const n = 50
	features, outputs := m.NumFeatures(), m.NumMargins()
	rows := make([]float64, n*features)
	for i := range rows {
		if rows[i] = float64(float32(r.NormFloat64() * 20)); r.IntN(3) == 0 {
			rows[i] = odd[r.IntN(len(odd))]
		}
		if m.Single() {
			rows[i] = float64(float32(rows[i]))
		}
	}
	got := make([]float64, n*outputs)
	if err := gbdt.Margin(m, got, rows, n); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		row := rows[i*features : (i+1)*features]
		want := make([]float64, outputs)
		for j := range want {
			want[j] = 0.5
		}
		for _, tree := range trees {
			tree.add(want, row)
		}
		for j, w := range want {
			g := got[i*outputs+j]
			// Infinite inputs meet linear leaves; signs may then disagree on NaN alone.
			if !(math.Abs(g-w) <= 1e-5*max(1, math.Abs(w))) && !(math.IsInf(w, 0) || math.IsNaN(w) || math.Abs(w) > 1e30) {
				t.Fatalf("row %v, output %d: got %v, want %v", row, j, g, w)
			}
		}
	}
}

// TestForestRefuses gives trees that must not be built.
func TestForestRefuses(t *testing.T) {
	leaves := []float64{1, 2}
	split := func(feature, left, right int) []gbdt.Split {
		return []gbdt.Split{{Feature: feature, Left: left, Right: right}}
	}
	for name, c := range map[string]struct {
		tree gbdt.Tree
		want string
	}{
		"cycle":        {gbdt.Tree{Splits: split(0, 0, ^1), Leaves: leaves}, "reached twice"},
		"shared":       {gbdt.Tree{Splits: append(split(0, 1, 1), split(0, ^0, ^1)...), Leaves: leaves}, "reached twice"},
		"child":        {gbdt.Tree{Splits: split(0, 7, ^1), Leaves: leaves}, "child 7 of 1"},
		"leaf":         {gbdt.Tree{Splits: split(0, ^0, ^2), Leaves: leaves}, "leaf 2 of 2"},
		"far leaf":     {gbdt.Tree{Splits: split(0, ^0, math.MinInt), Leaves: leaves}, "of 2"},
		"feature":      {gbdt.Tree{Splits: split(3, ^0, ^1), Leaves: leaves}, "feature 3 of 3"},
		"negative":     {gbdt.Tree{Splits: split(-1, ^0, ^1), Leaves: leaves}, "feature -1 of 3"},
		"no leaves":    {gbdt.Tree{Root: ^0}, "0 leaf values"},
		"output":       {gbdt.Tree{Leaves: leaves, Root: ^0, Output: 2}, "output 2 of 2"},
		"vector":       {gbdt.Tree{Leaves: []float64{1}, Root: ^0, Vector: true}, "not a multiple of 2"},
		"linear count": {gbdt.Tree{Leaves: leaves, Root: ^0, Linear: make([]gbdt.LinearLeaf, 1)}, "1 linear leaves"},
		"linear feature": {gbdt.Tree{Leaves: leaves[:1], Root: ^0, Linear: []gbdt.LinearLeaf{
			{Features: []int{3}, Coefficients: []float64{1}}}}, "feature 3 of 3"},
		"linear lengths": {gbdt.Tree{Leaves: leaves[:1], Root: ^0, Linear: []gbdt.LinearLeaf{
			{Features: []int{1}}}}, "1 features and 0 coefficients"},
	} {
		t.Run(name, func(t *testing.T) {
			forest, err := gbdt.NewForest(3, 2)
			if err != nil {
				t.Fatal(err)
			}
			if err := forest.Add(&c.tree); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
