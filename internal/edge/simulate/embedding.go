package simulate

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// Numbers of elements of an embedding.
const (
	defaultDimensions = 64
	maxDimensions     = 4096
)

type embedding struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"` // []float32, or base64 of them, little-endian
}

func (e *Engine) serveEmbeddings(w http.ResponseWriter, r *http.Request) {
	in, err := e.read(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	inputs, dimensions, err := in.embeddingInput(e.cfg.Physics.KVBlocks * BlockTokens)
	if err != nil {
		writeError(w, err)
		return
	}
	j := &job{progress: make(chan struct{}, 1)}
	var total usage
	for _, text := range inputs {
		tokens := tokensIn(len(text))
		total.PromptTokens += tokens
		j.calls = append(j.calls, &call{answer: answer{reason: "stop"}, sequence: Sequence{
			PromptTokens: tokens, Keys: BlockKeys(e.cfg.cacheSeed(in.adapter), text), Adapter: in.adapter,
		}})
	}
	total.TotalTokens = total.PromptTokens
	if e.failEarly(w, r, e.controls.takeFault()) {
		return
	}
	if err := e.driver.submit(j); err != nil {
		writeError(w, err)
		return
	}
	defer e.driver.abandon(j)
	for !allEnded(e.driver.look(j, nil)) {
		if j.wait(r.Context()) != nil {
			return
		}
	}
	data := make([]embedding, len(inputs))
	for i, text := range inputs {
		data[i] = embedding{Object: "embedding", Index: i, Embedding: encode(embed(text, dimensions), in.params.EncodingFormat)}
	}
	body, err := json.Marshal(map[string]any{"object": "list", "model": in.model, "data": data, "usage": total})
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, body)
}

func (in *inference) embeddingInput(contextLength int) (inputs []string, dimensions int, err error) {
	inputs, err = texts("input", in.params.Input)
	if err != nil {
		return nil, 0, err
	}
	if len(inputs) > maxInputs {
		return nil, 0, invalid("input", "%d inputs: want at most %d", len(inputs), maxInputs)
	}
	for i, text := range inputs {
		if n := tokensIn(len(text)); n > contextLength {
			return nil, 0, invalid("input", "input %d has %d tokens: the context length is %d", i, n, contextLength)
		}
	}
	dimensions = defaultDimensions
	if in.params.Dimensions != nil {
		dimensions = *in.params.Dimensions
	}
	if dimensions < 1 || dimensions > maxDimensions {
		return nil, 0, invalid("dimensions", "dimensions is %d: want 1 to %d", dimensions, maxDimensions)
	}
	if f := in.params.EncodingFormat; f != "" && f != "float" && f != "base64" {
		return nil, 0, invalid("encoding_format", "encoding_format is %q: want float or base64", f)
	}
	return inputs, dimensions, nil
}

// embed sums a fixed random direction for every word and scales to length 1:
// deterministic, and nearer for texts that share words.
func embed(text string, dimensions int) []float32 {
	v := make([]float32, dimensions)
	words := strings.Fields(strings.ToLower(text))
	if len(words) == 0 {
		words = []string{""}
	}
	for _, word := range words {
		rng := rand.New(rand.NewPCG(xxhash.Sum64String(word), 0))
		for i := range v {
			v[i] += float32(rng.NormFloat64())
		}
	}
	var square float64
	for _, x := range v {
		square += float64(x) * float64(x)
	}
	for i := range v {
		v[i] = float32(float64(v[i]) / math.Sqrt(square))
	}
	return v
}

func encode(v []float32, format string) any {
	if format != "base64" {
		return v
	}
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}
