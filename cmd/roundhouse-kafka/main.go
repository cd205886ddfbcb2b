// Command roundhouse-kafka is the bridge that `roundhouse serve` starts where
// kafka_enabled says so: a program of its own, because a Kafka client would cost
// every replica memory that few use.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"roundhouse.dev/roundhouse/internal/edge/modelserver/kafka/bridge"
)

func main() { os.Exit(run()) }

// run bridges until the server says stop. Exit codes: 0 done, 1 failed, 2 wrong
// usage.
func run() int {
	var c bridge.Config
	servers := flag.String("servers", "", "brokers, host:port with commas between")
	flag.StringVar(&c.Input, "input", "", "topic of requests")
	flag.StringVar(&c.Output, "output", "", "topic of answers")
	flag.StringVar(&c.Group, "group", "", "consumer group")
	reset := flag.String("reset", "latest", "where a new group begins: latest or earliest")
	flag.IntVar(&c.MaxInFlight, "in-flight", 64, "records worked on at once")
	flag.IntVar(&c.MaxMessageBytes, "max-bytes", 64<<20, "largest value of a record")
	debug := flag.Bool("debug", false, "log more")
	flag.Parse()
	if *servers != "" {
		c.Servers = strings.Split(*servers, ",")
	}
	c.Earliest = *reset == "earliest"
	if err := c.Validate(); err != nil || flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "roundhouse-kafka: %v: `roundhouse serve` starts this program by itself\n", err)
		return 2
	}
	level := slog.LevelInfo
	if *debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := bridge.Run(ctx, c, os.Stdin, os.Stdout, log); err != nil {
		fmt.Fprintf(os.Stderr, "roundhouse-kafka: %v\n", err)
		return 1
	}
	return 0
}
