//go:build peers

package modelserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
)

// model is one that requests are made for.
type model struct {
	name     string
	version  string // "" for none
	features int
	outputs  []string // what it answers, the default first
}

// models of the repository.
var models = []model{
	{"iris-xgboost", "v1", 4, []string{"predict", "predict_proba"}},
	{"digits-lightgbm", "", 64, []string{"predict"}},
	{"iris-sklearn", "", 4, []string{"predict", "predict_proba"}},
}

// generator makes requests from a seed.
type generator struct {
	random *rand.Rand
	all    []request
}

func newGenerator(seed uint64) *generator {
	return &generator{random: rand.New(rand.NewPCG(seed, 0))}
}

// object is a JSON object.
type object = map[string]any

// pick gives one of several.
func pick[T any](g *generator, from ...T) T { return from[g.random.IntN(len(from))] }

// chance is true once in n.
func (g *generator) chance(n int) bool { return g.random.IntN(n) == 0 }

// datatypes that hold the numbers 0 to 16 exactly.
var datatypes = []string{"FP32", "FP32", "FP64", "FP64", "INT64", "INT32", "INT16", "INT8", "UINT8", "UINT16", "UINT32", "UINT64", "FP16"}

// tensor makes an input of whole rows, its data flat or nested.
func (g *generator) tensor(name string, rows, columns int, datatype string) object {
	t, rowwise := g.table(name, rows, columns, datatype)
	if g.chance(2) {
		t["data"] = rowwise
	}
	return t
}

// flat is tensor of four columns, its data flat.
func (g *generator) flat(name string, rows int, datatype string) object {
	t, _ := g.table(name, rows, 4, datatype)
	return t
}

// table makes an input with flat data, and the same data row by row.
func (g *generator) table(name string, rows, columns int, datatype string) (object, []any) {
	nested, flat := []any{}, []any{}
	for range rows {
		row := []any{}
		for range columns {
			x := float64(g.random.IntN(8))
			if strings.HasPrefix(datatype, "FP") && g.chance(2) {
				x += 0.25 * float64(g.random.IntN(4))
			}
			row = append(row, x)
		}
		nested, flat = append(nested, row), append(flat, row...)
	}
	return object{"name": name, "shape": []any{rows, columns}, "datatype": datatype, "data": flat}, nested
}

// body makes a valid request.
func (g *generator) body(m model) (kind string, b object) {
	rows := pick(g, 1, 1, 2, 3, 7)
	datatype := pick(g, datatypes...)
	input := g.tensor(pick(g, "input-0", "x", "predict", "ünï"), rows, m.features, datatype)
	b = object{"inputs": []any{input}}
	kind = "plain/" + datatype
	if g.chance(2) {
		b["id"] = pick(g, "a", "42", "ünï", strings.Repeat("x", 100))
	}
	if g.chance(3) {
		input["parameters"] = pick(g, object{"content_type": "np"}, object{}, object{"mine": 1, "other": "x"})
	}
	if g.chance(3) {
		b["parameters"] = pick(g, object{"content_type": "np"}, object{}, object{"mine": []any{1, "two", nil}}, object{"headers": object{"x-mine": "1"}})
	}
	if g.chance(3) {
		b["outputs"] = []any{object{"name": pick(g, m.outputs...)}}
	} else if len(m.outputs) > 1 && g.chance(6) {
		b["outputs"] = []any{object{"name": m.outputs[1]}, object{"name": m.outputs[0], "parameters": object{"content_type": "np"}}}
	}
	if g.chance(5) {
		b["unknown"] = pick[any](g, 1, "x", object{"a": []any{1}})
	}
	if g.chance(6) {
		kind, input["shape"] = "shape-forms", pick(g, []any{float64(rows), json.Number("4.0")}, []any{fmt.Sprint(rows), fmt.Sprint(m.features)}, []any{-1, m.features})
		if input["shape"].([]any)[1] == json.Number("4.0") {
			input["shape"].([]any)[1] = json.Number(fmt.Sprintf("%d.0", m.features))
		}
	}
	return kind, b
}

