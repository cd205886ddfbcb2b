package credentials

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// StorageScheme begins a URI whose store and bucket a storage names.
const StorageScheme = "storage://"

// google is the variable, and the key of a secret, that holds a service account's
// file of Google's.
const google = "gcloud-application-credentials.json"

// members are the variables that a storage's members stand for.
var members = map[string]string{
	"endpoint_url": "AWS_ENDPOINT_URL_S3", "access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY",
	"region": "AWS_REGION", "anonymous": "awsAnonymousCredential", "ca_bundle": "SSL_CERT_FILE",
}

// MemberVariables are the variables of an environment that InStore may set.
func MemberVariables() []string {
	return append(slices.Sorted(maps.Values(members)), google)
}

// Authorities is where InStore has the certificates that vouch for a store, in PEM, and
// Unverified is set where no certificate is to be checked. Neither is a variable of an
// environment.
const (
	Authorities = "authorities"
	Unverified  = "unverified"
)

// isPEM reports whether a text has certificates, rather than where they are.
func isPEM(text string) bool { return strings.Contains(text, "-----BEGIN CERTIFICATE-----") }

// unverified reports whether a setting asks for certificates not to be checked.
func unverified(setting string) bool {
	return setting == "0" || strings.EqualFold(setting, "false")
}

// InStore is where a URI leads in the store that a storage describes, and the
// variables that the store is asked by. said are the members of the storage: what
// the secret has for it, and over that the parameters of the manifest.
func InStore(uri string, said map[string]string) (string, map[string]string, error) {
	rest, open := strings.CutPrefix(uri, StorageScheme)
	if len(said) == 0 && !open {
		return uri, nil, nil
	}
	kind := said["type"]
	if scheme, _, _ := strings.Cut(uri, "://"); kind == "" && !open {
		kind = scheme
	}
	rest = strings.TrimPrefix(rest, "/")
	switch {
	case kind == "":
		return "", nil, errors.New(`storage: the type of the store is missing: give the key of the secret storage-config a "type", or the manifest parameters with one`)
	case kind != "s3" && kind != "gs":
		return "", nil, fmt.Errorf("storage: stores of type %q are not supported, only s3 and gs", excerpt.Of(kind, 40))
	case open && said["bucket"] == "" && kind == "s3":
		return "", nil, errors.New(`storage: the bucket is missing: give the key of the secret storage-config a "bucket", or the manifest parameters with one`)
	case open && said["bucket"] == "": // KServe's paths in other stores begin with it
		uri = kind + "://" + rest
	case open:
		uri = kind + "://" + said["bucket"] + "/" + rest
	}
	variables, err := opening(kind, said)
	if err != nil {
		return "", nil, err
	}
	return uri, variables, nil
}

// opening are the variables that a store of a kind is asked by.
func opening(kind string, said map[string]string) (map[string]string, error) {
	out := map[string]string{}
	if kind == "gs" {
		if v := said["base64_service_account"]; v != "" {
			raw, err := base64.StdEncoding.DecodeString(v)
			if err != nil {
				return nil, errors.New("storage: base64_service_account is not base64")
			}
			out[google] = string(raw)
		}
		return out, nil
	}
	for member, variable := range members {
		if v := said[member]; v != "" {
			out[variable] = v
		}
	}
	if isPEM(said["ca_bundle"]) {
		delete(out, members["ca_bundle"]) // which names a file
		out[Authorities] = said["ca_bundle"]
	} else if isPEM(said["certificate"]) { // ModelMesh's
		out[Authorities] = said["certificate"]
	}
	if v := said[ConfigMapMember]; v != "" {
		out[ConfigMapMember] = v
	}
	if unverified(said["verify_ssl"]) {
		out[Unverified] = "true"
	}
	return out, nil
}

// Opened are files as they are asked for.
type Opened struct {
	URI string
	// Variables take the place of this program's environment; nil leaves that.
	Variables map[string]string
	// Scope tells the copies of those who may see different files at one URI apart:
	// of two namespaces, or two endpoints.
	Scope string
	// Shown is the URI as the manifest has it, where the secret has a part of it.
	Shown string
	// From names the objects that hold Variables.
	From string
	// Region is the region of an S3 store that this program's environment opens; "" for
	// the environment's.
	Region string
	// Authorities are certificates in PEM that vouch for the store, beside those that
	// this machine trusts. Unverified: a secret wants no certificates to be checked,
	// which they are all the same.
	Authorities string
	Unverified  bool
}

// MissingError is the error for a secret, or a key of one, that is not there.
type MissingError struct{ Namespace, Secret, Key string }

// Error names what to apply.
func (e *MissingError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("there is no secret %q in namespace %q: apply it", e.Secret, e.Namespace)
	}
	return fmt.Sprintf("secret %q in namespace %q has no key %q: apply it with one", e.Secret, e.Namespace, e.Key)
}

// NotExist reports that another try finds nothing else.
func (*MissingError) NotExist() bool { return true }

