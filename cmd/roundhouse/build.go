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
	"roundhouse.dev/roundhouse/internal/edge/engine/trees"
	"roundhouse.dev/roundhouse/internal/edge/image"
)

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
		Long: `Build an image that serves a folder as "roundhouse serve" would: with the
environment of its environment.yaml, conda.yaml or requirements.txt, and its
settings.json and model-settings.json as defaults that variables and settings
files from outside win over.

docker (with BuildKit) or buildah builds it where one is found. Without them, or
with -o, an OCI image layout is written as a tar, for docker load, podman load or
ctr images import: of the program and the folder alone, which native formats
need, or on top of --base.`,
		Example: `  roundhouse build . -t my-server
  roundhouse build models/iris -t iris:1 -o iris.tar
  roundhouse build . -t my-server --base python.tar -o my-server.tar`,
		Args: command.Wants(1, 1, "the folder to build an image of"),
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&c.tag, "tag", "t", "", "name of the image, NAME[:TAG]")
	f.BoolVar(&c.noCache, "no-cache", false, "build every step of the Dockerfile anew")
	f.StringVarP(&c.output, "output", "o", "", "write an OCI image layout to this file, - for standard output")
	f.StringVar(&c.base, "base", "", "image to build the layout on: an OCI layout or what docker save writes, as a tar")
	f.StringVar(&c.from, "base-image", "", "name of the image that the Dockerfile begins with (default: one of Python's or of Debian's)")
	f.StringVar(&c.binary, "binary", "", "roundhouse-server for Linux that the image runs (default: the one beside this program)")
	_ = cmd.MarkFlagRequired("tag") // the flag is there
	return cmd
}

// nativeImplementations are those that no Python is needed for.
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
		return command.Usagef("--base-image is for docker and buildah; an image layout is built on --base")
	}
	if c.output == "" && c.base == "" {
		if built, err := c.build(cmd.Context(), cmd.ErrOrStderr(), plan); built || err != nil {
			return err
		}
	}
	if c.from != "" {
		return errors.New("--base-image wants docker (with BuildKit) or buildah, and neither can build here")
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
			return command.Usagef("an image is no text: send standard output somewhere, as in | docker load")
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

// greet says what was written and what to do with it.
func (c *buildCommand) greet(w io.Writer, plan *image.Plan) error {
	info, err := os.Stat(c.output)
	if err != nil {
		return err
	}
	if plan.Pip != "" || plan.Conda != "" {
		_, _ = fmt.Fprintf(w, "Nothing of %s was installed: %s is to have it.\n", strings.TrimSpace(plan.Conda+" "+plan.Pip), c.base)
	}
	_, err = fmt.Fprintf(w, `Wrote %s (%d MiB), the image %s.
  docker load < %[1]s
  podman load -i %[1]s
  ctr images import %[1]s
`, c.output, (info.Size()+1<<20-1)>>20, c.tag)
	return err
}
