package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// completionLimit bounds how long a shell waits for names.
const completionLimit = 2 * time.Second

// named are the commands whose arguments are names of services, and how many they take;
// -1 is any number. Those of kinds may begin with a kind.
var named = map[string]int{
	"get": -1, "describe": -1, "delete": -1, "logs": 1, "ps": -1, "start": -1, "stop": -1, "restart": -1, "scale": -1,
	"explain": 1, "explain wake": 1, "explain scale": 1, "events": 1, "requests": 1, "usage": 1, "infer": 1, "chat": 1, "load": -1, "unload": -1,
	"rollout status": 1, "rollout undo": 1, "top": -1,
}

// withKinds are those of them that may begin with a kind.
var withKinds = []string{"get", "describe", "delete"}

// completeNames has shells complete the names of what a running up or a cluster has.
func completeNames(root *cobra.Command) {
	for path, most := range named {
		cmd, rest, err := root.Find(strings.Fields(path))
		if err != nil || len(rest) > 0 {
			continue
		}
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			kinds := slices.Contains(withKinds, path)
			if most >= 0 && len(args) >= most {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			names := objectNames(cmd, args, kinds)
			if kinds && len(args) == 0 {
				names = append(names, "services", "runtimes", "models", "weights", "acceleratorclasses", "routes", "pools", "reserves", "benchmarkjobs", "localmodelcaches", "localmodelnodegroups", "clusterstoragecontainers", "secrets", "serviceaccounts")
			}
			names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, begun) })
			return names, cobra.ShellCompDirectiveNoFileComp
		}
		if cmd.Flags().Lookup("namespace") != nil {
			_ = cmd.RegisterFlagCompletionFunc("namespace", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				return namespaces(cmd), cobra.ShellCompDirectiveNoFileComp
			})
		}
	}
}

// completing opens what the flags of a command line name that is still being written. A
// shell shows no error, so there is none: what cannot be reached has no names.
func completing(cmd *cobra.Command) (context.Context, context.CancelFunc, backend.Backend) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
	var r remote
	flags := cobra.Command{}
	flags.SetErr(io.Discard)
	r.flags(&flags)
	for _, name := range []string{"server", "data-dir", "context", "kubeconfig"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			_ = flags.Flags().Set(name, f.Value.String())
		}
	}
	b, err := r.open(&flags, nil)
	if err != nil {
		return ctx, cancel, nil
	}
	return ctx, cancel, b
}

// objectNames are the names of the kind that args begin with, or of services; those that
// args have are left out.
func objectNames(cmd *cobra.Command, args []string, kinds bool) (out []string) {
	ctx, cancel, b := completing(cmd)
	defer cancel()
	if b == nil {
		return nil
	}
	namespace := service.DefaultNamespace
	if f := cmd.Flags().Lookup("namespace"); f != nil {
		namespace = f.Value.String()
	}
	s := backend.Select(nil, namespace, true)
	if kinds {
		s = backend.Select(args, namespace, true)
	}
	s.Names, s.AllNamespaces = nil, true
	add := func(ns, name string) {
		if ns != "" && ns != namespace {
			name = ns + "/" + name
		}
		if !slices.Contains(args, name) {
			out = append(out, name)
		}
	}
	switch { // an error leaves nothing to add
	case s.IsRouting():
		list, _ := s.Routing(ctx, b)
		for _, o := range list {
			add(o.Namespace, o.Name)
		}
	case s.Kind == "services":
		list, _ := b.Services(ctx, "", false)
		for _, o := range list {
			add(o.Namespace, o.Name)
		}
	case s.Kind != "reserves":
		list, _ := s.Objects(ctx, b)
		for _, o := range list {
			add("", o.Name)
		}
	}
	return out
}

// namespaces are those that have services.
func namespaces(cmd *cobra.Command) (out []string) {
	ctx, cancel, b := completing(cmd)
	defer cancel()
	if b == nil {
		return nil
	}
	list, _ := b.Services(ctx, "", false)
	for _, s := range list {
		if !slices.Contains(out, s.Namespace) {
			out = append(out, s.Namespace)
		}
	}
	return out
}
