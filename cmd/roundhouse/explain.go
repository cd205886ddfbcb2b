package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/manifestfile"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func newExplainCommand() *cobra.Command {
	var r remote
	var n namespaced
	var files []string
	var output string
	var all bool
	cmd := &cobra.Command{
		Use:   "explain NAME… | FILE | -f FILE",
		Short: "Explain why a runtime was chosen, and why others were not",
		Long: `Show which runtimes fit a service, in order of preference, and why the nearest
others do not fit. --all shows for every runtime which rules it passed and failed.
The service is one that is applied, or one in a file. If no server is running, a
file is explained for this machine and the catalog; with --context, for the runtimes
of a cluster and the catalog.`,
		Example: `  roundhouse explain iris
  roundhouse explain iris.yaml
  roundhouse explain iris --all
  roundhouse explain iris -o json
  roundhouse explain iris.yaml --context production
  roundhouse explain request chat.json   # which replica would answer it, and why
  roundhouse explain wake llama          # what would be stopped for it, how long it would take
  roundhouse explain scale llama         # its last scaling decisions, and why`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var names []string
			for _, a := range args {
				switch {
				case isFile(a):
					files = append(files, a)
				case looksLikeFile(a):
					return fmt.Errorf("%s: no such file or directory", a)
				default:
					names = append(names, a)
				}
			}
			if len(names)+len(files) == 0 {
				return command.Usagef("give the name of a service or a manifest file")
			}
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			out, err := explanations(cmd, c, &n, names, files)
			if err != nil {
				return err
			}
			return printer.Explanations(cmd.OutOrStdout(), out, output, all)
		},
	}
	cmd.AddCommand(newExplainRequestCommand(), newExplainWakeCommand(), newExplainScaleCommand())
	r.flags(cmd)
	n.flags(cmd)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "a manifest file or folder; may be repeated")
	command.OutputFlag(cmd, &output, "json, with every detail", "json")
	cmd.Flags().BoolVar(&all, "all", false, "show every runtime and every rule")
	return cmd
}

func isFile(arg string) bool {
	_, err := os.Stat(arg)
	return err == nil && (strings.ContainsAny(arg, "/.") || arg == "-")
}

// looksLikeFile reports whether an argument cannot be the name of a service.
func looksLikeFile(arg string) bool {
	return strings.HasPrefix(arg, ".") || strings.HasPrefix(arg, "/") || slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(arg))
}

func explanations(cmd *cobra.Command, c backend.Backend, n *namespaced, names, files []string) ([]admin.Explanation, error) {
	var out []admin.Explanation
	for _, name := range names {
		ex, err := c.Explain(cmd.Context(), n.key(name))
		if err != nil {
			return nil, err
		}
		out = append(out, ex...)
	}
	if len(files) == 0 {
		return out, nil
	}
	manifests, err := manifestfile.Read(files, command.Stdin(cmd))
	if err != nil {
		return nil, err
	}
	ex, err := c.ExplainFiles(cmd.Context(), admin.ApplyRequest{Files: manifests})
	var nobody *admin.UnreachableError
	if errors.As(err, &nobody) {
		ex, err = app.Explain(cmd.Context(), manifests)
	}
	if err != nil {
		return nil, err
	}
	if len(ex) == 0 {
		return nil, fmt.Errorf("%s: the file has no service to explain", strings.Join(files, ", "))
	}
	return append(out, ex...), nil
}

func newExplainRequestCommand() *cobra.Command {
	var r remote
	var in admin.InferenceRequest
	var headers []string
	var output, id string
	cmd := &cobra.Command{
		Use:   "request FILE",
		Short: "Explain where a request would go now: route, queueing, replica, and why",
		Long: `Show what would happen to a request now: its route, whether it is admitted, queued
or shed, and the replica that would answer it, with the result of every filter and
scorer. The request is not sent, and no replica is started. FILE is the body of the
request; - reads standard input.

With --id, and without a file, show what became of one of the last 2,000 requests, and
beside what was predicted of it when it was sent to its replica what it took: to the
first token, and for each further one. Its ID is what the header X-Request-Id of the
answer says; requests -o json lists them.`,
		Example: `  roundhouse explain request chat.json
  echo '{"model":"chat","messages":[{"role":"user","content":"Hello"}]}' | roundhouse explain request -
  roundhouse explain request rows.json --path /v2/models/iris/infer
  roundhouse explain request --id 7f3a9c52d8e14b06`,
		Args: command.Wants(0, 1, "the file with the body of a request, or --id for one that was answered"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case id != "" && len(args) > 0:
				return command.Usagef("--id %s is of a request that was answered, and %s of one that is not sent: give one of the two", id, args[0])
			case id != "":
				return explainOutcome(cmd, &r, id, output)
			case len(args) == 0:
				return command.Usagef("name the file with the body of a request, - for standard input, or one that was answered by --id")
			}
			body, err := requestBody("@"+args[0], command.Stdin(cmd))
			if err != nil {
				return err
			}
			in.Body = string(body)
			guessed := in.Path == ""
			if guessed {
				in.Path = openAIPath(body)
			}
			if in.Header, err = headersOf(headers); err != nil {
				return err
			}
			c, err := r.open(cmd, nil)
			if err != nil {
				return err
			}
			why, err := c.ExplainRequest(cmd.Context(), in)
			if err != nil {
				if guessed {
					return fmt.Errorf("%w (path %s; choose another with --path)", err, in.Path)
				}
				return err
			}
			if output == "json" {
				err = printer.Explanations(cmd.OutOrStdout(), []admin.Explanation{why}, output, true)
			} else {
				_, err = fmt.Fprint(cmd.OutOrStdout(), why.Text)
			}
			return errors.Join(err, refusal(why))
		},
	}
	r.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&in.Path, "path", "", "path of the request (default: the OpenAI path that fits the body)")
	f.StringVar(&in.Host, "host", "", "host of the request")
	f.StringVar(&id, "id", "", "of a request that was answered: show its outcome beside what was predicted")
	f.StringArrayVarP(&headers, "header", "H", nil, `a header, "Name: value"; may be repeated`)
	command.OutputFlag(cmd, &output, "json", "json")
	return cmd
}

