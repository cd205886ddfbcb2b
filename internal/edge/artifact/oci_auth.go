package artifact

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// registryLogin is what a registry's user is known by. identity is a token that
// others are got with, in place of a password.
type registryLogin struct{ user, password, identity string }

func (l registryLogin) basic() string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(l.user+":"+l.password))
}

// parseChallenge reads `Bearer realm="…",service="…"` (RFC 9110, section
// 11.6.1). The scheme is in lower case.
func parseChallenge(h string) (scheme string, parameters map[string]string) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(h), " ")
	parameters = map[string]string{}
	for rest = strings.TrimSpace(rest); rest != ""; {
		name, after, ok := strings.Cut(rest, "=")
		if !ok {
			break
		}
		value := ""
		if quoted, ok := strings.CutPrefix(after, `"`); ok {
			value, after, _ = strings.Cut(quoted, `"`)
			_, rest, _ = strings.Cut(after, ",")
		} else {
			value, rest, _ = strings.Cut(after, ",")
		}
		parameters[strings.ToLower(strings.TrimSpace(name))] = strings.TrimSpace(value)
		rest = strings.TrimSpace(rest)
	}
	return strings.ToLower(scheme), parameters
}

// maxTokenAnswer is the maximum size of an answer of a registry's token
// service.
const maxTokenAnswer = 1 << 20

// token gets a bearer token to pull with, as the challenge asks.
func (o *ociSource) token(ctx context.Context, loc location, ref ociRef, challenge map[string]string, login registryLogin) (ociGrant, error) {
	realm, err := url.Parse(challenge["realm"])
	if err != nil || realm.Host == "" || realm.Scheme != "https" && !strings.HasPrefix(ref.base(), "http://") {
		return ociGrant{}, fmt.Errorf("%s: the registry leads to no usable token service", loc)
	}
	form := url.Values{"service": {challenge["service"]}, "scope": {"repository:" + ref.name + ":pull"}}
	if challenge["service"] == "" {
		form.Del("service")
	}
	body, _, err := o.requests.fetchSmall(ctx, loc.String(), ociHints, maxTokenAnswer, func(ctx context.Context) (*http.Request, error) {
		if login.identity != "" {
			form.Set("grant_type", "refresh_token")
			form.Set("refresh_token", login.identity)
			form.Set("client_id", "roundhouse")
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, realm.String(), strings.NewReader(form.Encode()))
			if err == nil {
				req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			}
			return req, err
		}
		at := *realm
		query := at.Query()
		for k, v := range form {
			query[k] = v
		}
		at.RawQuery = query.Encode()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
		if err == nil && login.user != "" {
			req.Header.Set("Authorization", login.basic())
		}
		return req, err
	})
	if err != nil {
		return ociGrant{}, err
	}
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
		ExpiresIn   int    `json:"expires_in"`
	}
	token := ""
	if json.Unmarshal(body, &answer) == nil {
		token = cmp.Or(answer.Token, answer.AccessToken)
	}
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ociGrant{}, fmt.Errorf("%s: the registry's token service gives no token", loc)
	}
	life := grantLife
	if answer.ExpiresIn > 0 {
		life = min(time.Duration(answer.ExpiresIn)*time.Second, maxGrantLife)
	}
	return ociGrant{header: "Bearer " + token, until: time.Now().Add(life * 4 / 5)}, nil
}

