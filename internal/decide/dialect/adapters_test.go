package dialect

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestFineTunedWeightsOfEitherSchema reads the same adapters from both.
func TestFineTunedWeightsOfEitherSchema(t *testing.T) {
	want := []service.Adapter{
		{Name: "sql", Ref: &service.ObjectRef{Name: "sql", Kind: "FineTunedWeight"}},
		{Name: "chat.v2", Ref: &service.ObjectRef{Name: "chat.v2", Kind: "FineTunedWeight"}},
	}
	for _, spec := range []string{
		"model: {name: base, fineTunedWeights: [sql, chat.v2]}",
		"predictor: {model: {baseModel: base, fineTunedWeights: [sql, chat.v2]}}",
	} {
		r := Read("a.yaml", []byte("apiVersion: ome.io/v1beta1\nkind: InferenceService\nmetadata: {name: a}\nspec: {"+spec+"}\n"))
		if bad := r.Errors(AnyPlatform); len(bad) > 0 || len(r.Objects) != 1 {
			t.Fatalf("%s: %v", spec, bad)
		}
		got := r.Objects[0].Service.Model.Adapters
		if !slices.EqualFunc(got, want, func(a, b service.Adapter) bool { return a.Name == b.Name && *a.Ref == *b.Ref && a.URI == "" }) {
			t.Errorf("%s: %+v", spec, got)
		}
	}
}

// TestRankOfHyperParameters: they have any keys, and values of any kind.
func TestRankOfHyperParameters(t *testing.T) {
	for parameters, want := range map[string]int{
		"{rank: 16}": 16, "{lora_rank: 8, rank: 16}": 16, `{r: "32"}`: 32, "{lora_r: 4.0}": 4, "{strategy: lora}": 0, "{rank: 0}": 0, "{rank: -1}": 0,
		"{rank: 1e9}": 0, "{rank: [16]}": 0, "{rank: high}": 0, "{rank: 1.5}": 0, "16": 0, "[]": 0, "null": 0,
	} {
		r := Read("a.yaml", []byte("apiVersion: ome.io/v1beta1\nkind: FineTunedWeight\nmetadata: {name: a}\nspec: {baseModelRef: {name: b}, modelType: LoRA, hyperParameters: "+
			parameters+", storage: {storageUri: \"hf://o/a\"}}\n"))
		if len(r.Objects) != 1 {
			t.Fatalf("%s: %v", parameters, r.Problems)
		}
		if got := r.Objects[0].Model.FineTuned.Rank; got != want {
			t.Errorf("%s: rank %d, want %d", parameters, got, want)
		}
	}
}

// TestAdapterBounds: as many as may be are read, and no more.
func TestAdapterBounds(t *testing.T) {
	for n, ok := range map[int]bool{service.MaxAdapters: true, service.MaxAdapters + 1: false} {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "{name: a%d, uri: \"hf://o/a\"}, ", i)
		}
		r := Read("a.yaml", []byte("apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: a}\nspec: {model: {uri: \"hf://o/m\", adapters: ["+b.String()+"]}}\n"))
		bad := r.Errors(AnyPlatform)
		if ok != (len(bad) == 0) || !ok && !strings.Contains(bad[0].String(), "65 adapters are more than one service may have (64)") {
			t.Errorf("%d adapters: %v", n, bad)
		}
	}
}
