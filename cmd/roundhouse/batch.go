package main

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/inference"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// batchFlags are the flags of the batch form of infer. They and the variables are
// those of `mlserver infer`.
type batchFlags struct {
	inference.Batch
	model, url       string
	interval, jitter seconds
	useTLS           bool
	extraVerbose     bool
	transport        string
	binary           bool
}

func (b *batchFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&b.Input, "input-data-path", "i", "", "file of requests, one a line; - for standard input")
	f.StringVarP(&b.Output, "output-data-path", "o", "", "file for the answers, one a line, in order; - for standard output")
	f.StringVarP(&b.model, "model-name", "m", "", "name of the model, in place of NAME")
	f.StringVarP(&b.url, "url", "u", "", "HOST:PORT of the server, in place of --gateway")
	f.IntVarP(&b.Workers, "workers", "w", 10, "with -i: requests under way at once")
	f.IntVarP(&b.Retries, "retries", "r", 3, "with -i: tries of a request, the first included")
	f.IntVarP(&b.Size, "batch-size", "s", 1, "with -i: lines to send as one request, where their inputs fit together")
	f.Var(&b.interval, "batch-interval", "with -i: least time between two requests of a worker")
	f.Var(&b.jitter, "batch-jitter", "with -i: most random time to add to it")
	f.StringArrayVarP(&b.Headers, "request-headers", "H", nil, "with -i: header of every request, 'NAME: VALUE'; may be repeated")
	f.BoolVar(&b.useTLS, "use-ssl", false, "use TLS for --url")
	f.BoolVar(&b.Insecure, "insecure", false, "with -i: accept any certificate")
	f.CountVarP(&b.Verbose, "verbose", "v", "with -i: print retries and failures; -vv: every request")
	f.BoolVar(&b.extraVerbose, "extra-verbose", false, "same as -vv")
	f.StringVarP(&b.transport, "transport", "t", "rest", "rest; grpc is not supported, since the lines are JSON")
	f.BoolVarP(&b.binary, "binary-data", "b", false, "not supported: the lines are JSON")
}

// on reports whether the command line is of a batch.
func (b *batchFlags) on() bool { return b.Input != "" || b.Output != "" }

// batchOnly are flags without a meaning for one request.
var batchOnly = []string{"workers", "retries", "batch-size", "batch-interval", "batch-jitter", "request-headers",
	"insecure", "verbose", "extra-verbose", "transport", "binary-data"}

// subject is the model that a command line names. A server that it names is set
// in r.
func (b *batchFlags) subject(cmd *cobra.Command, args []string, r *remote, n *namespaced) (service.Key, error) {
	given := slices.IndexFunc(batchOnly, cmd.Flags().Changed)
	if err := b.environment(cmd.Flags()); err != nil {
		return service.Key{}, err
	}
	if !b.on() && given >= 0 {
		return service.Key{}, command.Usagef("--%s is for a batch: give -i and -o too", batchOnly[given])
	}
	base, err := b.base()
	if err != nil {
		return service.Key{}, err
	}
	if base != "" {
		r.Gateway = base
	}
	r.Gateway = strings.TrimSuffix(r.Gateway, "/")
	name := b.model
	switch {
	case len(args) == 1 && name != "" && cmd.Flags().Changed("model-name"):
		return service.Key{}, command.Usagef("two models: give %s or --model-name %s", args[0], name)
	case len(args) == 1:
		name = args[0]
	case name == "":
		return service.Key{}, command.Usagef("give the name of the model")
	}
	return n.key(name), nil
}

// environment reads the variables that stand for flags not given, as
// MLServer's command does.
func (b *batchFlags) environment(f *pflag.FlagSet) error {
	var err error
	f.VisitAll(func(flag *pflag.Flag) {
		name := strings.ReplaceAll(strings.ToUpper(flag.Name), "-", "_")
		if name == "TIMEOUT" {
			name = "CONNECTION_TIMEOUT"
		}
		value := os.Getenv("MLSERVER_INFER_" + name)
		if flag.Changed || value == "" {
			return
		}
		values := []string{value}
		switch on, isBool := strconv.ParseBool(value); {
		case name == "REQUEST_HEADERS":
			values = strings.Fields(value)
		case name == "VERBOSE" && isBool == nil && on:
			values = []string{"+1"}
		case name == "VERBOSE":
			return
		}
		for _, v := range values {
			if e := f.Set(flag.Name, v); e != nil {
				err = command.Usagef("MLSERVER_INFER_%s: %w", name, e)
			}
		}
	})
	return err
}

// base is the URL that --url means, "" for none.
func (b *batchFlags) base() (string, error) {
	if b.url == "" {
		return "", nil
	}
	base := b.url
	if !strings.Contains(base, "://") {
		scheme := "http"
		if b.useTLS {
			scheme = "https"
		}
		base = scheme + "://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", command.Usagef("--url is %q: want HOST:PORT", b.url)
	}
	return strings.TrimSuffix(base, "/"), nil
}

// run sends the lines to model k.
func (b *batchFlags) run(cmd *cobra.Command, k service.Key, r *remote, timeout time.Duration) error {
	b.Interval, b.Jitter, b.Timeout = time.Duration(b.interval), time.Duration(b.jitter), timeout
	if b.extraVerbose {
		b.Verbose = 2
	}
	switch {
	case b.transport != "rest":
		return command.Usagef("--transport %s is not supported: the lines are JSON, for rest", b.transport)
	case b.binary:
		return command.Usagef("--binary-data is not supported: the lines are sent as JSON")
	}
	if err := b.Validate(); err != nil {
		return err
	}
	gateway, err := r.Inference(cmd.Context())
	if err != nil {
		return err
	}
	return b.Run(cmd.Context(), gateway, k, inference.Streams{In: command.Stdin(cmd), Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr()})
}

// seconds is a duration in the form of MLServer's flags, "0.5", or Go's, "500ms".
type seconds time.Duration

// String is the time as Go states it.
func (s *seconds) String() string { return time.Duration(*s).String() }

// Type names the kind of value in help texts.
func (s *seconds) Type() string { return "duration" }

// Set reads a time.
func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, e := strconv.ParseFloat(text, 64); e == nil {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d < 0 || d > 1000*time.Hour {
		return fmt.Errorf("%q is not a duration: write seconds, as 30 or 0.5, or 5m", text)
	}
	*s = seconds(d)
	return nil
}
