package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
)

// versions is the JSON of `roundhouse version`.
type versions struct {
	Client command.Build  `json:"client"`
	Server *serverVersion `json:"server,omitempty"`
	// Skew reports whether the two are known and differ.
	Skew bool `json:"skew"`
}

// serverVersion is what a running up, or a cluster's controller, is of.
type serverVersion struct {
	At      string `json:"at"`
	Version string `json:"version,omitempty"`
	Unknown string `json:"unknown,omitempty"` // why there is no Version
}

func newVersionCommand() *cobra.Command {
	var r remote
	var output string
	var client bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program, and of the server or cluster that it works with",
		Long: `Print the version of this program, the commit and the Go that built it; and the
version of the running roundhouse up, or with --context of the controller that is
installed in the cluster. Both should be of one release. Without a server it says so,
which is no error.`,
		Example: `  roundhouse version
  roundhouse version --client
  roundhouse version --context prod -o json`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Client: command.BuildOf(version)}
			if !client {
				s, err := r.served(cmd.Context())
				if err != nil {
					return err
				}
				v.Server, v.Skew = s, s.Version != "" && strings.TrimPrefix(s.Version, "v") != strings.TrimPrefix(version, "v")
			}
			if output == "json" {
				return printer.JSON(cmd.OutOrStdout(), v)
			}
			_, err := io.WriteString(cmd.OutOrStdout(), v.text())
			return err
		},
	}
	r.flags(cmd)
	cmd.Flags().BoolVar(&client, "client", false, "print only the version of this program, and ask no server")
	command.OutputFlag(cmd, &output, "text or json", "text", "json")
	return cmd
}

// served asks the server, or the cluster, that the flags name. What went wrong there
// is part of the answer; the error is of the flags.
func (r *remote) served(ctx context.Context) (*serverVersion, error) {
	s := &serverVersion{At: r.Server}
	err := r.settle(nil)
	if err == nil && r.InCluster {
		s.At, s.Version, err = r.ControllerVersion(ctx)
	} else if !r.InCluster {
		s.At, s.Version, err = r.UpVersion(ctx)
	}
	if _, wrong := errors.AsType[*command.UsageError](err); wrong {
		return nil, err
	}
	if err != nil {
		s.Unknown = err.Error()
	}
	return s, nil
}

func (v versions) text() string {
	text := v.Client.String()
	switch s := v.Server; {
	case s == nil:
	case s.Version == "":
		text += "Server   unknown: " + s.Unknown + "\n"
	default:
		text += fmt.Sprintf("Server   %s at %s\n", s.Version, s.At)
		if v.Skew {
			text += fmt.Sprintf("         of another release than this program: use a roundhouse %s with it\n", s.Version)
		}
	}
	return text
}
