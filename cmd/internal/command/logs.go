package command

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"
)

// The formats of logs.
const (
	LogText = "text"
	LogJSON = "json"
)

var logFormats = []string{LogText, LogJSON}

// LogFormatVariable names the format of logs where no flag does.
const LogFormatVariable = "ROUNDHOUSE_LOG_FORMAT"

// logFormatFlag is the flag whose value, in a command that has it, is also that of
// the error it ends with.
const logFormatFlag = "log-format"

// LogOptions are how a process logs. The zero value logs text.
type LogOptions struct {
	Format  string
	Verbose bool
	// Level is the least that is logged, which Verbose lowers to debug.
	Level slog.Level
}

// Flags adds the flags of the format and of logging more.
func (o *LogOptions) Flags(f *pflag.FlagSet) {
	o.FormatFlag(f)
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "log more")
}

// FormatFlag adds the flag of the format alone.
func (o *LogOptions) FormatFlag(f *pflag.FlagSet) {
	o.Format = LogText
	if v, ok := os.LookupEnv(LogFormatVariable); ok && v != "" {
		o.Format = v
	}
	f.Var(&choice{&o.Format, logFormats}, logFormatFlag, "format of the log: text, or json for one object a line")
}

// Check refuses a format that the variable names and that is none; the flag has
// refused its own.
func (o *LogOptions) Check() error {
	if o.Format != "" && !slices.Contains(logFormats, o.Format) {
		return Usagef("%s is %q: want %s", LogFormatVariable, o.Format, (&choice{formats: logFormats}).among())
	}
	return nil
}

// JSON reports whether each line is an object.
func (o *LogOptions) JSON() bool { return o.Format == LogJSON }

// New is a log that writes to w. What libraries log by themselves goes there too:
// it is the process's log. The process goes on when nobody reads the log any more.
func (o *LogOptions) New(w io.Writer) (*slog.Logger, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	// In `up | tee` Ctrl-C ends tee first, and the next line would end up before it has
	// ended what it started. A signal that is ignored would be so in children too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	options := &slog.HandlerOptions{Level: o.Level}
	if o.Verbose {
		options.Level = slog.LevelDebug
	}
	var h slog.Handler = slog.NewTextHandler(w, options)
	if o.JSON() {
		h = slog.NewJSONHandler(w, options)
	}
	log := slog.New(h)
	// Libraries that log by package log do so when something went wrong.
	slog.SetLogLoggerLevel(slog.LevelWarn)
	slog.SetDefault(log)
	return log, nil
}

// fail tells the error that a command ends with, as its log is written.
func fail(cmd *cobra.Command, logs io.Writer, text, hint string) {
	if f := cmd.Flags().Lookup(logFormatFlag); f != nil && f.Value.String() == LogJSON {
		slog.New(slog.NewJSONHandler(logs, nil)).Error(text)
		return
	}
	_, _ = fmt.Fprintf(logs, "%s: %s\n%s", cmd.Root().CommandPath(), text, hint)
}

var grpcLogs sync.Once

// logGRPC has the gRPC library log its errors to the process's log. Its own
// variables, where they are set, say more and say it elsewhere.
func logGRPC() {
	grpcLogs.Do(func() {
		if os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL") == "" {
			grpclog.SetLoggerV2(grpcLog{grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)})
		}
	})
}

// grpcLog passes errors on.
type grpcLog struct{ grpclog.LoggerV2 }

// Error implements grpclog.LoggerV2.
func (grpcLog) Error(args ...any) { slog.Error(fmt.Sprint(args...), "part", "gRPC") }

// Errorln implements grpclog.LoggerV2.
func (grpcLog) Errorln(args ...any) {
	slog.Error(strings.TrimSuffix(fmt.Sprintln(args...), "\n"), "part", "gRPC")
}

// Errorf implements grpclog.LoggerV2.
func (grpcLog) Errorf(format string, args ...any) {
	slog.Error(fmt.Sprintf(format, args...), "part", "gRPC")
}
