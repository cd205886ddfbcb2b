package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/skeleton"
	"roundhouse.dev/roundhouse/internal/edge/engine/trees"
	"roundhouse.dev/roundhouse/internal/edge/image"
)

func newInitCommand() *cobra.Command {
	var template string
	cmd := &cobra.Command{
		Use:   "init [-t TEMPLATE] FOLDER",
		Short: "Create a custom runtime from a template",
		Long: `Create a custom runtime in a new or empty folder: code, settings, a model, the list
of packages, and a test that passes. MLServer runs it unchanged, too.

Templates: custom, a runtime with its own code and weights; sklearn, a classifier
with the script that trains it.`,
		Example: "  roundhouse init my-model\n  roundhouse init -t sklearn flowers",
		Args:    command.Wants(1, 1, "a new folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return skeleton.Write(cmd.OutOrStdout(), template, args[0])
		},
	}
	cmd.Flags().StringVarP(&template, "template", "t", "custom", "custom or sklearn")
	return cmd
}

// buildCommand is `roundhouse build`.
type buildCommand struct {
	tag     string
	noCache bool
	output  string
	base    string
	from    string
	binary  string
}

func newBuildCommand() *cobra.Command {
	c := &buildCommand{}
	cmd := &cobra.Command{
		Use:   "build FOLDER -t TAG",
		Short: "Build an image that serves a folder",
		Long: `Build an image that serves a folder as "roundhouse serve" does. The packages are
those of environment.yaml, conda.yaml or requirements.txt. settings.json and
model-settings.json are defaults; variables and mounted settings files override them.

docker (with BuildKit) or buildah builds the image if one is installed. Otherwise, or
with -o, the image is written as an OCI layout in a tar, for docker load, podman load
or ctr images import. That image has the program and the folder only, which is enough
for native formats, or is built on --base.`,
		Example: `  roundhouse build . -t my-server
  roundhouse build models/iris -t iris:1 -o iris.tar
  roundhouse build . -t my-server --base python.tar -o my-server.tar`,
		Args: command.Wants(1, 1, "the folder to build an image of"),
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&c.tag, "tag", "t", "", "name of the image, NAME[:TAG]")
	f.BoolVar(&c.noCache, "no-cache", false, "do not use the build cache")
	f.StringVarP(&c.output, "output", "o", "", "file to write an OCI image layout to; - for standard output")
	f.StringVar(&c.base, "base", "", "tar of the image to build the layout on: an OCI layout, or the output of docker save")
	f.StringVar(&c.from, "base-image", "", "base image of the Dockerfile (default: an image of Python or Debian)")
	f.StringVar(&c.binary, "binary", "", "roundhouse-server for Linux to put into the image (default: the one beside this program)")
	_ = cmd.MarkFlagRequired("tag") // the flag is there
	return cmd
}

// nativeImplementations are those that need no Python.
func nativeImplementations() []string {
	return []string{trees.MLServerXGBoost, trees.MLServerLightGBM}
}

func (c *buildCommand) run(cmd *cobra.Command, folder string) error {
	if err := image.ParseTag(c.tag); err != nil {
		return command.Usagef("--tag: %w", err)
	}
	plan, err := image.ReadFolder(folder, nativeImplementations())
	if err != nil {
		return err
	}
	if c.binary == "" {
		if c.binary, err = command.Server(); err != nil {
			return err
		}
	} else if _, err := os.Stat(c.binary); err != nil {
		return fmt.Errorf("--binary: %w", err)
	}
	if c.from != "" && (c.base != "" || c.output != "") {
		return command.Usagef("--base-image is for docker and buildah; for an image layout use --base")
	}
	if c.output == "" && c.base == "" {
		if built, err := c.build(cmd.Context(), cmd.ErrOrStderr(), plan); built || err != nil {
			return err
		}
	}
	if c.from != "" {
		return errors.New("--base-image needs docker (with BuildKit) or buildah, and neither works here")
	}
	return c.layout(cmd, plan)
}

