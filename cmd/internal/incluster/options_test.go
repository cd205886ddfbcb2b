package incluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestOptions: what is wrong is said at once, with the flag's name.
func TestOptions(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "here")
	t.Setenv("POD_NAME", "gateway-7")
	parse := func(args ...string) (*Options, error) {
		var o Options
		f := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
		o.Flags(f)
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		return &o, o.settle()
	}
	o, err := parse("--gateway-url=https://{name}.{namespace}.models.test:8443", "--adopt=kserve,ome")
	if err != nil || o.System != "here" || o.Pod != "gateway-7" || o.domain() != "models.test" || len(o.adopt) != 2 ||
		o.address(service.Key{Namespace: "ml", Name: "iris"}) != "https://iris.ml.models.test:8443" {
		t.Errorf("%+v %v", o, err)
	}
	for args, want := range map[string]string{
		"--gateway-url=models.test": "--gateway-url", "--adopt=helm": "--adopt helm", "--leave=1h": "--leave", "--controller-service=": "--controller-service",
	} {
		var usage *command.UsageError
		if _, err := parse(args); !errors.As(err, &usage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
	if o, err = parse("--gateway-url=https://models.test/{namespace}/{name}"); err != nil || o.domain() != "" {
		t.Errorf("a URL of another form: %q, %v", o.domain(), err)
	}
}
