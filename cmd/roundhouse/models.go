package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/weights"
)

func newPullCommand() *cobra.Command {
	var c app.Pull
	cmd := &cobra.Command{
		Use:   "pull URI…",
		Short: "Download models ahead of use",
		Long: `Download models into the data directory before they are needed. A server with the
same data directory uses them; it may be running meanwhile. An interrupted download
is resumed.

With --out, the files of one model are written to a folder, which must be empty or
hold that model. Init containers of pods do so; KServe's STORAGE_CONFIG and
STORAGE_OVERRIDE_CONFIG then apply. With --merge, the folder may hold what other URIs
brought the same way; a file that two of them have is an error.

With --store and --place, one model is put into a folder that other processes share,
such as the pods of a node, and the link FOLDER/places/NAME/model leads to its files.
They stay while a process has that place. With --stay, the command creates the file
"done" in a folder when the model is there, and waits until it is told to end. With
--drop, it gives the place back and removes the model, unless another place has it.`,
		Example: `  roundhouse pull hf://Qwen/Qwen2.5-0.5B-Instruct
  roundhouse pull s3://models/iris https://example.com/model.bst
  roundhouse pull s3://models/iris --out /mnt/models
  roundhouse pull s3://models/labels --out /mnt/models --merge
  roundhouse pull s3://models/iris --store /srv/models --place job-1 --store-max-bytes 500GiB`,
		Args: command.Wants(1, -1, "the URIs of models"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch given := cmd.Flags().Changed; {
			case c.Out != "" && given("data-dir"), c.Store != "" && (c.Out != "" || given("data-dir")):
				return command.Usagef("give one of --out, --store and --data-dir")
			case (c.Store == "") != (c.Place == ""):
				return command.Usagef("--store and --place need each other: the place names who uses the model")
			case c.Merge && c.Out == "":
				return command.Usagef("--merge needs --out")
			case c.Store == "" && given("store-max-bytes"):
				return command.Usagef("--store-max-bytes needs --store")
			case c.Drop && c.Store == "":
				return command.Usagef("--drop needs --store")
			case c.Out == "" && c.Store == "" && (given("public-only") || c.Stay != ""):
				return command.Usagef("--public-only and --stay need --out or --store")
			}
			return c.Run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&c.DataDir, "data-dir", datadir.Default(), "folder for applied manifests, models and logs")
	cmd.Flags().StringVar(&c.Out, "out", "", "folder for the files of one model, in place of the data directory")
	cmd.Flags().BoolVar(&c.Merge, "merge", false, "with --out: merge the files with those that other URIs brought there with --merge")
	cmd.Flags().StringVar(&c.Store, "store", "", "folder of models that other processes share, in place of the data directory")
	cmd.Flags().StringVar(&c.Place, "place", "", "with --store: name under which the model is used there, such as a pod's UID")
	cmd.Flags().StringVar(&c.StoreBytes, "store-max-bytes", app.DefaultModelShare, "with --store: most that it may hold, as a size or a share of the disk; of those not in use, the least recently used is removed first")
	c.Log.FormatFlag(cmd.Flags())
	cmd.Flags().StringVar(&c.Stay, "stay", "", "with --out or --store: folder for a file \"done\" when the model is there; the command then waits for a signal")
	cmd.Flags().BoolVar(&c.Drop, "drop", false, "with --store: give the place back, and remove the model unless another place has it")
	// Pods set the variable: an older release refuses a flag that it does not know.
	cmd.Flags().BoolVar(&c.PublicOnly, "public-only", os.Getenv("ROUNDHOUSE_PUBLIC_ONLY") == "true",
		"with --out or --store: refuse a URI that leads to an internal address (loopback, link-local, private); endpoints that the environment names are exempt")
	return cmd
}

// newModelCommand builds `roundhouse model`.
func newModelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "List, inspect, pin and remove the files of models",
		Args:  command.CommandsOnly,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newModelInspectCommand(), newModelListCommand(), newModelRemoveCommand(), newModelPinCommand(true), newModelPinCommand(false))
	return cmd
}

func newModelListCommand() *cobra.Command {
	var dataDir, output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the models that were downloaded into the data directory",
		Example: `  roundhouse model list
  roundhouse model list -o json`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := app.OpenCopies(dataDir)
			if err != nil {
				return err
			}
			list, err := store.Copies()
			if err != nil {
				return err
			}
			return printer.Copies(cmd.OutOrStdout(), list, output, time.Now())
		},
	}
	command.OutputFlag(cmd, &output, "json", "json")
	cmd.Flags().StringVar(&dataDir, "data-dir", datadir.Default(), "folder for applied manifests, models and logs")
	return cmd
}

func newModelRemoveCommand() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "rm URI…",
		Short: "Remove downloaded models from the data directory",
		Long: `Remove downloaded models from the data directory. A model that a running up uses, or
has used since its start, stays, and is an error. Without this command, up removes the
least recently used models once they take more than --models-max-bytes.`,
		Example: `  roundhouse model rm s3://models/iris
  roundhouse model rm hf://Qwen/Qwen2.5-0.5B-Instruct --data-dir /data`,
		Args: command.Wants(1, -1, "the URIs of models, as `roundhouse model list` shows them"),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := app.OpenCopies(dataDir)
			if err != nil {
				return err
			}
			var errs []error
			for _, uri := range args {
				freed, err := store.Remove(uri)
				if errors.Is(err, fs.ErrNotExist) {
					err = fmt.Errorf("%s is not in %s: `roundhouse model list` lists what is", artifact.Redact(uri), dataDir)
				}
				if errs = append(errs, err); err == nil {
					_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s removed, %s freed\n", artifact.Redact(uri), command.SizeText(freed))
				}
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", datadir.Default(), "folder for applied manifests, models and logs")
	return cmd
}

