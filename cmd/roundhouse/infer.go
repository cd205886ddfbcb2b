package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// maxRequestBytes bounds a request read from a file or standard input.
const maxRequestBytes = 64 << 20

func newInferCommand() *cobra.Command {
	var r remote
	var n namespaced
	var b batchInfer
	var data string
	timeout := seconds(10 * time.Minute)
	cmd := &cobra.Command{
		Use:   "infer NAME -d REQUEST",
		Short: "Send a model one request, or every line of a file",
		Long: `Ask a model once and print its answer. The request is the JSON of the protocol
the model speaks, sent as it is: {"inputs": …} goes to the Open Inference
Protocol, {"instances": …} to KServe v1, and {"messages": …}, {"prompt": …} or
{"input": …} to OpenAI's paths. A model that is asleep is started first.

With -i and -o, every line of a file is a request, and the answers are the lines
of another, in the same order; a request that fails leaves a line with "error".
The flags and the MLSERVER_INFER_ variables are those of mlserver infer.`,
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
			k, err := b.subject(cmd, args, &r, n)
			if err != nil {
				return err
			}
			if b.on() {
				return b.through(cmd, k, &r, time.Duration(timeout))
			}
			body, err := requestBody(data, stdin(cmd))
			if err != nil {
				return err
			}
			path, body, err := surface(k, modelName(k), body)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Duration(timeout))
			defer cancel()
			stop := watchDownload(ctx, &r, k)
			resp, err := r.ask(ctx, path, body)
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
	cmd.Flags().StringVarP(&data, "data", "d", "", "the request's JSON, or @FILE; standard input otherwise")
	cmd.Flags().Var(&timeout, "timeout", "how long to wait, a start included; with -i, for one try")
	b.flags(cmd)
	return cmd
}

func requestBody(data string, in io.Reader) ([]byte, error) {
	switch {
	case strings.HasPrefix(data, "@") && data != "@-":
		raw, err := os.ReadFile(data[1:])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", data[1:], bare(err))
		}
		return raw, nil
	case data != "" && data != "@-":
		return []byte(data), nil
	}
	if isTerminal(in) {
		return nil, command.Usagef("give the request with -d JSON, -d @FILE or on standard input")
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxRequestBytes+1))
	if err == nil && len(raw) > maxRequestBytes {
		return nil, fmt.Errorf("the request is over %d bytes", maxRequestBytes)
	}
	return raw, err
}

// modelName is how requests name a service: bare in the default namespace.
func modelName(k service.Key) string {
	if k.Namespace == service.DefaultNamespace {
		return k.Name
	}
	return k.String()
}

// surface is the path a request goes to, told by what it holds. OpenAI's
// bodies carry the model's name, so it is put in where it is missing.
func surface(k service.Key, model string, body []byte) (string, []byte, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return "", nil, errors.New("the request is empty: give it with -d JSON, -d @FILE or on standard input")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return "", nil, fmt.Errorf("the request is no JSON object, but of kind %s: write {\"inputs\": …}, {\"instances\": …} or what the model's protocol asks for", kind.Value)
		}
		return "", nil, fmt.Errorf("the request is no JSON object: %w", err)
	}
	has := func(name string) bool { _, ok := fields[name]; return ok }
	openAI := func(path string) (string, []byte, error) {
		if !has("model") {
			name, _ := json.Marshal(model)
			rest := bytes.TrimSpace(body)[1:]
			body = append(append([]byte(`{"model":`), name...), append([]byte(","), rest...)...)
		}
		return path, body, nil
	}
	switch {
	case has("inputs"):
		return "/v2/models/" + url.PathEscape(model) + "/infer", body, nil
	case has("instances"):
		return "/v1/models/" + url.PathEscape(model) + ":predict", body, nil
	case has("messages"):
		return openAI("/v1/chat/completions")
	case has("prompt"):
		return openAI("/v1/completions")
	case has("input"):
		return openAI("/v1/embeddings")
	}
	return "", nil, fmt.Errorf("the request for %s has none of inputs, instances, messages, prompt and input: one of them says which protocol it is of", k)
}

// ask sends one request through the gateway. An answer that is not a success
// is an error in the server's words.
func (r *remote) ask(ctx context.Context, path string, body []byte) (*http.Response, error) {
	base, client, err := r.gate(ctx)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	authorize(req.Header)
	resp, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return nil, fmt.Errorf("no answer within the --timeout: `roundhouse describe NAME` says whether the model is ready")
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case r.proxied():
			return nil, err
		}
		return nil, &admin.UnreachableError{Base: base, Flag: "--gateway", Err: err}
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	text := errorText(raw)
	if r.proxied() && apiServers(raw) {
		return nil, fmt.Errorf("the API server does not pass the request on to the gateway: %s", text)
	}
	if resp.StatusCode == http.StatusUnauthorized {
		text += "; this command sends the key in ROUNDHOUSE_API_KEY"
	}
	return nil, fmt.Errorf("%s: %s", resp.Status, text)
}

// errorText is the message in an error body of any of the surfaces.
func errorText(raw []byte) string {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	var nested struct {
		Message string `json:"message"`
	}
	var text string
	if json.Unmarshal(raw, &e) == nil {
		switch {
		case json.Unmarshal(e.Error, &text) == nil && text != "":
			return text
		case json.Unmarshal(e.Error, &nested) == nil && nested.Message != "":
			return nested.Message
		case e.Message != "":
			return e.Message
		}
	}
	return strings.TrimSpace(string(raw))
}

// printAnswer prints JSON readably on a terminal and as it came elsewhere.
func printAnswer(w io.Writer, resp *http.Response) error {
	if f, ok := w.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		_, err := io.Copy(w, resp.Body)
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

// watchDownload shows on a terminal why a request waits: the model on its way.
func watchDownload(ctx context.Context, r *remote, k service.Key) (stop func()) {
	p := newProgress(os.Stderr)
	c, err := r.client()
	if !p.on || err != nil || r.inCluster() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// Errors are the request's to report.
		_, _ = await(ctx, c, k, func(admin.Service) bool { return false }, time.Hour, p)
	}()
	return func() { cancel(); <-ended }
}
