package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
)

// pullCommand is `roundhouse pull`.
type pullCommand struct {
	dataDir string
	out     string
	public  bool
}

func newPullCommand() *cobra.Command {
	var c pullCommand
	cmd := &cobra.Command{
		Use:   "pull URI…",
		Short: "Download models ahead of use",
		Long: `Fetch models into the data directory ahead of their use. A server over the same
directory finds them there; one that is running may go on meanwhile. What was
interrupted is resumed.

With --out the files of one model are put into a folder of your own, which must
be empty or hold that model: init containers fetch models for pods so. Then
KServe's STORAGE_CONFIG and STORAGE_OVERRIDE_CONFIG are heeded.`,
		Example: `  roundhouse pull hf://Qwen/Qwen2.5-0.5B-Instruct
  roundhouse pull s3://models/iris https://example.com/model.bst
  roundhouse pull s3://models/iris --out /mnt/models`,
		Args: command.Wants(1, -1, "the URIs of models"),
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd, args) },
	}
	cmd.Flags().StringVar(&c.dataDir, "data-dir", datadir.Default(), "where the desired state, models and logs are kept")
	cmd.Flags().StringVar(&c.out, "out", "", "folder to put the files of one model into, instead of the data directory")
	// By a variable in pods: those of an older release take no flag that they do
	// not know.
	cmd.Flags().BoolVar(&c.public, "public-only", os.Getenv("ROUNDHOUSE_PUBLIC_ONLY") == "true",
		"with --out: refuse a URI that leads to an internal address (loopback, link-local, private); endpoints that the environment names are asked all the same")
	return cmd
}

func (c *pullCommand) run(cmd *cobra.Command, uris []string) error {
	if c.out != "" {
		if len(uris) > 1 {
			return command.Usagef("--out takes the files of one model, and %d are named", len(uris))
		}
		if cmd.Flags().Changed("data-dir") {
			return command.Usagef("--out and --data-dir are two places: give one of them")
		}
		uri, err := fromStorage(uris[0])
		if err != nil {
			return err
		}
		err = c.pull(cmd, uri, func(progress func(artifact.Progress)) (string, error) {
			return c.out, artifact.Materialize(contextOf(cmd), c.out, artifact.Request{URI: uri}, artifact.Config{PublicOnly: c.public}, nil, nil, progress)
		})
		if from := os.Getenv("ROUNDHOUSE_CREDENTIALS"); from != "" && artifact.Denied(err) {
			return fmt.Errorf("%w; credentials here are those of %s", err, from)
		}
		return err
	}
	if cmd.Flags().Changed("public-only") {
		return command.Usagef("--public-only goes with --out")
	}
	store, done, err := openModels(c.dataDir, uris)
	if err != nil {
		return err
	}
	defer done()
	for _, uri := range uris {
		err := c.pull(cmd, uri, func(progress func(artifact.Progress)) (string, error) {
			return store.Fetch(contextOf(cmd), artifact.Request{URI: uri}, progress)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pull fetches one model, says how far it is, and where it lies.
func (c *pullCommand) pull(cmd *cobra.Command, uri string, fetch func(func(artifact.Progress)) (string, error)) error {
	name := artifact.Redact(uri)
	bar := newProgress(stderrFile(cmd))
	defer bar.done()
	lines := progressLines{w: cmd.ErrOrStderr(), name: name, now: time.Now}
	path, err := fetch(func(p artifact.Progress) {
		if bar.on {
			bar.fetch(name, p.Done, p.Total)
			return
		}
		lines.say(p)
	})
	bar.done()
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(cmd.OutOrStdout(), path)
	return nil
}

// progressEvery is how long is between two lines of progress.
const progressEvery = 5 * time.Second

// progressLines says how far a download is where there is no terminal, such as
// in the log of a pod.
type progressLines struct {
	w     io.Writer
	name  string
	now   func() time.Time
	began time.Time
	said  time.Time
	first int64
}

func (l *progressLines) say(p artifact.Progress) {
	now := l.now()
	if l.began.IsZero() {
		l.began, l.said, l.first = now, now, p.Done
		return
	}
	if p.Total <= 0 || now.Sub(l.said) < progressEvery {
		return
	}
	l.said = now
	rate := float64(p.Done-l.first) / now.Sub(l.began).Seconds()
	_, _ = fmt.Fprintf(l.w, "%s: %s of %s (%d %%), %s/s\n", l.name, mebibytes(float64(p.Done)), mebibytes(float64(p.Total)),
		int(100*float64(p.Done)/float64(p.Total)), mebibytes(rate))
}

func mebibytes(n float64) string { return fmt.Sprintf("%.1f MiB", n/(1<<20)) }
