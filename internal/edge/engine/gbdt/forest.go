package gbdt

import (
	"errors"
	"fmt"
	"math"
)

// MaxFeatures bounds the features of a model: a node keeps its feature in the
// low bits of one word and its flags in the high ones.
const MaxFeatures = 1 << 27

// maxNodes bounds the nodes of a forest, so that every index fits an int32.
const maxNodes = math.MaxInt32 / 2

// The flags a node keeps above its feature index.
const (
	featureMask = MaxFeatures - 1
	categorical = 1 << 31 // threshold is an index into Forest.categories
	missingZero = 1 << 30 // zero counts as missing
	missingNaN  = 1 << 29 // NaN counts as missing; without it NaN is read as zero
	defaultLeft = 1 << 28 // where a missing value goes
	wideLeaf    = 1 << 27 // (leaf only) the leaf has one value per output
)

// zeroBound is the magnitude up to which LightGBM calls a value zero, its
// float32 constant 1e-35 widened.
const zeroBound = float64(float32(1e-35))

// Missing is which values a split sends in its default direction.
type Missing uint8

// The kinds of missing value. MissingNone reads NaN as zero.
const (
	MissingNone Missing = iota
	MissingZero         // zero and NaN are missing
	MissingNaN          // NaN is missing
)

// Split is one decision of a Tree. A child is the index of another split when
// it is >= 0, and ^leaf (the bitwise complement of a leaf's index) otherwise.
type Split struct {
	Feature     int
	Left, Right int
	// Threshold sends x <= Threshold left. Unused when Categories is set.
	Threshold   float64
	Missing     Missing
	DefaultLeft bool
	// Categories, when not nil, is a bit set, 32 categories a word: a value
	// whose integer part is in the set goes left, any other goes right, and
	// NaN goes in the default direction.
	Categories []uint32
}

// LinearLeaf replaces the value of a leaf by a linear function of the row:
// Constant + Σ Coefficients[i] * row[Features[i]]. A NaN among those features
// falls back to the leaf's plain value.
type LinearLeaf struct {
	Constant     float64
	Features     []int
	Coefficients []float64
}

// Tree is one decision tree as a reader found it: unchecked, in any order.
type Tree struct {
	Splits []Split
	// Leaves holds the leaves' values: one each, or, with Vector, one per
	// output each, leaf by leaf.
	Leaves []float64
	Vector bool
	// Linear is nil or has one entry for each leaf. Not with Vector.
	Linear []LinearLeaf
	// Output is the output a tree with single values adds to.
	Output int
	// Root is the split (or ^leaf) to start from.
	Root int
	// Weight scales what the tree adds; 1 except under dropout (DART).
	Weight float64
}

// node is one place of a flat forest. Siblings are adjacent, right before left,
// so a split keeps only its right child; a leaf has child < 0 and ^child is the
// place of its value in Forest.values. Invariant: child > own index for every
// split, hence every walk ends.
type node struct {
	threshold float64
	child     int32
	feature   uint32
}

// span is a run of words [begin, end) in Forest.bits.
type span struct{ begin, end int32 }

// treeEntry is one tree of a forest.
type treeEntry struct {
	root   int32
	output int32
	weight float64
	linear bool
}

// Forest is a sequence of trees in flat arrays, built by Add and then only
// read; reading is safe from several goroutines.
type Forest struct {
	features   int
	outputs    int
	nodes      []node
	values     []float64
	categories []span
	bits       []uint32
	linear     map[int32]LinearLeaf // by the place of the leaf's value
	trees      []treeEntry
}

// NewForest starts a forest over rows of that many features, adding into that
// many outputs.
func NewForest(features, outputs int) (*Forest, error) {
	if features < 1 || features > MaxFeatures {
		return nil, fmt.Errorf("%d features: must be 1 to %d", features, MaxFeatures)
	}
	if outputs < 1 || outputs > MaxOutputs {
		return nil, fmt.Errorf("%d outputs: must be 1 to %d", outputs, MaxOutputs)
	}
	return &Forest{features: features, outputs: outputs}, nil
}

// Trees is the number of trees added so far.
func (f *Forest) Trees() int { return len(f.trees) }

// Outputs is the number of outputs the trees add to.
func (f *Forest) Outputs() int { return f.outputs }

