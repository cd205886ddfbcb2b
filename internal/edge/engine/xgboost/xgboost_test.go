package xgboost

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt/gbdttest"
)

// TestQuickstart loads the model that the quickstart serves and compares with
// what Python's Booster.inplace_predict says of the sample row.
func TestQuickstart(t *testing.T) {
	m, err := Load("../../../../examples/quickstart/models/iris.ubj")
	if err != nil {
		t.Fatal(err)
	}
	if m.NumFeatures() != 4 || m.NumOutputs() != 3 || m.NumClasses() != 3 || m.Objective() != "multi:softprob" {
		t.Errorf("got %d features, %d outputs, %d classes, objective %q",
			m.NumFeatures(), m.NumOutputs(), m.NumClasses(), m.Objective())
	}
	if got := strings.Join(m.FeatureNames(), " "); got != "sepal_length sepal_width petal_length petal_width" {
		t.Errorf("feature names: %s", got)
	}
	got := make([]float32, 3)
	if err := gbdt.Predict(m, got, []float32{5.1, 3.5, 1.4, 0.2}, 1); err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{0.99185115, 0.00543696, 0.00271187} {
		if math.Abs(float64(got[i])-want) > 1e-6 {
			t.Errorf("class %d: got %v, want %v", i, got[i], want)
		}
	}
	err = gbdt.Predict(m, got, []float32{5.1, 3.5, 1.4}, 1)
	if !errors.Is(err, gbdt.ErrShape) || !strings.Contains(err.Error(), "expected 4 features per row, got 3") {
		t.Errorf("three features: %v", err)
	}
}

// TestFixtures compares with predictions of the real package. The fixtures are
// made by test/peers/gbdt/train.py --fixtures; dart_3_2 is the dart of XGBoost
// 3.2, whose layout later releases left.
func TestFixtures(t *testing.T) { gbdttest.Run(t, "testdata", Load) }

