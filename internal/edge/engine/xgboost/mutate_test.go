package xgboost

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
)

// TestMutations damages the fixtures where a byte fuzzer seldom gets: in the
// values of a well-formed document. Nothing may panic, and what is still taken
// must predict.
func TestMutations(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.[ju][sb]*")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	taken, refused := 0, 0
	for _, path := range paths {
		if filepath.Ext(filepath.Base(path)) == ".json" && filepath.Ext(path[:len(path)-5]) == ".case" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(150) {
			document := parseEither(t, data)
			r := rand.New(rand.NewPCG(seed, 5))
			for range 1 + r.IntN(3) {
				mutate(r, &document)
			}
			m, err := newModel(&document)
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

// parseEither parses a fixture of either format.
func parseEither(t *testing.T, data []byte) value {
	t.Helper()
	parse := parseUBJ
	if gbdt.Sniff(data) == gbdt.FormatXGBoostJSON {
		parse = parseJSON
	}
	v, err := parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// mutate changes one value of a document, found by a random descent.
func mutate(r *rand.Rand, v *value) {
	numbers := []float64{-1, 0, 1, 2, 7, 31, 1e6, -1e6, 1 << 31, 1e300, 0.5, math.NaN(), math.Inf(1)}
	switch v.kind {
	case kindNull, kindNumber:
		v.number = numbers[r.IntN(len(numbers))]
	case kindText:
		v.text = []string{"", "-1", "0", "2", "99", "x", "[1,2]", strconv.Itoa(math.MaxInt32)}[r.IntN(8)]
	case kindNumbers:
		switch {
		case len(v.numbers) == 0 || r.IntN(6) == 0:
			v.numbers = append(v.numbers, numbers[r.IntN(len(numbers))])
		case r.IntN(6) == 0:
			v.numbers = v.numbers[:r.IntN(len(v.numbers))]
		default:
			v.numbers[r.IntN(len(v.numbers))] = numbers[r.IntN(len(numbers))]
		}
	case kindList:
		mutate(r, &v.list[r.IntN(len(v.list))])
	case kindObject:
		mutateField(r, v)
	}
}

// mutateField changes or drops a field of an object.
func mutateField(r *rand.Rand, v *value) {
	var names []string
	for name := range v.fields {
		names = append(names, name)
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names) // a map's order is no seed's
	name := names[r.IntN(len(names))]
	if r.IntN(20) == 0 {
		delete(v.fields, name)
		return
	}
	member := v.fields[name]
	mutate(r, &member)
	v.fields[name] = member
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
