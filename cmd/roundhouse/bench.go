package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/load"
	"roundhouse.dev/roundhouse/internal/edge/benchmark"
)

// bench is a benchmark as the flags state it.
type bench struct {
	target        benchmark.Target
	base          load.Load
	api           string
	rates         []float64
	concurrency   []int
	scenarios     []string
	input, output string
	dataset       string
	parameters    []string
	ignoreEnd     bool
	patience      time.Duration
	format, svg   string
	report        load.Output
	summary       string
}

func newBenchCommand() *cobra.Command {
	var r remote
	var n namespaced
	b := bench{}
	cmd := &cobra.Command{
		Use:   "bench SERVICE|URL",
		Short: "Send a service or a server a load, and measure its answers",
		Long: `Send a service, or any server with OpenAI's API, a load, and print what its clients
see: the time to the first token (TTFT), of each token after it (TPOT), between two
parts of an answer (ITL) and to the end, requests and output tokens a second, and what
failed. Quantiles are of all answers. Ctrl-C ends it and prints what was measured.

--concurrency is a closed loop: so many clients, each of which sends its next request
after the answer to the one before. --rate is an open loop: requests come at random
times, so many a second on average, however long answers take. Several of either are
measured one after the other, with every scenario.

The prompts are random words of about one token each; lengths are numbers, a normal
distribution N(MEAN,DEVIATION) or a uniform one U(LEAST,MOST). --dataset sends the
prompts of a file: lines of JSON with "prompt" or "messages" and perhaps
"output_tokens".`,
		Example: `  roundhouse bench llama
  roundhouse bench llama --rate 2,4,8 --duration 60s --input-tokens "N(480,240)"
  roundhouse bench http://127.0.0.1:8000 --concurrency 1,8,32 --svg llama.svg
  roundhouse bench llama --scenario "D(100,100)" --scenario "D(2000,200)" -o json`,
		Args: command.Wants(1, 1, "the name of a service, or the URL of a server"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := b.settle(cmd.Flags()); err != nil {
				return err
			}
			if err := b.aim(cmd.Context(), args[0], &r, &n); err != nil {
				return err
			}
			return b.run(cmd)
		},
	}
	r.flags(cmd)
	r.gatewayFlag(cmd)
	n.flags(cmd)
	b.flags(cmd)
	return cmd
}

func (b *bench) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&b.target.Model, "model", "", "model that requests name (default: the service's, or the first that the server lists)")
	f.StringVar(&b.api, "api", "", "chat, completions or embeddings (default: what the URL names, else chat)")
	f.IntSliceVar(&b.concurrency, "concurrency", []int{8}, "clients at once; several are measured one after the other")
	f.Float64SliceVar(&b.rates, "rate", nil, "requests a second, in place of clients; several are measured one after the other")
	f.IntVar(&b.base.Requests, "requests", 200, "requests of each measurement")
	f.DurationVar(&b.base.Time, "duration", 0, "time of each measurement, in place of --requests, or the first of both to come; 0 for none")
	f.StringVar(&b.input, "input-tokens", "256", "tokens of a prompt")
	f.StringVar(&b.output, "output-tokens", "128", "tokens of an answer")
	f.StringArrayVar(&b.scenarios, "scenario", nil, "both, as OME spells them: D(100,1000), N(480,240)/(300,150), U(50,100)/(200,250), or E(64) for embeddings; may be repeated")
	f.IntVar(&b.base.SharedPrefix, "shared-prefix", 0, "tokens that all prompts begin with, within their length")
	f.StringVar(&b.dataset, "dataset", "", "file of prompts, in place of random ones")
	f.IntVar(&b.base.WarmUp, "warm-up", 1, "requests that are sent first and not counted")
	f.Uint64Var(&b.base.Seed, "seed", 1, "random seed of prompts, lengths and times")
	f.BoolVar(&b.target.Stream, "stream", true, "ask for answers as they are made; without it TTFT, TPOT and ITL are not known")
	f.BoolVar(&b.ignoreEnd, "ignore-eos", true, "have answers go on to their full length, for engines that know the field ignore_eos")
	f.StringArrayVar(&b.parameters, "param", nil, "further field of each request, as NAME=JSON; may be repeated")
	f.DurationVar(&b.target.Timeout, "timeout", 10*time.Minute, "longest that a request may take")
	f.StringVar(&b.svg, "svg", "", "file for a chart of the figures over the loads")
	f.DurationVar(&b.patience, "wait", 0, "how long a server that does not answer yet is tried again")
	f.StringVar(&b.report.URI, "report", "", "file for the report as JSON, which is written to before the first request: a path, or an object s3://, gs:// or az://")
	f.StringVar(&b.summary, "summary", "", "file for a line of text on each measurement, and the error if it fails: at most 4096 bytes, as a pod's /dev/termination-log takes")
	command.OutputFlag(cmd, &b.format, "json, with all quantiles (default: a table)", "json")
}

