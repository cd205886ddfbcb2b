package shape

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// fetcher renders the container that brings a revision's model.
func fetcher(t *testing.T, rev workload.Revision, o Options) (corev1.Container, error) {
	t.Helper()
	objects, err := Render(rev, o)
	if err != nil {
		return corev1.Container{}, err
	}
	return objects.Deployments[0].Spec.Template.Spec.InitContainers[0], nil
}

func variable(c corev1.Container, name string) *corev1.EnvVar {
	for i := range c.Env {
		if c.Env[i].Name == name {
			return &c.Env[i]
		}
	}
	return nil
}

// TestStorageOfExplainer: its own files are fetched with its own storage, and not with the
// model's.
func TestStorageOfExplainer(t *testing.T) {
	rev := revision(t, "explainer", `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: a}
spec:
  predictor: {model: {modelFormat: {name: sklearn}, storage: {key: ours, path: m}}}
  explainer: {alibi: {type: AnchorText, storage: {key: theirs, path: e}}}
`)
	c := rev.Component(service.RoleExplainer)
	c.Files.Storage = &service.Storage{Key: "theirs"}
	out, err := Render(rev, everything)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int]string{0: "ours storage://m", 1: "theirs storage://e"} {
		inits := out.Deployments[i].Spec.Template.Spec.InitContainers
		f := inits[slices.IndexFunc(inits, func(c corev1.Container) bool { return FetchesModel(c.Name) })]
		e := f.Env[slices.IndexFunc(f.Env, func(e corev1.EnvVar) bool { return e.Name == storageConfig })]
		if got := e.ValueFrom.SecretKeyRef.Key + " " + f.Args[1]; got != want {
			t.Errorf("%s: %s, want %s", out.Deployments[i].Name, got, want)
		}
	}
}

// TestStorage: which key of which secret, and whether it may be missing.
func TestStorage(t *testing.T) {
	for _, c := range []struct {
		storage           service.Storage
		annotations       map[string]string
		secret, key       string
		optional          bool
		override, secret1 string
	}{
		{storage: service.Storage{Key: "minio"}, secret: "storage-config", key: "minio"},
		{secret: "storage-config", key: "default", optional: true},
		{storage: service.Storage{Parameters: map[string]string{"type": "s3", "bucket": "b"}}, secret: "storage-config", key: "default_s3", optional: true,
			override: `{"bucket":"b","type":"s3"}`},
		{storage: service.Storage{Key: "minio"}, annotations: map[string]string{credentials.StorageAnnotation: "other"}, secret: "other", key: "minio", secret1: "other"},
	} {
		rev := revision(t, "x.yaml", one("iris", "s3://a/b", ""))
		rev.Model.URI, rev.Model.Storage, rev.Annotations = "storage://iris", &c.storage, c.annotations
		got, err := fetcher(t, rev, everything)
		if err != nil {
			t.Fatal(err)
		}
		e := variable(got, "STORAGE_CONFIG")
		if e == nil || e.ValueFrom.SecretKeyRef.Name != c.secret || e.ValueFrom.SecretKeyRef.Key != c.key || *e.ValueFrom.SecretKeyRef.Optional != c.optional {
			t.Errorf("%+v: %+v", c.storage, e)
		}
		if o := variable(got, "STORAGE_OVERRIDE_CONFIG"); (o == nil) != (c.override == "") || o != nil && o.Value != c.override {
			t.Errorf("%+v: parameters %+v", c.storage, o)
		}
		if c.secret1 != "" && (len(got.EnvFrom) != 1 || got.EnvFrom[0].SecretRef.Name != c.secret1) {
			t.Errorf("the account's secrets count beside the one that is named: %+v", got.EnvFrom)
		}
		if objects, err := Render(rev, everything); err != nil || variable(objects.Deployments[0].Spec.Template.Spec.Containers[0], "STORAGE_CONFIG") != nil {
			t.Errorf("the container that serves has the secret: %v", err)
		}
	}
}

