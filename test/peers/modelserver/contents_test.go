//go:build peers

package modelserver

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// This file makes requests of every content type: to models that say what they
// decoded, to those with typed arguments, to the built-in runtimes, and to
// models that are batched.

// The values that requests are made of.
var (
	words       = []string{"", "a", "héllo", "日本", "UHl0aG9uIGlzIGZ1bg==", "two words", "QQ==", "not b64!", "1.5", "null"}
	dates       = []string{"2021-08-24T15:01:19", "1999-12-31", "2024-02-29T00:00:00.000250", "2020-01-01T10:00:00+02:00"}
	notDates    = []string{"soon", "2021-13-01", ""}
	jsonTexts   = []string{"[1,2]", `{"a":1}`, "null", "3", `"s"`}
	base64Texts = []string{base64.StdEncoding.EncodeToString([]byte("Python is fun")), "QQ==", "Zm9v", ""}
	allTypes    = []string{"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"}
	contentType = []string{"np", "pd", "str", "base64", "datetime", "pd_json", "nope", ""}
)

// element is a number of a datatype, often one at its edge.
func (g *generator) element(datatype string) any {
	switch datatype {
	case "BOOL":
		return g.chance(2)
	case "FP16", "FP32", "FP64":
		return pick[any](g, 0, 1.0, -2.5, 0.125, 1024.0, -7)
	case "UINT8":
		return pick(g, 0, 1, 7, 255)
	case "INT8":
		return pick(g, 0, 1, -3, 127, -128)
	case "UINT16", "UINT32", "UINT64":
		return pick(g, 0, 1, 7, 65535)
	}
	return pick(g, 0, 1, -3, 32767, -32768)
}

// numeric is an input of numbers. Rows of 0 are any shape.
func (g *generator) numeric(name, datatype string, rows int) object {
	shape := pick(g, []int{3}, []int{2, 3}, []int{4, 1}, []int{1, 2, 2}, []int{1})
	if rows > 0 {
		shape = pick(g, []int{rows}, []int{rows, 1})
	}
	data := g.filled(shape, func() any {
		if strings.HasPrefix(datatype, "FP") && g.chance(6) {
			return nil
		}
		return g.element(datatype)
	})
	if g.chance(3) {
		data = nested(data, shape)
	}
	return object{"name": name, "shape": shape, "datatype": datatype, "data": data}
}

// filled makes the elements of a shape.
func (g *generator) filled(shape []int, element func() any) []any {
	size := 1
	for _, n := range shape {
		size *= n
	}
	data := make([]any, size)
	for i := range data {
		data[i] = element()
	}
	return data
}

// nested puts elements into lists of lists.
func nested(data []any, shape []int) []any {
	if len(shape) < 2 || len(data) == 0 {
		return data
	}
	var rows []any
	for row := range slices.Chunk(data, len(data)/shape[0]) {
		rows = append(rows, nested(row, shape[1:]))
	}
	return rows
}

// texts is an input of strings from a pool.
func (g *generator) texts(name string, rows int, pool []string) object {
	if rows == 0 {
		rows = 1 + g.random.IntN(3)
	}
	shape := pick(g, []int{rows}, []int{rows, 1})
	return object{"name": name, "shape": shape, "datatype": "BYTES", "data": g.filled(shape, func() any { return pick(g, pool...) })}
}

// typed says an input's content type.
func typed(input object, contentType string) object {
	if contentType != "-" {
		input["parameters"] = object{"content_type": contentType}
	}
	return input
}

// poolOf are strings that suit a content type.
func (g *generator) poolOf(contentType string) []string {
	switch contentType {
	case "base64":
		return pick(g, base64Texts, base64Texts, words)
	case "datetime":
		return pick(g, dates, dates, dates, notDates)
	case "pd_json":
		return jsonTexts
	}
	return words
}

// input is one of any datatype and content type that go together, and now and
// then of ones that do not.
func (g *generator) input(name string, rows int) object {
	kind := pick(g, append(contentType, "-")...)
	numbers := kind == "np" || (kind == "-" || kind == "nope" || kind == "") && g.chance(2)
	if g.chance(10) {
		numbers = !numbers
	}
	if numbers {
		return typed(g.numeric(name, pick(g, allTypes...), rows), kind)
	}
	return typed(g.texts(name, rows, g.poolOf(kind)), kind)
}

