// Package gateway runs the conformance suite of the Gateway API, as it is
// published, but for what its base manifests set up: not the Gateway that serves
// HTTPS, which a gateway of one certificate need not have, and services of ours
// in place of pods behind plain Services, which our gateway does not forward to.
// With these it runs the tests that look at status.
package gateway

import (
	"embed"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/flags"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
)

//go:embed base.yaml
var base embed.FS

// statusTimeout is what a status has to be as wanted: it is written at once.
const statusTimeout = 20 * time.Second

// TestConformance runs all tests of the core profile, or those that the flag
// -run-test names with commas between.
func TestConformance(t *testing.T) {
	opts := conformance.DefaultOptions(t)
	only := strings.FieldsFunc(*flags.RunTest, func(r rune) bool { return r == ',' })
	opts.RunTest = ""
	opts.ManifestFS = []fs.FS{base, &conformance.Manifests}
	opts.BaseManifests = "base.yaml"
	opts.SupportedFeatures = suite.FeaturesSet{}.Insert(features.SupportGateway, features.SupportHTTPRoute, features.SupportReferenceGrant,
		features.SupportHTTPRouteParentRefPort, features.SupportHTTPRouteDestinationPortMatching)
	c := &opts.TimeoutConfig
	for _, d := range []*time.Duration{&c.GatewayMustHaveAddress, &c.GatewayMustHaveCondition, &c.GatewayStatusMustHaveListeners, &c.GatewayListenersMustHaveConditions,
		&c.HTTPRouteMustNotHaveParents, &c.HTTPRouteMustHaveCondition, &c.NamespacesMustBeReady, &c.RouteMustHaveParents, &c.LatestObservedGenerationSet} {
		*d = statusTimeout
	}
	c.MaxTimeToConsistency = 5 * time.Second // of requests, which tests of status send some
	s, err := suite.NewConformanceTestSuite(opts)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.DeleteFunc(slices.Clone(tests.ConformanceTests), func(test suite.ConformanceTest) bool {
		return len(only) > 0 && !slices.Contains(only, test.ShortName)
	})
	s.Setup(t, all)
	if err := s.Run(t, all); err != nil {
		t.Fatal(err)
	}
}
