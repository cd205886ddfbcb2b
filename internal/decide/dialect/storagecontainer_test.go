package dialect

import (
	"strings"
	"testing"
)

// TestStorageContainer: which URIs a ClusterStorageContainer fetches.
func TestStorageContainer(t *testing.T) {
	read := Read("c.yaml", []byte(`apiVersion: serving.kserve.io/v1alpha1
kind: ClusterStorageContainer
metadata: {name: registry}
spec:
  container: {name: storage-initializer, image: example.com/fetch:1, args: [x]}
  supportedUriFormats: [{prefix: "model-registry://"}, {regex: "^x[0-9]+://.+$"}, {prefix: "hf://"}]
  workloadType: initContainer
  supportsMultiModelDownload: true
`))
	var said []string
	for _, p := range read.Warnings(Kubernetes) {
		said = append(said, p.Path)
	}
	if len(read.Objects) != 1 || len(read.Errors(Kubernetes)) > 0 || strings.Join(said, " ") != "spec.container.args spec.supportedUriFormats[2].prefix spec.supportsMultiModelDownload" {
		t.Fatal(read.Problems)
	}
	c := read.Objects[0].StorageContainer
	for uri, want := range map[string]bool{"model-registry://a/b": true, "x12://a": true, "x://a": false, "model://a": false, "": false} {
		if c.Fetches(uri) != want {
			t.Errorf("%s is fetched: %t", uri, !want)
		}
	}
	c.Disabled = true
	if c.Fetches("model-registry://a/b") {
		t.Error("one that is disabled fetches")
	}
}

// TestStorageContainerProblems: each says where it is and what to write.
func TestStorageContainerProblems(t *testing.T) {
	const head = "apiVersion: serving.kserve.io/v1alpha1\nkind: ClusterStorageContainer\nmetadata: {name: a}\nspec: "
	for spec, want := range map[string]string{
		"{supportedUriFormats: [{prefix: 'a://'}]}":                                                        "spec.container: is missing: say what fetches",
		"{container: {name: a}, supportedUriFormats: [{prefix: 'a://'}]}":                                  "spec.container.image: is missing",
		"{container: {image: i}}":                                                                          "spec.supportedUriFormats: 0 formats: write 1 to 64, each with a prefix or a regex",
		"{container: {image: i}, supportedUriFormats: [{}]}":                                               "spec.supportedUriFormats[0]: is empty",
		"{container: {image: i}, supportedUriFormats: [{regex: '('}]}":                                     "spec.supportedUriFormats[0].regex: is no regular expression",
		"{container: {image: i}, supportedUriFormats: [{prefix: 'a://'}], workloadType: job}":              `spec.workloadType: "job" is not a way to run it: write initContainer`,
		"{container: {image: i}, supportedUriFormats: [{regex: '" + strings.Repeat("a", 1025) + "'}]}":     "spec.supportedUriFormats[0].regex: is longer than 1024 characters",
		"{container: {image: i}, supportedUriFormats: [" + strings.Repeat("{prefix: 'a://'}, ", 65) + "]}": "spec.supportedUriFormats: 65 formats",
	} {
		var said []string
		for _, p := range Read("a.yaml", []byte(head+spec+"\n")).Errors(Kubernetes) {
			said = append(said, p.Path+": "+p.Message)
		}
		if !strings.Contains(strings.Join(said, "\n"), want) {
			t.Errorf("%s\n%q, want %q", spec, said, want)
		}
	}
}