// columns are inputs of as many rows.
func (g *generator) columns(rows int) (all []any) {
	for i := range 1 + g.random.IntN(4) {
		name := fmt.Sprint("c", i)
		switch g.random.IntN(6) {
		case 0:
			all = append(all, typed(g.texts(name, rows, dates[:1]), "datetime"))
		case 1:
			all = append(all, typed(g.texts(name, rows, words), pick(g, "str", "-")))
		case 2:
			all = append(all, typed(g.texts(name, rows, jsonTexts), "pd_json"))
		default:
			all = append(all, typed(g.numeric(name, pick(g, allTypes...), rows), pick(g, "np", "-")))
		}
	}
	return all
}

// lossy are inputs whose numbers their datatype cannot hold, or whose data do
// not fill their shape.
func (g *generator) lossy(name string) object {
	input := object{"name": name, "shape": []int{2}, "datatype": "INT32", "data": []any{1, 2}}
	switch g.random.IntN(6) {
	case 0:
		input["data"] = []any{1.7, 2}
	case 1:
		input["datatype"], input["data"] = "INT8", []any{300, 1}
	case 2:
		input["datatype"], input["data"] = "UINT8", []any{-1, 1}
	case 3:
		input["data"] = []any{"one", "two"}
	case 4:
		input["data"] = []any{nil, 1}
	case 5:
		input["shape"] = []int{3, 2}
	}
	return typed(input, pick(g, "np", "np", "-"))
}

// named is a model without anything known of it.
func named(name string) model { return model{name: name} }

// dressed adds an id, parameters and outputs now and then.
func (g *generator) dressed(body object) object {
	if g.chance(2) {
		body["id"] = pick(g, "a", "42", "x-1")
	}
	if g.chance(4) && body["parameters"] == nil {
		body["parameters"] = pick(g, object{"mine": 1}, object{"mine": []any{1, "two", nil}, "other": object{"a": "b"}}, object{}, object{"headers": object{"x-mine": "1"}})
	}
	return body
}

// contents adds n requests to models that say what they decoded.
func (g *generator) contents(n int) {
	for range n {
		request := func(kind string, m string, body object) {
			var change []func(*request)
			if g.chance(5) {
				change = append(change, with("X-Mine", pick(g, "2", "a b")))
			}
			if g.chance(5) {
				change = append(change, with("Accept-Encoding", "gzip"))
			}
			if g.chance(8) {
				change = append(change, compressed)
			}
			g.post("content/"+kind, named(m), g.dressed(body), change...)
		}
		request("input", "decoded", object{"inputs": []any{g.input("x", 0)}})
		request("request", "decoded", object{"inputs": []any{g.input("x", 0)}, "parameters": object{"content_type": pick(g, contentType...)}})
		request("columns", pick(g, "decoded", "requests-pd"), object{"inputs": g.columns(1 + g.random.IntN(3)), "parameters": object{"content_type": "pd"}})
		request("settings", pick(g, "requests-np", "requests-str", "requests-pd"), object{"inputs": []any{g.input("x", 2)}})
		request("several", pick(g, "decoded", "requests-np", "requests-str"), object{"inputs": []any{g.input("x", 2), g.input("y", 2)}, "parameters": object{"content_type": pick(g, contentType...)}})
		request("lossy", pick(g, "decoded", "requests-np", "requests-pd"), object{"inputs": []any{g.lossy("x")}})
		request("metadata", "typed", object{"inputs": g.described(), "outputs": []any{object{"name": "said", "parameters": object{"mine": 1}}}})
		request("defaults", "defaults", object{"inputs": g.described()})
	}
}

// described are inputs that a model's settings or code know, most of them with
// no content type of their own.
func (g *generator) described() (all []any) {
	rows := 1 + g.random.IntN(2)
	for _, name := range []string{"np", "str", "base64", "datetime", "plain", "odd"} {
		if g.chance(2) {
			continue
		}
		var input object
		switch name {
		case "np", "plain", "odd":
			input = g.numeric(name, pick(g, "FP32", "INT32", "INT64", "BOOL"), rows)
		default:
			input = g.texts(name, rows, g.poolOf(name))
		}
		if g.chance(6) {
			typed(input, pick(g, contentType...))
		}
		all = append(all, input)
	}
	if all == nil {
		all = []any{g.numeric("np", "FP64", rows)}
	}
	return all
}

