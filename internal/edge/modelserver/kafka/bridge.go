package kafka

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/kafka/wire"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// Service is what answers. *modelserver.Server is one.
type Service interface {
	Infer(ctx context.Context, name, version string, r *tensor.Request) (*tensor.Response, error)
	AddCloudEvents(metadata map[string][]string, r *tensor.Response)
	// Loaded is closed once the models of the start have been tried.
	Loaded() <-chan struct{}
}

// Bridge keeps the bridge's process running and answers what it brings. It is
// a modelserver.Transport that listens nowhere.
type Bridge struct {
	config  Config
	service Service
	log     *slog.Logger
	meters  *meters

	ending   chan struct{} // closed when Shutdown begins
	stopOnce sync.Once
	ctx      context.Context // of requests; ends with Shutdown's time
	cancel   context.CancelFunc
	done     chan struct{} // closed when Serve returned

	mu struct {
		sync.Mutex
		serving bool
	}
}

// New makes a bridge. Nothing is started before Serve.
func New(c Config, service Service, registry *metrics.Registry, log *slog.Logger) (*Bridge, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m, err := newMeters(registry)
	if err != nil {
		return nil, err
	}
	b := &Bridge{config: c, service: service, log: log, meters: m, ending: make(chan struct{}), done: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b, nil
}

// Protocol is Kafka.
func (b *Bridge) Protocol() string { return "Kafka" }

// Listen does nothing: a bridge has no address.
func (b *Bridge) Listen() (net.Addr, error) { return nil, nil }

// settled is how long a process must have lived for its end not to count as a
// failure to start.
const settled = 10 * time.Second

// Serve runs the bridge's process once the models are loaded, and another when
// it ends, until Shutdown.
func (b *Bridge) Serve() error {
	b.mu.Lock()
	b.mu.serving = true
	b.mu.Unlock()
	defer close(b.done)
	select {
	case <-b.service.Loaded():
	case <-b.ending:
		return nil
	}
	for failures := 0; ; failures++ {
		began := time.Now()
		err := b.run()
		select {
		case <-b.ending:
			return nil
		default:
		}
		b.log.Error("kafka bridge ended; it is started again", "error", err)
		if time.Since(began) >= settled {
			failures = 0
		}
		l := &b.config.Limits
		timer := time.NewTimer(min(l.MinBackoff<<min(failures, 20), l.MaxBackoff))
		select {
		case <-timer.C:
		case <-b.ending:
			timer.Stop()
			return nil
		}
	}
}

// Shutdown takes no more records, waits for those under way, and ends the
// process; when ctx ends first it cuts them off, and they are read again by
// whoever comes next.
func (b *Bridge) Shutdown(ctx context.Context) error {
	b.stopOnce.Do(func() { close(b.ending) })
	defer b.cancel()
	b.mu.Lock()
	serving := b.mu.serving
	b.mu.Unlock()
	if !serving {
		return nil
	}
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		b.cancel()
		<-b.done
		return ctx.Err()
	}
}

// arguments are the process's.
func (b *Bridge) arguments() []string {
	c := b.config
	args := append(c.Command[1:len(c.Command):len(c.Command)], "--servers", strings.Join(c.Servers, ","), "--input", c.Input, "--output", c.Output, "--group", c.Group,
		"--reset", c.Reset, "--in-flight", strconv.Itoa(c.Limits.MaxInFlight), "--max-bytes", strconv.Itoa(c.Limits.MaxMessageBytes))
	if c.Debug {
		args = append(args, "--debug")
	}
	return args
}

// killAfter is how long a process that was cut off has to end by itself.
const killAfter = 2 * time.Second

// run is the life of one process.
func (b *Bridge) run() error {
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.config.Command[0], b.arguments()...)
	cmd.Env = os.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's interrupt is for the server, which stops it in order
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = killAfter
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	logs, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	var last string
	var reading sync.WaitGroup
	reading.Go(func() { last = relay(logs, b.log) })
	err = b.exchange(ctx, in, out)
	_ = in.Close() // it ends without
	cancel()
	reading.Wait()
	if waited := cmd.Wait(); last != "" {
		err = errors.Join(err, fmt.Errorf("%w: %s", waited, last))
	} else {
		err = errors.Join(err, waited)
	}
	return err
}

// exchange answers what comes from out through in, until out ends.
func (b *Bridge) exchange(ctx context.Context, in io.Writer, out io.Reader) error {
	reader, writer := wire.NewReader(out, b.config.Limits.MaxMessageBytes), wire.NewWriter(in, b.config.Limits.MaxMessageBytes)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-b.ending:
			_ = writer.Write(wire.Message{Stop: true}) // one that cannot read it ends anyway
		case <-ctx.Done():
		}
	}()
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel() // before Wait: nobody takes what is answered now
	for {
		m, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		working.Go(func() {
			answer, err := b.answer(ctx, m)
			if err != nil {
				return // cut off
			}
			if err = writer.Write(answer); errors.Is(err, wire.ErrTooLarge) {
				large := failure(m, 413, fmt.Errorf("the response is larger than %d bytes, the limit", b.config.Limits.MaxMessageBytes))
				large.ID = m.ID
				_ = writer.Write(large) // else the reader sees the end, too
			}
		})
	}
}

// maxLogLine bounds a line of a process's log.
const maxLogLine = 64 << 10

// relay logs what a process logs, JSON as log/slog writes it, and returns the
// last line that is something else.
func relay(r io.Reader, log *slog.Logger) (last string) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLogLine)
	for lines.Scan() {
		var fields map[string]any
		var level slog.Level
		text, _ := "", 0
		if json.Unmarshal(lines.Bytes(), &fields) == nil {
			text, _ = fields["msg"].(string)
			name, _ := fields["level"].(string)
			_ = level.UnmarshalText([]byte(name)) // else info
		}
		if text == "" {
			last = lines.Text()
			log.Warn("kafka bridge", "says", last)
			continue
		}
		var args []any
		for name, value := range fields {
			if name != "msg" && name != "level" && name != "time" {
				args = append(args, name, value)
			}
		}
		log.Log(context.Background(), level, text, args...)
	}
	_, _ = io.Copy(io.Discard, r) // after a line too long
	return last
}
