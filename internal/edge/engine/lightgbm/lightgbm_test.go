package lightgbm

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt/gbdttest"
)

// TestFixtures compares with predictions of the real package. The fixtures are
// made by test/peers/gbdt/train.py --fixtures.
func TestFixtures(t *testing.T) { gbdttest.Run(t, "testdata", Load) }

// TestQuickstart loads the model that the quickstart serves and predicts the
// sample row, a zero.
func TestQuickstart(t *testing.T) {
	m, err := Load("../../../../examples/quickstart/models/digits.txt")
	if err != nil {
		t.Fatal(err)
	}
	if m.NumFeatures() != 64 || m.NumOutputs() != 10 || m.NumClasses() != 10 || m.Single() {
		t.Errorf("%d features, %d outputs, %d classes", m.NumFeatures(), m.NumOutputs(), m.NumClasses())
	}
	row := []float64{0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0, 0, 3, 15, 2, 0, 11, 8, 0, 0, 4, 12, 0, 0, 8, 8, 0,
		0, 5, 8, 0, 0, 9, 8, 0, 0, 4, 11, 0, 1, 12, 7, 0, 0, 2, 14, 5, 10, 12, 0, 0, 0, 0, 6, 13, 10, 0, 0, 0}
	got := make([]float64, 10)
	if err := gbdt.Predict(m, got, row, 1); err != nil {
		t.Fatal(err)
	}
	if math.Abs(got[0]-0.9998) > 5e-5 {
		t.Errorf("probability of 0: %v, want 0.9998", got[0])
	}
}

// tiny is a model of one tree: a split of b at 0.5 whose missing values (NaN)
// go left, then one of the category a in {1, 33}.
const tiny = `tree
version=v4
num_class=1
num_tree_per_iteration=1
label_index=0
max_feature_idx=1
objective=regression
feature_names=a b
feature_infos=0:1 [0:1]
tree_sizes=300

Tree=0
num_leaves=3
num_cat=1
split_feature=1 0
split_gain=1 1
threshold=0.5 0
decision_type=10 1
left_child=-1 -2
right_child=1 -3
leaf_value=1 20 300
cat_boundaries=0 2
cat_threshold=2 2
is_linear=0
shrinkage=1


end of trees

parameters:
[num_leaves: 3]
end of parameters
`

