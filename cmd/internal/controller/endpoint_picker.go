package controller

import (
	"log/slog"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/incluster"
)

func newClusterPicker(version string) *cobra.Command {
	var o incluster.PickerOptions
	cmd := &cobra.Command{
		Use:   "endpoint-picker (--pool NAMESPACE/NAME | --service NAME)",
		Short: "Pick endpoints of InferencePools for other gateways",
		Long: `Pick endpoints of InferencePools for other gateways: the Service that their
endpointPickerRef names. For each request that a gateway asks about, over Envoy's
external processing protocol, it says which pod of a pool answers it first. It
forwards nothing, starts nothing and writes nothing.

Members are the pods with the labels of a pool's selector, at each of its target
ports. InferenceObjectives, InferenceModels and InferenceModelRewrites of its
pools count.`,
		Example: `  roundhouse controller endpoint-picker --pool prod/llama
  roundhouse controller endpoint-picker --service roundhouse-endpoint-picker --namespace prod`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Version, o.Out, o.Logs = version, cmd.OutOrStdout(), cmd.ErrOrStderr()
			logLibraries(slog.NewTextHandler(o.Logs, nil))
			return incluster.RunPicker(cmd.Context(), o)
		},
	}
	o.Flags(cmd.Flags())
	return cmd
}
