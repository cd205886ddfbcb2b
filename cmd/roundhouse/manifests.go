package main

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/deploy/manifests"
)

func newManifestsCommand() *cobra.Command {
	o := manifests.Options{}
	cmd := &cobra.Command{
		Use:   "manifests",
		Short: "Print the manifests that install Roundhouse in a Kubernetes cluster",
		Long: `Print the manifests that install Roundhouse in a Kubernetes cluster: CRDs, the
controller, the gateway and their roles, as the Helm chart does with its default
values. To upgrade, print them with a newer release and apply them.`,
		Example: `  roundhouse manifests --image registry.example/roundhouse:1 | kubectl apply --server-side -f -
  roundhouse manifests --image roundhouse --watch-namespace team-a --adopt kserve`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := clusterOptions(&o); err != nil {
				return err
			}
			return manifests.Write(cmd.OutOrStdout(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Image, "image", "roundhouse:"+version, "image of the controller, the gateway and the built-in runtimes")
	f.StringVar(&o.Namespace, "namespace", manifests.Namespace, "namespace to run in")
	f.StringSliceVar(&o.Watch, "watch-namespace", nil, "watch only this namespace, with a Role in it; may be repeated")
	f.StringSliceVar(&o.Adopt, "adopt", nil, "also run the manifests of other projects: "+strings.Join(manifests.Adoptable, ", "))
	f.StringSliceVar(&o.InstallCRDs, "install-crds", nil, "install missing CRDs of other projects: "+strings.Join(manifests.Installable, ", "))
	f.StringVar(&o.GatewayURL, "gateway-url", "", "URL of a service for its status, with {name} and {namespace} as placeholders")
	f.BoolVar(&o.NoCRDs, "no-crds", false, "leave out the CRDs of roundhouse.dev")
	return cmd
}

const namespaceName = `^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`

// clusterOptions returns an error for what no cluster accepts.
func clusterOptions(o *manifests.Options) error {
	for flag, names := range map[string][]string{"--namespace": {o.Namespace}, "--watch-namespace": o.Watch} {
		for _, n := range names {
			if !regexp.MustCompile(namespaceName).MatchString(n) {
				return command.Usagef("%s is %q: want the name of a namespace", flag, n)
			}
		}
	}
	if o.Image == "" || strings.ContainsAny(o.Image, " \t\n") {
		return command.Usagef("--image is %q: want the name of an image", o.Image)
	}
	for _, set := range []struct {
		flag         string
		given, known []string
	}{{"--adopt", o.Adopt, manifests.Adoptable}, {"--install-crds", o.InstallCRDs, manifests.Installable}} {
		for _, g := range set.given {
			if !slices.Contains(set.known, g) {
				return command.Usagef("%s is %q: want some of %s", set.flag, g, strings.Join(set.known, ", "))
			}
		}
	}
	if o.GatewayURL != "" { // as the controller and the gateways check it when they start
		u, err := url.Parse(strings.NewReplacer("{name}", "name", "{namespace}", "namespace").Replace(o.GatewayURL))
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return command.Usagef("--gateway-url is %q: want a URL with the placeholders {name} and {namespace}", o.GatewayURL)
		}
	}
	return nil
}
