// Package openapi describes the model server's HTTP interface: OpenAPI
// documents of inference (the Open Inference Protocol) and of its model
// repository extension, of the whole server or of one model, and the page
// that shows them with Swagger UI.
//
// All addresses in the documents and the page are relative, so they hold
// wherever a proxy shows the server.
package openapi

import (
	"encoding/json"
	"maps"
	"net/url"
	"strings"
)

// Version is that of OpenAPI that the documents follow.
const Version = "3.1.0"

// Subject is what a document is about: the whole server, or a model, or a
// version of it.
type Subject struct {
	Model   string // "": the whole server
	Version string // "": any version
}

// object is a JSON object.
type object = map[string]any

// The names of the path parameters.
const (
	modelName    = "model_name"
	modelVersion = "model_version"
)

// folder is the path below which the subject's documents are.
func (s Subject) folder() string {
	switch {
	case s.Model == "":
		return "/v2/docs"
	case s.Version == "":
		return "/v2/models/" + url.PathEscape(s.Model) + "/docs"
	}
	return "/v2/models/" + url.PathEscape(s.Model) + "/versions/" + url.PathEscape(s.Version) + "/docs"
}

// root leads from a file in the subject's folder to the server's root, without
// a slash at the end.
func (s Subject) root() string {
	return strings.TrimSuffix(strings.Repeat("../", strings.Count(s.folder(), "/")), "/")
}

// Dataplane is the document of inference, as JSON. That of a model has its
// name in the paths; that of a version has only the paths with a version.
func (s Subject) Dataplane() []byte {
	title, description := "Data Plane", "The Open Inference Protocol: ask models, and what they and the server are."
	if s.Model != "" {
		name := "Model " + s.Model
		if s.Version != "" {
			name += " (" + s.Version + ")"
		}
		title, description = "Data Plane for "+name, "The Open Inference Protocol for "+name+"."
	}
	return document(title, description, s.root(), s.fill(dataplanePaths()), dataplaneSchemas())
}

// ModelRepository is the document of the model repository, as JSON.
func ModelRepository() []byte {
	return document("Model Repository", "List the models of the repository, load and unload them.",
		Subject{}.root(), repositoryPaths(), repositorySchemas())
}

func document(title, description, server string, paths, schemas object) []byte {
	text, err := json.Marshal(object{
		"openapi":    Version,
		"info":       object{"title": title, "description": description, "version": "2.0", "license": object{"name": "Apache 2.0", "identifier": "Apache-2.0"}},
		"servers":    []any{object{"url": server}},
		"tags":       tags(paths),
		"paths":      paths,
		"components": object{"schemas": schemas},
	})
	if err != nil {
		panic("openapi: " + err.Error()) // the document is made of strings
	}
	return text
}

// tags lists the tags that operations have.
func tags(paths object) []any {
	var list []any
	for _, tag := range []string{"health", "inference", "metadata", "model", "model-repository", "server"} {
		if anyTagged(paths, tag) {
			list = append(list, object{"name": tag})
		}
	}
	return list
}

func anyTagged(paths object, tag string) bool {
	for _, item := range paths {
		for _, operation := range item.(object) {
			if o, ok := operation.(object); ok {
				for _, t := range o["tags"].([]string) {
					if t == tag {
						return true
					}
				}
			}
		}
	}
	return false
}

// fill puts the subject's names into paths.
func (s Subject) fill(paths object) object {
	if s.Model == "" {
		return paths
	}
	filled := object{}
	for path, item := range paths {
		if !strings.Contains(path, "{"+modelName+"}") || s.Version != "" && !strings.Contains(path, "{"+modelVersion+"}") {
			continue
		}
		path = strings.ReplaceAll(path, "{"+modelName+"}", escape(s.Model))
		known := map[string]bool{modelName: true}
		if s.Version != "" {
			path = strings.ReplaceAll(path, "{"+modelVersion+"}", escape(s.Version))
			known[modelVersion] = true
		}
		own := maps.Clone(item.(object))
		var parameters []any
		for _, p := range own["parameters"].([]any) {
			if !known[p.(object)["name"].(string)] {
				parameters = append(parameters, p)
			}
		}
		if own["parameters"] = parameters; parameters == nil {
			delete(own, "parameters")
		}
		filled[path] = own
	}
	return filled
}

// escape writes a name as a step of a path; braces would be a parameter.
func escape(name string) string {
	return strings.NewReplacer("{", "%7B", "}", "%7D").Replace(url.PathEscape(name))
}
