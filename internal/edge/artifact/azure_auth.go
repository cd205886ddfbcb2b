package artifact

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
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

// azureIdentity is who the environment says we are to Microsoft Entra.
type azureIdentity struct {
	who      string // the variables that it is made of
	cred     azcore.TokenCredential
	explicit bool      // variables name it: it has to work
	none     time.Time // when there was last seen to be no such identity
}

const (
	// maxFederated bounds a file with a federated token.
	maxFederated = 64 << 10
	// maxEntraAnswer bounds an answer of Entra, and of a machine's identity.
	maxEntraAnswer = 1 << 20
	// identityTimeout bounds a question for a token, with its retries.
	identityTimeout = time.Minute
	// identityRetry is how long no identity is looked for after there was none.
	identityRetry = 10 * time.Minute
)

// entraTransport sends the requests for tokens. It may reach what the store's
// own may not, such as the metadata service of a virtual machine.
var entraTransport http.RoundTripper = http.DefaultTransport

// entra implements policy.Transporter.
type entra struct{}

// Do sends one request. Redirects are not followed: they would take a secret
// elsewhere.
func (entra) Do(r *http.Request) (*http.Response, error) {
	resp, err := entraTransport.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxEntraAnswer)
	}
	return resp, err
}

// token is what the environment's identity is shown by; empty without one.
func (a *azureSource) token(ctx context.Context, loc location) (string, error) {
	if t := a.env.Getenv("AZURE_STORAGE_TOKEN"); t != "" {
		return t, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock() // one question for all who want the same
	id, err := a.identify()
	if err != nil {
		return "", fmt.Errorf("%s: %w", loc, err)
	}
	if id.cred == nil || time.Since(id.none) < identityRetry {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	t, err := id.cred.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{"https://storage.azure.com/.default"}})
	var failed *azidentity.AuthenticationFailedError
	switch {
	case err == nil:
		return t.Token, nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: no token of the Azure identity: %w", loc, ctx.Err())
	case errors.As(err, &failed) && failed.RawResponse != nil:
		return "", fmt.Errorf("%s: no token of the Azure identity: %s answers %s", loc, failed.RawResponse.Request.URL.Host, failed.RawResponse.Status)
	case id.explicit || failed != nil:
		first, _, _ := strings.Cut(err.Error(), "\n")
		return "", fmt.Errorf("%s: no token of the Azure identity: %s", loc, first)
	}
	id.none = time.Now() // the blob may be public
	return "", nil
}

// identify is the identity of the environment: a client with its secret, a
// workload's, or what DefaultAzureCredential finds: the machine's own, or that
// of `az login`. The lock is held.
func (a *azureSource) identify() (*azureIdentity, error) {
	tenant, client := a.env.firstEnv("AZURE_TENANT_ID", "AZ_TENANT_ID"), a.env.firstEnv("AZURE_CLIENT_ID", "AZ_CLIENT_ID")
	secret, file := a.env.firstEnv("AZURE_CLIENT_SECRET", "AZ_CLIENT_SECRET"), ""
	if a.env == nil { // a secret names no file of this machine
		file = os.Getenv("AZURE_FEDERATED_TOKEN_FILE")
	}
	authority := a.env.Getenv("AZURE_AUTHORITY_HOST")
	who := strings.Join([]string{tenant, client, secret, file, authority, a.env.Getenv("AZURE_TOKEN_CREDENTIALS")}, "\n")
	if a.identity.who == who {
		return &a.identity, nil
	}
	o := azcore.ClientOptions{Transport: entra{}}
	own := authority != "" // an authority that Microsoft's own does not know
	id := azureIdentity{who: who, explicit: tenant != "" && client != "" && (secret != "" || file != "")}
	var err error
	switch {
	case id.explicit && secret != "":
		id.cred, err = azidentity.NewClientSecretCredential(tenant, client, secret, &azidentity.ClientSecretCredentialOptions{ClientOptions: o, DisableInstanceDiscovery: own})
	case id.explicit:
		read := func(context.Context) (string, error) {
			raw, err := readBounded(file, maxFederated)
			return strings.TrimSpace(string(raw)), err
		}
		id.cred, err = azidentity.NewClientAssertionCredential(tenant, client, read, &azidentity.ClientAssertionCredentialOptions{ClientOptions: o, DisableInstanceDiscovery: own})
	case a.env != nil: // no identity of this machine's: the blob may be public
	default:
		if id.cred, err = azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: o, DisableInstanceDiscovery: own}); err != nil {
			id.cred, err = nil, nil // AZURE_TOKEN_CREDENTIALS names what is not there
		}
	}
	if err != nil {
		return nil, err
	}
	a.identity = id
	return &a.identity, nil
}

func readBounded(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, limit))
}
