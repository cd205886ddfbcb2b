package artifact

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// signAzure signs a request with an account's key: "Shared Key" for blobs, in
// the form of the versions since 2015-02-21.
func signAzure(req *http.Request, account string, key []byte) {
	req.Header.Set("X-Ms-Date", time.Now().UTC().Format(http.TimeFormat))
	mac := hmac.New(sha256.New, key)
	_, _ = io.WriteString(mac, azureStringToSign(req, account)) // a hash takes everything
	req.Header.Set("Authorization", "SharedKey "+account+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}

// SignAzure signs a request to Azure Blob Storage with an account's key, which
// is in base64. A key that is none leaves the request as it is.
func SignAzure(req *http.Request, account, key string) {
	raw, err := base64.StdEncoding.DecodeString(key)
	if err != nil {
		return
	}
	req.Header.Set("X-Ms-Version", azureVersion)
	signAzure(req, account, raw)
}

func azureStringToSign(req *http.Request, account string) string {
	lines := []string{req.Method}
	for _, h := range []string{"Content-Encoding", "Content-Language", "Content-Length", "Content-Md5", "Content-Type", "Date",
		"If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range"} {
		lines = append(lines, req.Header.Get(h))
	}
	for _, h := range slices.Sorted(maps.Keys(req.Header)) {
		if name := strings.ToLower(h); strings.HasPrefix(name, "x-ms-") {
			lines = append(lines, name+":"+strings.TrimSpace(strings.Join(req.Header[h], ",")))
		}
	}
	resource := "/" + account + req.URL.EscapedPath()
	query := map[string][]string{}
	for k, v := range req.URL.Query() {
		query[strings.ToLower(k)] = append(query[strings.ToLower(k)], v...)
	}
	for _, k := range slices.Sorted(maps.Keys(query)) {
		slices.Sort(query[k])
		resource += "\n" + k + ":" + strings.Join(query[k], ",")
	}
	return strings.Join(append(lines, resource), "\n")
}

// azureToken is a bearer token of Microsoft Entra, until it is asked for anew.
type azureToken struct {
	value string
	until time.Time
	who   string // the client that it is of
}

// maxFederated bounds a file with a federated token.
const maxFederated = 64 << 10

// token is what the environment's identity is shown by; empty without one.
func (a *azureSource) token(ctx context.Context, loc location) (string, error) {
	if t := os.Getenv("AZURE_STORAGE_TOKEN"); t != "" {
		return t, nil
	}
	tenant, client := firstEnv("AZURE_TENANT_ID", "AZ_TENANT_ID"), firstEnv("AZURE_CLIENT_ID", "AZ_CLIENT_ID")
	secret, file := firstEnv("AZURE_CLIENT_SECRET", "AZ_CLIENT_SECRET"), os.Getenv("AZURE_FEDERATED_TOKEN_FILE")
	if tenant == "" || client == "" || secret == "" && file == "" {
		return "", nil
	}
	a.mu.Lock()
	defer a.mu.Unlock() // one question for all who want the same
	if who := tenant + "/" + client; a.bearer.who == who && time.Now().Before(a.bearer.until) {
		return a.bearer.value, nil
	}
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {client}, "scope": {"https://storage.azure.com/.default"}}
	if secret != "" {
		form.Set("client_secret", secret)
	} else {
		assertion, err := readBounded(file, maxFederated)
		if err != nil {
			return "", fmt.Errorf("artifact: %s: AZURE_FEDERATED_TOKEN_FILE: %w", loc, err)
		}
		form.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		form.Set("client_assertion", strings.TrimSpace(string(assertion)))
	}
	at := strings.TrimRight(cmp.Or(os.Getenv("AZURE_AUTHORITY_HOST"), "https://login.microsoftonline.com"), "/")
	body, _, err := a.s.fetchSmall(ctx, loc.String(), azureListHints, maxTokenAnswer, func(ctx context.Context) (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, at+"/"+url.PathEscape(tenant)+"/oauth2/v2.0/token", strings.NewReader(form.Encode()))
		if err != nil {
			return nil, fmt.Errorf("artifact: %s: AZURE_AUTHORITY_HOST is no URL", loc)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return req, nil
	})
	if err != nil {
		return "", err
	}
	var answer struct {
		AccessToken string `json:"access_token"`
		ExpiresIn   int    `json:"expires_in"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.AccessToken == "" {
		return "", fmt.Errorf("artifact: %s: %s gives no token", loc, Redact(at))
	}
	life := min(time.Duration(max(answer.ExpiresIn, 60))*time.Second, maxGrantLife)
	a.bearer = azureToken{value: answer.AccessToken, until: time.Now().Add(life * 4 / 5), who: tenant + "/" + client}
	return answer.AccessToken, nil
}

func readBounded(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, limit))
}