// arguments adds n requests to models with typed arguments.
func (g *generator) arguments(n int) {
	for range n {
		for _, m := range []string{"array", "maybe", "words", "binary", "dates", "frame", "mixed", "wrong"} {
			var inputs []any
			switch m {
			case "array", "wrong":
				inputs = []any{g.numeric("x", pick(g, allTypes...), 0)}
			case "maybe":
				if g.chance(2) {
					inputs = []any{g.numeric("x", pick(g, allTypes...), 0)}
				}
			case "words":
				inputs = []any{g.texts("questions", 2, words), g.texts("context", 2, words)}
			case "binary":
				inputs = []any{g.texts("x", 0, base64Texts)}
			case "dates":
				inputs = []any{g.texts("x", 0, pick(g, dates, dates, dates, notDates))}
			case "frame":
				inputs = g.columns(2)
			case "mixed":
				inputs = append([]any{g.numeric("x", pick(g, allTypes...), 0)}, g.columns(2)...)
			}
			if g.chance(8) {
				inputs = append(inputs, g.numeric("stranger", "FP32", 2))
			}
			if g.chance(12) && m != "maybe" {
				inputs = inputs[1:]
			}
			if inputs == nil {
				inputs = []any{}
			}
			g.post("arguments/"+m, named(m), g.dressed(object{"inputs": inputs}))
		}
	}
}

// encodings adds a request for everything that models may answer.
func (g *generator) encodings() {
	for _, value := range []string{"whole", "nan", "table", "words", "none", "bool", "half", "cube", "empty", "scalar", "texts", "bytes", "dates",
		"frame", "gaps", "lists", "mixed", "dict", "number", "nothing"} {
		text := func(outputs ...any) object {
			b := object{"inputs": []any{object{"name": "x", "shape": []int{1}, "datatype": "BYTES", "data": []any{value}}}}
			if outputs != nil {
				b["outputs"] = outputs
			}
			return b
		}
		g.post("encoded/response", named("encoded"), text())
		g.post("encoded/output", named("encoded"), text(object{"name": "o"}))
		of := pick(g, contentType...)
		g.post("encoded/typed-output", named("encoded"), text(object{"name": "o", "parameters": object{"content_type": of}}))
		if value == "bytes" {
			g.post("encoded/described-output", named("encoded"), text(object{"name": "b64"}))
		}
	}
}

// runtimes adds n requests with content types to the built-in runtimes.
func (g *generator) runtimes(n int) {
	table := func(name string, columns int) object {
		return g.tensor(name, pick(g, 1, 2, 3), columns, pick(g, "FP32", "FP64", "INT64"))
	}
	split := func(rows int, names ...string) (all []any) {
		for _, name := range names {
			all = append(all, g.tensor(name, rows, 1, pick(g, "FP32", "FP64")))
		}
		return all
	}
	for range n {
		rows := pick(g, 1, 2, 3)
		word := g.texts("word", rows, []string{"a", "b"})
		number := g.tensor("n", rows, 1, "FP64")
		g.post("runtime/np", named("typed-xgboost"), g.dressed(object{"inputs": []any{table("x", 4)}}))
		g.post("runtime/np-several", named("typed-xgboost"), object{"inputs": split(rows, "a", "b", "c", "d")})
		g.post("runtime/np-over", named("typed-xgboost"), object{"inputs": split(rows, "a", "b", "c", "d"), "parameters": object{"content_type": "pd"}})
		g.post("runtime/pd", named("frame-lightgbm"), g.dressed(object{"inputs": split(rows, "a", "b", "c", "d")}))
		g.post("runtime/pd", named("frame-sklearn"), g.dressed(object{"inputs": []any{number, word}}))
		g.post("runtime/pd-order", named("frame-sklearn"), object{"inputs": []any{word, number}})
		g.post("runtime/pd-missing", named("frame-sklearn"), object{"inputs": []any{number}})
		g.post("runtime/pd-unknown", named("frame-sklearn"), object{"inputs": []any{number, g.texts("word", rows, []string{"zz"})}})
		g.post("runtime/transform", named("scale-sklearn"), g.dressed(object{"inputs": []any{table("x", 4)}}))
		g.post("runtime/mlflow-table", named("table-mlflow"), g.dressed(object{"inputs": []any{number, word}}))
		g.post("runtime/mlflow-missing", named("table-mlflow"), object{"inputs": []any{number}})
		g.post("runtime/mlflow-tensor", named("tensor-mlflow"), object{"inputs": []any{g.tensor("x", rows, 2, "FP32")}})
		g.post("runtime/mlflow-wrong", named("tensor-mlflow"), object{"inputs": []any{g.tensor("x", rows, 3, pick(g, "FP32", "FP64", "INT32"))}})
		g.post("runtime/mlflow-tensors", named("tensors-mlflow"), object{"inputs": []any{g.tensor("a", rows, 2, "FP32"), g.tensor("b", rows, 2, "FP32")}})
		g.post("runtime/batched", named(pick(g, "batched-sklearn", "batched-xgboost")), g.dressed(object{"inputs": []any{table("x", 4)}}))
		for _, m := range models {
			kind := pick(g, contentType...)
			input := g.tensor("x", rows, m.features, "FP64")
			if g.chance(2) {
				typed(input, kind)
				g.post("runtime/content-input", m, object{"inputs": []any{input}})
			} else {
				g.post("runtime/content-request", m, object{"inputs": []any{input}, "parameters": object{"content_type": kind}})
			}
		}
	}
}

