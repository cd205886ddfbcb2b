package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// askTimeout bounds a question to docker, whose daemon may not answer.
const askTimeout = 10 * time.Second

// Builder is a program that builds images from Dockerfiles.
type Builder struct {
	Name string // docker or buildah
	Path string
}

// FindBuilder looks for docker with BuildKit, then for buildah. If neither can
// be used, the error has the reason for each that was found, or is
// exec.ErrNotFound if none was.
func FindBuilder(ctx context.Context) (Builder, error) {
	var problems []error
	if path, err := exec.LookPath("docker"); err == nil {
		if err := askDocker(ctx, path); err == nil {
			return Builder{"docker", path}, nil
		} else {
			problems = append(problems, err)
		}
	}
	if path, err := exec.LookPath("buildah"); err == nil {
		return Builder{"buildah", path}, nil
	}
	if len(problems) == 0 {
		return Builder{}, exec.ErrNotFound
	}
	return Builder{}, errors.Join(problems...)
}

// askDocker reports why docker cannot build.
func askDocker(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for _, question := range []struct {
		args []string
		fail string
	}{
		{[]string{"version", "--format", "{{.Server.Version}}"}, "its daemon does not answer"},
		{[]string{"buildx", "version"}, "it has no BuildKit (the buildx plugin)"},
	} {
		out, err := exec.CommandContext(ctx, path, question.args...).CombinedOutput()
		if err != nil {
			said, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
			return fmt.Errorf("docker is here, but %s: %s", question.fail, said)
		}
	}
	return nil
}

// Build is what a Builder builds.
type Build struct {
	Plan    *Plan
	Tag     string
	Program string // a roundhouse-server for Linux
	// BaseImage replaces the image that the Dockerfile begins with; "": its own.
	BaseImage string
	NoCache   bool
	Out       io.Writer // what the builder says
}

// Run builds the image. Nothing is written into the folder.
func (b Builder) Run(ctx context.Context, build Build) (err error) {
	if err := ParseTag(build.Tag); err != nil {
		return err
	}
	prog, err := openProgram(build.Program)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "roundhouse-build-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	args, err := b.prepare(dir, build, prog)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, b.Path, args...)
	cmd.Stdout, cmd.Stderr = build.Out, build.Out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = askTimeout
	if b.Name == "docker" {
		cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=1")
	}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%s could not build the image: %w", b.Name, err)
	}
	return nil
}

// prepare writes what the build needs besides the folder, and makes the
// command's arguments.
func (b Builder) prepare(dir string, build Build, prog program) ([]string, error) {
	file := filepath.Join(dir, "Dockerfile")
	ignore := file + ".dockerignore" // BuildKit prefers it to the folder's
	context := filepath.Join(dir, "program")
	target := filepath.Join(context, filepath.FromSlash(Program[1:]))
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return nil, err
	}
	for path, text := range map[string]string{file: build.Plan.Dockerfile(), ignore: build.Plan.Ignore} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	if err := copyProgram(target, prog); err != nil {
		return nil, err
	}
	// By itself buildah keeps the container of a build that fails.
	args := []string{"build", "--layers", "--force-rm", "--ignorefile", ignore}
	if b.Name == "docker" {
		args = []string{"buildx", "build", "--load"}
	}
	args = append(args, "--tag", build.Tag, "--file", file, "--platform", "linux/"+prog.architecture,
		"--build-context", "roundhouse="+context)
	if build.BaseImage != "" {
		args = append(args, "--build-arg", "BASE_IMAGE="+build.BaseImage)
	}
	if build.NoCache {
		args = append(args, "--no-cache")
	}
	return append(args, build.Plan.Folder), nil
}

func copyProgram(target string, prog program) error {
	from, err := os.Open(prog.path)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // only read from
	to, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}
