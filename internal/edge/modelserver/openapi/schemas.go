package openapi

// record is the schema of a JSON object.
func record(required []string, properties object) object {
	return object{"type": "object", "required": required, "properties": properties}
}

func list(items any) object { return object{"type": "array", "items": items} }

var (
	text    = object{"type": "string"}
	whole   = object{"type": "integer"}
	boolean = object{"type": "boolean"}
)

// datatypes are the names of element types.
var datatypes = []string{"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES"}

// faultSchemas are those of errors.
func faultSchemas() object {
	return object{
		"Error": record([]string{"error"}, object{"error": object{"type": "string", "description": "What is wrong."}}),
		"ValidationError": record([]string{"error", "detail"}, object{
			"error": text,
			"detail": list(record([]string{"type", "loc", "msg"}, object{
				"type":  object{"type": "string", "examples": []any{"missing"}},
				"loc":   object{"type": "array", "items": object{"type": []string{"string", "integer"}}, "description": "The way to the fault: field names and element numbers."},
				"msg":   text,
				"input": object{"description": "What was found there, if it is short."},
			})),
		}),
	}
}

// dataplaneSchemas are those of inference.
func dataplaneSchemas() object {
	schemas := faultSchemas()
	schemas["ServerHealth"] = record([]string{"live"}, object{"live": boolean, "ready": boolean, "error": text})
	schemas["ModelHealth"] = record([]string{"name", "ready"}, object{"name": text, "ready": boolean})
	schemas["MetadataServerResponse"] = record([]string{"name", "version", "extensions"}, object{"name": text, "version": text, "extensions": list(text)})
	schemas["MetadataModelResponse"] = record([]string{"name", "platform"}, object{"name": text, "versions": list(text), "platform": text,
		"inputs": list(schema("MetadataTensor")), "outputs": list(schema("MetadataTensor")), "parameters": schema("Parameters")})
	schemas["MetadataTensor"] = record([]string{"name", "datatype", "shape"}, object{"name": text, "datatype": schema("Datatype"),
		"shape": object{"type": "array", "items": whole, "description": "-1 stands for any size."}, "parameters": schema("Parameters")})
	schemas["Datatype"] = object{"type": "string", "enum": datatypes}
	schemas["Parameters"] = object{"type": "object", "additionalProperties": true, "properties": object{
		"content_type": object{"type": "string", "description": "How to read the data: np, pd, str, base64, datetime …"},
		"headers":      object{"type": "object", "additionalProperties": true, "description": "HTTP headers or gRPC metadata; written by the server."},
	}}
	// A union rather than a list of types, of which generators of clients make
	// nothing. An element is anything; to validators that is not null.
	schemas["TensorData"] = object{"description": "The elements in row-major order, flat or nested as the shape; null is a missing value.",
		"anyOf": []any{list(object{"anyOf": []any{object{}, object{"type": "null"}}}), text, object{"type": "number"}, boolean, object{"type": "null"}}}
	schemas["InferenceRequest"] = record([]string{"inputs"}, object{"id": text, "parameters": schema("Parameters"),
		"inputs": list(schema("RequestInput")), "outputs": list(schema("RequestOutput"))})
	schemas["InferenceRequest"].(object)["examples"] = []any{object{"id": "42",
		"inputs":  []any{object{"name": "input-0", "shape": []int{2, 2}, "datatype": "FP32", "data": []float64{1, 2.5, 3, 4}}},
		"outputs": []any{object{"name": "output-0"}}}}
	schemas["RequestInput"] = record([]string{"name", "shape", "datatype", "data"}, tensor())
	schemas["RequestOutput"] = record([]string{"name"}, object{"name": text, "parameters": schema("Parameters")})
	schemas["InferenceResponse"] = record([]string{"model_name", "id", "outputs"}, object{"model_name": text, "model_version": text, "id": text,
		"parameters": schema("Parameters"), "outputs": list(schema("ResponseOutput"))})
	schemas["ResponseOutput"] = record([]string{"name", "shape", "datatype", "data"}, tensor())
	return schemas
}

func tensor() object {
	return object{"name": text, "shape": list(whole), "datatype": schema("Datatype"), "parameters": schema("Parameters"), "data": schema("TensorData")}
}

// repositorySchemas are those of the model repository.
func repositorySchemas() object {
	schemas := faultSchemas()
	schemas["RepositoryIndexRequest"] = object{"type": "object", "properties": object{"ready": object{"type": "boolean", "description": "Only models that serve."}}}
	schemas["RepositoryIndexResponse"] = list(record([]string{"name", "state", "reason"}, object{"name": text, "version": text,
		"state":  object{"type": "string", "enum": []string{"UNKNOWN", "READY", "UNAVAILABLE", "LOADING", "UNLOADING"}},
		"reason": object{"type": "string", "description": "Why it does not serve, or was not loaded again."}}))
	return schemas
}
