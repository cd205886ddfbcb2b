package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/manifestfile"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/migrate"
)

// migration is `roundhouse migrate` of one kind of source.
type migration struct {
	output string
	gpu    bool
}

func newMigrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make manifests of what other servers of models have",
		Long: `Read what another server of models has, and print manifests for Roundhouse. What has
no counterpart is noted above the manifest and on standard error. Nothing is started,
fetched or changed. The exit code is 1 if a model was left out; the others are printed.`,
		Example: `  roundhouse migrate llama-swap config.yaml > models.yaml
  roundhouse migrate ollama --gpu --output models/
  roundhouse migrate mlserver ./models | roundhouse apply -f -
  roundhouse migrate kserve manifests/
  roundhouse migrate kserve --context production --output services/`,
		Args: command.CommandsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMigrateMLServer(), newMigrateKServe(), newMigrateOME(), newMigrateLlamaSwap(), newMigrateOllama())
	return cmd
}

func (m *migration) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&m.output, "output", "", "write each manifest into a file of its own in this folder; files that are there stay")
}

func (m *migration) gpuFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&m.gpu, "gpu", false, "the models run on GPUs: each service takes one, and shares it where there is room")
}

func newMigrateMLServer() *cobra.Command {
	var m migration
	cmd := &cobra.Command{
		Use:   "mlserver FOLDER",
		Short: "Make services of the models in a folder that MLServer serves",
		Long: `Make a service of each model-settings.json in a folder that MLServer serves. The
folder stays where it is: the model's server reads its settings there, too. What
settings.json sets for all models becomes variables of each service.`,
		Example: `  roundhouse migrate mlserver ./models
  roundhouse migrate mlserver ./models --output services/`,
		Args: command.Wants(1, 1, "the folder that mlserver start serves"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, dir, err := openFolder(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = root.Close() }()
			out, err := migrate.MLServer(root.FS(), dir)
			return m.print(cmd, out, err)
		},
	}
	m.flags(cmd)
	return cmd
}

func newMigrateLlamaSwap() *cobra.Command {
	var m migration
	var env []string
	cmd := &cobra.Command{
		Use:   "llama-swap FILE",
		Short: "Make services of the models in llama-swap's config.yaml",
		Long: `Make a service of each model in llama-swap's configuration, with its command, and a
Route for its aliases. Groups become residency. Macros are put in; so are variables of
the environment that --env names, and no others: they may be secrets.`,
		Example: `  roundhouse migrate llama-swap config.yaml
  roundhouse migrate llama-swap config.yaml --env HOME --output models/`,
		Args: command.Wants(1, 1, "llama-swap's config.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			variables := map[string]string{}
			for _, name := range env {
				value, ok := os.LookupEnv(name)
				if !ok {
					return command.Usagef("--env %s: there is no such variable", name)
				}
				variables[name] = value
			}
			root, _, err := openFolder(filepath.Dir(args[0]))
			if err != nil {
				return err
			}
			defer func() { _ = root.Close() }()
			out, err := migrate.LlamaSwap(root.FS(), filepath.Base(args[0]), variables, m.gpu)
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%s: %w", args[0], command.Cause(err))
			}
			return m.print(cmd, out, err)
		},
	}
	m.flags(cmd)
	m.gpuFlag(cmd)
	cmd.Flags().StringArrayVar(&env, "env", nil, "variable of the environment whose value may be put in for ${env.NAME}; may be repeated")
	return cmd
}

func newMigrateOllama() *cobra.Command {
	var m migration
	cmd := &cobra.Command{
		Use:   "ollama [FOLDER]",
		Short: "Make services of the models that Ollama has fetched",
		Long: `Make a service of each model that Ollama has fetched, with a Route for Ollama's names
of it. The files stay where they are, and are served by llama.cpp's llama-server.
FOLDER is that of OLLAMA_MODELS; by default ~/.ollama/models.`,
		Example: `  roundhouse migrate ollama
  roundhouse migrate ollama /usr/share/ollama/.ollama/models --output models/`,
		Args: command.Wants(0, 1, "the folder of Ollama's models"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				home, err := os.UserHomeDir()
				if err != nil {
					return err
				}
				args = []string{filepath.Join(home, ".ollama", "models")}
			}
			root, dir, err := openFolder(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = root.Close() }()
			out, err := migrate.Ollama(root.FS(), dir, m.gpu)
			return m.print(cmd, out, err)
		},
	}
	m.flags(cmd)
	m.gpuFlag(cmd)
	return cmd
}

func newMigrateKServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kserve [FILE|FOLDER…]",
		Short: "Make services of KServe's manifests, in files or in a cluster",
		Example: `  roundhouse migrate kserve manifests/
  roundhouse migrate kserve --context production --namespace models`,
	}
	return migratesManifests(cmd, "KServe", service.DialectKServe)
}

