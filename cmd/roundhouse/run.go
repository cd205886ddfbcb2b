package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/inference"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// running is `roundhouse run`.
type running struct {
	remote
	namespaced
	name, format, runtime string
	dry, detach           bool
	output                string // with dry
	timeout               time.Duration
}

func newRunCommand() *cobra.Command {
	var r running
	cmd := &cobra.Command{
		Use:   "run MODEL",
		Short: "Serve a model by its address alone, and chat with it or show how to ask",
		Long: `Serve a model by its address alone: a file or folder, or a URI (hf://, s3://, gs://,
az://, https://, oci://). ORG/NAME, where there is no such file, is a model of the
Hugging Face Hub. The runtime is chosen as for any service; the download and the start
are shown. With a model that chats, in a terminal, a chat begins; else a request that
the model answers is printed.

It stays a service, as one from a manifest: it stops while it is idle, starts at a
request, and ` + "`roundhouse delete NAME`" + ` removes it. --dry-run prints the manifest, to be kept
and changed. Needs a running ` + "`roundhouse up`" + `, or a cluster (--context).`,
		Example: `  roundhouse run Qwen/Qwen2.5-0.5B-Instruct
  roundhouse run ./models/iris.ubj --as iris
  roundhouse run s3://models/llama --runtime vllm --detach
  roundhouse run hf://org/model --dry-run > model.yaml`,
		Args: command.Wants(1, 1, "the address of a model"),
		RunE: func(cmd *cobra.Command, args []string) error { return r.run(cmd, args[0]) },
	}
	r.remote.flags(cmd)
	r.gatewayFlag(cmd)
	r.namespaced.flags(cmd)
	cmd.Flags().StringVar(&r.name, "as", "", "name of the service (default: from the model's)")
	cmd.Flags().StringVar(&r.format, "format", "", "format of the model, where its files do not tell: sklearn, onnx, …")
	cmd.Flags().StringVar(&r.runtime, "runtime", "", "runtime to serve it with (default: the best that fits)")
	cmd.Flags().BoolVar(&r.dry, "dry-run", false, "print the manifest, and change nothing")
	command.OutputFlag(cmd, &r.output, "with --dry-run: yaml or json (default: yaml)", "yaml", "json")
	cmd.Flags().BoolVar(&r.detach, "detach", false, "begin no chat: print a request that the model answers")
	cmd.Flags().DurationVar(&r.timeout, "timeout", 30*time.Minute, "how long to wait for the model's first replica")
	return cmd
}

func (r *running) run(cmd *cobra.Command, model string) error {
	uri, err := modelURI(model)
	if err != nil {
		return err
	}
	if r.name == "" {
		if r.name = serviceName(model); r.name == "" {
			return command.Usagef("%s gives no name: give one with --as", model)
		}
	}
	out := cmd.OutOrStdout()
	if r.dry {
		return r.print(out, uri)
	}
	if r.output != "" {
		return command.Usagef("--output says how --dry-run prints the manifest: give both")
	}
	b, err := r.open(cmd, &r.namespaced)
	if err != nil {
		return err
	}
	k := r.key(r.name)
	if err := r.free(cmd.Context(), b, k); err != nil {
		return err
	}
	file := admin.File{Name: "run", Data: r.manifest(uri)}
	o := applyOptions{files: []admin.File{file}, out: cmd.ErrOrStderr(), err: cmd.ErrOrStderr(), progress: progress.New(cmd.ErrOrStderr())}
	if err := apply(cmd.Context(), b, o); err != nil {
		return err
	}
	s, err := r.started(cmd, b, k, o.progress)
	if err != nil {
		return err
	}
	if s.Status.Protocol == service.ProtocolOpenAI && !r.detach && command.Conversing(cmd) {
		c := &inference.Conversation{Gateway: r.Inference, Model: k.Short(), Out: out, Waiting: progress.NewSpinner(cmd.ErrOrStderr())}
		return c.Converse(cmd.Context(), cmd.InOrStdin().(*os.File))
	}
	g, err := r.Inference(cmd.Context())
	if err != nil {
		return err
	}
	for _, line := range inference.Example(g.Base, k, s.Status.Protocol, "") {
		_, _ = fmt.Fprintln(out, line)
	}
	chat := ""
	if s.Status.Protocol == service.ProtocolOpenAI {
		chat = fmt.Sprintf("`roundhouse chat %s` chats with it, ", r.name)
	}
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s`roundhouse logs %[2]s` shows its log, `roundhouse delete %[2]s` removes it.\n", chat, r.name)
	return nil
}

