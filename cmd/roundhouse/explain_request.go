package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func newExplainRequestCommand() *cobra.Command {
	var r remote
	var in admin.InferenceRequest
	var headers []string
	var output string
	cmd := &cobra.Command{
		Use:   "request FILE",
		Short: "Explain where a request would go now: its route, whether it waits, which replica, and why",
		Long: `Say what would become of a request if it came now: the route it takes, whether it
goes on, waits or is shed, and the replica that would answer it, with what every
filter and scorer says of each. Nobody is asked or woken. FILE is the request's
body; - reads standard input.`,
		Example: `  roundhouse explain request chat.json
  echo '{"model":"chat","messages":[{"role":"user","content":"Hello"}]}' | roundhouse explain request -
  roundhouse explain request rows.json --path /v2/models/iris/infer`,
		Args: command.Wants(1, 1, "the file of a request's body"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return command.Usagef("-o %s: choose json, or nothing for text", output)
			}
			body, err := requestBody("@"+args[0], stdin(cmd))
			if err != nil {
				return err
			}
			in.Body = string(body)
			guessed := in.Path == ""
			if guessed {
				in.Path = openAIPath(body)
			}
			for _, h := range headers {
				name, value, ok := strings.Cut(h, ":")
				if !ok {
					return command.Usagef("--header %q: want \"Name: value\"", h)
				}
				if in.Header == nil {
					in.Header = map[string]string{}
				}
				in.Header[name] = strings.TrimSpace(value)
			}
			c, err := r.open(cmd, nil)
			if err != nil {
				return err
			}
			why, err := c.ExplainRequest(cmd.Context(), in)
			if err != nil {
				if guessed {
					return fmt.Errorf("%w (on %s; --path names another)", err, in.Path)
				}
				return err
			}
			if output == "json" {
				err = printExplanations(cmd.OutOrStdout(), []admin.Explanation{why}, output, true)
			} else {
				_, err = fmt.Fprint(cmd.OutOrStdout(), why.Text)
			}
			return errors.Join(err, refusal(why))
		},
	}
	r.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&in.Path, "path", "", "path it is sent to (default: OpenAI's for the body)")
	f.StringVar(&in.Host, "host", "", "host it is sent to")
	f.StringArrayVarP(&headers, "header", "H", nil, `a header, "Name: value"; may be repeated`)
	f.StringVarP(&output, "output", "o", "", "json")
	return cmd
}

// refusal is an error where the request would be refused.
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
	_ = json.Unmarshal(body, &members) // the server says what is wrong with it
	switch {
	case members["prompt"] != nil:
		return "/v1/completions"
	case members["input"] != nil:
		return "/v1/embeddings"
	}
	return "/v1/chat/completions"
}
