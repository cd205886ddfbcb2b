// Command bench measures a built roundhouse on this machine and prints tables
// beside the goals: `make bench`. docs/benchmarks.md says what and how.
//
// What is compared runs in the same call, in turns, and is given as the median
// of the rounds' own differences and ratios: a machine's mood then hits both
// sides alike. It needs Linux, for /proc.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// bench is what every measurement is given.
type bench struct {
	binary   string // the roundhouse that is measured
	examples string // examples/quickstart
	python   string // an interpreter with xgboost, or ""
	gateways string // where Caddy and Portkey are installed
	olah     string // where olah is installed
	modelMB  int    // size of the models' chapter's file, in MB
	blobs    int    // files in the cache that it starts
	scratch  string // a folder that is removed at the end
	rounds   int
	out      io.Writer
}

// measurement is one chapter of the output.
type measurement struct {
	name string
	run  func(context.Context, *bench) error
}

// measurements in the order in which they run.
var measurements = []measurement{
	{"wake", wake},
	{"memory", memory},
	{"start", start},
	{"rows", rows},
	{"requests", requests},
	{"servers", servers},
	{"workers", workers},
	{"repository", repository},
	{"stock", stock},
	{"gateways", gateways},
	{"models", models},
}

// limit bounds a whole run; one takes several minutes.
const limit = 30 * time.Minute

func main() {
	if len(os.Args) > 1 && os.Args[1] == "part" { // a server ends by a signal alone
		if err := part(os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %v\n", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// run measures. A measurement that fails does not keep the others from
// running; the error holds every failure.
func run(ctx context.Context, args []string, out io.Writer) error {
	b := &bench{out: out, python: os.Getenv("ROUNDHOUSE_PEERS_PYTHON")}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&b.binary, "binary", "bin/roundhouse", "the binary to measure")
	flags.StringVar(&b.examples, "examples", "examples/quickstart", "the quickstart's folder")
	flags.IntVar(&b.rounds, "rounds", 7, "paired rounds of each measurement")
	plain := flags.String("stock", "", "be the stock gRPC server on this port, for the chapter of that name")
	flags.StringVar(&b.gateways, "gateways", ".venv/gateways", "where `make bench-gateways` installs other gateways")
	flags.StringVar(&b.olah, "olah", ".venv/olah", "where `make bench-olah` installs olah, another cache of the Hub")
	flags.IntVar(&b.modelMB, "model-mb", 1000, "size of the file in the chapter models, in MB; six times that much and 2 GB must be free on the disk")
	flags.IntVar(&b.blobs, "model-blobs", 1_000_000, "files in the cache that the chapter models starts")
	only := flags.String("only", "", "measure these alone, separated by commas: "+names())
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *plain != "" {
		return serveStock(ctx, *plain)
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	if err := b.prepare(); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.scratch) }()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	printFacts(out, b.binary)
	var failed []error
	for _, m := range chosen {
		if err := m.run(ctx, b); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", m.name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// prepare settles the paths and makes the scratch folder.
func (b *bench) prepare() (err error) {
	if b.rounds < 1 {
		return fmt.Errorf("-rounds %d: want at least 1", b.rounds)
	}
	if b.modelMB < 1 || b.blobs < 1 {
		return fmt.Errorf("-model-mb %d, -model-blobs %d: want at least 1", b.modelMB, b.blobs)
	}
	for _, path := range []*string{&b.gateways, &b.olah} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	for _, path := range []*string{&b.binary, &b.examples} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
		if _, err = os.Stat(*path); err != nil {
			return fmt.Errorf("%w: run `make bench`, which builds what is needed, in the repository's root", err)
		}
	}
	b.scratch, err = os.MkdirTemp("", "roundhouse-bench-")
	return err
}

func names() string {
	var all []string
	for _, m := range measurements {
		all = append(all, m.name)
	}
	return strings.Join(all, ", ")
}

// choose finds the measurements named in a list, or all for "".
func choose(list string) ([]measurement, error) {
	if list == "" {
		return measurements, nil
	}
	var chosen []measurement
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(measurements, func(m measurement) bool { return m.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("-only %s: there are %s", name, names())
		}
		chosen = append(chosen, measurements[i])
	}
	return chosen, nil
}
