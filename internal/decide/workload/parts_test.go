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

// TestFilesOfRoles: the files that a transformer has of its own are no model of others,
// and other ones call for another revision, as the same ones by another path do not.
func TestFilesOfRoles(t *testing.T) {
	own := service.Parts{{URI: "s3://b/{{x", Path: "/opt/t/words"}, {URI: "s3://b/y", Path: "/opt/t/more"}}
	transformer := func(parts service.Parts) *service.Component {
		return &service.Component{Main: "main", Parts: parts, Local: &service.Local{Command: []string{"t", "/opt/t/words", "/mnt/models/x"}},
			Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
	}
	with := func(written service.Parts, files Model) Input {
		return Input{URI: "s3://b/m", Parts: service.Parts{{URI: "s3://b/m", Path: "/mnt/models/x"}, {URI: "s3://b/n", Path: "/mnt/models/y"}},
			Files: map[service.Role]Model{service.RoleTransformer: files},
			Service: &service.Service{Model: &service.ModelSource{URI: "s3://b/m"}, Components: service.Components{Transformer: transformer(written),
				Engine: &service.Component{Local: &service.Local{Command: []string{"serve", "/opt/t/words", "/mnt/models/x"}}}}}}
	}
	rev, err := Render(with(own, Model{URI: own[0].URI, Parts: own}))
	if err != nil {
		t.Fatal(err)
	}
	for role, want := range map[service.Role]struct {
		uri   string
		words []string
	}{
		service.RoleEngine:      {"s3://b/m", []string{"serve", "/opt/t/words", "{{.ModelPath}}/x"}},
		service.RoleTransformer: {"s3://b/{{x", []string{"t", "{{.ModelPath}}/words", "/mnt/models/x"}},
	} {
		if m, words := rev.ModelOf(role), rev.Component(role).Process.Command[:3]; m.URI != want.uri || !slices.Equal(words, want.words) {
			t.Errorf("%s: %s %q, want %+v", role, m.URI, words, want)
		}
	}
	if all := rev.Models(); len(all) != 2 || all[1].URI != own[0].URI {
		t.Errorf("models %v", all)
	}
	seen := map[string]bool{}
	for _, files := range []Model{{Parts: own}, {Parts: own, Fingerprint: "one"}, {Parts: own, Fingerprint: "two"}, {Parts: own[:1]}} {
		a, b := with(own, files).Hash(), with(service.Parts{{URI: "another path", Path: "/opt/t/words"}}, files).Hash()
		if a != b {
			t.Error("another path of the same files makes another revision")
		}
		seen[a] = true
	}
	if len(seen) != 4 {
		t.Errorf("%d hashes of 4", len(seen))
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

// TestCallBeforeSubcommand: what an explainer is told stands before its own arguments
// where these may have a subcommand, and behind them otherwise.
func TestCallBeforeSubcommand(t *testing.T) {
	for _, c := range []struct {
		subcommand bool
		args, want []string
	}{
		{true, []string{"--storage_uri", "/mnt/models", "AnchorText"},
			[]string{"python3", "-m", "explain", "--model_name", "a", "--predictor_host", "$(ROUNDHOUSE_ENGINE_ADDRESS)", "--http_port", "{{.Port}}", "--storage_uri", "{{.ModelPath}}", "AnchorText"}},
		{true, []string{"--http_port=9000", "AnchorText"},
			[]string{"python3", "-m", "explain", "--model_name", "a", "--predictor_host", "$(ROUNDHOUSE_ENGINE_ADDRESS)", "--http_port={{.Port}}", "AnchorText"}},
		{false, []string{"--threshold", "1"},
			[]string{"python3", "-m", "explain", "--threshold", "1", "--model_name", "a", "--predictor_host", "$(ROUNDHOUSE_ENGINE_ADDRESS)", "--http_port", "{{.Port}}"}},
	} {
		explainer := &service.Component{Main: "main", Subcommand: c.subcommand, LocalDerived: true,
			Local: &service.Local{Command: append([]string{"python3", "-m", "explain"}, c.args...)},
			Pod:   corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Command: []string{"python3", "-m", "explain"}, Args: c.args}}}}
		s := &service.Service{Custom: true, Components: service.Components{Explainer: explainer,
			Engine: &service.Component{Local: &service.Local{Command: []string{"serve"}}, Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}}}
		s.Name = "a"
		files := Model{URI: "s3://b/e", Parts: service.Parts{{URI: "s3://b/e", Path: service.MountPath}}}
		rev, err := Render(Input{Service: s, Files: map[service.Role]Model{service.RoleExplainer: files}})
		if err != nil {
			t.Fatal(err)
		}
		if got := rev.Component(service.RoleExplainer).Process.Command; !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
}