// Add checks a tree and appends it: every feature, child, leaf and category
// must be within bounds and no split may be reached twice (a cycle or a shared
// branch). Splits that the root does not reach are ignored. After an error the
// forest must not be used. The tree's slices are copied, except LinearLeaf's.
func (f *Forest) Add(t *Tree) error {
	if err := f.checkTree(t); err != nil {
		return err
	}
	root := len(f.nodes)
	if root+1+2*len(t.Splits) > maxNodes {
		return fmt.Errorf("more than %d nodes", maxNodes)
	}
	valueBase := len(f.values)
	if valueBase+len(t.Leaves) > maxNodes {
		return fmt.Errorf("more than %d leaf values", maxNodes)
	}
	f.values = append(f.values, t.Leaves...)

	p := placer{forest: f, tree: t, valueBase: valueBase, seen: make([]bool, len(t.Splits))}
	f.nodes = append(f.nodes, node{})
	p.queue = append(p.queue, placement{child: t.Root, at: root})
	for len(p.queue) > 0 {
		next := p.queue[0]
		p.queue = p.queue[1:]
		if err := p.place(next); err != nil {
			return err
		}
	}
	f.trees = append(f.trees, treeEntry{
		root: int32(root), output: int32(t.Output), weight: t.Weight, linear: t.Linear != nil,
	})
	return nil
}

// checkTree checks what belongs to the tree as a whole.
func (f *Forest) checkTree(t *Tree) error {
	width := t.width(f.outputs)
	switch {
	case t.Output < 0 || t.Output >= f.outputs:
		return fmt.Errorf("adds to output %d of %d", t.Output, f.outputs)
	case len(t.Leaves) == 0 || len(t.Leaves)%width != 0:
		return fmt.Errorf("has %d leaf values, not a multiple of %d", len(t.Leaves), width)
	case t.Linear != nil && (t.Vector || len(t.Linear) != len(t.Leaves)):
		return fmt.Errorf("has %d linear leaves for %d leaves", len(t.Linear), len(t.Leaves))
	case len(t.Splits) > maxNodes/2:
		return fmt.Errorf("has more than %d splits", maxNodes/2)
	}
	for i := range t.Linear {
		l := &t.Linear[i]
		if len(l.Features) != len(l.Coefficients) {
			return fmt.Errorf("leaf %d has %d features and %d coefficients", i, len(l.Features), len(l.Coefficients))
		}
		for _, feature := range l.Features {
			if feature < 0 || feature >= f.features {
				return fmt.Errorf("leaf %d uses feature %d of %d", i, feature, f.features)
			}
		}
	}
	return nil
}

// width is the number of values of one leaf.
func (t *Tree) width(outputs int) int {
	if t.Vector {
		return outputs
	}
	return 1
}

// placement is a child of the tree and the place its node was given.
type placement struct{ child, at int }

// placer lays one tree out breadth first, so that siblings are adjacent.
type placer struct {
	forest    *Forest
	tree      *Tree
	valueBase int
	seen      []bool
	queue     []placement
}

// place fills the node of one child and reserves places for its children.
func (p *placer) place(at placement) error {
	if at.child < 0 {
		return p.placeLeaf(^at.child, at.at)
	}
	if at.child >= len(p.tree.Splits) {
		return fmt.Errorf("child %d of %d splits", at.child, len(p.tree.Splits))
	}
	if p.seen[at.child] {
		return fmt.Errorf("split %d is reached twice", at.child)
	}
	p.seen[at.child] = true
	s := &p.tree.Splits[at.child]
	n, err := p.forest.splitNode(s)
	if err != nil {
		return fmt.Errorf("split %d: %w", at.child, err)
	}
	right := len(p.forest.nodes)
	n.child = int32(right)
	p.forest.nodes[at.at] = n
	p.forest.nodes = append(p.forest.nodes, node{}, node{})
	p.queue = append(p.queue, placement{s.Right, right}, placement{s.Left, right + 1})
	return nil
}

// placeLeaf fills a leaf's node.
func (p *placer) placeLeaf(leaf, at int) error {
	width := p.tree.width(p.forest.outputs)
	if leaf >= len(p.tree.Leaves)/width {
		return fmt.Errorf("leaf %d of %d", leaf, len(p.tree.Leaves)/width)
	}
	value := int32(p.valueBase + leaf*width)
	n := node{child: ^value}
	if p.tree.Vector {
		n.feature = wideLeaf
	} else {
		n.threshold = p.forest.values[value]
	}
	p.forest.nodes[at] = n
	if p.tree.Linear != nil {
		if p.forest.linear == nil {
			p.forest.linear = map[int32]LinearLeaf{}
		}
		p.forest.linear[value] = p.tree.Linear[leaf]
	}
	return nil
}

