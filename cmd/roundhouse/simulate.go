package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/manifestfile"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/decide/picker"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
	"roundhouse.dev/roundhouse/internal/edge/simulate/replay"
)

func newSimulateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Simulate engines, routing between them, and scaling",
		Example: `  roundhouse simulate engine --port 8000
  roundhouse simulate routing --workload chat
  roundhouse simulate scaling --workload bursty`,
		Args: command.CommandsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSimulateEngineCommand(), newSimulateRoutingCommand(), newSimulateScalingCommand())
	return cmd
}

func newSimulateEngineCommand() *cobra.Command {
	cfg := simulate.DefaultConfig()
	var host, role, api, level string
	var logs command.LogOptions
	var port, eventsPort, replayPort int
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Run a simulated OpenAI-compatible engine: real timing, no model",
		Long: `Serve a simulated OpenAI-compatible engine: it computes nothing, and answers with
the timing of an LLM engine.

It simulates queueing, batching, the prefix cache, KV memory, LoRA slots and token
rates; its metrics have the names of vLLM's. Every answer has the header
"X-Roundhouse-Simulated: true", and the text of a completion says that it is simulated.
Durations are in simulated seconds; --speed is how many pass in a real one.

POST /simulate/pin {"waiting":5,"running":2,"kv_usage":0.9} sets the metrics to fixed
values, and DELETE /simulate/pin ends that. POST /simulate/fail {"mode":"mid_stream",
"count":1} makes requests fail: before_headers, mid_stream, hang, status or exit. GET
/simulate/state returns the true state.`,
		Example: `  roundhouse simulate engine --port 8000
  roundhouse simulate engine --model llama --lora sql --max-loras 4 --speed 10`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := logs.Level.UnmarshalText([]byte(level)); err != nil {
				return command.Usagef("--log-level is %q: want debug, info, warn or error", level)
			}
			if port < 0 || port > 65535 {
				return command.Usagef("--port is %d: want 0 to 65535", port)
			}
			cfg.Role, cfg.API, cfg.Dev = simulate.Role(role), simulate.API(api), os.Getenv("VLLM_SERVER_DEV_MODE") == "1"
			cfg.Address = net.JoinHostPort(host, strconv.Itoa(port))
			if cfg.KVEvents, cfg.KVReplay = portAt(host, eventsPort), portAt(host, replayPort); replayPort > 0 && eventsPort == 0 {
				return command.Usagef("--kv-replay-port has no effect without --kv-events-port: give both")
			}
			if err := cfg.Validate(); err != nil {
				return command.Usagef("%w", err)
			}
			log, err := logs.New(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			engine, err := simulate.New(cfg, log)
			if err != nil {
				return err
			}
			return command.ListenError(engine.Run(cmd.Context()), "--host or --port")
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&host, "host", "127.0.0.1", "address to listen on")
	flags.IntVar(&port, "port", 8000, "port to listen on; 0 takes a free one")
	flags.IntVar(&eventsPort, "kv-events-port", 0, "port to publish KV events on, over ZeroMQ as vLLM does; 0 publishes none")
	flags.IntVar(&replayPort, "kv-replay-port", 0, "port to replay missed KV events on; 0 replays none")
	flags.IntVar(&cfg.DataParallelSize, "data-parallel-size", cfg.DataParallelSize, "data-parallel ranks behind the port, each with a queue and KV memory of its own; KV events at a port for each")
	flags.StringVar(&role, "role", string(cfg.Role), "both, prefill or decode")
	flags.StringVar(&api, "api", string(cfg.API), "engine whose API and metric names it has: vllm or sglang")
	logs.FormatFlag(flags)
	flags.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	addSimulateServerFlags(cmd, &cfg)
	addSimulatePhysicsFlags(cmd, &cfg.Physics)
	return cmd
}

