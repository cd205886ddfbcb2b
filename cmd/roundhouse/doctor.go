package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
)

func newDoctorCommand() *cobra.Command {
	var r remote
	var all bool
	output := "table"
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show what can run on this machine, and what to install for the rest",
		Long: `Show what can run on this machine: programs, GPUs, memory, limits, the data directory
and the ports of ` + "`roundhouse up`" + `; and for each runtime of the catalog whether it runs here, or
what it lacks, with the line that mends that. Exits with code 1 if no runtime runs or
something that ` + "`up`" + ` needs is not well. Changes nothing.`,
		Example: `  roundhouse doctor
  roundhouse doctor --all
  roundhouse doctor -o json`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := app.Examine(cmd.Context(), r.DataDir, r.answers(cmd.Context()))
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if output == "json" {
				err = printer.JSON(out, h)
			} else {
				err = printHealth(out, h, all)
			}
			if err != nil {
				return err
			}
			return verdict(h)
		},
	}
	r.flags(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "list the runtimes for larger machines too")
	command.OutputFlag(cmd, &output, "table or json", "table", "json")
	return cmd
}

// answers reports whether an `up` does.
func (r *remote) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	up, err := r.Up()
	if err != nil {
		return false
	}
	about, err := up.About(ctx)
	return err == nil && about.Name == "roundhouse"
}

func printHealth(w io.Writer, h *app.Health, all bool) error {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	for _, c := range h.Machine {
		line, mark := c.Said, "ok"
		if c.Mend != "" {
			line += ": " + c.Mend
		}
		if !c.OK {
			mark = "NO"
		}
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\n", mark, c.Name, line)
	}
	_ = tw.Flush()
	_, _ = fmt.Fprintln(&b)
	larger := 0
	for _, d := range h.Runtimes {
		if d.TooSmall && !all {
			larger++
			continue
		}
		formats, mark := "", "ok"
		if len(d.Formats) > 0 {
			formats = strings.Join(d.Formats, ", ") + ": "
		}
		if !d.Runs {
			mark = "-"
		}
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s%s\n", mark, d.Runtime, formats, d.Why)
	}
	_ = tw.Flush()
	if larger > 0 {
		_, _ = fmt.Fprintf(&b, "\n%s of the catalog are for machines with more GPUs or memory: --all lists them.\n", command.Count(larger, "runtime"))
	}
	_, _ = fmt.Fprintf(&b, "%s of the catalog come only as images, for clusters.\n", command.Count(h.Images, "runtime"))
	_, err := io.WriteString(w, command.Folded(b.String(), command.Width(w), 8))
	return err
}

// verdict is the error of a machine that is not well.
func verdict(h *app.Health) error {
	bad := 0
	for _, c := range h.Machine {
		if !c.OK {
			bad++
		}
	}
	switch {
	case bad > 0:
		return fmt.Errorf("%s to mend, marked NO", command.Count(bad, "thing"))
	case !h.Runs():
		return errors.New("no runtime of the catalog runs here")
	}
	return nil
}