// TestTiny follows every path of the tiny model.
func TestTiny(t *testing.T) {
	nan := math.NaN()
	rows := []float64{9, 0.5, 9, nan, 1, 1, 33.9, 1, 0, 1, 34, 1, nan, 1, -1, 1, 1e20, 1, -0.5, 1}
	want := []float64{1, 1, 20, 20, 300, 300, 300, 300, 300, 300}
	for _, text := range []string{tiny, strings.ReplaceAll(tiny, "\n", "\r\n")} {
		m, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float64, len(want))
		if err := gbdt.Predict(m, got, rows, len(want)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

// TestLoadRefuses gives paths that hold no model.
func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	xgb, other := filepath.Join(dir, "model.json"), filepath.Join(dir, "other.txt")
	for path, text := range map[string]string{xgb: `{"learner":{}}`, other: "tree of life"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none.txt"): "none.txt",
		dir:                            "not a regular file",
		xgb:                            "use the format xgboost",
		other:                          "no LightGBM text model",
	} {
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

// TestParseRefuses breaks the tiny model in one place each.
func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"version":       {"version=v4", "version=v9", `version "v9"`},
		"no features":   {"max_feature_idx=1\n", "", "max_feature_idx, in the section of line 1: missing"},
		"features":      {"max_feature_idx=1", "max_feature_idx=999999999999", "is not between"},
		"names":         {"feature_names=a b", "feature_names=a", "1 names for 2 features"},
		"classes":       {"num_class=1", "num_class=x", `"x" is not an integer`},
		"objective":     {"objective=regression", "objective=new", `"new" is not supported`},
		"sigmoid":       {"objective=regression", "objective=binary sigmoid:-1", "not a positive number"},
		"per class":     {"objective=regression", "objective=multiclass num_class:1\nnum_class=3", "3 classes has 1 trees"},
		"count":         {"tree_sizes=300", "tree_sizes=300 300", "may be cut short"},
		"iterations":    {"num_tree_per_iteration=1", "num_tree_per_iteration=2", "whole iterations of 2"},
		"leaves":        {"num_leaves=3", "num_leaves=0", "0 is not between"},
		"many leaves":   {"num_leaves=3", "num_leaves=500000000", "expected 500000000 numbers, got 3"},
		"leaf values":   {"leaf_value=1 20 300", "leaf_value=1 x 300", `"x" is not a number`},
		"no children":   {"left_child=-1 -2\n", "", "left_child, in the section of line 13: expected 2 numbers, got 0"},
		"child":         {"right_child=1 -3", "right_child=2 -3", "child 2 of 2"},
		"leaf":          {"right_child=1 -3", "right_child=1 -4", "leaf 3 of 3"},
		"cycle":         {"right_child=1 -3", "right_child=1 0", "reached twice"},
		"feature":       {"split_feature=1 0", "split_feature=1 2", "feature 2 of 2"},
		"decision":      {"decision_type=10 1", "decision_type=300 1", "300 at split 0"},
		"missing type":  {"decision_type=10 1", "decision_type=12 1", "missing type 3"},
		"set":           {"threshold=0.5 0", "threshold=0.5 1", "category set 1 of 1"},
		"set nan":       {"threshold=0.5 0", "threshold=0.5 nan", "category set NaN of 1"},
		"set twice":     {"decision_type=10 1\nleft", "decision_type=1 1\nleft", "category set"},
		"no sets":       {"num_cat=1", "num_cat=0", "category set 0 of 0"},
		"boundaries":    {"cat_boundaries=0 2", "cat_boundaries=0 3", "words 0 to 3 of 2"},
		"backwards":     {"cat_boundaries=0 2", "cat_boundaries=2 0", "words 2 to 0 of 2"},
		"word":          {"cat_threshold=2 2", "cat_threshold=2 -2", "not a 32-bit word"},
		"linear":        {"is_linear=0", "is_linear=1", "leaf_const"},
		"linear counts": {"is_linear=0", "is_linear=1\nleaf_const=1 1 1\nnum_features=1 0 9\nleaf_features=0\nleaf_coeff=1", "leaf 2 has 9"},
		"linear rest":   {"is_linear=0", "is_linear=1\nleaf_const=1 1 1\nnum_features=0 0 0\nleaf_features=0\nleaf_coeff=1", "more than num_features"},
		"linear range":  {"is_linear=0", "is_linear=1\nleaf_const=1 1 1\nnum_features=1 0 0\nleaf_features=7\nleaf_coeff=1", "feature 7 of 2"},
		"fields":        {"label_index=0", strings.Join(manyFields(300), "\n"), "more than 256 fields"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(tiny, c.old, c.new, 1)
			if text == tiny {
				t.Fatalf("%q is not in the model", c.old)
			}
			if name == "set twice" {
				text = strings.Replace(text, "threshold=0.5 0", "threshold=0 0", 1)
			}
			if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// manyFields makes that many distinct fields.
func manyFields(n int) []string {
	fields := make([]string, n)
	for i := range fields {
		fields[i] = strings.Repeat("k", i+1) + "=1"
	}
	return fields
}

// FuzzParse reads hostile files. Whatever is taken must predict.
func FuzzParse(f *testing.F) {
	f.Add([]byte(tiny))
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		f.Fatalf("no fixtures: %v", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if m, err := Parse(data); err == nil {
			predictOdd(t, m)
		}
	})
}

// TestMutations damages the fixtures where a byte fuzzer seldom gets: in the
// numbers of a well-formed file. Nothing may panic, and what is still taken
// must predict.
func TestMutations(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	number := regexp.MustCompile(`-?\d+(\.\d+)?`)
	odd := []string{"-1", "0", "1", "2", "7", "33", "-8", "1000000", "2147483648", "1e300", "0.5", "nan", "inf", ""}
	taken, refused := 0, 0
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data, _, _ = bytes.Cut(data, []byte("end of trees"))
		places := number.FindAllIndex(data, -1)
		for seed := range uint64(200) {
			r := rand.New(rand.NewPCG(seed, 5))
			at := places[r.IntN(len(places))]
			damaged := slices.Concat(data[:at[0]], []byte(odd[r.IntN(len(odd))]), data[at[1]:])
			m, err := Parse(damaged)
			if err != nil {
				refused++
				continue
			}
			taken++
			predictOdd(t, m)
		}
	}
	if taken == 0 || refused == 0 {
		t.Errorf("%d taken, %d refused: the mutations do not reach both", taken, refused)
	}
}

// predictOdd predicts rows of odd values.
func predictOdd(t *testing.T, m *gbdt.Model) {
	t.Helper()
	if m.NumFeatures() > 1<<16 {
		return
	}
	row := make([]float64, m.NumFeatures())
	for _, x := range []float64{0, 1, -0.5, -1, 40, 1e9, math.NaN(), math.Inf(1), math.Inf(-1)} {
		for i := range row {
			row[i] = x
		}
		if err := gbdt.Margin(m, make([]float64, m.NumMargins()), row, 1); err != nil {
			t.Fatal(err)
		}
		if err := gbdt.Predict(m.Limit(1), make([]float32, m.NumOutputs()), row, 1); err != nil {
			t.Fatal(err)
		}
	}
}
