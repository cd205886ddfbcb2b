package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
)

// installed are the packages of the programs that a machine needs.
var installed = []string{"./cmd/roundhouse", "./cmd/roundhouse-server", "./cmd/roundhouse-onnx"}

// compile builds the programs of every platform, without cgo, as the Makefile
// does.
func (r *release) compile(ctx context.Context) error {
	for _, p := range r.platforms {
		if err := r.goBuild(ctx, p, r.programs(p), "grpcnotrace", installed...); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) goBuild(ctx context.Context, p platform, to, tags string, packages ...string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	env := []string{"GOOS=" + p.os, "GOARCH=" + p.arch, "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off"}
	args := []string{"build", "-trimpath", "-tags", tags, "-ldflags", "-s -w -X main.version=" + r.version.semver, "-o", to + "/"}
	_, err := command(ctx, r.root, env, "go", append(args, packages...)...)
	return err
}

// shells maps the shells that the command line completes for to the names of
// their files.
var shells = map[string]string{"bash": "roundhouse.bash", "zsh": "_roundhouse", "fish": "roundhouse.fish"}

// writeExtras writes the man pages and completions: man/*.1, completions/*.
// A build with the tag manpages prints them; the released programs lack it.
func (r *release) writeExtras(ctx context.Context) error {
	host := platform{runtime.GOOS, runtime.GOARCH}
	with := filepath.Join(r.build, "manpages")
	if err := r.goBuild(ctx, host, with, "grpcnotrace,manpages", "./cmd/roundhouse"); err != nil {
		return err
	}
	program, man := filepath.Join(with, "roundhouse"), filepath.Join(r.extras, "man")
	if _, err := command(ctx, r.root, nil, program, "man", man, r.version.time.Format("2006-01-02")); err != nil {
		return err
	}
	completions := filepath.Join(r.extras, "completions")
	if err := os.MkdirAll(completions, 0o755); err != nil {
		return err
	}
	for shell, name := range shells {
		text, err := command(ctx, r.root, nil, program, "completion", shell)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(completions, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
