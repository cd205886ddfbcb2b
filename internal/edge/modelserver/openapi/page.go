package openapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"path"
	"strings"

	"github.com/swaggest/swgui/v5/static"
)

// page shows documents with Swagger UI (Apache-2.0), whose files the binary
// carries through the module github.com/swaggest/swgui.
// A template package would call methods by name, which keeps them all in the
// binary: TITLE and ASSETS are put in escaped for HTML, DOCUMENTS as JSON, which
// escapes what could end a script.
const page = `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<link rel="icon" type="image/png" href="ASSETS/favicon-32x32.png">
<link rel="stylesheet" href="ASSETS/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="ASSETS/swagger-ui-bundle.js"></script>
<script src="ASSETS/swagger-ui-standalone-preset.js"></script>
<script>
window.ui = SwaggerUIBundle({
  urls: DOCUMENTS,
  dom_id: "#swagger-ui",
  deepLinking: true,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIStandalonePreset],
  layout: "StandaloneLayout"
});
</script>
</body>
</html>
`

// link is a document that the page offers.
type link struct {
	URL  string `json:"url"`
	Name string `json:"name"`
}

// Page is the HTML that shows the subject's documents. Its addresses are
// relative to the page's own, the folder of the documents without a slash.
func (s Subject) Page() []byte {
	title := "Model server"
	documents := []link{{"docs/dataplane.json", "Data Plane"}}
	if s.Model == "" {
		documents = append(documents, link{"docs/model_repository.json", "Model Repository"})
	} else {
		title += ": " + s.Model
		if s.Version != "" {
			title += " (" + s.Version + ")"
		}
	}
	assets := strings.TrimPrefix(s.root(), "../") + "/v2/docs/assets"
	list, err := json.Marshal(documents)
	if err != nil {
		panic("openapi: " + err.Error()) // strings alone are always JSON
	}
	return []byte(strings.NewReplacer("TITLE", html.EscapeString(title), "ASSETS", html.EscapeString(assets), "DOCUMENTS", string(list)).Replace(page))
}

// assetTypes are the files of Swagger UI that are served, and their media
// types.
var assetTypes = map[string]string{
	"swagger-ui.css":                  "text/css; charset=utf-8",
	"swagger-ui-bundle.js":            "text/javascript; charset=utf-8",
	"swagger-ui-standalone-preset.js": "text/javascript; charset=utf-8",
	"favicon-32x32.png":               "image/png",
}

// ServeAsset answers with a file of Swagger UI, and reports whether there is
// one of the name. The files are held compressed, and most clients take them
// so.
func ServeAsset(w http.ResponseWriter, r *http.Request, name string) bool {
	media, ok := assetTypes[name]
	if !ok {
		return false
	}
	h := w.Header()
	h.Set("Content-Type", media)
	h.Set("Cache-Control", "public, max-age=86400")
	h.Set("Vary", "Accept-Encoding")
	if path.Ext(name) == ".png" {
		http.ServeFileFS(w, r, static.FS, name)
		return true
	}
	file, err := static.FS.ReadFile(name + ".gz")
	if err != nil {
		return false
	}
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		_, _ = w.Write(file) // a client that left needs no answer
		return true
	}
	z, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		return false
	}
	_, _ = io.Copy(w, z)
	return true
}