// boosters adds n requests to each booster that xgboost.train made: MLServer
// serves them as regressors, whatever their objective.
func (g *generator) boosters(n int) {
	for range n {
		for _, name := range []string{"binary-xgboost", "softprob-xgboost", "softmax-xgboost"} {
			g.post("runtime/booster", named(name), g.dressed(object{"inputs": []any{g.tensor("x", pick(g, 1, 2, 3), 4, pick(g, "FP32", "FP64"))}}))
		}
		g.post("runtime/booster-proba", named("binary-xgboost"), object{"inputs": []any{g.tensor("x", 2, 4, "FP32")}, "outputs": []any{object{"name": "predict_proba"}}})
	}
}

// said is a request of texts.
func said(texts ...any) object {
	return object{"id": "a", "inputs": []any{object{"name": "x", "shape": []int{len(texts)}, "datatype": "BYTES", "data": texts}}}
}

// customs adds requests to models with headers, errors, streams and paths of
// their own.
func (g *generator) customs() {
	for range 3 {
		g.post("headers", named("headers"), g.dressed(said("x")), with("X-Mine", "1"), with("x-other", "two, three"))
		g.post("headers/none", named("headers"), said("x"))
		g.post("headers/over", named("headers"), object{"inputs": said("x")["inputs"], "parameters": object{"headers": object{"x-mine": "body", "x-own": "1"}}}, with("X-Mine", "header"))
	}
	for _, how := range []string{"inference", "teapot", "value", "nothing", "set", "key"} {
		g.post("failing/"+how, named("failing"), said(how))
	}
	for _, text := range []string{"one", "one two three", "", "fail", "one fail", "ünï 日本"} {
		for _, path := range []string{"infer_stream", "generate_stream"} {
			var change []func(*request)
			if g.chance(2) {
				change = append(change, with("Accept-Encoding", "gzip"))
			}
			change = append(change, to("/v2/models/stream/"+path))
			g.post("streams/words", named("stream"), said(text, "and more"), change...)
		}
		g.post("streams/unary", named("stream"), said(text))
	}
	g.post("streams/unary-model", named("array"), object{"inputs": []any{g.numeric("x", "INT64", 2)}}, to("/v2/models/array/infer_stream"))
	g.post("streams/invalid", named("stream"), object{"inputs": 1}, to("/v2/models/stream/infer_stream"))
	g.handlers()
}

// handlers adds requests to paths of models' own.
func (g *generator) handlers() {
	add := func(kind, method, path, body string, header ...string) {
		h := map[string]string{}
		if body != "" {
			h["Content-Type"] = "application/json"
		}
		for i := 0; i+1 < len(header); i += 2 {
			h[header[i]] = header[i+1]
		}
		g.all = append(g.all, request{kind: "handlers/" + kind, method: method, path: path, header: h, body: body})
	}
	add("echo", http.MethodPost, "/own/echo", `{"a":[1,null,"x"]}`)
	add("echo", http.MethodPost, "/own/echo", `{}`)
	add("invalid", http.MethodPost, "/own/echo", `[1]`)
	add("invalid", http.MethodPost, "/own/echo", `{`)
	add("method", http.MethodGet, "/own/echo", "")
	add("status", http.MethodGet, "/own/status", "")
	add("request", http.MethodPost, "/own/request", `{"inputs":[{"name":"x","shape":[2],"datatype":"INT32","data":[1,2]}]}`)
	add("invalid", http.MethodPost, "/own/request", `{"inputs":[{"name":"x"}]}`)
	add("item", http.MethodGet, "/own/item/7", "")
	add("item", http.MethodGet, "/own/item/7?q=x%20y", "")
	add("invalid", http.MethodGet, "/own/item/seven", "")
	add("fail", http.MethodGet, "/own/fail", "")
	add("unknown", http.MethodGet, "/own/nothing", "")
	for _, path := range []string{"/ping", "/health", "/version"} {
		add("mlflow", http.MethodGet, path, "")
	}
}

// compressed sends a request's body as gzip.
func compressed(r *request) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(r.body)) // a Buffer takes all
	_ = z.Close()
	r.body, r.header["Content-Encoding"] = b.String(), "gzip"
}