// portAt is the address of a port; "" for 0.
func portAt(host string, port int) string {
	if port == 0 {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

func addSimulateServerFlags(cmd *cobra.Command, cfg *simulate.Config) {
	flags := cmd.Flags()
	flags.StringArrayVar(&cfg.Models, "model", cfg.Models, "served model name; may be repeated, for aliases")
	flags.BoolVar(&cfg.MemorySaver, "enable-memory-saver", false, "as SGLang's: POST /release_memory_occupation releases memory, with --api sglang")
	flags.BoolVar(&cfg.WeightsBackup, "enable-weights-cpu-backup", false, "as SGLang's: released weights are kept in main memory")
	flags.StringArrayVar(&cfg.Adapters, "lora", nil, "name of a LoRA adapter; may be repeated")
	flags.DurationVar(&cfg.StartupDelay, "startup-delay", cfg.StartupDelay, "simulated time before listening, as if weights were loaded")
	flags.DurationVar(&cfg.Grace, "grace", cfg.Grace, "real time for requests to finish after SIGTERM")
	flags.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "random seed of answers and their lengths")
	flags.Float64Var(&cfg.Speed, "speed", cfg.Speed, "simulated seconds per real second")
	flags.IntVar(&cfg.DefaultMaxTokens, "default-max-tokens", cfg.DefaultMaxTokens, "max_tokens of a request without it")
	flags.IntVar(&cfg.MeanOutputTokens, "mean-output-tokens", cfg.MeanOutputTokens, "mean length of answers that max_tokens does not end")
	flags.Int64Var(&cfg.MaxBodyBytes, "max-body-bytes", cfg.MaxBodyBytes, "most bytes of a request; a longer one gets 413")
}

func addSimulatePhysicsFlags(cmd *cobra.Command, p *simulate.Physics) {
	flags := cmd.Flags()
	flags.Float64Var(&p.PrefillTokensPerSecond, "prefill-tokens-per-second", p.PrefillTokensPerSecond, "prompt tokens computed per second, without those in the prefix cache")
	flags.Float64Var(&p.DecodeTokensPerSecond, "decode-tokens-per-second", p.DecodeTokensPerSecond, "output tokens per second of a single sequence")
	flags.Float64Var(&p.BatchSlowdown, "batch-slowdown", p.BatchSlowdown, "slowdown of an iteration per further decoding sequence, as a fraction")
	flags.Float64Var(&p.TransferTokensPerSecond, "transfer-tokens-per-second", p.TransferTokensPerSecond, "prompt tokens pulled from a prefill engine per second")
	flags.IntVar(&p.MaxSequences, "max-num-seqs", p.MaxSequences, "sequences running at once")
	flags.IntVar(&p.MaxWaiting, "max-waiting", p.MaxWaiting, "most queued sequences; more get 429 (vLLM has no such limit)")
	flags.IntVar(&p.MaxBatchedTokens, "max-num-batched-tokens", p.MaxBatchedTokens, "tokens computed in one iteration")
	flags.IntVar(&p.KVBlocks, "kv-blocks", p.KVBlocks, "KV memory in blocks of 16 tokens, which also bounds the context length")
	flags.IntVar(&p.MaxAdapters, "max-loras", p.MaxAdapters, "LoRA adapters in one batch; 0 for no LoRA")
	flags.DurationVar(&p.SleepTime, "sleep-time", p.SleepTime, "simulated time to fall asleep (POST /sleep, with VLLM_SERVER_DEV_MODE=1; with --api sglang POST /release_memory_occupation)")
	flags.DurationVar(&p.WakeTime, "wake-time", p.WakeTime, "simulated time to put the weights back (POST /wake_up, /resume_memory_occupation)")
	flags.DurationVar(&p.ReloadTime, "reload-time", p.ReloadTime, "simulated time to read the weights again after level 2 (POST /collective_rpc)")
	flags.DurationVar(&p.AdapterLoadTime, "lora-load-time", p.AdapterLoadTime, "simulated time to load an adapter into a slot")
}

func newSimulateRoutingCommand() *cobra.Command {
	s := app.Replays{Config: replay.DefaultConfig()}
	var output string
	var about, manifests []string
	for _, w := range replay.Workloads() {
		about = append(about, fmt.Sprintf("  %-14s %s", w.Name, w.Summary))
	}
	cmd := &cobra.Command{
		Use:   "routing",
		Short: "Replay a trace against simulated engines under several policies",
		Long: `Replay a trace against simulated engines under several policies, and print what
clients would have seen: time to the first token (TTFT), the share of prompt tokens
found in a prefix cache, and the requests a second whose first token was in time, by
criticality. Time is virtual: an hour of traffic takes seconds.

The trace is a file in Mooncake's format (lines of JSON with timestamp,
input_length, output_length, hash_ids), or a synthetic workload:

` + strings.Join(about, "\n") + `

-f compares your own policies: the spec.picker of each Pool in a manifest, with its
filters, scorers, weights and times. The Pool's endpoints do not count; --engines does.`,
		Example: `  roundhouse simulate routing
  roundhouse simulate routing --workload unique --rate 20,40 --seeds 5
  roundhouse simulate routing -f pool.yaml --policy default --workload chat --gateways 2 --share
  roundhouse simulate routing --trace mooncake_trace.jsonl --engines 16 --speed 2
  roundhouse simulate routing --workload identical --requests 1000 --concurrency 8 --engines 4`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if len(manifests) > 0 {
				if s.Manifests, err = manifestfile.Read(manifests, command.Stdin(cmd)); err != nil {
					return err
				}
			}
			var all []printer.Replay
			err = s.Run(cmd.Context(), func(replays []printer.Replay) error {
				all = append(all, replays...)
				if output == "" {
					printer.Replays(cmd.OutOrStdout(), replays, s.Goal)
				}
				return nil
			})
			if err != nil || output == "" {
				return err
			}
			return printer.JSON(cmd.OutOrStdout(), all)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.File, "trace", "", "file of requests in Mooncake's format, in place of a workload")
	f.StringVar(&s.Workload, "workload", "shared-prefix", "synthetic requests: one of those above")
	f.IntVar(&s.Requests, "requests", 2000, "requests of a workload")
	f.Float64SliceVar(&s.Rates, "rate", []float64{16, 24, 32}, "requests a second of a workload; several rates are replayed one after the other")
	f.Float64Var(&s.Speed, "speed", 1, "factor by which a trace is replayed faster")
	f.IntVar(&s.Config.Gateways, "gateways", s.Config.Gateways, "gateways that take requests in turn; each knows only its own requests, unless they --share")
	f.BoolVar(&s.Config.Share, "share", false, "have the gateways tell each other which prompts they sent to which engine, as they do on a cluster")
	f.DurationVar(&s.Config.ShareDelay, "share-delay", s.Config.ShareDelay, "time until the other gateways know, with --share")
	f.BoolVar(&s.Config.Events, "kv-events", false, "have the engines tell the gateways which blocks of prompts they hold")
	f.IntVar(&s.Config.Concurrency, "concurrency", 0, "clients that send a request after each answer; 0 follows the times of the trace")
	f.IntVar(&s.Config.Engines, "engines", s.Config.Engines, "simulated engines")
	f.StringSliceVar(&s.Policies, "policy", []string{"round-robin", "least-request", "seed-50", "v0.3-128", picker.Default}, "policies to compare")
	f.StringArrayVarP(&manifests, "filename", "f", nil, "manifest, or - for standard input: the pickers of its Pools are compared too; may be repeated")
	f.DurationVar(&s.Config.Scrape, "scrape", s.Config.Scrape, "interval between scrapes of the engines' metrics")
	f.IntVar(&s.Seeds, "seeds", 5, "replays of each policy, each with other traffic; the table shows medians")
	f.DurationVar(&s.Goal, "slo", 2*time.Second, "longest time to the first token of an answer that counts as good")
	command.OutputFlag(cmd, &output, "json, with every replay (default: a table)", "json")
	addSimulatePhysicsFlags(cmd, &s.Config.Physics)
	return cmd
}
