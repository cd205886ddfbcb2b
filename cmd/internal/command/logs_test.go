package command

import (
	"bytes"
	"encoding/json"
	"log"
	"log/slog"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"
)

// TestLibrariesLogAsTheProcessDoes: what is logged by package log, by gRPC and by
// slog's functions is a record like any.
func TestLibrariesLogAsTheProcessDoes(t *testing.T) {
	t.Setenv(LogFormatVariable, LogJSON)
	t.Setenv("GRPC_GO_LOG_SEVERITY_LEVEL", "")
	was := slog.Default()
	defer slog.SetDefault(was)
	var o LogOptions
	o.Flags(pflag.NewFlagSet("", pflag.ContinueOnError))
	var out bytes.Buffer
	own, err := o.New(&out)
	if err != nil {
		t.Fatal(err)
	}
	logGRPC()
	own.Info("own", "a", 1)
	own.Debug("not said")
	log.Print("http: something\nof two lines")
	grpclog.Errorf("gRPC %d", 1)
	grpclog.Errorln("gRPC", 2)
	grpclog.Component("part").Error("gRPC 3")
	grpclog.Warning("not said")
	want := []string{"INFO own", "WARN http: something\nof two lines", "ERROR gRPC 1", "ERROR gRPC 2", "ERROR [part] gRPC 3"}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(want) {
		t.Fatal(out.String())
	}
	for i, line := range lines {
		var r struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &r); err != nil || strings.TrimSpace(r.Level+" "+r.Msg) != want[i] {
			t.Errorf("%s is not %q: %v", line, want[i], err)
		}
	}
}
