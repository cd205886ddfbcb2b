package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/inference"
)

// repositoryCommand is a call of the Open Inference Protocol's model repository.
type repositoryCommand struct {
	remote
	namespaced
	call, done string
}

func newLoadCommand() *cobra.Command {
	c := repositoryCommand{call: "load", done: "is loaded"}
	return c.command(&cobra.Command{
		Use:   "load MODEL…",
		Short: "Have models ready: start a replica of each, or have a model server read its files",
		Long: `Have models ready, by the model repository of the Open Inference Protocol. At a
gateway, of a running roundhouse up or in a cluster, a service that is asleep is
started, and the command returns when a replica is ready. With --gateway at the address
of a model server (roundhouse serve), that server reads the model's files, again if it
has the model already. A service that is idle for as long as its manifest says sleeps
again.`,
		Example: `  roundhouse load iris
  roundhouse load llama mistral --timeout 30m
  roundhouse load iris --gateway http://127.0.0.1:8080
  roundhouse load llama --context production`,
	})
}

func newUnloadCommand() *cobra.Command {
	c := repositoryCommand{call: "unload", done: "is unloaded"}
	return c.command(&cobra.Command{
		Use:   "unload MODEL…",
		Short: "Have models unloaded until they are asked for again",
		Long: `Have models unloaded, by the model repository of the Open Inference Protocol. At a
gateway a service scales to zero until its next request, also one whose manifest wants
a replica at all times; roundhouse stop switches it off. With --gateway at the address
of a model server (roundhouse serve), the model is loaded again only when that is asked
for.`,
		Example: `  roundhouse unload iris
  roundhouse unload iris --gateway http://127.0.0.1:8080
  roundhouse unload llama --context production`,
	})
}

// command completes cmd.
func (c *repositoryCommand) command(cmd *cobra.Command) *cobra.Command {
	timeout := 10 * time.Minute
	cmd.Args = command.Wants(1, -1, "the name of a model")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if timeout <= 0 {
			return command.Usagef("--timeout is %s: must be more than 0", timeout)
		}
		if err := c.settle(&c.namespaced); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		gateway, err := c.Inference(ctx)
		if err != nil {
			return err
		}
		for _, name := range args {
			if err := c.ask(ctx, cmd, gateway, name); err != nil {
				return fmt.Errorf("%s %s: %w", c.call, name, err)
			}
			_, _ = fmt.Fprintf(command.Visible(cmd.OutOrStdout()), "model %s %s\n", name, c.done)
		}
		return nil
	}
	c.remote.flags(cmd)
	c.gatewayFlag(cmd)
	c.namespaced.flags(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long all of it may take")
	return cmd
}

// ask makes the call for one model.
func (c *repositoryCommand) ask(ctx context.Context, cmd *cobra.Command, gateway inference.Gateway, name string) error {
	k := c.key(name)
	if c.call == "load" {
		defer watchWait(ctx, &c.remote, k, cmd.ErrOrStderr())()
	}
	resp, err := gateway.Post(ctx, "/v2/repository/models/"+url.PathEscape(k.Short())+"/"+c.call, []byte("{}"))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // the answer says no more than its status
	return err
}
