package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/inference"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func newInferCommand() *cobra.Command {
	var r remote
	var n namespaced
	var b batchFlags
	var data string
	timeout := seconds(10 * time.Minute)
	cmd := &cobra.Command{
		Use:   "infer NAME -d REQUEST",
		Short: "Send a model one request, or every line of a file",
		Long: `Send a model one request and print the answer. The request is the JSON of the
model's protocol, sent unchanged: {"inputs": …} goes to the Open Inference Protocol,
{"instances": …} to KServe v1, and {"messages": …}, {"prompt": …} or {"input": …} to
the OpenAI paths. A model that is asleep is started first.

With -i and -o, each line of a file is a request. The answers are written to the
other file, one a line, in the same order; the answer of a failed request has the
field "error". The flags and the MLSERVER_INFER_ variables are those of mlserver
infer.`,
		Example: `  roundhouse infer iris -d @examples/quickstart/iris-request.json
  roundhouse infer iris -d '{"instances": [[5.1, 3.5, 1.4, 0.2]]}'
  cat request.json | roundhouse infer iris
  roundhouse infer iris -d @request.json --context production   # through the API server
  roundhouse infer iris -i requests.jsonl -o answers.jsonl --workers 32
  roundhouse infer -u localhost:8080 -m iris -i requests.jsonl -o answers.jsonl`,
		Args: command.Wants(0, 1, "the name of the model"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.settle(&n); err != nil {
				return err
			}
			k, err := b.subject(cmd, args, &r, &n)
			if err != nil {
				return err
			}
			if b.on() {
				return b.run(cmd, k, &r, time.Duration(timeout))
			}
			body, err := requestBody(data, command.Stdin(cmd))
			if err != nil {
				return err
			}
			path, body, err := inference.Surface(k, k.Short(), body)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Duration(timeout))
			defer cancel()
			gateway, err := r.Inference(ctx)
			if err != nil {
				return err
			}
			stop := watchWait(ctx, &r, k, cmd.ErrOrStderr())
			resp, err := gateway.Post(ctx, path, body)
			stop()
			if err != nil {
				return err
			}
			defer func() { _ = resp.Body.Close() }()
			return printAnswer(cmd.OutOrStdout(), resp)
		},
	}
	r.flags(cmd)
	r.gatewayFlag(cmd)
	n.flags(cmd)
	cmd.Flags().StringVarP(&data, "data", "d", "", "JSON of the request, or @FILE (default: standard input)")
	cmd.Flags().Var(&timeout, "timeout", "how long to wait for the answer, with the start of a replica; with -i, for one try")
	b.flags(cmd)
	return cmd
}

func requestBody(data string, in io.Reader) ([]byte, error) {
	switch {
	case strings.HasPrefix(data, "@") && data != "@-":
		raw, err := os.ReadFile(data[1:])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", data[1:], command.Cause(err))
		}
		return raw, nil
	case data != "" && data != "@-":
		return []byte(data), nil
	}
	if command.IsTerminal(in) {
		return nil, command.Usagef("give the request with -d JSON, -d @FILE or on standard input")
	}
	raw, err := io.ReadAll(io.LimitReader(in, inference.MaxRequestBytes+1))
	if err == nil && len(raw) > inference.MaxRequestBytes {
		return nil, fmt.Errorf("the request is over %d bytes", inference.MaxRequestBytes)
	}
	return raw, err
}

// printAnswer prints an answer. JSON ends with a newline; on a terminal it is
// indented.
func printAnswer(w io.Writer, resp *http.Response) error {
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		_, err := io.Copy(w, resp.Body)
		return err
	}
	if f, ok := w.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		var end lastByte
		_, err := io.Copy(io.MultiWriter(w, &end), resp.Body)
		if err == nil && end != '\n' {
			_, err = io.WriteString(w, "\n")
		}
		return err
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var pretty bytes.Buffer
	if json.Indent(&pretty, raw, "", "  ") != nil {
		pretty = *bytes.NewBuffer(raw)
	}
	_, err = fmt.Fprintln(w, strings.TrimSpace(pretty.String()))
	return err
}

// lastByte is the last that was written.
type lastByte byte

// Write implements io.Writer.
func (l *lastByte) Write(p []byte) (int, error) {
	if len(p) > 0 {
		*l = lastByte(p[len(p)-1])
	}
	return len(p), nil
}

// watchWait shows on a terminal what a request waits for: a bar of the model's
// download, or a line with the phase of the replica.
func watchWait(ctx context.Context, r *remote, k service.Key, w io.Writer) (stop func()) {
	spinner, bar := progress.NewSpinner(w), progress.New(w)
	spinner.Start()
	up, err := r.Up()
	if !bar.On() || err != nil || r.InCluster {
		return spinner.Stop
	}
	ctx, cancel := context.WithCancel(ctx)
	ended, began := make(chan struct{}), time.Now()
	go func() {
		defer close(ended)
		// Errors are the request's to report.
		_, _ = backend.Await(ctx, up, k, func(s admin.Service) bool {
			if bar.Downloads(s) {
				spinner.Hide()
			} else {
				spinner.Say(s.Waiting(began, time.Now()).String())
			}
			return false
		}, time.Hour, bar)
	}()
	return func() { cancel(); <-ended; spinner.Stop() }
}

func newChatCommand() *cobra.Command {
	var r remote
	var n namespaced
	var system string
	var maxTokens int
	cmd := &cobra.Command{
		Use:   "chat NAME [MESSAGE…]",
		Short: "Chat with a model: one message, or a conversation",
		Example: `  roundhouse chat chat "What is a roundhouse?"
  roundhouse chat chat
  echo "Hello" | roundhouse chat chat
  roundhouse chat chat --context production "Hello"`,
		Args: command.Wants(1, -1, "the name of a model"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.settle(&n); err != nil {
				return err
			}
			k := n.key(args[0])
			c := &inference.Conversation{Gateway: r.Inference, Model: k.Short(), System: system, MaxTokens: maxTokens, Out: cmd.OutOrStdout(),
				Waiting: progress.NewSpinner(cmd.ErrOrStderr())}
			if len(args) > 1 {
				return c.Say(cmd.Context(), strings.Join(args[1:], " "))
			}
			if command.Conversing(cmd) {
				return c.Converse(cmd.Context(), cmd.InOrStdin().(*os.File))
			}
			raw, err := io.ReadAll(io.LimitReader(command.Stdin(cmd), inference.MaxRequestBytes))
			if err != nil {
				return err
			}
			return c.Say(cmd.Context(), strings.TrimSpace(string(raw)))
		},
	}
	r.flags(cmd)
	r.gatewayFlag(cmd)
	n.flags(cmd)
	cmd.Flags().StringVar(&system, "system", "", "system message of the conversation")
	cmd.Flags().IntVar(&maxTokens, "max-tokens", 0, "most tokens of an answer; 0 for the default of the server")
	return cmd
}