func newMigrateOME() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ome [FILE|FOLDER…]",
		Short: "Make services of OME's manifests, in files or in a cluster",
		Example: `  roundhouse migrate ome manifests/
  roundhouse migrate ome --context production --namespace models`,
	}
	return migratesManifests(cmd, "OME", service.DialectOME)
}

// migratesManifests completes the command of a project whose manifests we read.
func migratesManifests(cmd *cobra.Command, project string, of service.Dialect) *cobra.Command {
	var m migration
	var r remote
	var n namespaced
	cmd.Long = `Make a ModelService of each InferenceService of ` + project + `, in files or, with --context, in
a cluster. Roundhouse reads ` + project + `'s manifests too, so this is a choice: a manifest that
a ModelService cannot say the same as is printed as it is, and so are runtimes and models.`
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		named := cmd.Flags().Changed("context") || cmd.Flags().Changed("kubeconfig")
		if len(args) > 0 && named || len(args) == 0 && !r.meansCluster() {
			return command.Usagef("give either files and folders, or --context of a cluster")
		}
		if len(args) == 0 {
			manifests, err := r.authored(cmd, &n)
			return m.print(cmd, migrate.Manifests(of, manifests, dialect.Kubernetes), err)
		}
		files, err := manifestfile.Read(args, command.Stdin(cmd))
		if err != nil {
			return err
		}
		var manifests []migrate.Manifest
		for _, f := range files {
			one := migrate.Manifest{Name: f.Name, Data: []byte(f.Data)}
			if one.Folder, err = filepath.Abs(filepath.Dir(f.Name)); err != nil {
				return err
			}
			manifests = append(manifests, one)
		}
		return m.print(cmd, migrate.Manifests(of, manifests, dialect.Process), nil)
	}
	m.flags(cmd)
	r.clusterFlags(cmd)
	n.flags(cmd)
	return cmd
}

// authored are the manifests of a cluster as they were written: of all its namespaces,
// or of the one that is named.
func (r *remote) authored(cmd *cobra.Command, n *namespaced) ([]migrate.Manifest, error) {
	if err := r.settle(n); err != nil {
		return nil, err
	}
	namespace := ""
	if cmd.Flags().Changed("namespace") {
		namespace = n.namespace
	}
	c := r.Cluster(cmd.ErrOrStderr())
	var out []migrate.Manifest
	for _, id := range []string{"runtime", "model", "service"} {
		list, refused, err := c.Manifests(cmd.Context(), id, namespace)
		if err != nil {
			return nil, err
		}
		for _, err := range refused {
			c.Warn(err)
		}
		for _, o := range list {
			out = append(out, migrate.Manifest{Name: "cluster " + o.Key.String(), Data: []byte(o.Authored())})
		}
	}
	return out, nil
}

// openFolder opens a folder, out of which no path leads, and returns its absolute path.
func openFolder(folder string) (*os.Root, string, error) {
	dir, err := filepath.Abs(folder)
	if err != nil {
		return nil, "", err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", folder, command.Cause(err))
	}
	return root, dir, nil
}

// print prints what was made, or writes it to the folder, and its notes.
func (m *migration) print(cmd *cobra.Command, out *migrate.Migration, err error) error {
	if err != nil {
		return err
	}
	notes := command.Visible(cmd.ErrOrStderr())
	for _, n := range out.Notes {
		_, _ = fmt.Fprintf(notes, "note: %s\n", n)
	}
	for i, d := range out.Documents {
		text, err := d.YAML()
		if err != nil {
			return fmt.Errorf("%s: %w", d.From, err)
		}
		for _, n := range d.Notes {
			_, _ = fmt.Fprintf(notes, "note: %s: %s\n", d.From, n)
		}
		if err := m.write(command.Visible(cmd.OutOrStdout()), d.Name, text, i == 0); err != nil {
			return err
		}
	}
	for _, l := range out.Left {
		_, _ = fmt.Fprintf(notes, "left out: %s\n", l)
	}
	switch {
	case len(out.Left) > 0:
		return fmt.Errorf("%s left out", command.Count(len(out.Left), "thing"))
	case len(out.Documents) == 0:
		return errors.New("there is nothing to migrate")
	}
	return nil
}

func (m *migration) write(out io.Writer, name, text string, first bool) error {
	if m.output == "" {
		if !first {
			text = "---\n" + text
		}
		_, err := io.WriteString(out, text)
		return err
	}
	if err := os.MkdirAll(m.output, 0o755); err != nil {
		return err
	}
	path := filepath.Join(m.output, name+".yaml")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there already: remove it, or give --output another folder", path)
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(f, strings.NewReader(text))
	return errors.Join(err, f.Close())
}
