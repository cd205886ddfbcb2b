// Package gateway runs the conformance suite of the Gateway API, as it is published.
package gateway

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/flags"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
	"sigs.k8s.io/yaml"
)

// statusTimeout is what a status has to be as wanted: it is written at once.
const statusTimeout = 20 * time.Second

// supported are the extended features that are tested.
var supported = suite.FeaturesSet{}.Insert(
	features.SupportGateway, features.SupportHTTPRoute, features.SupportGRPCRoute, features.SupportReferenceGrant,
	features.SupportGRPCRouteNamedRouteRule,
	features.SupportHTTPRouteDestinationPortMatching,
	features.SupportHTTPRouteBackendRequestHeaderModification, features.SupportHTTPRouteQueryParamMatching, features.SupportHTTPRouteMethodMatching,
	features.SupportHTTPRouteResponseHeaderModification, features.SupportHTTPRoutePortRedirect, features.SupportHTTPRouteSchemeRedirect,
	features.SupportHTTPRoutePathRedirect, features.SupportHTTPRouteHostRewrite, features.SupportHTTPRoutePathRewrite,
	features.SupportHTTPRouteRequestMirror, features.SupportHTTPRouteRequestMultipleMirrors, features.SupportHTTPRouteRequestPercentageMirror,
	features.SupportHTTPRouteRequestTimeout, features.SupportHTTPRouteBackendTimeout, features.SupportHTTPRouteNamedRouteRule,
	features.SupportHTTPRoute303RedirectStatusCode, features.SupportHTTPRoute307RedirectStatusCode, features.SupportHTTPRoute308RedirectStatusCode,
)

// TestConformance runs the tests of the profiles GATEWAY-HTTP and GATEWAY-GRPC with the
// supported features, or those that the flag -run-test names with commas between, and writes the
// suite's report.
func TestConformance(t *testing.T) {
	opts := conformance.DefaultOptions(t)
	only := strings.FieldsFunc(*flags.RunTest, func(r rune) bool { return r == ',' })
	opts.RunTest = ""
	opts.ConformanceProfiles = opts.ConformanceProfiles.Insert(suite.GatewayHTTPConformanceProfileName, suite.GatewayGRPCConformanceProfileName)
	opts.SupportedFeatures = supported
	c := &opts.TimeoutConfig
	for _, d := range []*time.Duration{&c.GatewayMustHaveAddress, &c.GatewayMustHaveCondition, &c.GatewayStatusMustHaveListeners, &c.GatewayListenersMustHaveConditions,
		&c.HTTPRouteMustNotHaveParents, &c.HTTPRouteMustHaveCondition, &c.RouteMustHaveParents, &c.LatestObservedGenerationSet} {
		*d = statusTimeout
	}
	s, err := suite.NewConformanceTestSuite(opts)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.DeleteFunc(slices.Clone(tests.ConformanceTests), func(test suite.ConformanceTest) bool {
		return len(only) > 0 && !slices.Contains(only, test.ShortName) || !supported.HasAll(test.Features...)
	})
	s.Setup(t, all)
	if err := s.Run(t, all); err != nil {
		t.Fatal(err)
	}
	if opts.ReportOutputPath == "" {
		return
	}
	report, err := s.Report()
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(report)
	if err == nil {
		err = os.WriteFile(opts.ReportOutputPath, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