// build has docker or buildah build the image, if one of them can.
func (c *buildCommand) build(ctx context.Context, says io.Writer, plan *image.Plan) (built bool, err error) {
	builder, err := image.FindBuilder(ctx)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return false, nil
	case err != nil:
		_, _ = fmt.Fprintln(says, err)
		return false, nil
	}
	if err := builder.Run(ctx, image.Build{Plan: plan, Tag: c.tag, Program: c.binary, BaseImage: c.from, NoCache: c.noCache, Out: says}); err != nil {
		return false, err
	}
	_, err = fmt.Fprintf(says, "Built %s with %s.\n", c.tag, builder.Name)
	return true, err
}

// layout writes an OCI image layout.
func (c *buildCommand) layout(cmd *cobra.Command, plan *image.Plan) error {
	layout := image.Layout{Plan: plan, Tag: c.tag, Program: c.binary, Base: c.base}
	if c.output == "-" {
		if out, ok := cmd.OutOrStdout().(*os.File); ok && term.IsTerminal(int(out.Fd())) {
			return command.Usagef("standard output is a terminal: redirect the image, as in | docker load")
		}
		return image.WriteLayout(cmd.Context(), cmd.OutOrStdout(), layout)
	}
	if c.output == "" {
		c.output = plan.Name + ".tar"
	}
	if err := writeLayout(cmd.Context(), c.output, layout); err != nil {
		return err
	}
	return c.greet(cmd.ErrOrStderr(), plan)
}

// writeLayout puts the whole layout in its place, or nothing.
func writeLayout(ctx context.Context, path string, layout image.Layout) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	err = errors.Join(image.WriteLayout(ctx, f, layout), f.Chmod(0o644), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// greet prints what was written and how to load it.
func (c *buildCommand) greet(w io.Writer, plan *image.Plan) error {
	info, err := os.Stat(c.output)
	if err != nil {
		return err
	}
	if plan.Pip != "" || plan.Conda != "" {
		_, _ = fmt.Fprintf(w, "The packages of %s are not installed: %s must have them.\n", strings.TrimSpace(plan.Conda+" "+plan.Pip), c.base)
	}
	_, err = fmt.Fprintf(w, `Wrote %s (%d MiB), the image %s.
  docker load < %[1]s
  podman load -i %[1]s
  ctr images import %[1]s
`, c.output, (info.Size()+1<<20-1)>>20, c.tag)
	return err
}

func newDockerfileCommand() *cobra.Command {
	var ignore, force bool
	cmd := &cobra.Command{
		Use:   "dockerfile FOLDER",
		Short: "Write the Dockerfile that `roundhouse build` uses",
		Long: `Write the Dockerfile that "roundhouse build" uses into a folder, for you to change.
It fits the present content of the folder: write it again when the settings or the
environment change.`,
		Example: "  roundhouse dockerfile .\n  roundhouse dockerfile . -i",
		Args:    command.Wants(1, 1, "the folder to write into"),
		RunE: func(cmd *cobra.Command, args []string) error {
			plan, err := image.ReadFolder(args[0], nativeImplementations())
			if err != nil {
				return err
			}
			file := filepath.Join(args[0], "Dockerfile")
			if err := skeleton.WriteNew(file, plan.Dockerfile(), force); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "wrote %s\n", file)
			if !ignore {
				return nil
			}
			file = filepath.Join(args[0], ".dockerignore")
			if _, err := os.Stat(file); err == nil && !force {
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "kept %s\n", file)
				return nil
			}
			if err := skeleton.WriteNew(file, image.DefaultIgnore, force); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "wrote %s\n", file)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&ignore, "include-dockerignore", "i", false, "write a .dockerignore too")
	cmd.Flags().BoolVar(&force, "force", false, "replace existing files")
	return cmd
}