// TestModelSecret: the secret of a model object opens the model's own files, and neither
// an adapter's nor a part's.
func TestModelSecret(t *testing.T) {
	from := func(c corev1.Container) (names []string) {
		for _, f := range c.EnvFrom {
			names = append(names, f.SecretRef.Name)
		}
		return names
	}
	rev := revision(t, "x.yaml", one("iris", "s3://a/b", ""))
	main := &rev.Components[0].Pod.Containers[0]
	main.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "servers"}}}}
	main.Env = append(main.Env, corev1.EnvVar{Name: "HF_TOKEN", Value: "of the server"})
	rev.Model.Secret = &service.SecretKey{Secret: "own", Key: "token", Optional: true}
	rev.Model.Adapters = []workload.Adapter{{Name: "de", URI: "hf://org/de"}}
	for _, c := range []struct{ uri, token, secrets string }{
		{"s3://a/b", "of the server", "servers own"},
		{"hf://org/base", "own/token", "servers"},
	} {
		rev.Model.URI = c.uri
		objects, err := Render(rev, everything)
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range objects.Deployments[0].Spec.Template.Spec.InitContainers {
			if got.Name == Waiter {
				continue
			}
			token, secrets := "of the server", "servers"
			if got.Name == Fetcher {
				token, secrets = c.token, c.secrets
			}
			e := variable(got, "HF_TOKEN")
			said := e.Value
			if e.ValueFrom != nil {
				said = e.ValueFrom.SecretKeyRef.Name + "/" + e.ValueFrom.SecretKeyRef.Key
			}
			if said != token || strings.Join(from(got), " ") != secrets {
				t.Errorf("%s, %s: %s, %v", c.uri, got.Name, said, from(got))
			}
		}
		if got := objects.Deployments[0].Spec.Template.Spec.Containers[0]; variable(got, "HF_TOKEN").Value != "of the server" || len(got.EnvFrom) != 1 {
			t.Errorf("%s: the server has the secret", c.uri)
		}
	}
}

// TestWhose: a refusal can name every secret that was shown.
func TestWhose(t *testing.T) {
	ref := func(name string) corev1.EnvFromSource {
		return corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
	}
	for _, c := range []struct {
		account, env string
		from         []corev1.EnvFromSource
		storage      *service.Storage
		want         string
	}{
		{account: "sa", want: "the service account sa, which lists s3creds, hf"},
		{account: "bare", want: "the service account bare, which lists no secret"},
		{account: "bare", env: "HF_TOKEN", want: "the secret hub, key token (as HF_TOKEN)"},
		{account: "sa", from: []corev1.EnvFromSource{ref("hf"), ref("mine")}, want: "the secret mine, and of the service account sa, which lists s3creds, hf"},
		{account: "bare", storage: &service.Storage{Key: "minio"}, want: "the secret storage-config, key minio (as STORAGE_CONFIG)"},
	} {
		rev := revision(t, "x.yaml", one("iris", "s3://a/b", ""))
		pod := &rev.Components[0].Pod
		pod.ServiceAccountName, rev.Model.Storage, pod.Containers[0].EnvFrom = c.account, c.storage, c.from
		if c.env != "" {
			pod.Containers[0].Env = append(pod.Containers[0].Env, corev1.EnvVar{Name: c.env, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "hub"}, Key: "token"}}})
		}
		got, err := fetcher(t, rev, Options{Accounts: map[string]Account{"sa": everything.Accounts["sa"], "bare": {}}})
		if err != nil || variable(got, whoseVariable).Value != c.want {
			t.Errorf("%+v: %v, %+v", c, err, variable(got, whoseVariable))
		}
	}
}