// dockerConfig is the part of Docker's and Podman's file of credentials that is
// read.
type dockerConfig struct {
	Auths map[string]struct {
		Auth          string `json:"auth"`
		Username      string `json:"username"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
	} `json:"auths"`
	CredHelpers map[string]string `json:"credHelpers"`
	CredsStore  string            `json:"credsStore"`
}

// maxDockerConfig is the maximum size of the file of credentials and of a
// helper's output.
const maxDockerConfig = 1 << 20

// dockerFiles are the files that may hold credentials: the one that the user
// names, else those of docker login and podman login, in this order.
func dockerFiles() (all []string) {
	if f := os.Getenv("REGISTRY_AUTH_FILE"); f != "" {
		return []string{f}
	}
	if d := os.Getenv("DOCKER_CONFIG"); d != "" {
		all = append(all, filepath.Join(d, "config.json"))
	} else if home, err := os.UserHomeDir(); err == nil {
		all = append(all, filepath.Join(home, ".docker", "config.json"))
	}
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		all = append(all, filepath.Join(d, "containers", "auth.json"))
	}
	if d, err := os.UserConfigDir(); err == nil {
		all = append(all, filepath.Join(d, "containers", "auth.json"))
	}
	return all
}

// dockerVariable is the key of a Kubernetes Secret of the type
// kubernetes.io/dockerconfigjson.
const dockerVariable = ".dockerconfigjson"

// dockerCredentials returns the login to a repository of the first file that
// has one; the zero value is none.
func (e environment) dockerCredentials(ctx context.Context, ref ociRef) (registryLogin, error) {
	if e != nil {
		var c dockerConfig
		if raw := e[dockerVariable]; raw != "" && json.Unmarshal([]byte(raw), &c) != nil {
			return registryLogin{}, fmt.Errorf("the key %s of the secret is not a file of credentials of docker login", dockerVariable)
		}
		c.CredHelpers, c.CredsStore = nil, "" // programs of this machine, with its user's logins
		return c.login(ctx, ref)
	}
	for _, file := range dockerFiles() {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return registryLogin{}, err
		}
		raw, err := io.ReadAll(io.LimitReader(f, maxDockerConfig))
		_ = f.Close()
		var c dockerConfig
		if err != nil || json.Unmarshal(raw, &c) != nil {
			return registryLogin{}, fmt.Errorf("%s is not a file of credentials of docker login or podman login: log in again, or name another in REGISTRY_AUTH_FILE", file)
		}
		if l, err := c.login(ctx, ref); err != nil || l != (registryLogin{}) {
			return l, err
		}
	}
	return registryLogin{}, nil
}

// loginKeys are the names that files of credentials have for a repository's
// login, in the order in which they count: Podman's for a repository or a
// namespace, the longest first, then Docker's for the registry.
func (r ociRef) loginKeys() (keys []string) {
	for at := r.host + "/" + r.name; at != r.host; at = path.Dir(at) {
		keys = append(keys, at)
	}
	if r.host == "docker.io" {
		return append(keys, "https://index.docker.io/v1/", "index.docker.io", "docker.io")
	}
	return append(keys, r.host, "https://"+r.host, "https://"+r.host+"/", "https://"+r.host+"/v1/", "https://"+r.host+"/v2/")
}

// login returns the login to a repository; the zero value is none.
func (c dockerConfig) login(ctx context.Context, ref ociRef) (registryLogin, error) {
	keys := ref.loginKeys()
	for _, k := range keys {
		if helper := c.CredHelpers[k]; helper != "" {
			return askHelper(ctx, helper, k)
		}
	}
	for _, k := range keys {
		a, ok := c.Auths[k]
		if !ok {
			continue
		}
		l := registryLogin{a.Username, a.Password, a.IdentityToken}
		if raw, err := base64.StdEncoding.DecodeString(a.Auth); err == nil && len(raw) > 0 {
			l.user, l.password, _ = strings.Cut(strings.TrimRight(string(raw), "\x00"), ":")
		}
		if l != (registryLogin{}) {
			return l, nil
		}
	}
	if c.CredsStore != "" {
		server := ref.host
		if server == "docker.io" {
			server = "https://index.docker.io/v1/"
		}
		return askHelper(ctx, c.CredsStore, server)
	}
	return registryLogin{}, nil
}

// helperTimeout bounds a credential helper's answer.
const helperTimeout = 10 * time.Second

// askHelper runs docker-credential-NAME, which is given the registry and says
// user and password. One without them for it exits with an error.
func askHelper(ctx context.Context, name, server string) (registryLogin, error) {
	if strings.ContainsAny(name, "/\\") {
		return registryLogin{}, fmt.Errorf("the credential helper %q has a path for a name", clip(name))
	}
	program, err := exec.LookPath("docker-credential-" + name)
	if err != nil {
		return registryLogin{}, fmt.Errorf("docker-credential-%s, which Docker's file of credentials names, is not on PATH", name)
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Stdin = strings.NewReader(server)
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout = &limitedBuffer{b: &out, left: maxDockerConfig}
	var said struct{ Username, Secret string }
	if cmd.Run() != nil || json.Unmarshal(out.Bytes(), &said) != nil {
		return registryLogin{}, nil // it has none
	}
	if said.Username == "<token>" {
		return registryLogin{identity: said.Secret}, nil
	}
	return registryLogin{user: said.Username, password: said.Secret}, nil
}

type limitedBuffer struct {
	b    *bytes.Buffer
	left int
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errors.New("too much output")
	}
	return l.b.Write(p)
}
