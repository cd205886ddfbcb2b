package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func newDeleteCommand() *cobra.Command {
	var r remote
	var n namespaced
	var files []string
	cmd := &cobra.Command{
		Use:   "delete [services|runtimes|models|routes|pools] NAME… | -f FILE",
		Short: "Delete objects; the replicas of a service stop",
		Example: `  roundhouse delete iris
  roundhouse delete runtime my-runtime
  roundhouse delete -f manifests/
  roundhouse delete iris --context production`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			kind, names := kindAndNames(args)
			if len(names) == 0 && len(files) == 0 {
				return command.Usagef("name what to delete, or give -f FILE")
			}
			if len(files) > 0 {
				return deleteFiles(cmd, c, files)
			}
			if routingKinds[kind] != nil {
				return deleteRouting(cmd, c, kind, &n, names)
			}
			var errs []error
			for _, name := range names {
				k, err := n.key(name), error(nil)
				if kind != "services" {
					k, err = objectKey(cmd, c, kind, k, cmd.Flags().Changed("namespace"))
				}
				if err == nil {
					err = deleteOne(cmd, c, kind, k)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "delete the objects of a manifest file or folder; may be repeated")
	return cmd
}

// objectKey finds whether a runtime or model of this name is cluster-scoped.
func objectKey(cmd *cobra.Command, c backend, kind string, k service.Key, namespaceGiven bool) (service.Key, error) {
	list, err := c.Objects(cmd.Context(), kind)
	if err != nil {
		return k, err
	}
	cluster := service.Key{Name: k.Name}
	for _, o := range list {
		at := service.Key{Namespace: o.Namespace, Name: o.Name}
		switch {
		case at == k:
			return k, nil
		case at == cluster && !namespaceGiven && o.Scope != service.ScopeCatalog:
			return cluster, nil
		case at == cluster && o.Scope == service.ScopeCatalog:
			return k, fmt.Errorf("runtime %s belongs to the catalog and cannot be deleted: a service can name another, or a runtime of your own can come before it", k.Name)
		}
	}
	return k, nil
}

func deleteOne(cmd *cobra.Command, c backend, kind string, k service.Key) error {
	ch, err := c.Delete(cmd.Context(), kind, k)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s deleted\n", objectName(ch))
	return nil
}

// deleteFiles deletes what files name, all of it that is there: one that is
// missing does not keep the others.
func deleteFiles(cmd *cobra.Command, c backend, files []string) error {
	manifests, err := readManifests(files, stdin(cmd))
	if err != nil {
		return err
	}
	objects, _, err := admin.ObjectsOn(platformOf(c), manifests, "")
	if err != nil {
		return err
	}
	if c, ok := c.(*clustered); ok {
		return c.deleteAll(cmd, objects)
	}
	plural := map[dialect.Kind]string{dialect.KindService: "services", dialect.KindRuntime: "runtimes", dialect.KindModel: "models"}
	var errs []error
	for _, o := range objects {
		if o.Routing != nil {
			errs = append(errs, deleteRoutingObject(cmd, c, o.ID().Kind, o.Key))
			continue
		}
		kind := plural[o.Kind]
		if o.Model != nil && o.Model.FineTuned != nil {
			kind = "weights"
		}
		errs = append(errs, deleteOne(cmd, c, kind, o.Key))
	}
	return errors.Join(errs...)
}
