package artifact

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/safetensors"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// safetensorsOf makes a file from a header, padded with data bytes.
func safetensorsOf(header string, data int) string {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return string(b) + header + strings.Repeat("\x00", data)
}

const llama = `{"architectures":["LlamaForCausalLM"],"model_type":"llama","torch_dtype":"bfloat16","transformers_version":"4.48.3",
"hidden_size":4096,"num_hidden_layers":32,"intermediate_size":14336,"vocab_size":128256,"num_attention_heads":32,"num_key_value_heads":8,
"rope":[NaN,-Infinity,"NaN \" Infinity"]}`

// ggufOf writes a GGUF file's header of version 3.
func ggufOf(fileType uint32, shapes ...[]uint64) string {
	var b bytes.Buffer
	le := binary.LittleEndian
	text := func(s string) {
		_ = binary.Write(&b, le, uint64(len(s)))
		b.WriteString(s)
	}
	num := func(v any) { _ = binary.Write(&b, le, v) }
	b.WriteString("GGUF")
	num(uint32(3))
	num(uint64(len(shapes)))
	num(uint64(4))
	text("general.architecture")
	num(uint32(8))
	text("qwen2")
	text("tokenizer.ggml.tokens")
	num(uint32(9))
	num(uint32(8))
	num(uint64(2))
	text("<s>")
	text(strings.Repeat("x", 1000))
	text("tokenizer.ggml.scores")
	num(uint32(9))
	num(uint32(6))
	num(uint64(2))
	num([2]float32{1, 2})
	text("general.file_type")
	num(uint32(4))
	num(fileType)
	for i, shape := range shapes {
		text(fmt.Sprintf("blk.%d.weight", i))
		num(uint32(len(shape)))
		num(shape)
		num(uint32(12))
		num(uint64(0))
	}
	return b.String()
}

func legacyOf() string {
	return "binf" + strings.Repeat("\x00", 136) + "\x0f\x00\x00\x00\x00\x00\x00\x00binary:logistic" + "\x06\x00\x00\x00\x00\x00\x00\x00gbtree"
}

const xgboostJSON = `{"learner":{"gradient_booster":{"model":{"trees":[]},"name":"gbtree"},"learner_model_param":{"base_score":"5E-1","num_class":"3","num_feature":"4"},"objective":{"name":"multi:softprob"}},"version":[3,0,2]}`

const lightgbmText = "tree\nversion=v4\nnum_class=3\nnum_tree_per_iteration=3\nlabel_index=0\nmax_feature_idx=3\nobjective=multiclass num_class:3\n"

// ubjOf writes the head and the tail of a UBJSON document as XGBoost does.
func ubjOf() string {
	k := func(s string) string { return "L\x00\x00\x00\x00\x00\x00\x00" + string(rune(len(s))) + s }
	v := func(s string) string { return "S" + k(s) }
	return "{" + k("learner") + "{" + k("attributes") + "{}" + strings.Repeat(" ", 5000) + k("name") + v("gbtree") + "}" +
		k("learner_model_param") + "{" + k("num_class") + v("0") + k("num_feature") + v("30") + "}" +
		k("objective") + "{" + k("name") + v("binary:logistic") + "}}" + k("version") + "[#L\x00\x00\x00\x00\x00\x00\x00\x03i\x03i\x01i\x00}"
}

