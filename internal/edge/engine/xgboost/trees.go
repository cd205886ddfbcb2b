package xgboost

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
)

// maxCategory bounds a category code, XGBoost's own limit.
const maxCategory = 1 << 24

// newTrees makes a model of a tree booster's "model" object.
func newTrees(spec gbdt.Spec, model cursor) (*gbdt.Model, error) {
	trees := model.field("trees").items()
	info := model.field("tree_info").ints(len(trees))
	var weights []float64
	if model.has("weight_drop") {
		weights = model.field("weight_drop").numbers(len(trees))
	}
	parallel := 1
	if params := model.field("gbtree_model_param"); params.has("num_parallel_tree") {
		parallel = max(1, params.field("num_parallel_tree").parameter(0, math.MaxInt32))
	}
	if *model.err != nil {
		return nil, *model.err
	}
	forest, err := gbdt.NewForest(spec.Features, spec.Margins)
	if err != nil {
		return nil, err
	}
	vector, sets := false, baseSetWords
	for i, c := range trees {
		t := readTree(c, spec.Margins, &sets)
		t.Output = info[i]
		t.Weight = 1
		if weights != nil {
			t.Weight = weights[i]
		}
		vector = vector || t.Vector
		if *model.err == nil {
			if err := forest.Add(&t); err != nil {
				c.fail("%w", err)
			}
		}
		if *model.err != nil {
			return nil, *model.err
		}
	}
	spec.Iterations = readIterations(model, len(trees), parallel, spec.Margins, vector)
	if *model.err != nil {
		return nil, *model.err
	}
	return gbdt.New(spec, forest)
}

// readIterations reads how many trees each boosting round ends with, or, in
// files before XGBoost 2.0, works it out: a round adds the same number of
// trees to every output.
func readIterations(model cursor, trees, parallel, outputs int, vector bool) []int {
	if model.has("iteration_indptr") {
		iterations := model.field("iteration_indptr").ints(-1)
		if len(iterations) > 0 {
			return iterations
		}
	}
	round := parallel
	if !vector {
		round *= outputs
	}
	iterations := []int{0}
	for end := round; end < trees; end += round {
		iterations = append(iterations, end)
	}
	if trees > 0 {
		iterations = append(iterations, trees)
	}
	return iterations
}

// columns are the arrays of one tree, an element for each of its nodes.
type columns struct {
	left, right, feature []int
	condition            []float64 // a threshold, or a leaf's value
	defaultLeft          []float64
	categories           map[int][]uint32 // by node, of categorical splits
	vectors              []float64        // vector leaves' values
	width                int              // values of a vector leaf, or 1
}

// readTree turns a tree's columns into splits and leaves. Failures are left in
// the cursor.
func readTree(c cursor, outputs int, sets *setBudget) gbdt.Tree {
	col := readColumns(c, sets)
	if *c.err != nil {
		return gbdt.Tree{}
	}
	if col.width > 1 && col.width != outputs {
		c.fail("leaves of %d values for %d outputs", col.width, outputs)
		return gbdt.Tree{}
	}
	// A child is an index among the splits or, complemented, the leaves.
	child := make([]int, len(col.left))
	splits, leaves := 0, 0
	for i, left := range col.left {
		if left < 0 {
			child[i] = ^leaves
			leaves++
		} else {
			child[i] = splits
			splits++
		}
	}
	t := gbdt.Tree{
		Splits: make([]gbdt.Split, 0, splits),
		Leaves: make([]float64, 0, leaves*col.width),
		Vector: col.width > 1,
		Root:   child[0],
	}
	for i, left := range col.left {
		var err error
		if left < 0 {
			err = col.appendLeaf(&t, i)
		} else {
			err = col.appendSplit(&t, i, child)
		}
		if err != nil {
			c.fail("node %d: %w", i, err)
			return t
		}
	}
	return t
}

// appendLeaf adds the value or values of leaf i.
func (col *columns) appendLeaf(t *gbdt.Tree, i int) error {
	if !t.Vector {
		t.Leaves = append(t.Leaves, float64(float32(col.condition[i])))
		return nil
	}
	at := col.right[i] // a vector leaf keeps its position there
	if at < 0 || at >= len(col.vectors)/col.width {
		return fmt.Errorf("leaf vector %d of %d", at, len(col.vectors)/col.width)
	}
	for _, v := range col.vectors[at*col.width : (at+1)*col.width] {
		t.Leaves = append(t.Leaves, float64(float32(v)))
	}
	return nil
}