// headersOf reads headers that are given as "Name: value".
func headersOf(lines []string) (map[string]string, error) {
	out := map[string]string{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, command.Usagef("--header %q: want \"Name: value\"", line)
		}
		out[name] = strings.TrimSpace(value)
	}
	return out, nil
}

// explainOutcome prints what became of the last request with an ID.
func explainOutcome(cmd *cobra.Command, r *remote, id, output string) error {
	c, err := r.open(cmd, nil)
	if err != nil {
		return err
	}
	all, err := c.Requests(cmd.Context(), admin.RequestQuery{ID: id})
	switch {
	case err != nil:
		return err
	case len(all) == 0:
		return fmt.Errorf("none of the last requests has the ID %q: roundhouse requests -o json lists them", id)
	case output == "json":
		return printer.JSON(cmd.OutOrStdout(), all[len(all)-1])
	}
	return printer.Outcome(cmd.OutOrStdout(), &all[len(all)-1])
}

func newExplainWakeCommand() *cobra.Command {
	var r remote
	var n namespaced
	var output string
	cmd := &cobra.Command{
		Use:   "wake SERVICE",
		Short: "Explain what a request to a service would start and stop now",
		Long: `Show what a request to a service would do now on this machine: whether its replica
fits, which idle services would be stopped for it and why these, whom it would wait
for, or why it would be refused; what each role needs and where that is known from,
and how long a start takes. Nothing is started
or stopped. In a cluster Kubernetes places replicas, and there is nothing to explain.`,
		Example: `  roundhouse explain wake llama
  roundhouse explain wake llama -o json`,
		Args: command.Wants(1, 1, "the name of a service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			why, err := c.ExplainWake(cmd.Context(), n.key(args[0]))
			if err != nil {
				return err
			}
			if output == "json" {
				return printer.Explanations(cmd.OutOrStdout(), []admin.Explanation{why}, output, true)
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), why.Text)
			return err
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	command.OutputFlag(cmd, &output, "json", "json")
	return cmd
}

func newExplainScaleCommand() *cobra.Command {
	var r remote
	var n namespaced
	var output string
	cmd := &cobra.Command{
		Use:   "scale SERVICE",
		Short: "Explain the last scaling decisions of a service",
		Long: `Show how many replicas each component of a service was to have, and why: a line for
each decision that changed something, and for others at most one every 10 s where it
differs from the one before. ARRIVALS/S
are the requests that came per second, SERVICE TIME is how long one runs, LOAD how many
run at a time, and BACKLOG how many there are beyond that. In a terminal a line of bars
shows the desired replicas over time. The decisions are those since this server started,
at most 120 for each component. In a cluster they are those that changed the number, as
the events of the last hour have them: when, to how many, and why.`,
		Example: `  roundhouse explain scale llama
  roundhouse explain scale llama -o json
  roundhouse explain scale llama --context production
  watch -n 2 roundhouse explain scale llama`,
		Args: command.Wants(1, 1, "the name of a service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			past, err := c.ExplainScale(cmd.Context(), n.key(args[0]))
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			f, isFile := out.(*os.File)
			return printer.ScaleHistories(out, past, output, isFile && term.IsTerminal(int(f.Fd())))
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	command.OutputFlag(cmd, &output, "json", "json")
	return cmd
}

// refusal returns an error if the request would be shed.
func refusal(why admin.Explanation) error {
	var facts struct {
		Pool, Refused     string
		Decision, Because string
	}
	if err := json.Unmarshal(why.Facts, &facts); err != nil || facts.Decision != string(admission.Shed) {
		return err
	}
	return fmt.Errorf("the request would be refused: %s: %s", facts.Pool, cmp.Or(facts.Refused, facts.Because))
}

// openAIPath is where OpenAI's clients send such a body.
func openAIPath(body []byte) string {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(body, &members) // the server reports errors
	switch {
	case members["prompt"] != nil:
		return "/v1/completions"
	case members["input"] != nil:
		return "/v1/embeddings"
	}
	return "/v1/chat/completions"
}
