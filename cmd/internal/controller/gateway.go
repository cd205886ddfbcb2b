package controller

import (
	"log/slog"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/incluster"
)

func newClusterGateway(version string) *cobra.Command {
	var o incluster.Options
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Answer requests for the services of the cluster",
		Long: `Answer requests for the services of the cluster. The gateway watches where
replicas are, starts a service that is at zero by itself, asks starting pods
whether they are ready, and tells every controller what is asked. Without a
controller, or an API server, it goes on with what it knows.

Several run at once. One that is asked to stop says at /readyz that it is not
ready, goes on for --leave, and lets the requests in flight finish.`,
		Example: `  roundhouse controller gateway --gateway-url 'https://{name}.{namespace}.models.example.com' --api-keys /etc/roundhouse/keys.yaml
  roundhouse controller gateway --kubeconfig ~/.kube/config --namespace team-a --listen 127.0.0.1:8080`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Version, o.Out, o.Logs = version, cmd.OutOrStdout(), cmd.ErrOrStderr()
			logLibraries(slog.NewTextHandler(o.Logs, nil))
			g, err := incluster.New(cmd.Context(), o)
			if err != nil {
				return err
			}
			return g.Run(cmd.Context())
		},
	}
	o.Flags(cmd.Flags())
	return cmd
}
