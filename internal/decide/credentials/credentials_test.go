package credentials

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// secrets is a namespace's.
type secrets map[string]service.Secret

func (s secrets) find(name string) (*service.Secret, bool) {
	one, ok := s[name]
	return &one, ok
}

func secret(pairs ...string) service.Secret {
	s := service.Secret{Data: map[string]service.Hidden{}}
	for i := 0; i < len(pairs); i += 2 {
		s.Data[pairs[i]] = service.Hide(pairs[i+1])
	}
	return s
}

func annotated(s service.Secret, pairs ...string) service.Secret {
	s.Annotations = map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		s.Annotations[pairs[i]] = pairs[i+1]
	}
	return s
}

// noBundle is a namespace without ConfigMaps.
func noBundle(string) (string, bool) { return "", false }

const minio = `{"type":"s3","bucket":"models","endpoint_url":"http://minio:9000","access_key_id":"AKID","secret_access_key":"s3cr3t","region":"eu"}`

func TestOpen(t *testing.T) {
	have := secrets{
		"s3":             annotated(secret("AWS_ACCESS_KEY_ID", "A", "AWS_SECRET_ACCESS_KEY", "B", "AWS_SESSION_TOKEN", "C"), "serving.kserve.io/s3-endpoint", "minio:9000", "serving.kserve.io/s3-usehttps", "0"),
		"region":         annotated(secret("other", "x"), "serving.kserve.io/s3-region", "eu-central-1", "serving.kserve.io/s3-usehttps", "0"),
		"host":           secret("AWS_REGION", "x.evil.example/"),
		"profile":        secret("AWS_REGION", "eu", "AWS_PROFILE", "p"),
		"home":           secret("HF_HOME", "/x"),
		"hub":            secret("HF_TOKEN", "hf_1", "other", "x"),
		"storage-config": secret("minio", minio, "hdfs", `{"type":"hdfs"}`, "google", `{"type":"gs","bucket":"b","base64_service_account":"e30="}`, "broken", "s3cr3t", "default_s3", `{"type":"s3","bucket":"d"}`),
	}
	of := func(key string, parameters map[string]string) service.Credentials {
		return service.Credentials{Namespace: "ns", Storage: &service.Storage{Key: key, Parameters: parameters}, StorageSecret: "storage-config"}
	}
	account := service.Credentials{Namespace: "ns", Account: "sa", Secrets: []string{"s3", "gone", "hub"}}
	for _, c := range []struct {
		name string
		f    service.Files
		want Opened
		err  string
	}{
		{"none", service.Files{URI: "s3://a/b"}, Opened{URI: "s3://a/b"}, ""},
		{"a service account's secrets", account.Of("s3://a/b"), Opened{URI: "s3://a/b", From: "the service account sa, which lists s3, gone, hub",
			Variables: map[string]string{"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "B", "AWS_SESSION_TOKEN": "C", "S3_ENDPOINT": "minio:9000", "S3_USE_HTTPS": "0"}}, ""},
		{"of another store", account.Of("hf://org/m"), Opened{URI: "hf://org/m", From: "the service account sa, which lists s3, gone, hub", Variables: map[string]string{"HF_TOKEN": "hf_1"}}, ""},
		{"of none of them", account.Of("gs://a/b"), Opened{URI: "gs://a/b"}, ""},
		{"the manifest's annotations go before the secret's", service.Credentials{Secrets: []string{"s3"}, Variables: map[string]string{"S3_ENDPOINT": "here"}}.Of("s3://a/b"),
			Opened{URI: "s3://a/b", From: "the secret s3", Variables: map[string]string{"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "B", "AWS_SESSION_TOKEN": "C", "S3_ENDPOINT": "here", "S3_USE_HTTPS": "0"}}, ""},
		{"a region alone", service.Credentials{Namespace: "ns", Secrets: []string{"region"}}.Of("s3://a/b"), Opened{URI: "s3://a/b", Region: "eu-central-1"}, ""},
		{"a region of the manifest's", service.Credentials{Namespace: "ns", Variables: map[string]string{"AWS_DEFAULT_REGION": "eu"}}.Of("s3://a/b"), Opened{URI: "s3://a/b", Region: "eu"}, ""},
		{"a region with an endpoint", service.Credentials{Secrets: []string{"region"}, Variables: map[string]string{"S3_ENDPOINT": "here"}}.Of("s3://a/b"), Opened{URI: "s3://a/b", From: "the secret region",
			Variables: map[string]string{"AWS_DEFAULT_REGION": "eu-central-1", "S3_USE_HTTPS": "0", "S3_ENDPOINT": "here"}}, ""},
		{"a region that is a host", service.Credentials{Secrets: []string{"host"}}.Of("s3://a/b"), Opened{URI: "s3://a/b", From: "the secret host", Variables: map[string]string{"AWS_REGION": "x.evil.example/"}}, ""},
		{"a region with more", service.Credentials{Secrets: []string{"profile"}}.Of("s3://a/b"), Opened{URI: "s3://a/b", From: "the secret profile", Variables: map[string]string{"AWS_REGION": "eu", "AWS_PROFILE": "p"}}, ""},
		{"what opens nothing", service.Credentials{Secrets: []string{"home"}}.Of("hf://org/m"), Opened{URI: "hf://org/m"}, ""},
		{"a storage", of("minio", nil).Of("storage://iris"), Opened{URI: "s3://models/iris", Shown: "storage://iris", From: "the secret storage-config, key minio",
			Variables: map[string]string{"AWS_ENDPOINT_URL_S3": "http://minio:9000", "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s3cr3t", "AWS_REGION": "eu"}}, ""},
		{"parameters go before", of("minio", map[string]string{"bucket": "mine", "region": "us"}).Of("storage:///iris"), Opened{URI: "s3://mine/iris", Shown: "storage:///iris", From: "the secret storage-config, key minio",
			Variables: map[string]string{"AWS_ENDPOINT_URL_S3": "http://minio:9000", "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s3cr3t", "AWS_REGION": "us"}}, ""},
		{"the default key", of("", map[string]string{"type": "s3"}).Of("storage://iris"), Opened{URI: "s3://d/iris", Shown: "storage://iris"}, ""},
		{"Google's", of("google", nil).Of("storage://iris"), Opened{URI: "gs://b/iris", Shown: "storage://iris", From: "the secret storage-config, key google", Variables: map[string]string{google: "{}"}}, ""},
		{"a store that nothing reads", of("hdfs", nil).Of("storage://iris"), Opened{}, `stores of type "hdfs" are not supported, only s3 and gs`},
		{"no key of this name", of("other", nil).Of("storage://iris"), Opened{}, `secret "storage-config" in namespace "ns" has no key "other": apply it with one`},
		{"no JSON", of("broken", nil).Of("storage://iris"), Opened{}, `key "broken" of secret "storage-config" is not a JSON object of strings`},
		{"no address at all", of("", nil).Of("storage://iris"), Opened{}, "the type of the store is missing"},
		{"the whole address without the secret", service.Credentials{Namespace: "ns", Storage: &service.Storage{Key: "k", Parameters: map[string]string{"type": "s3", "bucket": "a"}}, StorageSecret: "none"}.Of("s3://a/b"), Opened{URI: "s3://a/b"}, ""},
		{"no secret of this name", service.Credentials{Namespace: "ns", Storage: &service.Storage{Key: "k"}, StorageSecret: "none"}.Of("storage://b"), Opened{}, `there is no secret "none" in namespace "ns": apply it`},
		{"the container's variable", service.Credentials{Namespace: "ns", Keys: map[string]service.SecretKey{"HF_TOKEN": {Secret: "hub", Key: "other"}}}.Of("hf://org/m"),
			Opened{URI: "hf://org/m", From: "the secret hub, key other (as HF_TOKEN)", Variables: map[string]string{"HF_TOKEN": "x"}}, ""},
		{"the container's variable, which is missing", service.Credentials{Namespace: "ns", Keys: map[string]service.SecretKey{"HF_TOKEN": {Secret: "hub", Key: "no"}}}.Of("hf://org/m"), Opened{}, `has no key "no"`},
		{"which another store does not need", service.Credentials{Namespace: "ns", Keys: map[string]service.SecretKey{"HF_TOKEN": {Secret: "hub", Key: "no"}}}.Of("s3://org/m"), Opened{URI: "s3://org/m"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Open(c.f, have.find, noBundle)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "s3cr3t") {
					t.Fatalf("got %v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if (got.Scope == "") != (len(got.Variables) == 0) {
				t.Errorf("scope %q of %d variables", got.Scope, len(got.Variables))
			}
			if got.URI != c.want.URI || got.Shown != c.want.Shown || got.From != c.want.From || got.Region != c.want.Region || !maps.Equal(got.Variables, c.want.Variables) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
	var missing *MissingError
	if _, err := Open(of("other", nil).Of("storage://b"), have.find, noBundle); !errors.As(err, &missing) || !missing.NotExist() {
		t.Error("a missing key is tried for again")
	}
}

// TestAuthorities: certificates that vouch for a store come from the storage itself, or
// from the ConfigMap that it, a secret, or the service names.
func TestAuthorities(t *testing.T) {
	const pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
	store := func(more string) string {
		return `{"type":"s3","bucket":"b","endpoint_url":"https://minio:9000","access_key_id":"A","secret_access_key":"s3cr3t"` + more + `}`
	}
	quoted := strings.ReplaceAll(pem, "\n", `\n`)
	have := secrets{
		"storage-config": secret("plain", store(""), "inline", store(`,"ca_bundle":"`+quoted+`"`), "modelmesh", store(`,"certificate":"`+quoted+`"`),
			"named", store(`,"cabundle_configmap":"s3cr3t-name"`), "mounted", store(`,"ca_bundle":"/etc/ca/ca.crt","cabundle_configmap":"ca"`),
			"file", store(`,"ca_bundle":"/etc/s3cr3t.crt"`), "both", store(`,"ca_bundle":"/etc/ca.crt","certificate":"`+quoted+`"`), "unverified", store(`,"verify_ssl":"0"`), "ca", store(`,"cabundle_configmap":"ca"`)),
		"s3":  annotated(secret("AWS_ACCESS_KEY_ID", "A"), AuthoritiesAnnotation, "ca", unverifiedAnnotation, "0"),
		"old": annotated(secret("AWS_ACCESS_KEY_ID", "A"), AuthoritiesAnnotation, "s3cr3t-name"),
	}
	bundles := func(name string) (string, bool) {
		v, ok := map[string]string{"ca": "from ca", "other": "from other"}[name]
		return v, ok
	}
	of := func(key, authorities string) service.Files {
		return service.Credentials{Namespace: "ns", Storage: &service.Storage{Key: key}, StorageSecret: "storage-config", Authorities: authorities}.Of("storage://iris")
	}
	by := func(secret, authorities, uri string) service.Files {
		return service.Credentials{Namespace: "ns", Secrets: []string{secret}, Authorities: authorities}.Of(uri)
	}
	for _, c := range []struct {
		name       string
		f          service.Files
		want       string
		unverified bool
		err        string
	}{
		{"none", of("plain", ""), "", false, ""},
		{"in the storage", of("inline", "ca"), pem, false, ""},
		{"ModelMesh's", of("modelmesh", ""), pem, false, ""},
		{"a path, and the certificates", of("both", ""), pem, false, ""},
		{"a ConfigMap of the storage's", of("ca", "other"), "from ca", false, ""},
		{"a path, and a ConfigMap", of("mounted", ""), "from ca", false, ""},
		{"the service's annotation", of("plain", "ca"), "from ca", false, ""},
		{"a file of containers", of("file", ""), "", false, `ca_bundle of key "file" of secret "storage-config" is a file of containers`},
		{"which an annotation takes the place of", of("file", "ca"), "from ca", false, ""},
		{"a ConfigMap that is not there", of("named", ""), "", false, `there is no ConfigMap with a cabundle.crt in namespace "ns" of the name that cabundle_configmap of key "named" of secret "storage-config" has`},
		{"a secret's annotation", by("s3", "", "s3://a/b"), "from ca", true, ""},
		{"over which the service's goes", by("s3", "other", "s3://a/b"), "from other", true, ""},
		{"a secret's, which is not there", by("old", "", "s3://a/b"), "", false, "the annotation serving.kserve.io/s3-cabundle-configmap of secret old"},
		{"of another store", by("old", "", "hf://a/b"), "", false, ""},
		{"the annotation alone", service.Credentials{Namespace: "ns", Authorities: "ca"}.Of("s3://a/b"), "from ca", false, ""},
		{"not to be verified", of("unverified", ""), "", true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Open(c.f, have.find, bundles)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "s3cr3t") {
					t.Fatalf("got %v, want %s", err, c.err)
				}
				return
			}
			if err != nil || got.Authorities != c.want || got.Unverified != c.unverified {
				t.Errorf("got %q, %v, %v", got.Authorities, got.Unverified, err)
			}
			if got.Authorities != "" && got.Scope == "" {
				t.Error("what the store sends is shared with all")
			}
			for name := range got.Variables {
				if name == Authorities || name == Unverified || name == ConfigMapMember || name == "SSL_CERT_FILE" {
					t.Errorf("%s is a variable", name)
				}
			}
		})
	}
}

// TestByModel: OME's models name a secret of their own namespace.
func TestByModel(t *testing.T) {
	have := secrets{"hub": secret("token", "hf_1", "read", "hf_2"), "s3": secret("AWS_ACCESS_KEY_ID", "A", "AWS_SECRET_ACCESS_KEY", "s3cr3t")}
	model := func(namespace, secret, key string) *service.Model {
		m := &service.Model{Secret: &service.SecretKey{Secret: secret, Key: key, Optional: true}}
		m.Namespace = namespace
		return m
	}
	own := service.Credentials{Namespace: "ns", Account: "sa", Secrets: []string{"mine"}, Variables: map[string]string{"S3_ENDPOINT": "minio"}}
	for _, c := range []struct {
		name  string
		m     *service.Model
		uri   string
		want  string // namespace and variables
		scope bool
	}{
		{"no secret", &service.Model{}, "hf://o/m", "ns map[]", false},
		{"a hub's token", model("ns", "hub", "token"), "hf://o/m", "ns map[HF_TOKEN:hf_1]", true},
		{"at another key", model("ns", "hub", "read"), "hf://o/m", "ns map[HF_TOKEN:hf_2]", true},
		{"of the cluster", model("", "hub", "token"), "hf://o/m", "ome map[HF_TOKEN:hf_1]", true},
		{"which is not there", model("", "none", "token"), "hf://o/m", "ome map[]", false},
		{"of a bucket", model("ns", "s3", "token"), "s3://a/m", "ns map[AWS_ACCESS_KEY_ID:A AWS_SECRET_ACCESS_KEY:s3cr3t S3_ENDPOINT:minio]", true},
		{"of a bucket, of the cluster", model("", "s3", "token"), "s3://a/m", "ome map[AWS_ACCESS_KEY_ID:A AWS_SECRET_ACCESS_KEY:s3cr3t]", true},
	} {
		by := ByModel(own, c.m, c.uri)
		got, err := Open(by.Of(c.uri), have.find, noBundle)
		if text := fmt.Sprintf("%s %v", by.Namespace, got.Variables); err != nil || text != c.want || (got.Scope != "") != c.scope {
			t.Errorf("%s: %s, %v, want %s", c.name, text, err, c.want)
		}
	}
	if len(own.Keys) > 0 || own.Secrets[0] != "mine" {
		t.Error("the service's changed")
	}
	// The service's own adapters are fetched with its own, as if there were no model.
	for _, uri := range []string{"hf://o/m", "s3://a/m"} {
		by := ByModel(own, model("", "hub", "token"), uri)
		for _, other := range []string{"hf://o/private", "s3://b/secret", "https://host/x", ""} {
			if got, want := by.Of(other), own.Of(other); !reflect.DeepEqual(got, want) {
				t.Errorf("%s beside %s is fetched with %+v, want %+v", other, uri, got, want)
			}
		}
		if by.Equal(own) || !by.Equal(ByModel(own, model("", "hub", "token"), uri)) {
			t.Errorf("%s: what files are fetched with is not told apart", uri)
		}
	}
}

// TestScope: two namespaces share no copies, nor do two stores; keys that change do.
func TestScope(t *testing.T) {
	open := func(namespace, key, endpoint string) string {
		have := secrets{"s": secret("AWS_ACCESS_KEY_ID", key, "AWS_SECRET_ACCESS_KEY", key, "AWS_ENDPOINT_URL", endpoint)}
		got, err := Open(service.Credentials{Namespace: namespace, Secrets: []string{"s"}}.Of("s3://a/b"), have.find, noBundle)
		if err != nil {
			t.Fatal(err)
		}
		return got.Scope
	}
	one := open("a", "k", "http://x")
	if one != open("a", "rotated", "http://x") {
		t.Error("a rotated key fetches the model again")
	}
	if one == open("b", "k", "http://x") || one == open("a", "k", "http://y") {
		t.Error("two share copies")
	}
}

func TestOf(t *testing.T) {
	accounts := map[string]Account{
		"sa":      {Secrets: []string{"s3", "sa-token-x", "", "s3"}, Annotations: map[string]string{"serving.kserve.io/s3-region": "eu", "serving.kserve.io/s3-endpoint": "of the account"}},
		"default": {Secrets: []string{"all"}},
	}
	find := func(name string) (Account, bool) { a, ok := accounts[name]; return a, ok }
	with := func(change func(*service.Service)) *service.Service {
		s := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "ns", Name: "x"}}, Model: &service.ModelSource{}, Components: service.Components{Engine: &service.Component{Main: "main"}}}
		change(s)
		return s
	}
	for _, c := range []struct {
		name string
		s    *service.Service
		want string
	}{
		{"the default account", with(func(*service.Service) {}), "default [all] map[]"},
		{"its own", with(func(s *service.Service) { s.Components.Engine.Pod.ServiceAccountName = "sa" }), "sa [s3] map[AWS_DEFAULT_REGION:eu S3_ENDPOINT:of the account]"},
		{"the service's annotation goes before", with(func(s *service.Service) {
			s.Components.Engine.Pod.ServiceAccountName = "sa"
			s.Annotations = map[string]string{"serving.kserve.io/s3-endpoint": "mine"}
		}), "sa [s3] map[AWS_DEFAULT_REGION:eu S3_ENDPOINT:mine]"},
		{"an account that is not there", with(func(s *service.Service) { s.Components.Engine.Pod.ServiceAccountName = "none" }), " [] map[]"},
		{"one secret by its name", with(func(s *service.Service) { s.Annotations = map[string]string{StorageAnnotation: "one"} }), " [one] map[]"},
	} {
		got := Of(c.s, find)
		if text := fmt.Sprintf("%s %v %v", got.Account, got.Secrets, got.Variables); text != c.want {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
		if !got.Zero() && got.Namespace != "ns" {
			t.Errorf("%s: of namespace %q", c.name, got.Namespace)
		}
	}
	// A transformer's own account counts for its own files, and an explainer's own
	// storage; the predictor's is the predictor's.
	beside := with(func(s *service.Service) {
		s.Components.Engine.Pod.ServiceAccountName, s.Model.Storage = "none", &service.Storage{Key: "k"}
		s.Components.Transformer = &service.Component{Pod: corev1.PodSpec{ServiceAccountName: "sa"}, Annotations: map[string]string{AuthoritiesAnnotation: "ca"}}
	})
	if c := OfComponent(beside, beside.Components.Transformer, find); c.Account != "sa" || c.Authorities != "ca" || c.Storage != nil || c.Namespace != "ns" {
		t.Errorf("of a transformer: %+v", c)
	}
	own := &service.Component{Storage: &service.Storage{Key: "e"}, Annotations: map[string]string{StorageAnnotation: "other"}}
	if c := OfComponent(beside, own, find); c.Storage != own.Storage || c.StorageSecret != "other" || c.Namespace != "ns" {
		t.Errorf("of an explainer: %+v", c)
	}
	if c := Of(beside, find); c.Account != "" || c.Authorities != "" || c.Storage == nil || c.StorageSecret != StorageSecret || c.Namespace != "ns" {
		t.Errorf("of its predictor: %+v", c)
	}
	got := Of(with(func(s *service.Service) {
		ref := &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "hub"}, Key: "t"}}
		s.Components.Engine.Pod.Containers = []corev1.Container{{Name: "main", Env: []corev1.EnvVar{{Name: "HF_TOKEN", ValueFrom: ref}, {Name: "DATABASE", ValueFrom: ref}}},
			{Name: "side", Env: []corev1.EnvVar{{Name: "AWS_ACCESS_KEY_ID", ValueFrom: ref}}}}
	}), find)
	if want := map[string]service.SecretKey{"HF_TOKEN": {Secret: "hub", Key: "t"}}; !maps.Equal(got.Keys, want) {
		t.Errorf("variables of the container: %v, want %v", got.Keys, want)
	}
}