// post adds an inference request.
func (g *generator) post(kind string, m model, body any, change ...func(*request)) {
	text, ok := body.(string)
	if !ok {
		raw, err := json.Marshal(body)
		if err != nil {
			panic(err) // it is made here
		}
		text = string(raw)
	}
	path := "/v2/models/" + m.name
	if m.version != "" && g.chance(2) {
		path += "/versions/" + m.version
	}
	r := request{kind: kind, method: http.MethodPost, path: path + "/" + pick(g, "infer", "infer", "infer", "generate"), body: text,
		header: map[string]string{"Content-Type": "application/json"}}
	for _, c := range change {
		c(&r)
	}
	g.all = append(g.all, r)
}

// with sets a header.
func with(name, value string) func(*request) {
	return func(r *request) { r.header[name] = value }
}

// to sends a request elsewhere.
func to(path string) func(*request) { return func(r *request) { r.path = path } }

// valid adds n requests that both servers should answer.
func (g *generator) valid(n int) {
	for range n {
		m := pick(g, models...)
		kind, body := g.body(m)
		var change []func(*request)
		if g.chance(5) {
			change = append(change, with("Accept-Encoding", "gzip"))
		}
		if g.chance(5) {
			change = append(change, with("X-Mine", "2"))
		}
		if g.chance(8) {
			change = append(change, with("Content-Type", pick(g, "application/json; charset=utf-8", "application/vnd.api+json")))
		}
		if g.chance(8) {
			kind = "stream"
			change = append(change, to("/v2/models/"+m.name+"/"+pick(g, "infer_stream", "generate_stream")))
		}
		g.post("valid/"+kind, m, body, change...)
	}
}

// special adds requests with tensors of other kinds than a table of numbers.
func (g *generator) special(n int) {
	for range n {
		for _, m := range models {
			rows := pick(g, 1, 2, 3)
			table := func(datatype string) object { return g.tensor("x", rows, m.features, datatype) }
			null := table("FP32")
			null["data"] = slices.Repeat([]any{nil}, rows*m.features)
			g.post("special/null", m, object{"inputs": []any{null}})
			integer := table("INT32")
			integer["data"] = slices.Repeat([]any{nil}, rows*m.features)
			g.post("special/null-integer", m, object{"inputs": []any{integer}})
			g.post("special/bool", m, object{"inputs": []any{object{"name": "x", "shape": []any{1, m.features}, "datatype": "BOOL", "data": slices.Repeat([]any{true}, m.features)}}})
			g.post("special/strings", m, object{"inputs": []any{object{"name": "x", "shape": []any{1, m.features}, "datatype": "BYTES", "data": slices.Repeat([]any{"1"}, m.features)}}})
			large := table("INT8")
			large["data"].([]any)[0] = 300
			large["data"] = slices.Repeat([]any{300}, rows*m.features)
			g.post("special/overflow", m, object{"inputs": []any{large}})
			half := table("INT32")
			half["data"] = slices.Repeat([]any{1.5}, rows*m.features)
			g.post("special/fraction", m, object{"inputs": []any{half}})
			g.post("special/wide", m, object{"inputs": []any{g.tensor("x", rows, m.features+1, "FP32")}})
			g.post("special/narrow", m, object{"inputs": []any{g.tensor("x", rows, m.features-1, "FP32")}})
			g.post("special/flat", m, object{"inputs": []any{object{"name": "x", "shape": []any{m.features}, "datatype": "FP32", "data": slices.Repeat([]any{1}, m.features)}}})
			g.post("special/no-rows", m, object{"inputs": []any{object{"name": "x", "shape": []any{0, m.features}, "datatype": "FP32", "data": []any{}}}})
			g.post("special/two-inputs", m, object{"inputs": []any{table("FP32"), table("FP32")}})
			g.post("special/no-inputs", m, object{"inputs": []any{}})
			g.post("special/unknown-output", m, object{"inputs": []any{table("FP32")}, "outputs": []any{object{"name": "nope"}}})
			g.post("special/no-outputs", m, object{"inputs": []any{table("FP32")}, "outputs": []any{}})
			if len(m.outputs) > 1 {
				g.post("special/size", m, object{"inputs": []any{g.tensor("x", 7, m.features, "FP32")}, "outputs": []any{object{"name": m.outputs[1]}}}, with("Accept-Encoding", "gzip"))
			}
			g.post("special/unknown-content-type", m, object{"inputs": []any{table("FP32")}, "parameters": object{"content_type": "nope"}})
			g.post("special/str", m, object{"inputs": []any{object{"name": "x", "shape": []any{1}, "datatype": "BYTES", "data": []any{"hello"}, "parameters": object{"content_type": "str"}}}})
			columns := []any{}
			for i := range m.features {
				columns = append(columns, object{"name": fmt.Sprint("f", i), "shape": []any{rows, 1}, "datatype": "FP64", "data": slices.Repeat([]any{float64(i)}, rows)})
			}
			g.post("special/pd", m, object{"inputs": columns, "parameters": object{"content_type": "pd"}})
		}
	}
}

