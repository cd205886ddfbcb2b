package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

func TestMain(m *testing.M) {
	if args := os.Getenv(asController); args != "" {
		os.Exit(run(strings.Fields(args), os.Stdout, os.Stderr))
	}
	kubetest.Main(m)
}

// root is the command line as roundhouse has it.
func root() *cobra.Command {
	root := &cobra.Command{Use: "roundhouse", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(NewCommand("test"))
	command.Mark(root)
	return root
}

// run runs a command of it and returns the exit code.
func run(args []string, out, logs io.Writer) int { return command.Run(root(), args, out, logs) }

// asController has the test binary be a controller with these arguments.
const asController = "ROUNDHOUSE_TEST_CONTROLLER"

// options are those of a controller that leads alone.
func options(t *testing.T, namespaces ...string) controllerOptions {
	t.Helper()
	o := controllerOptions{image: "registry.example/roundhouse:1", gatewayURL: "http://{name}.{namespace}.example.com", gatewayService: "roundhouse-gateway",
		gatewayAccount: "roundhouse-gateway", benchmarks: true, system: "default", report: "127.0.0.1:0", lease: defaultLease, adopt: []string{"kserve", "ome", "gateway"}, namespaces: namespaces}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	return o
}

// running is a controller in this process.
type running struct {
	*operator
	stop func() error
}

// begin starts a controller and waits until it leads.
func begin(t *testing.T, o controllerOptions, cfg *rest.Config) *running {
	t.Helper()
	r := launch(t, o, cfg)
	select {
	case <-r.led:
	case <-time.After(time.Minute):
		t.Fatal("it does not lead")
	}
	return r
}

func launch(t *testing.T, o controllerOptions, cfg *rest.Config) *running {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	ctx, cancel := context.WithCancel(context.Background())
	op, err := newOperator(ctx, o, cfg, log)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- op.Run(ctx) }()
	stopped := false
	r := &running{operator: op, stop: func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if err := op.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

const iris = `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: iris}
spec:
  model: {uri: s3://models/iris, format: {name: xgboost}}
  scaling: {minReplicas: 1, maxReplicas: 3}
`

// The guides' own, with the indentation that a web page loses.
const (
	kserveSklearn = `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: example-sklearn-isvc}
spec:
  predictor:
    model:
      modelFormat: {name: sklearn}
      storageUri: s3://bucket/sklearn/mnist.joblib
      runtime: kserve-mlserver
`
	omeMistral = `
apiVersion: ome.io/v1beta1
kind: ClusterBaseModel
metadata: {name: mistral-7b-instruct}
spec:
  vendor: mistralai
  modelType: mistral
  modelArchitecture: MistralForCausalLM
  modelParameterSize: 7.25B
  modelFormat: {name: safetensors, version: "1.0.0"}
  modelFramework: {name: transformers, version: 4.36.2}
  storage: {storageUri: hf://mistralai/Mistral-7B-Instruct-v0.3}
---
apiVersion: ome.io/v1beta1
kind: ClusterServingRuntime
metadata: {name: srt-mistral-7b-instruct}
spec:
  supportedModelFormats:
  - modelFramework: {name: transformers, version: 4.36.2}
    modelFormat: {name: safetensors, version: "1.0.0"}
    modelArchitecture: MistralForCausalLM
    autoSelect: true
    priority: 1
  protocolVersions: [openAI]
  modelSizeRange: {max: 9B, min: 5B}
  engineConfig:
    runner:
      name: ome-container
      image: docker.io/lmsysorg/sglang:v0.4.8.post1-cu126
      command: [python3, -m, sglang.launch_server, --port, "8080"]
---
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: mistral-7b-instruct}
spec:
  engine: {minReplicas: 1, maxReplicas: 1}
  model: {name: mistral-7b-instruct}
  runtime: {name: srt-mistral-7b-instruct}
`
)

func get(t *testing.T, c client.Client, u *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	out := &unstructured.Unstructured{}
	out.SetGroupVersionKind(u.GroupVersionKind())
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(u), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func field(u *unstructured.Unstructured, path ...string) string {
	v, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	return fmt.Sprint(v)
}

// lists of what a service is made of, by a word for each.
func made(t *testing.T, c client.Client, ns, name string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for word, l := range map[string]client.ObjectList{"records": &appsv1.ControllerRevisionList{}, "deployments": &appsv1.DeploymentList{},
		"services": &corev1.ServiceList{}, "budgets": &policyv1.PodDisruptionBudgetList{}} {
		if err := c.List(t.Context(), l, client.InNamespace(ns), client.MatchingLabels{shape.LabelService: shape.LabelValue(name)}); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		var items struct {
			Items []metav1.PartialObjectMetadata
		}
		if err := json.Unmarshal(text, &items); err != nil {
			t.Fatal(err)
		}
		for _, i := range items.Items {
			if len(i.OwnerReferences) != 1 || i.OwnerReferences[0].Name != name {
				t.Errorf("%s %s has the owners %v", word, i.Name, i.OwnerReferences)
			}
			out[word]++
		}
	}
	return out
}

func events(t *testing.T, c client.Client, u *unstructured.Unstructured) (out []string) {
	t.Helper()
	var l eventsv1.EventList
	if err := c.List(t.Context(), &l, client.InNamespace(u.GetNamespace())); err != nil {
		t.Fatal(err)
	}
	for _, e := range l.Items {
		if e.Regarding.Kind == u.GetKind() && e.Regarding.Name == u.GetName() {
			out = append(out, e.Reason+" "+e.Note)
		}
	}
	return out
}

// lacks names the first prefix that no line has.
func lacks(lines []string, prefixes ...string) string {
	for _, p := range prefixes {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, p) }) {
			return fmt.Sprintf("%s among %q", p, lines)
		}
	}
	return ""
}

func condition(u *unstructured.Unstructured, kind string) string {
	cs, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range cs {
		if m, ok := c.(map[string]any); ok && m["type"] == kind {
			return fmt.Sprint(m)
		}
	}
	return ""
}