// TestLoadRefuses gives paths that hold no model.
func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "model.txt")
	if err := os.WriteFile(text, []byte("tree\nversion=v4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none.ubj"): "none.ubj",
		dir:                            "not a regular file",
		text:                           "use the format lightgbm",
	} {
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

// tiny is a model in the layout of XGBoost 1.0, before split types, iteration
// boundaries and feature names: one split at 0.5, NaN to the left.
const tiny = `{"learner": {"attributes": {}, "gradient_booster": {"model": {
	"gbtree_model_param": {"num_trees": "1", "size_leaf_vector": "0"}, "tree_info": [0], "trees": [{
		"default_left": [true, false, false], "id": 0, "left_children": [1, -1, -1], "loss_changes": [NaN, 0, 0],
		"right_children": [2, -1, -1], "split_conditions": [5E-1, -1.5, 2.5e0], "split_indices": [1, 0, 0],
		"tree_param": {"num_feature": "2", "num_nodes": "3", "size_leaf_vector": "0"}}]}, "name": "gbtree"},
	"learner_model_param": {"base_score": "5E-1", "num_class": "0", "num_feature": "2"},
	"objective": {"name": "reg:squarederror"}}, "version": [1, 0, 0]}`

// TestTiny predicts with the oldest layout.
func TestTiny(t *testing.T) {
	m, err := Parse([]byte(tiny))
	if err != nil {
		t.Fatal(err)
	}
	nan := math.NaN()
	got := make([]float64, 4)
	if err := gbdt.Predict(m, got, []float64{9, 0.25, 9, 0.5, 9, 1, 9, nan}, 4); err != nil {
		t.Fatal(err)
	}
	if want := []float64{-1, 3, 3, -1}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestParseRefuses breaks the tiny model in one place each.
func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"not json":     {`"learner": {`, `"learner": {,`, "expected a key"},
		"cut short":    {tiny[len(tiny)/2:], "", "ends too early"},
		"trailing":     {`"version": [1, 0, 0]}`, `"version": [1, 0, 0]} x`, "after the end"},
		"no booster":   {`"name": "gbtree"`, `"no": "gbtree"`, "learner.gradient_booster.name: missing"},
		"booster":      {`"name": "gbtree"`, `"name": "forest"`, `"forest" is not supported`},
		"objective":    {"reg:squarederror", "reg:new", `learner.objective.name: "reg:new" is not supported`},
		"features":     {`"num_class": "0", "num_feature": "2"`, `"num_class": "0", "num_feature": "-2"`, "num_feature: -2 is not between"},
		"many":         {`"num_class": "0", "num_feature": "2"`, `"num_class": "0", "num_feature": "99999999999"`, "is not between"},
		"classes":      {`"num_class": "0"`, `"num_class": "x"`, `"x" is not an integer`},
		"base":         {`"base_score": "5E-1"`, `"base_score": "[1,two]"`, `"two" is not a number`},
		"bases":        {`"base_score": "5E-1"`, `"base_score": "[1,2]"`, "2 base scores for 1 outputs"},
		"infinite":     {`"base_score": "5E-1"`, `"base_score": "inf"`, "no finite margin"},
		"type":         {`"tree_info": [0]`, `"tree_info": "0"`, "tree_info: expected an array of numbers, got a string"},
		"group":        {`"tree_info": [0]`, `"tree_info": [1]`, "trees[0]: adds to output 1 of 1"},
		"nodes":        {`"num_nodes": "3"`, `"num_nodes": "2000000000"`, "left_children: expected 2000000000 numbers, got 3"},
		"cycle":        {`"left_children": [1, -1, -1]`, `"left_children": [0, -1, -1]`, "reached twice"},
		"child":        {`"left_children": [1, -1, -1]`, `"left_children": [3, -1, -1]`, "node 0: children 3 and 2 of 3 nodes"},
		"right":        {`"right_children": [2, -1, -1]`, `"right_children": [-1, -1, -1]`, "children 1 and -1"},
		"fraction":     {`"right_children": [2, -1, -1]`, `"right_children": [1.5, -1, -1]`, "element 0 is 1.5, not an index"},
		"feature":      {`"split_indices": [1, 0, 0]`, `"split_indices": [2, 0, 0]`, "feature 2 of 2"},
		"vector":       {`"num_nodes": "3", "size_leaf_vector": "0"`, `"num_nodes": "3", "size_leaf_vector": "2"`, "vector leaves"},
		"mixed":        {`"tree_info": [0]`, `"tree_info": [0, {}]`, "mixes numbers"},
		"deep":         {`"tree_info": [0]`, `"tree_info": ` + strings.Repeat("[", 100), "nested deeper"},
		"long number":  {`"tree_info": [0]`, `"tree_info": [` + strings.Repeat("1", 1000) + `]`, "unexpected"},
		"float range":  {`"tree_info": [0]`, `"tree_info": [1e999]`, "is not a number"},
		"rounds":       {`"tree_info": [0]`, `"tree_info": [0], "iteration_indptr": [0, 7]`, "do not cover"},
		"weights":      {`"tree_info": [0]`, `"tree_info": [0], "weight_drop": [1, 1]`, "expected 1 numbers, got 2"},
		"best":         {`"attributes": {}`, `"attributes": {"best_iteration": "-3"}`, "best_iteration"},
		"names":        {`"attributes": {}`, `"feature_names": ["a"]`, "1 feature names for 2"},
		"no such set":  {`"loss_changes": [NaN, 0, 0]`, `"split_type": [1, 0, 0], "categories_nodes": [], "categories_segments": [], "categories_sizes": [], "categories": []`, "categories say otherwise"},
		"category":     {`"loss_changes": [NaN, 0, 0]`, `"split_type": [1, 0, 0], "categories_nodes": [0], "categories_segments": [0], "categories_sizes": [1], "categories": [-1]`, "category -1"},
		"set range":    {`"loss_changes": [NaN, 0, 0]`, `"split_type": [1, 0, 0], "categories_nodes": [0], "categories_segments": [0], "categories_sizes": [9], "categories": [1]`, "categories 0 to 9 of 1"},
		"linear":       {`"name": "gbtree"`, `"name": "gblinear"`, "weights: missing"},
		"other":        {tiny, `{"model_type": "llama"}`, "no XGBoost model"},
		"nothing":      {tiny, "", "no XGBoost model"},
		"empty length": {tiny, "{L\x7f\xff\xff\xff\xff\xff\xff\x07learner{", "a length of"},
		"string":       {tiny, "{i\x07learnerSi\x7f", "a length of 127 in a file of 13"},
		"typed array":  {tiny, "{i\x07learner[$l#l\x00\x00\x00\x09", "36 bytes declared, 0 left"},
		"typed type":   {tiny, "{i\x07learner[$S#i\x01", "not supported"},
		"counted":      {tiny, "{i\x07learner[#i\x09", "9 elements declared"},
		"unknown type": {tiny, "{i\x07learnerH", "unknown UBJSON type"},
		"legacy":       {tiny, "binf", "save_model('model.ubj')"},
	} {
		t.Run(name, func(t *testing.T) {
			document := strings.Replace(tiny, c.old, c.new, 1)
			if document == tiny {
				t.Fatalf("%q is not in the document", c.old)
			}
			if _, err := Parse([]byte(document)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := Parse([]byte("binf")); !errors.Is(err, ErrLegacy) {
		t.Errorf("a legacy file: %v", err)
	}
}

// TestSetBudget asks for more memory in category sets than the file accounts
// for.
func TestSetBudget(t *testing.T) {
	budget := setBudget(100)
	if _, err := budget.bitSet([]int{0, 32 * 100}); err != nil {
		t.Errorf("101 words for 2 codes and a budget of 100: %v", err)
	}
	if _, err := budget.bitSet([]int{maxCategory - 1}); err == nil {
		t.Error("the largest set was not refused")
	}
}