// newModelPinCommand builds `roundhouse model pin`, or unpin.
func newModelPinCommand(pin bool) *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "pin URI…",
		Short: "Keep downloaded models when others make room",
		Long: `Keep downloaded models in the data directory when the models exceed
--models-max-bytes and the least recently used are removed. A running up follows.`,
		Example: `  roundhouse model pin s3://models/iris
  roundhouse model pin hf://Qwen/Qwen2.5-0.5B-Instruct --data-dir /data`,
		Args: command.Wants(1, -1, "the URIs of models, as `roundhouse model list` shows them"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return setModelPins(cmd.OutOrStdout(), dataDir, args, pin)
		},
	}
	if !pin {
		cmd.Use, cmd.Short = "unpin URI…", "Let downloaded models go again when others make room"
		cmd.Long = "Let models that were pinned go again when others make room."
		cmd.Example = "  roundhouse model unpin s3://models/iris"
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", datadir.Default(), "folder for applied manifests, models and logs")
	return cmd
}

func setModelPins(w io.Writer, dataDir string, uris []string, pin bool) error {
	store, err := app.OpenCopies(dataDir)
	if err != nil {
		return err
	}
	word := map[bool]string{true: "pinned", false: "unpinned"}[pin]
	var errs []error
	for _, uri := range uris {
		changed, err := store.SetPin(uri, pin)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = fmt.Errorf("%s is not in %s: `roundhouse model list` lists what is", artifact.Redact(uri), dataDir)
		case err == nil && changed:
			_, _ = fmt.Fprintf(w, "%s %s\n", artifact.Redact(uri), word)
		case err == nil:
			_, _ = fmt.Fprintf(w, "%s was %s already\n", artifact.Redact(uri), word)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

type modelInspectCommand struct {
	output, dataDir string
	read            bool
}

func newModelInspectCommand() *cobra.Command {
	c := &modelInspectCommand{}
	cmd := &cobra.Command{
		Use:   "inspect URI|FILE|FOLDER",
		Short: "List the tensors of a model in safetensors files",
		Long: `List the tensors of a model in safetensors files: names, types, shapes and sizes,
with totals and bars by type and by layer. Only the headers are read, those of remote
files by range requests.

With --read, the tensors are read too, in the order of the files: each gets a CRC-32C,
and the read rate is printed.`,
		Example: `  roundhouse model inspect models/llama
  roundhouse model inspect s3://models/llama -o json
  roundhouse model inspect https://example.com/model.safetensors --read`,
		Args: command.Wants(1, 1, "a model"),
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	command.OutputFlag(cmd, &c.output, "json", "json")
	f.BoolVar(&c.read, "read", false, "read every tensor, not only headers")
	f.StringVar(&c.dataDir, "data-dir", datadir.Default(), "folder for applied manifests, models and logs; models in it are not fetched again")
	return cmd
}

func (c *modelInspectCommand) run(cmd *cobra.Command, uri string) error {
	ctx := cmd.Context()
	store, err := app.OpenStore(c.dataDir)
	if err != nil {
		return err
	}
	tree, err := store.Tree(ctx, artifact.Request{URI: uri})
	if err != nil {
		return err
	}
	m, err := weights.Open(ctx, tree)
	if err != nil {
		return err
	}
	r := printer.Inspect(m)
	if c.read {
		if err := r.ReadTensors(ctx, m, progress.New(cmd.ErrOrStderr())); err != nil {
			return err
		}
	}
	out := cmd.OutOrStdout()
	if c.output == "json" {
		return printer.JSON(out, r)
	}
	block, width := '#', 40
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		block = '█'
		if w, _, err := term.GetSize(int(f.Fd())); err == nil {
			width = max(10, min(w-60, 80))
		}
	}
	return r.Print(out, block, width)
}

// newAgentCommand builds `roundhouse agent`, which pods run.
func newAgentCommand() *cobra.Command {
	var c app.Agent
	cmd := &cobra.Command{
		Use:    "agent",
		Hidden: true,
		Short:  "Have the model server of a pod load the models of a list",
		Long: `Have a model server that runs load the models of a list, and unload those that are no
longer in it. Pods of services that load TrainedModels run this beside their server.

The list is KServe's: [{"modelName": …, "modelSpec": {"storageUri": …, "framework": …}}].
GET /models says how far each model is.`,
		Example: `  roundhouse agent --list /models.json --repository /mnt/models --files /mnt/files --server 127.0.0.1:8080`,
		Args:    command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.Run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.List, "list", "", "file with the models")
	f.StringVar(&c.Repository, "repository", "", "folder in which the server finds models")
	f.StringVar(&c.Files, "files", "", "folder for the files of models")
	f.StringVar(&c.Server, "server", "127.0.0.1:8080", "address of the server")
	f.StringVar(&c.Listen, "listen", "127.0.0.1:9081", "address that says how far each model is")
	for _, name := range []string{"list", "repository", "files"} {
		_ = cmd.MarkFlagRequired(name) // it exists
	}
	f.BoolVar(&c.PublicOnly, "public-only", os.Getenv("ROUNDHOUSE_PUBLIC_ONLY") == "true",
		"refuse URIs that lead to internal addresses (loopback, link-local, private)")
	c.Log.FormatFlag(f)
	return cmd
}
