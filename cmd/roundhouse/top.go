package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// mostRecent bounds the requests of which top counts.
const mostRecent = 100_000

func newTopCommand() *cobra.Command {
	var r remote
	var n namespaced
	var once bool
	every := 2 * time.Second
	cmd := &cobra.Command{
		Use:   "top [SERVICE…]",
		Short: "Show what services do now: requests, tokens, latency, memory",
		Long: `Show the services that do most first: the requests in flight; of the last minute the
requests, those that the service FAILED to answer, those refused for what their client
did (4XX), the answers' tokens, and the time to the first byte of half of them and of
95 %; and the memory and GPUs that their replicas hold. On a terminal it goes on until
Ctrl-C, with as many columns as it has room for; elsewhere, and with --once, it is printed
once. In a cluster what only one machine knows is "-".`,
		Example: `  roundhouse top
  roundhouse top llama --interval 5s
  roundhouse top --once`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 100*time.Millisecond {
				return command.Usagef("--interval must be 100ms or more, is %s", every)
			}
			b, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			t := top{b: b, selected: n.selection(nil), out: cmd.OutOrStdout()}
			t.selected.Names = args
			t.selected.AllNamespaces = !r.InCluster && !cmd.Flags().Changed("namespace")
			screen, ok := command.Screen(t.out)
			if once || !ok {
				return t.once(cmd.Context())
			}
			return t.run(cmd.Context(), screen, every)
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "print it once")
	cmd.Flags().DurationVar(&every, "interval", every, "time between two looks")
	return cmd
}

// top shows what services do.
type top struct {
	b        backend.Backend
	selected backend.Selection
	out      io.Writer

	mu     sync.Mutex
	recent []admin.Request
	known  bool // requests are told here
}

func (t *top) once(ctx context.Context) error {
	list, err := t.b.Requests(ctx, admin.RequestQuery{})
	t.recent, t.known = list, err == nil
	return t.print(ctx, t.out, command.Width(t.out))
}

// On a terminal, these begin and end a screen of its own without a cursor: what was
// there before comes back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
)

// run draws it again and again until ctx ends.
func (t *top) run(ctx context.Context, screen *os.File, every time.Duration) error {
	following, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	defer func() { stop(); <-ended }()
	t.known = true
	if _, err := screen.WriteString(enterScreen); err != nil {
		return err
	}
	defer func() { _, _ = screen.WriteString(leaveScreen) }()
	go func() {
		defer close(ended)
		if err := t.b.FollowRequests(following, admin.RequestQuery{}, t.add); err != nil {
			t.mu.Lock()
			t.known = false
			t.mu.Unlock()
		}
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var frame bytes.Buffer
		width, height := sizeOf(screen)
		err := t.print(ctx, &frame, width)
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			return nil // Ctrl-C is how it ends
		}
		if err != nil {
			return err
		}
		if err := draw(screen, frame.Bytes(), width, height); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// sizeOf is how many columns and lines a terminal has.
func sizeOf(screen *os.File) (width, height int) {
	width, height, err := term.GetSize(int(screen.Fd()))
	if err != nil || width <= 0 || height <= 1 {
		return 80, 24
	}
	return width, height
}

// draw writes a frame over the one before; what does not fit is left out.
func draw(screen io.Writer, frame []byte, width, height int) error {
	var b bytes.Buffer
	b.WriteString("\x1b[H")
	for i, line := range bytes.SplitAfter(frame, []byte("\n")) {
		text := []rune(string(bytes.TrimSuffix(line, []byte("\n"))))
		if i >= height-1 || len(text) == 0 {
			break
		}
		b.WriteString(command.Harmless(string(text[:min(len(text), width)])) + "\x1b[K\r\n")
	}
	b.WriteString("\x1b[J") // what is left of a longer one
	_, err := screen.Write(b.Bytes())
	return err
}

// add keeps a request of the window.
func (t *top) add(q admin.Request) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.recent) >= mostRecent {
		t.recent = slices.Delete(t.recent, 0, mostRecent/2)
	}
	t.recent = append(t.recent, q)
	return nil
}

func (t *top) print(ctx context.Context, w io.Writer, width int) error {
	var list []admin.Service
	var err error
	if len(t.selected.Names) > 0 {
		list, err = t.selected.Services(ctx, t.b)
	} else if t.selected.AllNamespaces {
		list, err = t.b.Detailed(ctx, "")
	} else {
		list, err = t.b.Detailed(ctx, t.selected.Namespace)
	}
	if err != nil {
		return err
	}
	now := time.Now()
	t.mu.Lock()
	t.recent = slices.DeleteFunc(t.recent, func(q admin.Request) bool {
		return now.Sub(q.Time.Add(time.Duration(q.DurationMS*float64(time.Millisecond)))) > printer.TopWindow
	})
	recent, known := slices.Clone(t.recent), t.known
	t.mu.Unlock()
	return printer.Top(w, list, recent, known, now, width)
}
