package openapi

// operation describes one call.
type operation struct {
	id, summary, description string
	tags                     []string
	request                  object         // nil: no body
	answers                  map[string]any // by status
}

func (o operation) object() object {
	out := object{"operationId": o.id, "summary": o.summary, "description": o.description, "tags": o.tags, "responses": o.answers}
	if o.request != nil {
		out["requestBody"] = o.request
	}
	return out
}

func schema(name string) object { return object{"$ref": "#/components/schemas/" + name} }

func jsonContent(name string) object {
	return object{"application/json": object{"schema": schema(name)}}
}

// answer is a response with a JSON body.
func answer(description, name string) object {
	return object{"description": description, "content": jsonContent(name)}
}

// faults are the errors every call of a model has.
func faults() map[string]any {
	return map[string]any{
		"400": answer("The request cannot be answered, or the model is not ready", "Error"),
		"404": answer("There is no such model or version", "Error"),
	}
}

func with(answers map[string]any, status string, a object) map[string]any {
	answers[status] = a
	return answers
}

func parameter(name string) object {
	return object{"name": name, "in": "path", "required": true, "schema": object{"type": "string"}}
}

// dataplanePaths are the paths of inference.
func dataplanePaths() object {
	paths := object{
		"/v2": object{"get": operation{"server-metadata", "Server Metadata", "Name, version and extensions of the server.",
			[]string{"metadata", "server"}, nil, map[string]any{"200": answer("The server", "MetadataServerResponse")}}.object()},
		"/v2/health/live": object{"get": operation{"server-live", "Server Live", "Whether the server answers at all, for a liveness probe.",
			[]string{"health", "server"}, nil, map[string]any{"200": answer("It does", "ServerHealth")}}.object()},
		"/v2/health/ready": object{"get": operation{"server-ready", "Server Ready", "Whether the server takes inference requests, for a readiness probe.",
			[]string{"health", "server"}, nil, map[string]any{"200": answer("It does", "ServerHealth"), "400": answer("It does not yet, or not any more", "ServerHealth")}}.object()},
	}
	tritonPaths(paths)
	for _, variant := range []struct {
		prefix, id string
		parameters []any
	}{
		{"/v2/models/{" + modelName + "}", "model-", []any{parameter(modelName)}},
		{"/v2/models/{" + modelName + "}/versions/{" + modelVersion + "}", "model-version-", []any{parameter(modelName), parameter(modelVersion)}},
	} {
		add := func(suffix, method string, o operation) {
			o.id = variant.id + o.id
			paths[variant.prefix+suffix] = object{"parameters": variant.parameters, method: o.object()}
		}
		add("", "get", operation{"metadata", "Model Metadata", "Inputs, outputs and versions of a model.",
			[]string{"metadata", "model"}, nil, with(faults(), "200", answer("The model", "MetadataModelResponse"))})
		add("/ready", "get", operation{"ready", "Model Ready", "Whether the model serves.",
			[]string{"health", "model"}, nil, map[string]any{"200": answer("It does", "ModelHealth"), "400": answer("It does not", "ModelHealth"), "404": answer("There is no such model or version", "Error")}})
		add("/stats", "get", operation{"statistics", "Model Statistics", "What the model was asked since the server started, as Triton counts it.",
			[]string{"metadata", "model"}, nil, with(faults(), "200", anything("The statistics"))})
		add("/config", "get", operation{"config", "Model Configuration", "What Triton's clients read of a model's configuration.",
			[]string{"metadata", "model"}, nil, with(faults(), "200", anything("The configuration"))})
		add("/infer", "post", inference("inference", "Model Inference"))
		add("/generate", "post", inference("generate", "Model Generate"))
		add("/infer_stream", "post", streaming("inference-stream", "Model Inference Stream"))
		add("/generate_stream", "post", streaming("generate-stream", "Model Generate Stream"))
	}
	return paths
}

// anything is a response with an object that no schema describes.
func anything(description string) object {
	return object{"description": description, "content": object{"application/json": object{"schema": object{"type": "object", "additionalProperties": true}}}}
}

