package llmisvc_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

const head = "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\nmetadata: {name: a}\nspec:\n"
const source = "  model: {uri: \"hf://acme/tiny\", name: acme/tiny}\n"

// TestRefused: what would change answers, or cannot be, is an error that names the
// field; what has no effect is a warning that does.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ spec, want string }{
		{"  replicas: 1\n", "spec.model.uri: is missing"},
		{source + "  modle: {}\n", `did you mean "model"`},
		{source + "  replicas: -1\n", "spec.replicas: -1 is negative"},
		{source + "  replicas: 1\n  scaling: {maxReplicas: 2}\n", "spec.replicas: and scaling both say how many"},
		{source + "  scaling: {minReplicas: 3, maxReplicas: 2, keda: {triggers: []}}\n", "spec.scaling.minReplicas: 3 is more than maxReplicas 2"},
		{source + "  scaling: {minReplicas: 1}\n", "spec.scaling.maxReplicas: is missing"},
		{source + "  scaling: {maxReplicas: 2, wva: {hpa: {}}, keda: {triggers: []}}\n", "spec.scaling.keda: and wva are two ways"},
		{source + "  scaling: {maxReplicas: 2, wva: {hpa: {}}}\n", "warning: spec.scaling.wva: has no effect"},
		{source + "  parallelism: {tensor: 0}\n", "spec.parallelism.tensor: 0 is not more than 0"},
		{source + "  parallelism: {data: 5, dataLocal: 2}\n", "spec.parallelism.data: 5 is no multiple of dataLocal 2"},
		{source + "  worker: {containers: [{name: main}]}\n", "spec.worker: needs parallelism.data"},
		{"  model: {uri: \"hf://a/b\", criticality: Urgent}\n", `spec.model.criticality: unknown criticality "Urgent"`},
		{"  model: {uri: \"hf://a/b\", confidential: {enabled: true}}\n", "spec.model.confidential: is not supported"},
		{"  model: {uri: \"ftp://a/b\"}\n", "warning: spec.model.uri: is fetched by a ClusterStorageContainer that supports ftp://"},
		{"  model: {uri: \"pvc://a/b\"}\n", "warning: spec.model.uri: is a PersistentVolumeClaim"},
		{"  model: {uri: \"hf://a/b\", lora: {adapters: [{uri: \"hf://a/c\"}]}}\n", "spec.model.lora.adapters[0].name: is missing"},
		{"  model: {uri: \"hf://a/b\", lora: {adapters: [{name: c, uri: \"hf://a/c\", lora: {}}]}}\n", "spec.model.lora.adapters[0].lora: an adapter has no adapters"},
		{source + "  router: {route: {weight: 2}}\n", "warning: spec.router.route.weight: has no effect without a group"},
		{source + "  router: {route: {group: g, weight: -2}}\n", "spec.router.route.weight: -2 is not a weight"},
		{source + "  router: {route: {http: {spec: {rules: []}}}}\n", "warning: spec.router.route.http.spec: has no effect"},
		{source + "  router: {scheduler: {config: {inline: {}}}}\n", "warning: spec.router.scheduler.config.inline[schedulingProfiles]: has no effect: is missing"},
		{source + "  router: {scheduler: {config: {inline: [1]}}}\n", "warning: spec.router.scheduler.config.inline: has no effect: it is no EndpointPickerConfig"},
		{source + "  router: {scheduler: {config: {inline: {plugin: []}}}}\n", `warning: spec.router.scheduler.config.inline[plugin]: has no effect: unknown field; did you mean "plugins"?`},
		{source + "  router: {scheduler: {config: {inline: {plugins: [{type: queue-scorer, nam: q}]}}}}\n", `warning: spec.router.scheduler.config.inline[plugins][0][nam]: has no effect: unknown field; did you mean "name"?`},
		{source + "  router: {scheduler: {config: {inline: {plugins: [{type: queue-scorer}], schedulingProfiles: [{name: a, plugins: [{pluginRef: que-scorer}]}]}}}}\n", `is not among plugins; did you mean "queue-scorer"?`},
		{source + "  router:\n    scheduler:\n      config:\n        inline:\n          plugins: [{type: by-label}]\n", "f.yaml:10: warning: spec.router.scheduler.config.inline[plugins][0][type]: has no effect: by-label has no counterpart"},
		{source + "  router: {scheduler: {config: {ref: {name: X}}}}\n", `spec.router.scheduler.config.ref.name: "X" is not a name`},
		{source + "  router: {scheduler: {config: {ref: {key: x}}}}\n", "spec.router.scheduler.config.ref.name: is missing"},
		{source + "  router: {scheduler: {config: {ref: {name: x}, inline: {}}}}\n", "warning: spec.router.scheduler.config.ref: has no effect beside inline"},
		{source + "  router: {gateway: {refs: [{name: g}]}}\n", "warning: spec.router.gateway.refs: has no effect on one machine"},
		{source + "  baseRefs: [" + strings.Repeat("{name: b}, ", 33) + "]\n", "spec.baseRefs: 33 entries are more than there may be (32)"},
		{source + "  tracing: {}\n", "warning: spec.tracing: has no effect"},
		{source + "  storageInitializer: {enabled: false}\n", "warning: spec.storageInitializer.enabled: has no effect"},
		{source + "  kvCacheOffloading: {cpu: 1Gi, evictionPolicy: newest}\n", `spec.kvCacheOffloading.evictionPolicy: unknown policy "newest"`},
		{source + "  template: {containers: [{name: main, args: [\"a; b\"]}]}\n", "spec.template.containers: a; b: arguments of container main: a command of a shell"},
		{source + "  template: {containers: [{name: main, args: [\"{{ .Spec.Nothing.There }}\"]}]}\n", `spec.template.containers[0].args[0]: template {{.Spec.Nothing.There}}: no field "Nothing"`},
		{source + "  template: {containers: [{name: main, args: [\"{{ .Spec.Model.Name | exec }}\"]}]}\n", "the function is not known here"},
		{source + "  template: {containers: [{name: main, command: [x], image: y}]}\n  prefill: {template: {containers: [{name: main}]}}\n", "spec.prefill.template: has no command, and its counterpart has one"},
	} {
		read := dialect.Read("f.yaml", []byte(head+c.spec))
		if !slices.ContainsFunc(read.Problems, func(p dialect.Problem) bool { return strings.Contains(p.String(), c.want) }) {
			t.Errorf("%sgives %v; want %q", c.spec, read.Problems, c.want)
		}
	}
}