// spoiled are values that belong nowhere.
var spoiled = []any{nil, "text", 1.5, true, []any{}, object{}, -3, []any{"a"}, object{"a": 1}, []any{1.5}, []any{nil}, []any{object{}}}

// schema adds n requests with one field of a valid one left out or replaced.
func (g *generator) schema(n int) {
	for range n {
		m := pick(g, models...)
		_, body := g.body(m)
		body["id"] = "a" // a place to spoil
		if body["parameters"] == nil {
			body["parameters"] = object{}
		}
		if body["outputs"] == nil {
			body["outputs"] = []any{object{"name": "predict"}}
		}
		input := body["inputs"].([]any)[0].(object)
		output := body["outputs"].([]any)[0].(object)
		place := pick(g, body, body, input, input, input, output)
		field := pick(g, slices.Sorted(maps.Keys(place))...)
		kind := map[bool]string{true: "input.", false: "output."}[len(place) > 2]
		if _, ok := place["inputs"]; ok {
			kind = "request."
		}
		if g.chance(3) {
			delete(place, field)
			kind = "schema/without-" + kind + field
		} else {
			place[field] = pick(g, spoiled...)
			kind = "schema/spoiled-" + kind + field
		}
		g.post(kind, m, body)
	}
}

// malformed adds bodies that are no JSON, or no request.
func (g *generator) malformed(n int) {
	for range n {
		m := pick(g, models...)
		_, body := g.body(m)
		raw, err := json.Marshal(body)
		if err != nil {
			panic(err) // it is made here
		}
		text := string(raw)
		g.post("malformed/cut", m, text[:g.random.IntN(len(text))])
		g.post("malformed/more", m, text+pick(g, "}", "]", " x", "{}", ","))
		g.post("malformed/encoding", m, text, with("Content-Encoding", "gzip"))
		g.post("malformed/type", m, text, with("Content-Type", pick(g, "text/plain", "", "application/x-www-form-urlencoded")))
	}
	m := models[0]
	for _, text := range []string{"[]", "1", `"x"`, "null", "true", "{}", `{"inputs":null}`, `{"inputs":[1]}`, `{"inputs":[[]]}`, `{"inputs":{}}`, `{"inputs":"x"}`, "\x00", "\xff\xfe", `{"inputs":[{"name":"\ud800"}]}`, `{"inputs":[{}]}`} {
		g.post("malformed/other", m, text)
	}
	number := `{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[%s,1,1,1]}]}`
	for _, x := range []string{"NaN", "Infinity", "-Infinity", "1e400", "01", "1.", "+1", "0x1", "'1'"} {
		g.post("malformed/number", m, fmt.Sprintf(number, x))
	}
	for _, shape := range []string{"[1,5]", "[2,2]", "[4]", "[0]", "[]", "[1,4,1]", "[1000000000,1000000000]", "[-1,-1]", "[-2,4]", "[-1]", "[1.5,4]", "[1,\"x\"]"} {
		g.post("malformed/shape", m, fmt.Sprintf(`{"inputs":[{"name":"x","shape":%s,"datatype":"FP32","data":[1,1,1,1]}]}`, shape))
	}
	for _, datatype := range []string{"FP8", "fp32", "", "BF16", "STRING", "INT128"} {
		g.post("malformed/datatype", m, fmt.Sprintf(`{"inputs":[{"name":"x","shape":[1,4],"datatype":%q,"data":[1,1,1,1]}]}`, datatype))
	}
	for _, data := range []string{"1", `"x"`, "[]", "[[1,1],[1,1,1]]", "[[1,1],[1,1]]", "[1,1,1]", "[1,1,1,1,1]", `[1,1,1,"x"]`, `["1","1","1","1"]`, "[true,false,true,false]", "[{},{},{},{}]", "[[[[1]]],1,1,1]"} {
		g.post("malformed/data", m, fmt.Sprintf(`{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":%s}]}`, data))
	}
}

