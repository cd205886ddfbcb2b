package main

import (
	"context"
	"log/slog"
	"net"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
)

// newSimulateCommand builds `roundhouse simulate`.
func newSimulateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Simulate engines, and routing between them",
		Example: `  roundhouse simulate engine --port 8000
  roundhouse simulate routing --workload chat`,
		Args: command.CommandsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSimulateEngineCommand(), newSimulateRoutingCommand())
	return cmd
}

func newSimulateEngineCommand() *cobra.Command {
	cfg := simulate.DefaultConfig()
	var host, role, api, level string
	var port int
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Run a simulated OpenAI-compatible engine: real timing, no model",
		Long: `Serve an OpenAI-compatible engine that computes nothing and takes its time.

Queueing, batching, the prefix cache, KV memory, LoRA slots and token rates
follow those of an LLM engine, and its metrics carry vLLM's names. Every answer
says that it is simulated. Times are in simulated seconds, of which --speed pass
in a real one.

POST /simulate/pin {"waiting":5,"running":2,"kv_usage":0.9} pins what the metrics
report; DELETE /simulate/pin ends that. POST /simulate/fail {"mode":"mid_stream",
"count":1} makes requests fail: before_headers, mid_stream, hang, status or exit.
GET /simulate/state tells the truth.`,
		Example: `  roundhouse simulate engine --port 8000
  roundhouse simulate engine --model llama --lora sql --max-loras 4 --speed 10`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var logLevel slog.Level
			if err := logLevel.UnmarshalText([]byte(level)); err != nil {
				return command.Usagef("--log-level is %q: want debug, info, warn or error", level)
			}
			cfg.Role, cfg.API = simulate.Role(role), simulate.API(api)
			cfg.Address = net.JoinHostPort(host, strconv.Itoa(port))
			if err := cfg.Validate(); err != nil {
				return command.Usagef("%w", err)
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: logLevel}))
			engine, err := simulate.New(cfg, log)
			if err != nil {
				return err
			}
			parent := cmd.Context()
			if parent == nil {
				parent = context.Background()
			}
			ctx, stop := signal.NotifyContext(parent, syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return engine.Run(ctx)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&host, "host", "127.0.0.1", "address to listen on")
	flags.IntVar(&port, "port", 8000, "port to listen on; 0 takes a free one")
	flags.StringVar(&role, "role", string(cfg.Role), "both, prefill or decode")
	flags.StringVar(&api, "api", string(cfg.API), "whose names adapters and metrics have: vllm or sglang")
	flags.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	addSimulateServerFlags(cmd, &cfg)
	addSimulatePhysicsFlags(cmd, &cfg.Physics)
	return cmd
}

func addSimulateServerFlags(cmd *cobra.Command, cfg *simulate.Config) {
	flags := cmd.Flags()
	flags.StringArrayVar(&cfg.Models, "model", cfg.Models, "served model name; repeat for aliases")
	flags.StringArrayVar(&cfg.Adapters, "lora", nil, "LoRA adapter that may be asked for by name; repeatable")
	flags.DurationVar(&cfg.StartupDelay, "startup-delay", cfg.StartupDelay, "simulated time before listening, as if weights were loaded")
	flags.DurationVar(&cfg.Grace, "grace", cfg.Grace, "real time that requests get to finish on SIGTERM")
	flags.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "of answers and their lengths")
	flags.Float64Var(&cfg.Speed, "speed", cfg.Speed, "simulated seconds per real second")
	flags.IntVar(&cfg.DefaultMaxTokens, "default-max-tokens", cfg.DefaultMaxTokens, "max_tokens of a request that gives none")
	flags.IntVar(&cfg.MeanOutputTokens, "mean-output-tokens", cfg.MeanOutputTokens, "answers end by themselves around this length")
	flags.Int64Var(&cfg.MaxBodyBytes, "max-body-bytes", cfg.MaxBodyBytes, "a longer request is answered 413")
}

func addSimulatePhysicsFlags(cmd *cobra.Command, p *simulate.Physics) {
	flags := cmd.Flags()
	flags.Float64Var(&p.PrefillTokensPerSecond, "prefill-tokens-per-second", p.PrefillTokensPerSecond, "prompt tokens computed per second, those in the prefix cache apart")
	flags.Float64Var(&p.DecodeTokensPerSecond, "decode-tokens-per-second", p.DecodeTokensPerSecond, "output tokens per second of one sequence alone")
	flags.Float64Var(&p.BatchSlowdown, "batch-slowdown", p.BatchSlowdown, "how much slower an iteration gets per further decoding sequence, as a part of 1")
	flags.Float64Var(&p.TransferTokensPerSecond, "transfer-tokens-per-second", p.TransferTokensPerSecond, "prompt tokens pulled from a prefill engine per second")
	flags.IntVar(&p.MaxSequences, "max-num-seqs", p.MaxSequences, "sequences running at once")
	flags.IntVar(&p.MaxWaiting, "max-waiting", p.MaxWaiting, "sequences queued at once; more are answered 429 (vLLM has no such bound)")
	flags.IntVar(&p.MaxBatchedTokens, "max-num-batched-tokens", p.MaxBatchedTokens, "tokens computed in one iteration")
	flags.IntVar(&p.KVBlocks, "kv-blocks", p.KVBlocks, "KV memory in blocks of 16 tokens, which also bounds the context length")
	flags.IntVar(&p.MaxAdapters, "max-loras", p.MaxAdapters, "LoRA adapters in one batch; 0 is no LoRA")
	flags.DurationVar(&p.AdapterLoadTime, "lora-load-time", p.AdapterLoadTime, "simulated time to load an adapter into a slot")
}
