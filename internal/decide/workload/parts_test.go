package workload

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestLocate: what a command line says of the folder of a model's parts in a container
// leads a process to where they are.
func TestLocate(t *testing.T) {
	parts := service.Parts{{URI: "s3://a/b", Path: "/opt/m/base"}, {URI: "s3://a/c", Path: "/opt/m/extra"}}
	p := &Process{Command: []string{"serve", "--model_dir=/opt/m/base", "/opt/m", "/opt/models", "/srv/opt/m", "/opt/m/base/a:/opt/m/extra/", "/opt/m/conda/bin/python"},
		Env: []corev1.EnvVar{{Name: "FEATURES", Value: "/opt/m/extra/f.csv"}}}
	given := slices.Clone(p.Command)
	p.locate(nil)
	if !slices.Equal(p.Command, given) {
		t.Errorf("a model of one URI: %q", p.Command)
	}
	p.locate(parts)
	want := []string{"serve", "--model_dir={{.ModelPath}}/base", "{{.ModelPath}}", "/opt/models", "/srv/opt/m", "{{.ModelPath}}/base/a:{{.ModelPath}}/extra/", "/opt/m/conda/bin/python"}
	if !slices.Equal(p.Command, want) || p.Env[0].Value != "{{.ModelPath}}/extra/f.csv" {
		t.Errorf("got %q %v", p.Command, p.Env)
	}
	within := Location{ModelPath: "/here", Mounted: true, Root: parts.Root()}.Within(&Container{})
	if within.ModelPath != "/opt/m" {
		t.Errorf("a container has it at %s", within.ModelPath)
	}
}

// TestHashOfParts: the files of another URI, or at another place, call for a revision.
func TestHashOfParts(t *testing.T) {
	hash := func(parts service.Parts) string {
		return Input{Service: &service.Service{Model: &service.ModelSource{URI: "s3://b/m", Parts: parts}}, URI: "s3://b/m", Parts: parts}.Hash()
	}
	seen := map[string]bool{}
	for _, uri := range []string{"s3://b/x", "s3://b/y"} {
		for _, at := range []string{"/mnt/models", "/mnt/models/x"} {
			seen[hash(service.Parts{{URI: "s3://b/m", Path: "/mnt/models"}, {URI: uri, Path: at}})] = true
		}
	}
	if seen[hash(nil)] = true; len(seen) != 5 {
		t.Errorf("%d hashes of 5", len(seen))
	}
}

// TestHashOfPaths: a file is the same however the manifest writes its path.
func TestHashOfPaths(t *testing.T) {
	hash := func(written, at string) string {
		return Input{Service: &service.Service{Model: &service.ModelSource{URI: written, Parts: service.Parts{{URI: written, Path: "/mnt/models"}},
			Adapters: []service.Adapter{{Name: "a", URI: written + "/a"}}}},
			URI: at, Parts: service.Parts{{URI: at, Path: "/mnt/models"}}, Adapters: []Adapter{{Name: "a", URI: at + "/a"}}}.Hash()
	}
	want := hash("file:///models/iris", "file:///models/iris")
	if got := hash("iris", "file:///models/iris"); got != want {
		t.Error("a relative path makes another revision")
	}
	if got := hash("iris", "file:///elsewhere/iris"); got == want {
		t.Error("another file makes the same revision")
	}
}