// settle checks what the flags say, and fills in what follows from others.
func (b *bench) settle(flags *pflag.FlagSet) error {
	if flags.Changed("rate") && flags.Changed("concurrency") {
		return command.Usagef("--rate is an open loop and --concurrency a closed one: give one of them")
	}
	if len(b.scenarios) > 0 && (flags.Changed("input-tokens") || flags.Changed("output-tokens")) {
		return command.Usagef("--scenario states what --input-tokens and --output-tokens do: give one of them")
	}
	if b.base.Time > 0 && !flags.Changed("requests") {
		b.base.Requests = load.MaxRequests
	}
	b.target.Parameters = map[string]any{}
	if b.ignoreEnd {
		b.target.Parameters["ignore_eos"] = true
	}
	for _, p := range b.parameters {
		name, value, found := strings.Cut(p, "=")
		var v any
		if !found || name == "" || json.Unmarshal([]byte(value), &v) != nil {
			return command.Usagef("--param is %q: want NAME=JSON, such as temperature=0.7", p)
		}
		b.target.Parameters[name] = v
	}
	return nil
}

// aim finds whose answers are measured.
func (b *bench) aim(ctx context.Context, what string, r *remote, n *namespaced) error {
	named := ""
	if strings.Contains(what, "://") {
		base, call, err := load.Endpoint(what)
		if err != nil {
			return command.Usagef("%s %w", what, err)
		}
		b.target.Base, b.target.APIKey, named = base, r.APIKey, call
	} else {
		if err := r.settle(n); err != nil {
			return err
		}
		gateway, err := r.Inference(ctx)
		if err != nil {
			return err
		}
		b.target.Base, b.target.APIKey, b.target.Transport = gateway.Base, gateway.APIKey, gateway.Transport
		b.target.Model = cmp.Or(b.target.Model, n.key(what).Short())
	}
	if b.target.Model == "" {
		var err error
		if b.target.Model, err = benchmark.FirstModel(ctx, b.target.Base, b.target.APIKey); err != nil {
			return fmt.Errorf("%s/v1/models: %w; name the model with --model", what, err)
		}
	}
	b.target.API = benchmark.API(cmp.Or(b.api, named, string(benchmark.Chat)))
	return nil
}

// plan is the loads that the flags state.
func (b *bench) plan() ([]load.Load, error) {
	var scenarios []load.Scenario
	for _, text := range b.scenarios {
		s, err := load.ParseScenario(text)
		if err != nil {
			return nil, command.Usagef("--scenario: %w", err)
		}
		if embeds := s.Output == (load.Length{}); embeds && b.api == "" {
			b.target.API = benchmark.Embeddings
		}
		scenarios = append(scenarios, s)
	}
	if len(scenarios) == 0 {
		in, errIn := load.ParseLength(b.input)
		out, errOut := load.ParseLength(b.output)
		if err := errors.Join(errIn, errOut); err != nil {
			return nil, command.Usagef("--input-tokens, --output-tokens: %w", err)
		}
		s := load.Scenario{Name: in.String() + " → " + out.String(), Input: in, Output: out}
		if b.target.API == benchmark.Embeddings {
			s.Name, s.Output = in.String(), load.Length{}
		}
		if b.dataset != "" {
			s.Name = b.dataset
		}
		scenarios = append(scenarios, s)
	}
	loads, err := load.Plan(b.base, scenarios, b.concurrency, b.rates)
	if err != nil {
		return nil, command.Usagef("%w", err)
	}
	return loads, nil
}

