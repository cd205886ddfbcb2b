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
		Long: `Print what installs Roundhouse in a Kubernetes cluster: CRDs, the controller,
the gateway and what they are allowed, as the Helm chart does with its default
values. Printing it anew with a newer release and applying that is an upgrade.`,
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
	f.StringVar(&o.Image, "image", "roundhouse:"+version, "image of the controller, the gateway and the runtimes that come with them")
	f.StringVar(&o.Namespace, "namespace", manifests.Namespace, "namespace to run in")
	f.StringSliceVar(&o.Watch, "watch-namespace", nil, "look after this namespace alone, with Roles in it; may be repeated")
	f.StringSliceVar(&o.Adopt, "adopt", nil, "run the manifests of other projects too: "+strings.Join(manifests.Adoptable, ", "))
	f.StringSliceVar(&o.InstallCRDs, "install-crds", nil, "have the controller make CRDs of other projects where they are missing: "+strings.Join(manifests.Installable, ", "))
	f.StringVar(&o.GatewayURL, "gateway-url", "", "where people reach a service, for its status: a URL with {name} and {namespace} in their places")
	f.BoolVar(&o.NoCRDs, "no-crds", false, "leave out the CRDs of roundhouse.dev")
	return cmd
}

const namespaceName = `^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`

// clusterOptions refuses what no cluster would take.
func clusterOptions(o *manifests.Options) error {
	for flag, names := range map[string][]string{"--namespace": {o.Namespace}, "--watch-namespace": o.Watch} {
		for _, n := range names {
			if !regexp.MustCompile(namespaceName).MatchString(n) {
				return command.Usagef("%s %q: not a namespace's name", flag, n)
			}
		}
	}
	if o.Image == "" || strings.ContainsAny(o.Image, " \t\n") {
		return command.Usagef("--image %q: not an image's name", o.Image)
	}
	for _, set := range []struct {
		flag         string
		given, known []string
	}{{"--adopt", o.Adopt, manifests.Adoptable}, {"--install-crds", o.InstallCRDs, manifests.Installable}} {
		for _, g := range set.given {
			if !slices.Contains(set.known, g) {
				return command.Usagef("%s %s: write some of %s", set.flag, g, strings.Join(set.known, ", "))
			}
		}
	}
	if o.GatewayURL != "" { // as the controller and the gateways check it when they start
		u, err := url.Parse(strings.NewReplacer("{name}", "name", "{namespace}", "namespace").Replace(o.GatewayURL))
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return command.Usagef("--gateway-url %q: write a URL, with {name} and {namespace} in their places", o.GatewayURL)
		}
	}
	return nil
}