// free reports a service of another model that has the name.
func (r *running) free(ctx context.Context, b backend.Backend, k service.Key) error {
	s, err := b.Service(ctx, k)
	var api *admin.APIError
	switch {
	case errors.As(err, &api) && api.Status == 404, err != nil && strings.HasPrefix(err.Error(), "no service "):
		return nil
	case err != nil:
		return err
	case s.File != "run":
		return fmt.Errorf("there is a service %s already, from %s: give this one another name with --as", k, orUnknown(s.File))
	}
	return nil
}

func orUnknown(file string) string {
	if file == "" {
		return "a manifest"
	}
	return file
}

// started starts the model's first replica, and waits for it.
func (r *running) started(cmd *cobra.Command, b backend.Backend, k service.Key, bar *progress.Bar) (admin.Service, error) {
	if _, err := b.Wake(cmd.Context(), k); err != nil {
		return admin.Service{}, err
	}
	until := func(s admin.Service) bool {
		return backend.Settled(s) && (r.InCluster || len(s.Replicas) > 0 || s.Ready().Status != "True")
	}
	s, err := backend.Await(cmd.Context(), b, k, until, r.timeout, bar)
	if err == nil && s.Ready().Status != "True" {
		err = fmt.Errorf("%s is not ready: %s; `roundhouse describe %s` shows more, `roundhouse delete %s` removes it", k, s.Ready().Message, r.name, r.name)
	}
	return s, err
}

// manifest is the service.
func (r *running) manifest(uri string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata:\n  name: %s\n", r.name)
	if r.remote.cmd.Flags().Changed("namespace") {
		fmt.Fprintf(&b, "  namespace: %s\n", r.namespace)
	}
	fmt.Fprintf(&b, "spec:\n  model:\n    uri: %q\n", uri)
	if r.format != "" {
		fmt.Fprintf(&b, "    format: {name: %q}\n", r.format)
	}
	if r.runtime != "" {
		fmt.Fprintf(&b, "  runtime: {name: %q}\n", r.runtime)
	}
	b.WriteString("  scaling:\n    minReplicas: 0\n")
	return b.String()
}

// print writes the manifest of a model, as YAML or JSON.
func (r *running) print(to io.Writer, uri string) error {
	text := []byte(r.manifest(uri))
	if r.output == "json" {
		tight, err := yaml.YAMLToJSON(text)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := json.Indent(&b, tight, "", "  "); err != nil {
			return err
		}
		text = append(b.Bytes(), '\n')
	}
	_, err := to.Write(text)
	return err
}

// hubName is a model of the Hugging Face Hub, with a revision or without.
var hubName = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*/[\w.-]+(:[\w.-]+)?$`)

// modelURI is the URI of a model's address.
func modelURI(model string) (string, error) {
	path, local := service.LocalPath(model)
	if !local {
		return model, nil
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	_, err = os.Stat(abs)
	switch {
	case err == nil:
		return "file://" + abs, nil
	case hubName.MatchString(model) && !meantFile(model):
		return "hf://" + model, nil
	case hubName.MatchString(model):
		return "", fmt.Errorf("%w; if it is a model of the Hugging Face Hub, write hf://%s", err, model)
	}
	return "", fmt.Errorf("%w: give a file, a folder, a URI such as s3://BUCKET/PATH, or ORG/NAME of the Hugging Face Hub", err)
}

// meantFile reports whether a name of the form ORG/NAME, of which there is no file, was
// meant as one: it ends as files of models do, or its folder is here.
func meantFile(model string) bool {
	if slices.Contains(fileEndings, strings.ToLower(filepath.Ext(model))) {
		return true
	}
	folder, _, _ := strings.Cut(model, "/")
	at, err := os.Stat(folder)
	return err == nil && at.IsDir()
}

// fileEndings are those of models' files and archives.
var fileEndings = []string{".gz", ".tar", ".tgz", ".zip", ".json", ".ubj", ".joblib", ".pkl", ".pickle", ".onnx", ".gguf", ".txt", ".bst", ".model", ".pt",
	".pth", ".safetensors", ".bin", ".cbm", ".pmml", ".mar", ".h5", ".keras", ".dill", ".pdmodel"}

// serviceName is a service's name made of a model's: a DNS label of at most 40
// characters.
func serviceName(model string) string {
	path, _, _ := strings.Cut(model, "?")
	path = strings.TrimSuffix(path, "/")
	name := path[strings.LastIndexAny(path, "/\\")+1:]
	name, _, _ = strings.Cut(name, ":")
	for _, ext := range fileEndings {
		name = strings.TrimSuffix(name, ext)
	}
	name = regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(name), "-")
	return strings.Trim(name[:min(len(name), 40)], "-")
}