func (b *bench) run(cmd *cobra.Command) error {
	loads, err := b.plan()
	if err != nil {
		return err
	}
	if b.target.API == benchmark.Embeddings {
		delete(b.target.Parameters, "ignore_eos")
	}
	job := &benchmark.Benchmark{Target: b.target, Loads: loads}
	if err := b.target.Validate(); err != nil {
		return command.Usagef("%w", err)
	}
	if b.dataset != "" {
		if job.Prompts, err = benchmark.OpenPrompts(b.dataset, b.target.API); err != nil {
			if cause := command.Cause(err); !errors.Is(cause, err) {
				err = fmt.Errorf("--dataset %s: %w", b.dataset, cause)
			}
			return err
		}
	}
	if b.report.URI != "" {
		job.Keep = func(ctx context.Context, r load.Report) error { return app.WriteReport(ctx, b.report, r, nil) }
	}
	report, failed := b.measure(cmd, job)
	if b.summary != "" {
		failed = errors.Join(failed, b.summarize(report, errors.Join(failed, noneAnswered(report))))
	}
	if len(report.Points) == 0 {
		return failed
	}
	if b.svg != "" {
		var chart bytes.Buffer
		if err := printer.BenchmarkChart(&chart, report); err != nil {
			return err
		}
		if err := os.WriteFile(b.svg, chart.Bytes(), 0o644); err != nil {
			return fmt.Errorf("--svg %s: %w", b.svg, command.Cause(err))
		}
	}
	if b.format == "json" {
		err = printer.JSON(cmd.OutOrStdout(), report)
	} else {
		err = printer.Benchmark(cmd.OutOrStdout(), report)
	}
	return errors.Join(failed, err, noneAnswered(report))
}

// measure sends the loads, and shows how far they are.
func (b *bench) measure(cmd *cobra.Command, job *benchmark.Benchmark) (load.Report, error) {
	spinner := progress.NewSpinner(cmd.ErrOrStderr())
	job.Progress = func(point int, p benchmark.Progress) { spinner.Say(underWay(job.Loads, point, p)) }
	spinner.Start()
	report, failed := job.RunWithin(cmd.Context(), b.patience, func(err error) {
		spinner.Stop()
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s does not answer yet, and is tried again for up to %v: %v\n", service.RedactURI(b.target.Base), b.patience, err)
		spinner.Start()
	})
	spinner.Stop()
	var unkept *benchmark.KeepError
	switch {
	case errors.As(failed, &unkept) && len(report.Points) == 0:
		failed = fmt.Errorf("--report %s: %w", service.RedactURI(b.report.URI), unkept)
	case failed != nil && cmd.Context().Err() == nil:
		failed = fmt.Errorf("%s: %w", service.RedactURI(b.target.Base), failed)
	}
	return report, failed
}

// maxSummary is what Kubernetes takes of a container's last message.
const maxSummary = 4096

// summarize writes what a report says in short, and how the benchmark failed.
func (b *bench) summarize(r load.Report, failed error) error {
	text := ""
	if failed != nil {
		text = excerpt.Of(failed.Error(), maxSummary/4) + "\n"
	}
	text += r.Summary(maxSummary - len(text))
	if err := os.WriteFile(b.summary, []byte(text), 0o644); err != nil {
		return fmt.Errorf("--summary %s: %w", b.summary, command.Cause(err))
	}
	return nil
}

// noneAnswered is the error of a report in which nothing was answered.
func noneAnswered(r load.Report) error {
	for i := range r.Points {
		if p := &r.Points[i]; p.Failed < p.Requests || p.Requests == 0 {
			return nil
		}
	}
	if len(r.Points) == 0 {
		return nil // why not is said elsewhere
	}
	return errors.New("no request was answered")
}

// underWay is the line that shows how far a benchmark is.
func underWay(loads []load.Load, point int, p benchmark.Progress) string {
	at := ""
	if len(loads) > 1 {
		at = fmt.Sprintf("%d of %d: ", point+1, len(loads))
	}
	at += loads[point].Scenario.Name
	switch {
	case p.WarmingUp:
		return at + ": warming up"
	case p.Of == load.MaxRequests:
		at += fmt.Sprintf(": %d requests", p.Requests)
	default:
		at += fmt.Sprintf(": %d of %d requests", p.Requests, p.Of)
	}
	if p.Failed > 0 {
		at += fmt.Sprintf(", %d failed", p.Failed)
	}
	return at
}