func TestInspect(t *testing.T) {
	header := `{"__metadata__":{"format":"pt"},"a.weight":{"dtype":"BF16","shape":[10,5],"data_offsets":[0,100]},"b":{"dtype":"F32","shape":[],"data_offsets":[100,104]}}`
	gptq := `{"a.qweight":{"dtype":"I32","shape":[4,8],"data_offsets":[0,128]},"a.scales":{"dtype":"F16","shape":[8],"data_offsets":[128,144]},"n.weight":{"dtype":"F16","shape":[3],"data_offsets":[144,150]}}`
	for name, tc := range map[string]struct {
		files   map[string]string
		want    Facts  // Bytes, Files, From and Details are compared apart
		from    string // "field=file"
		details map[string]string
	}{
		"index parameters": {
			files: map[string]string{"config.json": llama, "model-00001-of-00002.safetensors": safetensorsOf(header, 104),
				"model.safetensors.index.json": `{"metadata":{"total_parameters":8030261248,"total_size":16060522496.0},"weight_map":{}}`},
			want: Facts{Format: "safetensors", Framework: "transformers", FrameworkVersion: "4.48.3", Architecture: "LlamaForCausalLM", Parameters: 8030261248},
			from: "parameters=model.safetensors.index.json", details: map[string]string{"dtype": "bfloat16", "model_type": "llama"},
		},
		"headers of the shards": {
			files: map[string]string{"config.json": llama, "model-1.safetensors": safetensorsOf(header, 104), "model-2.safetensors": safetensorsOf(header, 104),
				"consolidated.safetensors": safetensorsOf(header, 104), "model.safetensors.index.json": `{"metadata":{"total_size":208}}`},
			want: Facts{Format: "safetensors", Framework: "transformers", FrameworkVersion: "4.48.3", Architecture: "LlamaForCausalLM", Parameters: 102},
			from: "architecture=config.json",
		},
		"estimate": {
			files: map[string]string{"config.json": llama, "pytorch_model.bin": "PK"},
			want:  Facts{Format: "pytorch", Framework: "transformers", FrameworkVersion: "4.48.3", Architecture: "LlamaForCausalLM", Parameters: 8029995008},
			from:  "parameters=config.json (estimated)",
		},
		"estimate of a mixture": {
			files: map[string]string{"config.json": `{"architectures":["MixtralForCausalLM"],"model_type":"mixtral","hidden_size":4096,"num_hidden_layers":32,"intermediate_size":14336,"vocab_size":32000,"num_attention_heads":32,"num_key_value_heads":8,"num_local_experts":8,"num_experts_per_tok":2}`, "pytorch_model.bin": "PK"},
			want:  Facts{Format: "pytorch", Framework: "transformers", Architecture: "MixtralForCausalLM", Parameters: 46702526464},
			from:  "parameters=config.json (estimated, 12.88B of them per token)",
		},
		"gptq": {
			files: map[string]string{"config.json": `{"model_type":"llama","architectures":["L"],"quantization_config":{"quant_method":"GPTQ","bits":4}}`, "model.safetensors": safetensorsOf(gptq, 150)},
			want:  Facts{Format: "safetensors", Framework: "transformers", Architecture: "L", Quantization: "gptq", Parameters: 259},
			from:  "quantization=config.json",
		},
		"packed by groups": {
			files: map[string]string{"config.json": `{"model_type":"llama","architectures":["L"],"quantization_config":{"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":{"num_bits":4}}}}}`,
				"model.safetensors": safetensorsOf(`{"a.weight_packed":{"dtype":"I32","shape":[4,8],"data_offsets":[0,128]},"a.weight_scale":{"dtype":"F16","shape":[8],"data_offsets":[128,144]},"n.weight":{"dtype":"F16","shape":[3],"data_offsets":[144,150]}}`, 150),
				// Libraries leave packed weights out of this number.
				"model.safetensors.index.json": `{"metadata":{"total_parameters":3},"weight_map":{"n.weight":"model.safetensors"}}`},
			want: Facts{Format: "safetensors", Framework: "transformers", Architecture: "L", Quantization: "compressed-tensors", Parameters: 259},
			from: "parameters=model.safetensors",
		},
		"eight bits by the index": {
			files: map[string]string{"config.json": `{"model_type":"llama","architectures":["L"],"quantization_config":{"quant_method":"fp8"}}`, "model.safetensors": safetensorsOf(gptq, 150),
				"model.safetensors.index.json": `{"metadata":{"total_parameters":259}}`},
			want: Facts{Format: "safetensors", Framework: "transformers", Architecture: "L", Quantization: "fp8", Parameters: 259},
			from: "parameters=model.safetensors.index.json",
		},
		"nested text config": {
			files: map[string]string{"config.json": `{"model_type":"mm","text_config":{"dtype":"float16","quantization_config":{"quant_method":"fbgemm_fp8"}}}`, "model.safetensors": safetensorsOf("{}", 0)},
			want:  Facts{Format: "safetensors", Framework: "transformers", Quantization: "fbgemm_fp8"},
		},
		"safetensors alone": {files: map[string]string{"w.safetensors": safetensorsOf(header, 104)}, want: Facts{Format: "safetensors", Parameters: 51}, from: "parameters=w.safetensors"},
		"gguf": {
			files: map[string]string{"m.gguf": ggufOf(15, []uint64{10, 5}, []uint64{7})},
			want:  Facts{Format: "gguf", FormatVersion: "3", Architecture: "qwen2", Quantization: "Q4_K_M", Parameters: 57}, from: "quantization=m.gguf",
		},
		"xgboost json": {
			files: map[string]string{"model.json": xgboostJSON}, want: Facts{Format: "xgboost", Framework: "xgboost", FrameworkVersion: "3.0.2"},
			details: map[string]string{"objective": "multi:softprob", "num_class": "3", "num_feature": "4", "booster": "gbtree"},
		},
		"xgboost ubj": {
			files: map[string]string{"model.bst": ubjOf()}, want: Facts{Format: "xgboost", Framework: "xgboost", FrameworkVersion: "3.1.0"},
			details: map[string]string{"objective": "binary:logistic", "num_class": "0", "num_feature": "30", "booster": "gbtree"},
		},
		"xgboost legacy": {files: map[string]string{"model.bst": legacyOf()}, want: Facts{Format: "xgboost", FormatVersion: "legacy-binary", Framework: "xgboost"}},
		"lightgbm": {
			files: map[string]string{"model.txt": lightgbmText, "README.md": "tree"}, want: Facts{Format: "lightgbm", FormatVersion: "v4", Framework: "lightgbm"},
			details: map[string]string{"num_class": "3", "max_feature_idx": "3"}, from: "format=model.txt",
		},
		"onnx": {files: map[string]string{"m.onnx": "\x08\x08\x12\x07pytorch\x1a\x052.1.0:"}, want: Facts{Format: "onnx"},
			details: map[string]string{"ir_version": "8", "producer": "pytorch", "producer_version": "2.1.0"}},
		"sklearn joblib": {files: map[string]string{"m.joblib": "\x80\x04\x95sklearn.linear\x94_sklearn_version\x94\x8c\x051.5.2\x94"}, want: Facts{Format: "sklearn", Framework: "sklearn", FrameworkVersion: "1.5.2"}},
		"pickle":         {files: map[string]string{"m.pkl": "\x80\x04\x95something"}, want: Facts{Format: "pickle"}},
		"catboost":       {files: map[string]string{"m.cbm": "CBM1xxxx"}, want: Facts{Format: "catboost", Framework: "catboost"}},
		"savedmodel":     {files: map[string]string{"1/saved_model.pb": "x", "1/variables/v": "y"}, want: Facts{Format: "tensorflow", Framework: "tensorflow"}, from: "format=1/saved_model.pb"},
		"pmml":           {files: map[string]string{"m.pmml": "<?xml?><PMML>"}, want: Facts{Format: "pmml"}},
		"mar":            {files: map[string]string{"m.mar": "PK"}, want: Facts{Format: "pytorch", Framework: "pytorch"}},
		"triton":         {files: map[string]string{"config.pbtxt": "name", "1/model.onnx": ""}, want: Facts{Format: "triton"}},
		"mlflow": {
			files: map[string]string{"MLmodel": "mlflow_version: 2.9.2\nflavors:\n  python_function: {loader_module: x}\n  xgboost: {xgb_version: 2.0.3, data: model.xgb}\n", "model.ubj": ubjOf()},
			want:  Facts{Format: "mlflow", Framework: "xgboost", FrameworkVersion: "2.0.3"}, details: map[string]string{"mlflow_version": "2.9.2"},
		},
		"mlserver": {
			files: map[string]string{"model-settings.json": `{"name":"iris","implementation":"mlserver_sklearn.SKLearnModel","parameters":{"uri":"./m.joblib","version":"v1"}}`, "m.joblib": "x"},
			want:  Facts{Format: "sklearn"}, from: "format=model-settings.json", details: map[string]string{"uri": "./m.joblib"},
		},
		"mlserver with an environment": {
			files: map[string]string{"model-settings.json": `{"implementation":"mlserver_sklearn.SKLearnModel","parameters":{"environment_path":"./venv","environment_tarball":"./env.tar.gz"}}`},
			want:  Facts{Format: "sklearn", Environment: "./env.tar.gz"}, from: "environment=model-settings.json",
		},
		"mlflow with an environment": {
			files: map[string]string{"MLmodel": "flavors: {}", "model-settings.json": `{"parameters":{"environment_path":"./venv"}}`},
			want:  Facts{Format: "mlflow", Environment: "./venv"},
		},
		"diffusers": {
			files: map[string]string{"model_index.json": `{"_class_name":"QwenImagePipeline","_diffusers_version":"0.36.0","scale":NaN,"text_encoder":["transformers","Qwen2_5_VL"],"unet":["diffusers","UNet"],"safety_checker":[null,null],"force_zeros":true,"vae":["diffusers","VAE"]}`,
				"vae/config.json": `{"architectures":["X"]}`, "all.safetensors": safetensorsOf(header, 104)},
			want: Facts{Format: "diffusers", Framework: "diffusers", FrameworkVersion: "0.36.0", Architecture: "QwenImagePipeline",
				Diffusion: &service.DiffusionPipeline{Class: "QwenImagePipeline", Components: map[string]service.DiffusionComponent{
					"textEncoder": {Library: "transformers", Type: "Qwen2_5_VL"}, "transformer": {Library: "diffusers", Type: "UNet"}, "vae": {Library: "diffusers", Type: "VAE"}}}},
			from: "diffusion=model_index.json",
		},
		"an index of something else": {files: map[string]string{"model_index.json": `{"a":[1]}`}},
		"an index that is no object": {files: map[string]string{"model_index.json": `[]`, "all.safetensors": safetensorsOf(header, 104)}, want: Facts{Format: "safetensors", Parameters: 51}},
		"an index that is no JSON":   {files: map[string]string{"model_index.json": `{`}},
		"nothing known":              {files: map[string]string{"a": "b", "c.txt": "d"}},
		"empty":                      {files: map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var size int64
			for f, content := range tc.files {
				mustWrite(t, filepath.Join(dir, f), content)
				size += int64(len(content))
			}
			got, err := Inspect(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			if got.Bytes != size || got.Files != len(tc.files) {
				t.Errorf("%d bytes in %d files; want %d in %d", got.Bytes, got.Files, size, len(tc.files))
			}
			if field, file, ok := strings.Cut(tc.from, "="); ok && got.From[field] != file {
				t.Errorf("%s comes from %q, want %q", field, got.From[field], file)
			}
			for k, v := range tc.details {
				if got.Details[k] != v {
					t.Errorf("detail %s = %q, want %q", k, got.Details[k], v)
				}
			}
			got.Bytes, got.Files, got.From, got.Details = 0, 0, nil, nil
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func TestInspectOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "whatever.xyz")
	mustWrite(t, path, xgboostJSON)
	if got, err := Inspect(t.Context(), path); err != nil || got.Format != "xgboost" || got.Files != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	_, err := Inspect(t.Context(), path+".none")
	wantError(t, err, path+".none")
}

// TestPipesAreRefused: a named pipe would be waited for; the store neither
// inspects it nor gives it out, and skips it in a folder.
func TestPipesAreRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.ubj")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "model.ubj is neither a file nor a folder"
	_, err := Inspect(t.Context(), path)
	wantError(t, err, want)
	for _, uri := range []string{"file://" + path, "file://" + path + "#sha256=" + strings.Repeat("0", 64)} {
		s := newStore(t, nil)
		_, err = s.Peek(t.Context(), Request{URI: uri})
		wantError(t, err, want)
		_, err = s.Fetch(t.Context(), Request{URI: uri}, nil)
		wantError(t, err, want)
	}
	if f, err := Inspect(t.Context(), dir); err != nil || f.Files != 0 {
		t.Errorf("a folder with a pipe: %+v, %v", f, err)
	}
}

func TestInspectFollowsLinks(t *testing.T) {
	dir := t.TempDir() // as Hugging Face's cache: names are links to blobs
	mustWrite(t, filepath.Join(dir, "blobs", "b1"), llama)
	snapshot := filepath.Join(dir, "snapshot")
	if err := os.MkdirAll(snapshot, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../blobs/b1", filepath.Join(snapshot, "config.json")); err != nil {
		t.Fatal(err)
	}
	got, err := Inspect(t.Context(), snapshot)
	if err != nil || got.Architecture != "LlamaForCausalLM" || got.Bytes != int64(len(llama)) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestInspectHostileFiles(t *testing.T) {
	huge := binary.LittleEndian.AppendUint64(nil, 1<<63)
	for name, tc := range map[string]struct{ file, content, word string }{
		"header length":   {"m.safetensors", string(huge), "bytes long; at most"},
		"short":           {"m.safetensors", "abc", "shorter than 8"},
		"no object":       {"m.safetensors", safetensorsOf("[]", 0), "does not begin with {"},
		"overflow":        {"m.safetensors", safetensorsOf(`{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}}`, 0), "too large"},
		"outside":         {"m.safetensors", safetensorsOf(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 3), "ends at byte 4 of 3"},
		"backwards":       {"m.safetensors", safetensorsOf(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}`, 4), "begins at byte 4 and ends at 0"},
		"does not fit":    {"m.safetensors", safetensorsOf(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4), "data_offsets span 4"},
		"cut":             {"m.safetensors", safetensorsOf(`{"a":{"dtype":"F32"`, 0), "malformed"},
		"negative":        {"m.safetensors", safetensorsOf(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, 4), "malformed"},
		"config":          {"config.json", `{"architectures":`, "config.json"},
		"gguf version":    {"m.gguf", "GGUF\x09\x00\x00\x00" + strings.Repeat("\x00", 16), "version 9"},
		"gguf cut":        {"m.gguf", ggufOf(1, []uint64{3})[:100], "GGUF header"},
		"gguf huge":       {"m.gguf", "GGUF\x03\x00\x00\x00" + strings.Repeat("\x00", 8) + "\xff\xff\xff\xff\xff\xff\xff\x7f" + "\xff\xff\xff\xff\xff\xff\xff\x7f", "GGUF header"},
		"model settings":  {"model-settings.json", `{}`, "implementation"},
		"mlmodel":         {"MLmodel", "\t:", "MLmodel"},
		"mlmodel aliases": {"MLmodel", "a: &a [x,x,x,x,x,x,x,x,x]\n" + aliases(), "MLmodel"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mustWrite(t, filepath.Join(dir, tc.file), tc.content)
			_, err := Inspect(t.Context(), dir)
			wantError(t, err, tc.word)
		})
	}
}

// aliases is YAML that would expand to 9^9 values.
func aliases() string {
	var b strings.Builder
	for c := 'b'; c < 'j'; c++ {
		fmt.Fprintf(&b, "%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat("*"+string(c-1)+",", 9), ","))
	}
	return b.String() + "flavors: {x: {y: *i}}\n"
}

func TestPeek(t *testing.T) {
	header := `{"a.weight":{"dtype":"BF16","shape":[10,5],"data_offsets":[0,100]}}`
	eachBucket(t, func(t *testing.T, b *bucketServer) {
		b.put("one/config.json", []byte(llama))
		b.put("one/model.safetensors", []byte(safetensorsOf(header, 100)))
		for i := range 3 {
			b.put(fmt.Sprintf("many/model-%d.safetensors", i), make([]byte, 1000))
		}
		b.put("many/config.json", []byte(llama))
		b.put("many/model.safetensors.index.json", []byte(`{"metadata":{"total_size":3000}}`))
		b.put("iris/model.bst", []byte(xgboostJSON))
		const packed, totals = `,"quantization_config":{"quant_method":"gptq","bits":4}}`, `{"metadata":{"total_size":3000,"total_parameters":7}}`
		for folder, config := range map[string]string{"packed": strings.TrimSuffix(llama, "}") + packed, "odd": `{"model_type":"odd"` + packed} {
			b.put(folder+"/model-1.safetensors", make([]byte, 1000))
			b.put(folder+"/model-2.safetensors", make([]byte, 1000))
			b.put(folder+"/config.json", []byte(config))
			b.put(folder+"/model.safetensors.index.json", []byte(totals))
		}
		s := newStore(t, nil)
		for folder, want := range map[string]Facts{
			// The index leaves packed weights out, so dimensions come first.
			"packed": {Format: "safetensors", Architecture: "LlamaForCausalLM", Parameters: 8029995008, Files: 4},
			"odd":    {Format: "safetensors", Parameters: 7, Files: 4},
			"one":    {Format: "safetensors", Architecture: "LlamaForCausalLM", Parameters: 50, Files: 2},
			"many":   {Format: "safetensors", Architecture: "LlamaForCausalLM", Parameters: 1500, Files: 5},
			"iris":   {Format: "xgboost", Files: 1},
		} {
			got, err := s.Peek(t.Context(), Request{URI: b.scheme + "://bucket/" + folder})
			if err != nil {
				t.Fatal(err)
			}
			if got.Format != want.Format || got.Architecture != want.Architecture || got.Parameters != want.Parameters || got.Files != want.Files {
				t.Errorf("%s: %+v", folder, got)
			}
		}
		for _, r := range b.requests() {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "model-0") {
				t.Errorf("weights were downloaded: %s", r.URL)
			}
		}
	})
}

func TestPeekWeb(t *testing.T) {
	dir := t.TempDir()
	mustWrite(t, filepath.Join(dir, "m", "config.json"), llama)
	mustWrite(t, filepath.Join(dir, "m", safetensors.IndexName), `{"metadata":{"total_size":16060522496}}`)
	srv := newFiles(t, dir)
	s := newStore(t, nil)
	got, err := s.Peek(t.Context(), Request{URI: srv + "/m/"})
	if err != nil || got.Format != "safetensors" || got.Parameters != 8030261248 || got.From["parameters"] != safetensors.IndexName {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := s.Peek(t.Context(), Request{URI: srv + "/none/"}); err != nil || got.Format != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestJSONLike(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":NaN}`:                `{"a":null}`,
		`["NaN",-Infinity]`:        `["NaN",null]`,
		`["a\"NaN",Infinity,1]`:    `["a\"NaN",null,1]`,
		`{"Infinity":"-Infinity"}`: `{"Infinity":"-Infinity"}`,
	} {
		if got := string(jsonLike([]byte(in))); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

// FuzzInspect feeds every reader with hostile bytes under every name.
func FuzzInspect(f *testing.F) {
	names := []string{"config.json", safetensors.IndexName, "m.safetensors", "m.gguf", "model-settings.json", "MLmodel", "m.bst", "m.txt", "m.onnx", "m.joblib", "model_index.json"}
	for i, s := range []string{llama, `{"metadata":{"total_size":1e9}}`, safetensorsOf(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4),
		ggufOf(1, []uint64{2, 3}), `{"implementation":"mlserver_xgboost.X"}`, "flavors: {sklearn: {sklearn_version: 1.0}}", ubjOf(), lightgbmText,
		"\x08\x08\x12\x07pytorch", "\x80\x04sklearn_sklearn_version\x94\x8c\x051.5.2"} {
		f.Add(uint8(i), []byte(s))
	}
	f.Add(uint8(6), []byte(legacyOf()))
	f.Add(uint8(6), []byte(xgboostJSON))
	f.Fuzz(func(t *testing.T, which uint8, content []byte) {
		name := names[int(which)%len(names)]
		tree := memoryTree{name: content}
		facts, err := inspect(t.Context(), tree, []treeFile{{name, int64(len(content))}})
		if err != nil {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("the error names no file: %v", err)
			}
			return
		}
		if facts.Parameters < 0 || facts.Bytes != int64(len(content)) {
			t.Errorf("%+v", facts)
		}
		for v := range maps.Values(facts.Details) {
			if len(v) > 200 || strings.ContainsAny(v, "\n\x00") {
				t.Errorf("detail %q", v)
			}
		}
	})
}

// FuzzCountSafetensors checks the count against one over decoded JSON.
func FuzzCountSafetensors(f *testing.F) {
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`), uint16(4))
	f.Add([]byte(`{"__metadata__":{"a":"b"},"a":{"dtype":"I8","shape":[2,3],"data_offsets":[0,6]},"a.scales":{"dtype":"U8","shape":[3],"data_offsets":[6,9]}}`), uint16(9))
	f.Add([]byte(`{"a":{"dtype":"F99","shape":[],"data_offsets":[0,0]}} x`), uint16(0))
	f.Fuzz(func(t *testing.T, header []byte, data uint16) {
		file := safetensorsOf(string(header), int(data))
		got, err := countSafetensors(strings.NewReader(file), int64(len(file)), 0)
		if err != nil {
			return
		}
		var whole map[string]json.RawMessage
		if err := json.Unmarshal(header, &whole); err != nil {
			t.Fatalf("accepted a header that is no JSON: %q: %v", header, err)
		}
		var want uint64
		for name, raw := range whole {
			var fields map[string]json.RawMessage
			if name == "__metadata__" || json.Unmarshal(raw, &fields) != nil {
				continue
			}
			var shape []uint64
			var dtype safetensors.Dtype
			if json.Unmarshal(fields["shape"], &shape) != nil || json.Unmarshal(fields["dtype"], &dtype) != nil {
				t.Fatalf("accepted %q", raw)
			}
			n := uint64(1)
			for _, d := range shape {
				n *= d
			}
			want += weights(name, dtype, n, 0)
		}
		if uint64(got) != want {
			t.Errorf("%q: %d, want %d", header, got, want)
		}
	})
}