// Open puts together what files are fetched with. find finds a secret of the
// namespace. Secrets that a service account lists may be missing; where those that
// there are say nothing of the URI's store but its region, this program's environment
// counts.
// bundle finds the authorities that a ConfigMap of the namespace has.
func Open(f service.Files, find func(name string) (*service.Secret, bool), bundle func(configMap string) (pem string, ok bool)) (Opened, error) {
	out := Opened{URI: f.URI}
	vars, authorities := out.held(f, find)
	var from []string
	switch {
	case f.Account != "" && len(f.Secrets) > 0:
		from = append(from, "the service account "+f.Account+", which lists "+strings.Join(f.Secrets, ", "))
	case len(f.Secrets) > 0:
		from = append(from, "the secret "+f.Secrets[0])
	}
	maps.Copy(vars, f.Variables)
	stored, used, err := storage(f, find, &out)
	if err != nil {
		return Opened{}, err
	}
	if used {
		key, _ := StorageKey(*f.Storage)
		at := fmt.Sprintf("of key %q of secret %q", excerpt.Of(key, 80), f.StorageSecret)
		if authorities, err = out.vouched(stored, at, authorities); err != nil {
			return Opened{}, err
		}
		if stored["AWS_ACCESS_KEY_ID"] != "" {
			delete(vars, "AWS_SESSION_TOKEN") // one of other keys
		}
		maps.Copy(vars, stored)
		from = []string{"the secret " + f.StorageSecret + ", key " + key}
	}
	scheme, _, _ := strings.Cut(out.URI, "://")
	scheme = strings.ToLower(scheme)
	if out.Authorities == "" && authorities.name != "" && scheme == "s3" {
		var ok bool
		if out.Authorities, ok = bundle(authorities.name); !ok {
			return Opened{}, &noBundleError{f.Namespace, authorities.by}
		}
	}
	values, err := keyed(f, scheme, find, vars)
	if err != nil {
		return Opened{}, err
	}
	from = append(from, values...)
	maps.DeleteFunc(vars, func(name, _ string) bool { return !opens(scheme, name) })
	if region, alone := regionAlone(vars); len(vars) == 0 || alone && scheme == "s3" {
		if out.Region = region; out.Authorities != "" {
			out.Scope = scope(f.Namespace, nil) // who vouches for a store shares what it sends with nobody
		}
		return out, nil
	}
	out.Variables, out.From = vars, strings.Join(from, ", and of ")
	out.Scope = scope(f.Namespace, vars)
	return out, nil
}

// held are the variables of the secrets that an account lists, and the ConfigMap that
// they, or the service, name.
func (o *Opened) held(f service.Files, find func(name string) (*service.Secret, bool)) (vars map[string]string, authorities named) {
	vars, authorities = map[string]string{}, named{f.Authorities, "the annotation " + AuthoritiesAnnotation}
	for _, name := range f.Secrets {
		s, ok := find(name)
		if !ok {
			continue
		}
		for key, v := range s.Data {
			vars[key] = v.Reveal()
		}
		for annotation, variable := range Annotated {
			if v := s.Annotations[annotation]; v != "" {
				vars[variable] = v
			}
		}
		if v := s.Annotations[AuthoritiesAnnotation]; v != "" && f.Authorities == "" {
			authorities = named{v, "the annotation " + AuthoritiesAnnotation + " of secret " + name}
		}
		o.Unverified = o.Unverified || unverified(s.Annotations[unverifiedAnnotation]) || unverified(vars["S3_VERIFY_SSL"])
	}
	return vars, authorities
}

// vouched takes what a storage says of its store's certificate. at says which storage it
// is; the ConfigMap that it names takes the place of another.
func (o *Opened) vouched(stored map[string]string, at string, authorities named) (named, error) {
	if v := stored[ConfigMapMember]; v != "" {
		authorities = named{v, ConfigMapMember + " " + at}
	} else if stored["SSL_CERT_FILE"] != "" && authorities.name == "" && stored[Authorities] == "" {
		return named{}, errors.New("storage: ca_bundle " + at + " is a file of containers: write the certificates themselves in its place, in PEM, or name a ConfigMap with the key " + service.AuthoritiesKey + " in " + ConfigMapMember)
	}
	o.Authorities, o.Unverified = stored[Authorities], o.Unverified || stored[Unverified] != ""
	return authorities, nil
}

// named is a ConfigMap, and what names it.
type named struct{ name, by string }

// noBundleError is the error for authorities that are not there. The name of their
// ConfigMap may be of a secret.
type noBundleError struct{ namespace, by string }

func (e *noBundleError) Error() string {
	return fmt.Sprintf("there is no ConfigMap with a %s in namespace %q of the name that %s has: apply it", service.AuthoritiesKey, e.namespace, e.by)
}

// NotExist reports that another try finds nothing else.
func (*noBundleError) NotExist() bool { return true }

// ConfigMapMember names in a storage the ConfigMap with the authorities of its store's
// certificate.
const ConfigMapMember = "cabundle_configmap"

