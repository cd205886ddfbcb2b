// Command server is the harness's own program in pods: the server of the
// platform's conformance suite, and small stand-ins for what a service has
// beside its engines: a worker of a group, a router, a transformer, the server of a
// logger, a container that fetches models.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

func main() {
	platformtest.Main()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	commands := map[string]func(context.Context, []string) error{"worker": worker, "router": router, "transformer": transformer, "sink": sink, "fetch": fetch}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "server: want worker, router, transformer, sink or fetch, or the suite's variables")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](ctx, os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "server: %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}