// tritonPaths are those of Triton's extensions that concern the server.
func tritonPaths(paths object) {
	settings := func(id, summary string) object {
		return object{"get": operation{"get-" + id, summary, "The settings as they are.", []string{"metadata", "server"}, nil, map[string]any{"200": anything("The settings")}}.object(),
			"post": operation{"set-" + id, "Change " + summary, "Refused: settings are stated when the server is started.", []string{"metadata", "server"}, nil,
				map[string]any{"400": answer("They can be read only", "Error")}}.object()}
	}
	paths["/v2/models/stats"] = object{"get": operation{"statistics", "Statistics", "Those of all models.", []string{"metadata", "server"}, nil, map[string]any{"200": anything("The statistics")}}.object()}
	paths["/v2/trace/setting"], paths["/v2/logging"] = settings("trace-settings", "Trace Settings"), settings("log-settings", "Log Settings")
	of := settings("model-trace-settings", "Model Trace Settings")
	of["parameters"] = []any{parameter(modelName)}
	paths["/v2/models/{"+modelName+"}/trace/setting"] = of
}

// inferenceFaults are the errors of inference.
func inferenceFaults() map[string]any {
	f := faults()
	f["413"] = answer("The body is too large", "Error")
	f["422"] = answer("The request does not follow the protocol", "ValidationError")
	f["429"] = answer("Too many requests are under way", "Error")
	f["500"] = answer("The model failed", "Error")
	return f
}

// inferenceBody is that of inference. Its binary form is described in prose: with a
// second media type, generated clients could not call it at all.
func inferenceBody() object {
	return object{"required": true, "content": jsonContent("InferenceRequest"),
		"description": "JSON; or, as application/octet-stream with the header Inference-Header-Content-Length, as many bytes of JSON and behind them the data of the inputs with the parameter binary_data_size."}
}

func inference(id, summary string) operation {
	ok := answer("The response", "InferenceResponse")
	ok["content"].(object)["application/octet-stream"] = object{"schema": object{"type": "string", "format": "binary", "description": "The JSON of a response and behind it the data of the outputs with the parameter binary_data_size, where the request asks for binary data."}}
	return operation{id, summary, "Ask a model. Without a version the default one answers.",
		[]string{"inference", "model"}, inferenceBody(), with(inferenceFaults(), "200", ok)}
}

func streaming(id, summary string) operation {
	events := object{"description": "Server-sent events: one InferenceResponse in the data of each; after a failure a last event named error, whose data is an Error",
		"content": object{"text/event-stream": object{"schema": object{"type": "string"}}}}
	return operation{id, summary, "Ask a model and read its answer in parts, as they come.",
		[]string{"inference", "model"}, inferenceBody(), with(inferenceFaults(), "200", events)}
}

// repositoryPaths are the paths of the model repository.
func repositoryPaths() object {
	tags := []string{"model-repository"}
	change := func(id, summary, description string) object {
		answers := faults()
		answers["200"] = object{"description": "It is done"}
		answers["422"] = answer("The model's settings or URI lead nowhere", "Error")
		return object{"parameters": []any{parameter(modelName)},
			"post": operation{id, summary, description, append(tags, "model"), nil, answers}.object()}
	}
	return object{
		"/v2/repository/index": object{"post": operation{"repository-index", "Repository Index", "Every version of every model of the repository, and whether it serves.",
			append(tags, "server"), object{"required": false, "content": jsonContent("RepositoryIndexRequest")},
			map[string]any{"200": answer("The models", "RepositoryIndexResponse"), "422": answer("The request does not follow the protocol", "ValidationError")}}.object()},
		"/v2/repository/models/{" + modelName + "}/load": change("load-model", "Load Model",
			"Load all versions of a model, or load them again. What served before serves until its successor does."),
		"/v2/repository/models/{" + modelName + "}/unload": change("model-unload", "Unload Model", "End all versions of a model."),
	}
}
