package lightgbm

import (
	"errors"
	"fmt"
	"math"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
)

// The bits of a split's decision_type.
const (
	decisionCategorical = 1
	decisionDefaultLeft = 2
	decisionMissing     = 12 // the kind of missing value, shifted by
	missingShift        = 2
)

// maxLeaves bounds the leaves of a tree.
const maxLeaves = math.MaxInt32 / 4

// readTree turns a tree's section into splits and leaves. LightGBM numbers
// children as gbdt does: a leaf is the complement of its index.
func readTree(s section) (gbdt.Tree, error) {
	t := gbdt.Tree{Weight: 1, Root: ^0}
	leaves, err := s.integer("num_leaves", 1, maxLeaves)
	if err != nil {
		return t, err
	}
	if t.Leaves, err = s.numbers("leaf_value", leaves); err != nil {
		return t, err
	}
	if linear, ok := s.fields["is_linear"]; ok && string(linear) != "0" {
		if t.Linear, err = readLinear(s, leaves); err != nil {
			return t, err
		}
	}
	if leaves == 1 {
		return t, nil
	}
	t.Root = 0
	t.Splits, err = readSplits(s, leaves-1)
	return t, err
}

// readSplits reads the n splits of a tree.
func readSplits(s section, n int) ([]gbdt.Split, error) {
	left, errLeft := s.integers("left_child", n)
	right, errRight := s.integers("right_child", n)
	feature, errFeature := s.integers("split_feature", n)
	threshold, errThreshold := s.numbers("threshold", n)
	decision := make([]int, n)
	var errDecision error
	if s.has("decision_type") {
		decision, errDecision = s.integers("decision_type", n)
	}
	if err := errors.Join(errLeft, errRight, errFeature, errThreshold, errDecision); err != nil {
		return nil, err
	}
	sets, err := readSets(s)
	if err != nil {
		return nil, err
	}
	splits := make([]gbdt.Split, n)
	for i := range splits {
		split := gbdt.Split{Feature: feature[i], Left: left[i], Right: right[i], Threshold: threshold[i]}
		if decision[i] < 0 || decision[i] > math.MaxInt8 {
			return nil, s.fail("decision_type", "%d at split %d", decision[i], i)
		}
		if decision[i]&decisionCategorical != 0 {
			if split.Categories, err = takeSet(sets, threshold[i]); err != nil {
				return nil, s.fail("threshold", "split %d: %w", i, err)
			}
			split.Missing = gbdt.MissingNaN // and NaN goes right
		} else {
			split.DefaultLeft = decision[i]&decisionDefaultLeft != 0
			missing := gbdt.Missing(decision[i] & decisionMissing >> missingShift)
			if missing > gbdt.MissingNaN {
				return nil, s.fail("decision_type", "split %d has missing type %d", i, missing)
			}
			split.Missing = missing
		}
		splits[i] = split
	}
	return splits, nil
}

// readSets reads the bit sets of the categorical splits: set i has the words
// cat_boundaries[i] to cat_boundaries[i+1] of cat_threshold.
func readSets(s section) ([][]uint32, error) {
	if !s.has("num_cat") {
		return nil, nil
	}
	n, err := s.integer("num_cat", 0, maxLeaves)
	if n == 0 || err != nil {
		return nil, err
	}
	bounds, err := s.integers("cat_boundaries", n+1)
	if err != nil {
		return nil, err
	}
	words, err := s.integers("cat_threshold", count(s.fields["cat_threshold"]))
	if err != nil {
		return nil, err
	}
	bits := make([]uint32, len(words))
	for i, word := range words {
		if word < 0 || word > math.MaxUint32 {
			return nil, s.fail("cat_threshold", "%d is not a 32-bit word", word)
		}
		bits[i] = uint32(word)
	}
	sets := make([][]uint32, n)
	for i := range sets {
		begin, end := bounds[i], bounds[i+1]
		if begin < 0 || begin >= end || end > len(bits) {
			return nil, s.fail("cat_boundaries", "set %d is words %d to %d of %d", i, begin, end, len(bits))
		}
		sets[i] = bits[begin:end]
	}
	return sets, nil
}

// takeSet takes the set that a categorical split's threshold is the index of.
// A set serves one split only, so that sets cannot multiply.
func takeSet(sets [][]uint32, index float64) ([]uint32, error) {
	if !(index >= 0 && index < float64(len(sets))) {
		return nil, fmt.Errorf("category set %v of %d", index, len(sets))
	}
	set := sets[int(index)]
	if set == nil {
		return nil, fmt.Errorf("category set %v is used twice", index)
	}
	sets[int(index)] = nil
	return set, nil
}

// readLinear reads the linear functions of a linear tree's leaves.
func readLinear(s section, leaves int) ([]gbdt.LinearLeaf, error) {
	constants, err := s.numbers("leaf_const", leaves)
	if err != nil {
		return nil, err
	}
	counts, err := s.integers("num_features", leaves)
	if err != nil {
		return nil, err
	}
	features, errFeatures := s.integers("leaf_features", count(s.fields["leaf_features"]))
	coefficients, errCoefficients := s.numbers("leaf_coeff", len(features))
	if err := errors.Join(errFeatures, errCoefficients); err != nil {
		return nil, err
	}
	linear := make([]gbdt.LinearLeaf, leaves)
	for i, n := range counts {
		if n < 0 || n > len(features) {
			return nil, s.fail("num_features", "leaf %d has %d of %d", i, n, len(features))
		}
		linear[i] = gbdt.LinearLeaf{Constant: constants[i], Features: features[:n], Coefficients: coefficients[:n]}
		features, coefficients = features[n:], coefficients[n:]
	}
	if len(features) != 0 {
		return nil, s.fail("leaf_features", "%d more than num_features says", len(features))
	}
	return linear, nil
}