// routes adds requests to every path, in methods right and wrong.
func (g *generator) routes() {
	add := func(kind, method, path, body string) {
		header := map[string]string{}
		if body != "" {
			header["Content-Type"] = "application/json"
		}
		g.all = append(g.all, request{kind: kind, method: method, path: path, header: header, body: body})
	}
	paths := []string{"/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/nope", "/v2/models/nope/ready",
		"/v2/models/iris-xgboost/versions/v9", "/v2/models/iris-xgboost/versions/v9/ready", "/v2/models/digits-lightgbm/versions/v1"}
	for _, m := range models {
		paths = append(paths, "/v2/models/"+m.name, "/v2/models/"+m.name+"/ready")
		if m.version != "" {
			paths = append(paths, "/v2/models/"+m.name+"/versions/"+m.version, "/v2/models/"+m.name+"/versions/"+m.version+"/ready")
		}
	}
	for _, path := range paths {
		add("route/get", http.MethodGet, path, "")
		add("route/method", pick(g, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch), path, "{}")
	}
	for _, path := range []string{"/nope", "/v2/", "/v2/models", "/v2/models/", "/v2/health", "/v3", "/v2/models/iris-xgboost/nope", "/v2/models/iris-xgboost/versions", "/V2", "/v2/health/live/", "/v2//health/live"} {
		add("route/unknown", http.MethodGet, path, "")
	}
	for _, path := range []string{"/v2/models/iris-xgboost/infer", "/v2/repository/index", "/v2/repository/models/iris-xgboost/load"} {
		add("route/method", http.MethodGet, path, "")
		add("route/method", http.MethodPut, path, "{}")
	}
	add("route/head", http.MethodHead, "/v2/health/live", "")
	add("route/options", http.MethodOptions, "/v2/models/iris-xgboost/infer", "")
	for _, path := range []string{"nope/infer", "nope/infer_stream", "nope/generate", "iris-xgboost/versions/v9/infer", "digits-lightgbm/versions/v1/infer"} {
		add("route/unknown-model", http.MethodPost, "/v2/models/"+path, `{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,1,1,1]}]}`)
	}
	for _, body := range []string{"{}", `{"ready":true}`, `{"ready":false}`, `{"ready":"x"}`, `{"ready":null}`, `{"nope":1}`, "[]", "", "x"} {
		add("repository/index", http.MethodPost, "/v2/repository/index", body)
	}
	for _, docs := range []string{"/v2/docs", "/v2/docs/dataplane.json", "/v2/docs/model_repository.json", "/v2/models/nope/docs", "/v2/models/nope/docs/dataplane.json"} {
		add("docs", http.MethodGet, docs, "")
		g.all[len(g.all)-1].headOnly = true // words of our own
	}
}

// repositoryCalls adds loads and unloads with what can be seen of them. They
// leave everything loaded.
func (g *generator) repositoryCalls() {
	add := func(kind, method, path, body string) {
		g.all = append(g.all, request{kind: kind, method: method, path: path, header: map[string]string{"Content-Type": "application/json"}, body: body})
	}
	see := func(name string) {
		add("repository/seen", http.MethodGet, "/v2/models/"+name+"/ready", "")
		add("repository/seen", http.MethodGet, "/v2/models/"+name, "")
		add("repository/seen", http.MethodGet, "/v2/health/ready", "")
		add("repository/index", http.MethodPost, "/v2/repository/index", "{}")
		add("repository/index", http.MethodPost, "/v2/repository/index", `{"ready":true}`)
	}
	for _, call := range []string{"load", "unload"} {
		add("repository/unknown", http.MethodPost, "/v2/repository/models/nope/"+call, "")
	}
	for _, m := range models {
		add("repository/unload", http.MethodPost, "/v2/repository/models/"+m.name+"/unload", "")
		see(m.name)
		g.post("repository/infer-unloaded", m, object{"inputs": []any{g.tensor("x", 1, m.features, "FP32")}})
		add("repository/unload-again", http.MethodPost, "/v2/repository/models/"+m.name+"/unload", "{}")
		add("repository/load", http.MethodPost, "/v2/repository/models/"+m.name+"/load", "{}")
		see(m.name)
		g.post("repository/infer-loaded", m, object{"inputs": []any{g.tensor("x", 1, m.features, "FP32")}})
		add("repository/load-again", http.MethodPost, "/v2/repository/models/"+m.name+"/load", "{}")
		see(m.name)
	}
}
