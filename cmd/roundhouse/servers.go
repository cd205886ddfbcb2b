package main

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/configfile"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/extproc"
	"roundhouse.dev/roundhouse/internal/edge/process"
	"roundhouse.dev/roundhouse/internal/edge/process/containers"
)

func newUpCommand() *cobra.Command {
	o := app.Up{Version: version}
	cmd := &cobra.Command{
		Use:   "up [-f FILE|FOLDER]…",
		Short: "Run everything on this machine: gateway, autoscaler, admin API, and replicas",
		Long: `Start everything on this machine: the gateway that answers requests, the
autoscaler, the admin API behind the other commands, and replicas: processes, or
containers of podman or Docker where a program is not on this machine.

A console for the browser is served at the address of --admin-listen, on loopback
only. up prints a link that signs in there once, and roundhouse console prints
another, --read-only for one who changes nothing; both need this --data-dir. Requests
to an inference port with --api-keys need a key on its playground too.

The manifests given with -f are applied. An object that a file no longer contains
is deleted. With --watch, changes to the files are applied as they are made; a
file with an error is not applied, and its objects stay as they were.`,
		Example: `  roundhouse up -f examples/quickstart
  roundhouse up -f models/ --watch
  roundhouse up --config up.yaml
  roundhouse up --containers podman
  roundhouse up --listen 127.0.0.1:9000 --grpc-listen 127.0.0.1:9001 --admin-listen 127.0.0.1:9090`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("containers") {
				o.Containers = "" // as the environment says
			}
			return o.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.Files, "filename", "f", nil, "manifest file or folder; may be repeated")
	f.BoolVar(&o.Watch, "watch", false, "apply changes to the manifests as they are made")
	f.StringVar(&o.Listen, "listen", app.DefaultListen, "address for inference over HTTP")
	f.StringVar(&o.GRPC, "grpc-listen", app.DefaultGRPCListen, "address for inference over gRPC; empty for none")
	f.StringVar(&o.Admin, "admin-listen", app.DefaultAdmin, "address of the console, the admin API and /metrics")
	f.StringVar(&o.DataDir, "data-dir", datadir.Default(), "folder for applied manifests, models and logs")
	f.StringVar(&o.Hub, "hub-cache", "auto", "cache of the Hugging Face Hub for replicas: on, off, HOST:PORT to listen at, or the URL of another cache; auto is on unless HF_ENDPOINT is set")
	f.StringVar(&o.HubBytes, "hub-cache-max-bytes", app.DefaultHubShare, "most that the cache may hold, as a size or a share of the disk; the least recently used is evicted first")
	f.StringVar(&o.ModelBytes, "models-max-bytes", app.DefaultModelShare, "most that the models in the data directory may take, as a size or a share of the disk, 0 for no limit; of those not in use, the least recently used is evicted first")
	f.StringVar(&o.Containers, "containers", "auto", "what runs images that have no program on this machine: podman, docker, off, or auto for the first of them that works")
	o.Scaler.Flags(f)
	o.Front.Flags(f)
	o.Front.HostFlags(f)
	f.BoolVar(&o.KeepReplicas, "keep-replicas", false, "leave replicas running at the end; the next up takes them over")
	o.Log.Flags(f)
	configfile.Add(cmd)
	return cmd
}

func newServeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:                "serve FOLDER|FILE",
		Short:              "Serve models over the Open Inference Protocol and KServe's v1",
		Example:            "  roundhouse serve iris.ubj --name iris\n  roundhouse serve models/",
		DisableFlagParsing: true, // the flags are the server's
		RunE:               func(_ *cobra.Command, args []string) error { return becomeServer(args) },
	}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if err := becomeServer([]string{"--help"}); err != nil {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "roundhouse: %v\n", err)
		}
	})
	return cmd
}

// becomeServer replaces this process by the model server: signals, exit code and
// memory are the server's own. It returns only when that fails.
func becomeServer(args []string) error {
	program, err := command.Server()
	if err != nil {
		return err
	}
	err = syscall.Exec(program, append([]string{command.ServeCommand}, args...), append(os.Environ(), command.ForServer(version)))
	return fmt.Errorf("%s: %w", program, err)
}

func newGatewayCommand() *cobra.Command {
	o := app.Gateway{Version: version}
	cmd := &cobra.Command{
		Use:   "gateway -f FILE|FOLDER…",
		Short: "Run only the gateway, in front of servers that already run",
		Long: `Run only the gateway: routes, and pools of servers that already run, at the
addresses in the manifest of each Pool. The gateway starts no replicas and stores
nothing; a manifest of a service is an error. /metrics and /healthz have a port of
their own.`,
		Example: `  roundhouse gateway -f pools.yaml
  roundhouse gateway -f gateway/ --watch --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem --api-keys keys.yaml
  roundhouse gateway -f pools.yaml --share-listen 10.0.0.1:9443 --share-with 10.0.0.1:9443,10.0.0.2:9443 --share-secret-file secret`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.Files, "filename", "f", nil, "manifest file or folder; may be repeated")
	f.BoolVar(&o.Watch, "watch", false, "apply changes to the manifests as they are made")
	f.StringVar(&o.Listen, "listen", app.DefaultListen, "address for inference over HTTP")
	f.StringVar(&o.GRPC, "grpc-listen", app.DefaultGRPCListen, "address for inference over gRPC; empty for none")
	f.StringVar(&o.Metrics, "metrics-listen", app.DefaultAdmin, "address of /metrics and /healthz; empty for none")
	o.Sharing.Flags(f)
	o.Log.Flags(f)
	o.Front.Flags(f)
	o.Front.HostFlags(f)
	return cmd
}

func newEndpointPickerCommand() *cobra.Command {
	var o app.EndpointPicker
	cmd := &cobra.Command{
		Use:   "endpoint-picker -f FILE|FOLDER…",
		Short: "Pick endpoints for Envoy and other gateways that speak its external processing protocol",
		Long: `Pick endpoints for Envoy, and for every gateway of the Gateway API Inference
Extension. For each request, the gateway asks which server of a pool should answer
it. The endpoint picker forwards no requests itself.

One process serves many pools. A stream names its pool in the gRPC metadata
x-gateway-inference-pool (NAMESPACE/NAME), or by an :authority of the form
POOL-epp.NAMESPACE…. For other streams --pool names it; without --pool, the host,
path and model of the request choose it, as in the gateway.`,
		Example: `  roundhouse endpoint-picker -f pools.yaml
  roundhouse endpoint-picker -f pools/ --watch --listen 0.0.0.0:9002 --pool prod/llama
  roundhouse endpoint-picker -f pools.yaml --config-file epp-config.yaml`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cfg := extproc.DefaultConfig()
	f := cmd.Flags()
	f.StringArrayVarP(&o.Files, "filename", "f", nil, "manifest file or folder; may be repeated")
	f.BoolVar(&o.Watch, "watch", false, "apply changes to the manifests as they are made")
	f.StringVar(&o.Pool, "pool", "", "NAMESPACE/NAME of the pool for streams that name none")
	o.Flags(f, cfg.Listen, cfg.HealthListen, "127.0.0.1:9090")
	o.Sharing.Flags(f)
	return cmd
}

// newHandListenerCommand is how `roundhouse up` opens an address in a container's network:
// it runs this there.
func newHandListenerCommand() *cobra.Command {
	return &cobra.Command{
		Use:     process.HandListener + " ADDRESS",
		Short:   "Open an address in this network, and hand it over standard input",
		Example: `  roundhouse hand-listener 127.0.0.1:20001 <&3`,
		Hidden:  true,
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return containers.Hand(cmd.Context(), args[0]) },
	}
}