// TestConfigRefused: a Config's own errors, and templates that no service could fill.
// TestScheduler: a picker's configuration, as a mapping or as text, is the service's.
func TestScheduler(t *testing.T) {
	for _, inline := range []string{
		"{plugins: [{type: queue-scorer}], schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: 3}]}]}",
		`"plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: 3}]}]"`,
	} {
		read := dialect.Read("f.yaml", []byte(head+source+"  router: {scheduler: {config: {inline: "+inline+"}}}\n"))
		if len(read.Objects) != 1 {
			t.Fatal(read.Problems)
		}
		c := read.Objects[0].Service.Scheduling
		if c == nil || !slices.Equal(c.Picker.Scorers, []service.Scorer{{Name: "queue", Weight: 3}}) || c.Picker.Choice != "best" {
			t.Errorf("%s becomes %+v", inline, c)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	for _, c := range []struct{ spec, want string }{
		{"  model: {uri: models/tiny}\n", `spec.model.uri: "models/tiny" begins nowhere`},
		{"  baseRefs: [{name: b}]\n", "spec.baseRefs: a Config is laid over no other"},
		{"  template: {containers: [{name: main, command: [\"{{ range .Spec.X }}{{ end }}\"]}]}\n", "spec.template.containers[0].command[0]"},
	} {
		read := dialect.Read("f.yaml", []byte(strings.Replace(head, "Service\n", "ServiceConfig\n", 1)+c.spec))
		if !slices.ContainsFunc(read.Problems, func(p dialect.Problem) bool { return strings.Contains(p.String(), c.want) }) {
			t.Errorf("%sgives %v; want %q", c.spec, read.Problems, c.want)
		}
	}
}

// config is a Base of a name.
func config(t *testing.T, namespace, name, spec string) dialect.Object {
	t.Helper()
	read := dialect.Read("f.yaml", []byte("apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceServiceConfig\nmetadata: {name: "+name+", namespace: "+namespace+"}\nspec:\n"+spec))
	if len(read.Objects) != 1 || len(read.Errors(dialect.Process)) > 0 {
		t.Fatal(read.Problems)
	}
	return read.Objects[0]
}

// TestOver: of several Bases the later goes before the earlier, and the service before
// both; pods merge by container and variable; KServe's namespace comes after one's own.
func TestOver(t *testing.T) {
	bases := []dialect.Object{
		config(t, "default", "low", "  replicas: 2\n  model: {uri: \"hf://acme/tiny\", name: acme/low}\n  template: {containers: [{name: main, image: low, env: [{name: A, value: low}, {name: B, value: low}]}]}\n"),
		config(t, "kserve", "low", "  replicas: 9\n"),
		config(t, "kserve", "high", "  parallelism: {tensor: 4}\n  template: {nodeSelector: {x: y}, containers: [{name: main, env: [{name: B, value: high}, {name: C, value: \"{{ ChildName .ObjectMeta.Name `-c` }} {{ .Spec.Model.Name }}\"}]}]}\n"),
	}
	find := func(k service.Key) (dialect.Object, bool) {
		i := slices.IndexFunc(bases, func(o dialect.Object) bool { return o.Key == k })
		if i < 0 {
			return dialect.Object{}, false
		}
		return bases[i], true
	}
	read := dialect.Read("f.yaml", []byte(head+"  baseRefs: [{name: low}, {name: high}]\n  template: {containers: [{name: main, env: [{name: C1, value: own}]}]}\n"))
	if len(read.Objects) != 1 {
		t.Fatal(read.Problems)
	}
	s, err := dialect.Over(read.Objects[0], find, dialect.Process)
	if err != nil {
		t.Fatal(err)
	}
	e := s.Components.Engine
	if *e.Scaling.MinReplicas != 2 || s.Model.URI != "hf://acme/tiny" || s.Access.Names[0] != "acme/low" || e.Pod.NodeSelector["x"] != "y" {
		t.Errorf("%+v", s)
	}
	m := e.Pod.Containers[0]
	if m.Image != "low" || !slices.Equal(m.Args, []string{"--tensor-parallel-size", "4"}) {
		t.Errorf("%+v", m)
	}
	env := map[string]string{}
	for _, v := range m.Env {
		env[v.Name] = v.Value
	}
	if len(env) != 4 || env["A"] != "low" || env["B"] != "high" || env["C"] != "a-c acme/low" || env["C1"] != "own" {
		t.Errorf("variables %v", env)
	}
	if !slices.Equal(s.Bases, []string{"low", "high"}) || s.Origin.File != "f.yaml" {
		t.Errorf("%v of %v", s.Bases, s.Origin)
	}
	bases = bases[:2]
	if _, err := dialect.Over(read.Objects[0], find, dialect.Process); err == nil || !strings.Contains(err.Error(), `spec.baseRefs[1].name: no LLMInferenceServiceConfig named "high" in namespace default or kserve: apply it`) {
		t.Errorf("without one: %v", err)
	}
	bases = append(bases, config(t, "default", "high", "  scaling: {maxReplicas: 2}\n"))
	if _, err := dialect.Over(read.Objects[0], find, dialect.Process); err == nil || !strings.Contains(err.Error(), "laid over low, high: spec.replicas: and scaling both say how many") {
		t.Errorf("what comes of them is not valid: %v", err)
	}
}

// TestPlainProbes: probes that ask KServe's preset by TLS ask ours without.
func TestPlainProbes(t *testing.T) {
	read := dialect.Read("f.yaml", []byte(head+source+"  template: {containers: [{name: main, livenessProbe: {httpGet: {path: /health, port: 8001, scheme: HTTPS}}, startupProbe: {periodSeconds: 9}}]}\n"))
	m := read.Objects[0].Service.Components.Engine.Pod.Containers[0]
	if g := m.LivenessProbe.HTTPGet; g.Scheme != corev1.URISchemeHTTP || g.Port.IntValue() != 8000 {
		t.Errorf("%+v", g)
	}
}

// TestScaling: KEDA's idle count of zero is a service that stops.
func TestScaling(t *testing.T) {
	read := dialect.Read("f.yaml", []byte(head+source+"  scaling: {minReplicas: 2, maxReplicas: 5, wva: {keda: {idleReplicaCount: 0, cooldownPeriod: 60}}}\n"))
	s := read.Objects[0].Service.Components.Engine.Scaling
	if *s.MinReplicas != 0 || *s.MaxReplicas != 5 || s.ScaleToZeroAfter.Seconds() != 60 {
		t.Errorf("%+v", s)
	}
}
