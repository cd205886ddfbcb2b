package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

func newValidateCommand() *cobra.Command {
	var r remote
	var files []string
	cmd := &cobra.Command{
		Use:   "validate FILE|FOLDER…",
		Short: "Check manifests without a server: every problem with file, line and field",
		Long: `Check manifests without a server: every problem with file, line and field, and
runtimes among them that may not be applied together. With --context they are
checked as a cluster takes them, and its API server is asked whether it would:
nothing is changed.`,
		Example: `  roundhouse validate iris.yaml manifests/
  roundhouse validate iris.yaml --context production`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if args = append(files, args...); len(args) == 0 {
				return command.Usagef("name a manifest file or folder")
			}
			manifests, err := readManifests(args, stdin(cmd))
			if err != nil {
				return err
			}
			platform := dialect.Process
			asked := cmd.Flags().Changed("context") || cmd.Flags().Changed("kubeconfig")
			if asked {
				platform = dialect.Kubernetes
			}
			objects, err := checked(cmd, platform, manifests)
			if err != nil {
				return err
			}
			if len(objects) == 0 {
				return errors.New("nothing was checked: no manifest was given")
			}
			if asked {
				if err := askCluster(cmd, &r, manifests); err != nil {
					return err
				}
			}
			for _, o := range objects {
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s:%d: %s is valid\n", o.Origin.File, o.Origin.Line, o.ID())
			}
			return nil
		},
	}
	r.clusterFlags(cmd)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "a manifest file or folder; may be repeated")
	return cmd
}

// checked reads manifests and prints what is wrong with them.
func checked(cmd *cobra.Command, platform dialect.Platform, manifests []admin.File) ([]fleet.Object, error) {
	objects, warnings, err := admin.ObjectsOn(platform, manifests, "")
	var problems []string
	var bad *admin.ManifestError
	switch {
	case errors.As(err, &bad):
		problems = bad.Problems
	case err != nil:
		return nil, err
	default:
		var tolerated []string
		problems, tolerated = fleet.Conflicts(objects)
		warnings = append(warnings, tolerated...)
	}
	for _, line := range append(warnings, problems...) {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), line)
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s in %s", counted(len(problems), "problem"), counted(len(manifests), "file"))
	}
	return objects, nil
}

// askCluster asks whether a cluster would take manifests.
func askCluster(cmd *cobra.Command, r *remote, manifests []admin.File) error {
	b, err := r.open(cmd, nil)
	if err != nil {
		return err
	}
	_, err = b.(*clustered).put(cmd.Context(), admin.ApplyRequest{Files: manifests}, true)
	return err
}

// counted is "1 file" or "2 files".
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return itoa(n) + " " + noun
}