// appendSplit adds split i.
func (col *columns) appendSplit(t *gbdt.Tree, i int, child []int) error {
	left, right := col.left[i], col.right[i]
	if left >= len(child) || right < 0 || right >= len(child) {
		return fmt.Errorf("children %d and %d of %d nodes", left, right, len(child))
	}
	s := gbdt.Split{
		Feature: col.feature[i], Left: child[left], Right: child[right],
		Missing: gbdt.MissingNaN, DefaultLeft: col.defaultLeft[i] != 0,
	}
	if set, ok := col.categories[i]; ok {
		// A member of the set goes right in XGBoost, left in gbdt.
		s.Left, s.Right, s.DefaultLeft = s.Right, s.Left, !s.DefaultLeft
		s.Categories = set
	} else {
		s.Threshold = below(col.condition[i])
	}
	t.Splits = append(t.Splits, s)
	return nil
}

// below is the largest float32 less than x, so that comparing with <= has the
// result of XGBoost's <; nothing is less than -Inf or NaN, whence NaN.
func below(x float64) float64 {
	single := float32(x)
	if math.IsInf(float64(single), -1) {
		return math.NaN()
	}
	return float64(math.Nextafter32(single, float32(math.Inf(-1))))
}

// readColumns reads the arrays of one tree.
func readColumns(c cursor, sets *setBudget) columns {
	params := c.field("tree_param")
	n := params.field("num_nodes").parameter(1, math.MaxInt32)
	col := columns{width: 1}
	if params.has("size_leaf_vector") { // 0 in old files
		col.width = max(1, params.field("size_leaf_vector").parameter(0, gbdt.MaxOutputs))
	}
	col.left = c.field("left_children").ints(n)
	col.right = c.field("right_children").ints(n)
	col.feature = c.field("split_indices").ints(n)
	col.condition = c.field("split_conditions").numbers(n)
	col.defaultLeft = c.field("default_left").numbers(n)
	if col.width > 1 {
		if !c.has("leaf_weights") {
			c.fail("vector leaves in the layout of XGBoost before 3.1 are not supported; save the model again with a later one")
			return col
		}
		col.vectors = c.field("leaf_weights").numbers(-1)
	}
	if c.has("split_type") {
		readCategories(c, n, &col, sets)
	}
	return col
}

// readCategories reads the category sets of a tree's categorical splits: node
// categories_nodes[i] has categories_sizes[i] of them from
// categories_segments[i] on.
func readCategories(c cursor, n int, col *columns, sets *setBudget) {
	types := c.field("split_type").numbers(n)
	if !slices.ContainsFunc(types, isCategorical) {
		return
	}
	nodes := c.field("categories_nodes").ints(-1)
	segments := c.field("categories_segments").ints(len(nodes))
	sizes := c.field("categories_sizes").ints(len(nodes))
	codes := c.field("categories").ints(-1)
	if *c.err != nil {
		return
	}
	col.categories = make(map[int][]uint32, len(nodes))
	for i, node := range nodes {
		part, err := segment(codes, segments[i], sizes[i])
		if err == nil {
			col.categories[node], err = sets.bitSet(part)
		}
		if err != nil {
			c.fail("node %d: %w", node, err)
			return
		}
	}
	for node, t := range types {
		if _, ok := col.categories[node]; isCategorical(t) != ok && col.left[node] >= 0 {
			c.fail("node %d has split type %v but its categories say otherwise", node, t)
			return
		}
	}
}

// isCategorical reads a split type.
func isCategorical(splitType float64) bool { return splitType != 0 }

// segment is codes[begin:begin+size], checked.
func segment(codes []int, begin, size int) ([]int, error) {
	if begin < 0 || size < 0 || begin > len(codes) || size > len(codes)-begin {
		return nil, fmt.Errorf("categories %d to %d of %d", begin, begin+size, len(codes))
	}
	return codes[begin : begin+size], nil
}

// setBudget bounds the memory of a model's category sets, in words of 32 codes.
// The largest code alone decides a set's size, so without it a few bytes of
// file could ask for megabytes each.
type setBudget int

// The budget is a base and an allowance for each code the file lists.
const (
	baseSetWords    setBudget = 1 << 26
	wordsPerSetCode setBudget = 64
)

// bitSet packs category codes, 32 a word.
func (b *setBudget) bitSet(codes []int) ([]uint32, error) {
	top := 0
	for _, code := range codes {
		if code < 0 || code >= maxCategory {
			return nil, fmt.Errorf("category %d is not between 0 and %d", code, maxCategory-1)
		}
		top = max(top, code)
	}
	words := top/32 + 1
	*b += wordsPerSetCode*setBudget(len(codes)) - setBudget(words)
	if *b < 0 {
		return nil, errors.New("the model's category sets are too large for their number of codes")
	}
	set := make([]uint32, words)
	for _, code := range codes {
		set[code/32] |= 1 << (code % 32)
	}
	return set, nil
}