// TestPublicModels: what is internal by what a URI says is refused, and what
// leads there is for the fetching container to refuse.
func TestPublicModels(t *testing.T) {
	public := Options{PublicModels: true}
	rev := revision(t, "x.yaml", one("iris", "s3://a/b", ""))
	for _, uri := range []string{"http://10.0.0.1/m", "https://minio/m", "http://minio.team.svc:9000/m", "https://x.svc.cluster.local/m", "oci://127.0.0.1:5000/org/m",
		"http://[::1]/m", "http://169.254.169.254/latest", "HTTP://LOCALHOST/m"} {
		rev.Model.URI = uri
		if _, err := fetcher(t, rev, public); err == nil || !strings.Contains(err.Error(), "--allow-internal-models") || !strings.Contains(err.Error(), "team/iris: engine: model ") {
			t.Errorf("%s: %v", uri, err)
		}
		if c, err := fetcher(t, rev, Options{}); err != nil || variable(c, publicVariable) != nil {
			t.Errorf("%s where it is allowed: %v", uri, err)
		}
	}
	for _, uri := range []string{"https://models.example.com/m", "oci://registry.example/org/m", "s3://minio/m", "gs://models/m", "hf://org/m", "storage://minio", " http://10.0.0.1/m", "http://a b/m"} {
		rev.Model.URI = uri
		c, err := fetcher(t, rev, public)
		if err != nil || variable(c, publicVariable) == nil || variable(c, publicVariable).Value != "true" {
			t.Errorf("%q: %v, %+v", uri, err, c.Env)
		}
	}
	rev.Model.URI, rev.Model.Adapters = "s3://a/b", []workload.Adapter{{Name: "x", URI: "http://10.0.0.1/x"}}
	if _, err := fetcher(t, rev, public); err == nil || !strings.Contains(err.Error(), `adapter "x"`) {
		t.Errorf("an adapter: %v", err)
	}
}

// TestHub: every container asks the cluster's cache of the Hub, but those that name
// another, or may; the container that fetches has a variable that its secrets
// override.
func TestHub(t *testing.T) {
	const hub = "http://hub-cache.models.svc:8083"
	with := func(change func(*corev1.Container), o Options) (fetches, serves corev1.Container) {
		t.Helper()
		rev := revision(t, "x.yaml", one("iris", "hf://org/iris", ""))
		rev.Model.URI = "hf://org/iris"
		if change != nil {
			change(&rev.Components[0].Pod.Containers[0])
		}
		objects, err := Render(rev, o)
		if err != nil {
			t.Fatal(err)
		}
		pod := objects.Deployments[0].Spec.Template.Spec
		return pod.InitContainers[0], pod.Containers[0]
	}
	cached := everything
	cached.HubEndpoint = hub
	fetches, serves := with(nil, cached)
	if e := variable(fetches, hubDefault); e == nil || e.Value != hub || variable(fetches, hubVariable) != nil {
		t.Errorf("it fetches with %+v", fetches.Env)
	}
	if e := variable(serves, hubVariable); e == nil || e.Value != hub {
		t.Errorf("it serves with %+v", serves.Env)
	}
	fetches, serves = with(func(c *corev1.Container) {
		c.Env = append(c.Env, corev1.EnvVar{Name: hubVariable, Value: "https://mirror.example"})
	}, cached)
	for _, c := range []corev1.Container{fetches, serves} {
		if e := variable(c, hubVariable); e == nil || e.Value != "https://mirror.example" {
			t.Errorf("%s: the user's own endpoint is %+v", c.Name, e)
		}
	}
	_, serves = with(func(c *corev1.Container) { c.EnvFrom = []corev1.EnvFromSource{{Prefix: "HF_"}} }, cached)
	if e := variable(serves, hubVariable); e != nil {
		t.Errorf("what envFrom may set is overridden by %+v", e)
	}
	fetches, serves = with(nil, everything)
	if variable(fetches, hubDefault) != nil || variable(serves, hubVariable) != nil {
		t.Error("without a cache a variable names one")
	}
}