// splitNode packs a split, all but its child.
func (f *Forest) splitNode(s *Split) (node, error) {
	if s.Feature < 0 || s.Feature >= f.features {
		return node{}, fmt.Errorf("feature %d of %d", s.Feature, f.features)
	}
	n := node{threshold: s.Threshold, feature: uint32(s.Feature)}
	if s.DefaultLeft {
		n.feature |= defaultLeft
	}
	switch s.Missing {
	case MissingZero:
		n.feature |= missingZero | missingNaN
	case MissingNaN:
		n.feature |= missingNaN
	}
	if s.Categories != nil {
		if len(f.bits)+len(s.Categories) > maxNodes {
			return node{}, errors.New("too many categories")
		}
		n.feature |= categorical
		n.threshold = float64(len(f.categories))
		begin := int32(len(f.bits))
		f.bits = append(f.bits, s.Categories...)
		f.categories = append(f.categories, span{begin, int32(len(f.bits))})
	}
	return n, nil
}

// lanes is how many trees a row walks at once. A walk is a chain of loads that
// wait for each other; several chains keep the processor busy meanwhile.
const lanes = 8

// add adds the answers of at most lanes trees for a row to the outputs, in the
// trees' order, rounding to float32 where the model computes in it.
func add[T Number](f *Forest, trees []treeEntry, row []T, out []float64, single bool) {
	var at [lanes]int32
	for i := range trees {
		at[i] = trees[i].root
	}
	walk(f, at[:len(trees)], row, single)
	for i := range trees {
		answer(f, &trees[i], at[i], row, out, single)
	}
}

// answer adds the value of the leaf that a row reached in a tree.
func answer[T Number](f *Forest, t *treeEntry, leaf int32, row []T, out []float64, single bool) {
	n := &f.nodes[leaf]
	if n.feature&wideLeaf != 0 {
		base := int(^n.child)
		for j, v := range f.values[base : base+len(out)] {
			out[j] = accumulate(out[j], v, t.weight, single)
		}
		return
	}
	v := n.threshold
	if t.linear {
		v = linearValue(f.linear[^n.child], row, v)
	}
	out[t.output] = accumulate(out[t.output], v, t.weight, single)
}

// accumulate is sum + v*weight, in float32 arithmetic if single. Going through
// float64 is exact: its 53 bits hold the product of two 24-bit significands.
func accumulate(sum, v, weight float64, single bool) float64 {
	if single {
		return float64(float32(sum + float64(float32(v*weight))))
	}
	return sum + v*weight
}

// walk takes a row from each of the nodes at to the leaf below it.
func walk[T Number](f *Forest, at []int32, row []T, single bool) {
	nodes := f.nodes
	for walking := true; walking; {
		walking = false
		for i, a := range at {
			n := &nodes[a]
			if n.child < 0 {
				continue
			}
			walking = true
			x := float64(row[n.feature&featureMask])
			if n.feature&(categorical|missingZero) != 0 || x != x {
				at[i] = n.child + f.rare(n, x, single)
				continue
			}
			// Kept in this shape the compiler sets the bit without a branch,
			// which no predictor could foresee.
			var left int32
			if x <= n.threshold {
				left = 1
			}
			at[i] = n.child + left
		}
	}
}

// rare decides the splits the fast path leaves: categories, and values that
// may be missing. It returns 1 for left and 0 for right.
func (f *Forest) rare(n *node, x float64, single bool) int32 {
	if n.feature&categorical != 0 {
		if math.IsNaN(x) {
			return side(n.feature&defaultLeft != 0)
		}
		return side(f.member(n, x, single))
	}
	if math.IsNaN(x) {
		if n.feature&missingNaN != 0 {
			return side(n.feature&defaultLeft != 0)
		}
		x = 0
	}
	if n.feature&missingZero != 0 && math.Abs(x) <= zeroBound {
		return side(n.feature&defaultLeft != 0)
	}
	return side(x <= n.threshold)
}

// member reports whether x's integer part is in the node's set. XGBoost
// (single) calls every negative value a stranger; LightGBM truncates first, so
// that -0.5 is category 0.
func (f *Forest) member(n *node, x float64, single bool) bool {
	if x <= -1 || (single && x < 0) {
		return false
	}
	s := f.categories[int(n.threshold)]
	if x >= float64(s.end-s.begin)*32 {
		return false
	}
	c := uint32(int64(x))
	return f.bits[s.begin+int32(c>>5)]&(1<<(c&31)) != 0
}

// side is 1 for left, the distance from the right child.
func side(left bool) int32 {
	if left {
		return 1
	}
	return 0
}

// linearValue evaluates a linear leaf, or gives fallback where the row lacks a
// value it needs.
func linearValue[T Number](l LinearLeaf, row []T, fallback float64) float64 {
	sum := l.Constant
	for i, feature := range l.Features {
		x := float64(row[feature])
		if math.IsNaN(x) {
			return fallback
		}
		sum += l.Coefficients[i] * x
	}
	return sum
}