// keyed adds to vars those that are keys of secrets, and returns which these are.
func keyed(f service.Files, scheme string, find func(name string) (*service.Secret, bool), vars map[string]string) (from []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(f.Keys)) {
		if !opens(scheme, name) {
			continue
		}
		key := f.Keys[name]
		v, ok, err := Value(f.Namespace, key, find)
		if err != nil {
			return nil, err
		}
		if ok {
			vars[name] = v
			from = append(from, "the secret "+key.Secret+", key "+key.Key+" (as "+name+")")
		}
	}
	return from, nil
}

// Value is one value of a secret; ok is false for an optional one that is not there.
func Value(namespace string, at service.SecretKey, find func(name string) (*service.Secret, bool)) (v string, ok bool, err error) {
	s, there := find(at.Secret)
	if there {
		if held, has := s.Data[at.Key]; has {
			return held.Reveal(), true, nil
		}
	}
	if at.Optional {
		return "", false, nil
	}
	missing := &MissingError{Namespace: namespace, Secret: at.Secret}
	if there {
		missing.Key = excerpt.Of(at.Key, 80)
	}
	return "", false, missing
}

// Values are all values of a secret, by their keys; none of an optional one that is not
// there.
func Values(namespace, name string, optional bool, find func(name string) (*service.Secret, bool)) (map[string]string, error) {
	s, there := find(name)
	if !there && !optional {
		return nil, &MissingError{Namespace: namespace, Secret: excerpt.Of(name, 80)}
	}
	out := map[string]string{}
	if there {
		for key, held := range s.Data {
			out[key] = held.Reveal()
		}
	}
	return out, nil
}

// storage resolves a storage: the variables of the store, and the URI in it. used is
// false where the files have none, or are of another store.
func storage(f service.Files, find func(string) (*service.Secret, bool), out *Opened) (vars map[string]string, used bool, err error) {
	st := f.Storage
	open := strings.HasPrefix(f.URI, StorageScheme)
	if st == nil || !open && !strings.HasPrefix(f.URI, "s3://") && !strings.HasPrefix(f.URI, "gs://") {
		return nil, false, nil
	}
	said := map[string]string{}
	key, optional := StorageKey(*st)
	secret, there := find(f.StorageSecret)
	var held service.Hidden
	has := false
	if there {
		held, has = secret.Data[key]
	}
	switch {
	case has:
		if json.Unmarshal([]byte(held.Reveal()), &said) != nil { // the error might quote it
			return nil, false, fmt.Errorf("storage: key %q of secret %q is not a JSON object of strings: correct it", excerpt.Of(key, 80), f.StorageSecret)
		}
	case there && !optional:
		return nil, false, &MissingError{f.Namespace, f.StorageSecret, excerpt.Of(key, 80)}
	case !optional && open:
		return nil, false, &MissingError{Namespace: f.Namespace, Secret: f.StorageSecret}
	case !open: // the manifest has the whole address, and this program's environment opens it
		return nil, false, nil
	}
	maps.Copy(said, st.Parameters)
	if out.URI, vars, err = InStore(f.URI, said); err != nil {
		return nil, false, err
	}
	if open && has {
		out.Shown = f.URI
	}
	return vars, has || len(vars) > 0, nil
}

// opens reports whether a variable says something of the stores of a scheme.
func opens(scheme, variable string) bool {
	begins := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(variable, p) })
	}
	switch scheme {
	case "s3":
		return begins("AWS_", "S3_", "aws")
	case "gs":
		return variable == google
	case "hf":
		return slices.Contains([]string{"HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}, variable)
	case "az":
		return begins("AZURE_", "AZ_")
	case "http", "https":
		return begins("AZURE_", "AZ_") || variable == "headers" || variable == "https-host" || strings.HasSuffix(variable, "-headers")
	case "oci":
		return variable == ".dockerconfigjson"
	}
	return false
}

// regionName is a region of Amazon's, which is a part of a host.
var regionName = regexp.MustCompile(`^[a-z0-9-]{0,40}$`)

// regionAlone is the region that variables state, and whether they say nothing else that
// counts of the store: no credential, nor where it is. This program's own credentials go
// to no store that a manifest or a secret names.
func regionAlone(vars map[string]string) (region string, alone bool) {
	region = cmp.Or(vars["AWS_REGION"], vars["AWS_DEFAULT_REGION"])
	for name := range vars {
		switch name {
		case "AWS_REGION", "AWS_DEFAULT_REGION":
		case "S3_USE_HTTPS", "S3_USER_VIRTUAL_BUCKET": // of an endpoint, which there is none of
		default:
			return "", false
		}
	}
	return region, regionName.MatchString(region)
}

// places are the variables that say where a store is, and no secret.
var places = []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT", "S3_USE_HTTPS", "S3_USER_VIRTUAL_BUCKET", "HF_ENDPOINT", "AZURE_STORAGE_ACCOUNT"}

func scope(namespace string, vars map[string]string) string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%q\n", namespace)
	for _, name := range places {
		if v := vars[name]; v != "" {
			_, _ = fmt.Fprintf(h, "%s=%q\n", name, v)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}
