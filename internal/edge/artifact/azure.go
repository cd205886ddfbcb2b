package artifact

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
)

// azureSource reads Azure Blob Storage, with the credentials of the
// environment: https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH, as KServe
// has it, or az://.
type azureSource struct {
	requests *requester
	limits   limits
	env      environment

	mu       sync.Mutex
	identity azureIdentity
}

// azureVersion is the version of the service's interface that is spoken.
const azureVersion = "2021-08-06"

func (a *azureSource) hints() hints {
	h := azureListHints
	h.missingIsChange = true // its blob was listed a moment ago
	return h
}

var azureListHints = hints{
	denied: "access denied; set AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, or " +
		"AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, or give an identity that may read it (az login, a managed identity)",
	missing: "no such account, container or blob, or a private one; check the URI",
}

// isAzure reports whether an https URI names a blob in any of Azure's clouds.
func isAzure(loc location) bool {
	account, service, ok := strings.Cut(loc.url.Host, ".blob.core.")
	return loc.scheme == "https" && ok && account != "" && !strings.Contains(account, "/") &&
		(service == "windows.net" || service == "usgovcloudapi.net" || service == "chinacloudapi.cn")
}

// azureBlobs is what a URI names.
type azureBlobs struct {
	account, container, key string
	endpoint                *url.URL // of the account
	login                   azureLogin
}

// locate reads a URI. az://CONTAINER/PATH is of the account in
// AZURE_STORAGE_ACCOUNT; az://ACCOUNT/CONTAINER/PATH is accepted if that is not
// set or names the same account.
func (a *azureSource) locate(loc location) (b azureBlobs, err error) {
	parts := strings.SplitN(strings.Trim(loc.url.Host+loc.url.Path, "/"), "/", 2)
	if len(parts) == 1 {
		parts = append(parts, "")
	}
	rest := parts[1]
	given := a.env.azureLogin()
	switch {
	case loc.scheme == "https":
		b.account, _, _ = strings.Cut(loc.url.Host, ".")
		b.endpoint = &url.URL{Scheme: "https", Host: loc.url.Host}
	case given.account != "" && given.account != parts[0]:
		b.account, rest = given.account, strings.Trim(loc.url.Host+loc.url.Path, "/")
	default:
		b.account = parts[0]
	}
	b.container, b.key, _ = strings.Cut(rest, "/")
	if strings.HasSuffix(loc.url.Path, "/") && b.key != "" {
		b.key += "/"
	}
	if !azureName().MatchString(b.account) || b.container == "" {
		return b, fmt.Errorf("%s: write https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH, or az://CONTAINER/PATH with AZURE_STORAGE_ACCOUNT", loc)
	}
	if given.account == "" || given.account == b.account {
		b.login = given
		if given.endpoint != "" {
			if b.endpoint, err = url.Parse(strings.TrimRight(given.endpoint, "/")); err != nil || b.endpoint.Host == "" {
				return b, fmt.Errorf("%s: the BlobEndpoint of AZURE_STORAGE_CONNECTION_STRING is no URL", loc)
			}
		}
	}
	if b.endpoint == nil {
		b.endpoint = &url.URL{Scheme: "https", Host: b.account + ".blob.core.windows.net"}
	}
	if query := loc.url.Query(); query.Get("sig") != "" { // what the URI itself brings counts most
		b.login = azureLogin{sas: query}
	}
	return b, nil
}

var azureName = pattern(`^[a-z0-9]{3,24}(-secondary)?$`)

// azureList is the part of a List Blobs answer that is read here.
type azureList struct {
	NextMarker string
	Blobs      struct {
		Blob []struct {
			Name struct {
				Encoded bool   `xml:"Encoded,attr"`
				Text    string `xml:",chardata"`
			}
			Properties struct {
				Size         string `xml:"Content-Length"`
				ETag         string `xml:"Etag"`
				MD5          string `xml:"Content-MD5"`
				Encoding     string `xml:"Content-Encoding"`
				ResourceType string
			}
		}
	}
}

func (a *azureSource) list(ctx context.Context, loc location, prior *record) (listing, error) {
	b, err := a.locate(loc)
	if err != nil {
		return listing{}, err
	}
	l, err := listBucket(ctx, a.limits, loc, b.key, prior, func(ctx context.Context, prefix, token string) (bucketPage, error) {
		return a.page(ctx, loc, b, prefix, token)
	})
	var answer *answerError
	if errors.As(err, &answer) && answer.status/100 == 4 && b.key != "" && !strings.HasSuffix(b.key, "/") {
		// A signature may be for one blob, and a container may let everybody
		// read what they know the name of, and list nothing.
		if one, oerr := a.single(ctx, loc, b, prior); oerr == nil {
			return one, nil
		}
	}
	return l, err
}

func (a *azureSource) page(ctx context.Context, loc location, b azureBlobs, prefix, token string) (bucketPage, error) {
	query := url.Values{"restype": {"container"}, "comp": {"list"}, "prefix": {prefix}, "maxresults": {"1000"}}
	if token != "" {
		query.Set("marker", token)
	}
	body, _, err := a.requests.fetchSmall(ctx, loc.String(), azureListHints, maxPage, func(ctx context.Context) (*http.Request, error) {
		return a.authorised(ctx, loc, b, "", query, nil)
	})
	if err != nil {
		return bucketPage{}, err
	}
	var l azureList
	if err := xml.Unmarshal(body, &l); err != nil {
		return bucketPage{}, fmt.Errorf("%s: the answer is no listing of Azure Blob Storage: %w", loc, err)
	}
	page := bucketPage{next: l.NextMarker}
	for i, blob := range l.Blobs.Blob {
		name, p := blob.Name.Text, blob.Properties
		if blob.Name.Encoded {
			if name, err = url.PathUnescape(name); err != nil {
				return bucketPage{}, fmt.Errorf("%s: the listing holds a broken name", loc)
			}
		}
		o := object{key: name, Size: parseSize(p.Size), Validator: quoted(p.ETag)}
		folder := i+1 < len(l.Blobs.Blob) && o.Size == 0 && strings.HasPrefix(l.Blobs.Blob[i+1].Name.Text, name+"/")
		if p.ResourceType == "directory" || folder {
			continue
		}
		if o.Size < 0 || o.Validator == "" {
			return bucketPage{}, fmt.Errorf("%s: the listing says no size or version of %q", loc, name)
		}
		o.md5 = md5Of(p.MD5)
		page.objects = append(page.objects, o)
	}
	return page, nil
}

// quoted is an entity tag as headers have it; listings leave the quotes out.
func quoted(tag string) string {
	if tag == "" || strings.HasPrefix(tag, `"`) {
		return tag
	}
	return `"` + tag + `"`
}

// md5Of reads the base64 of an MD5, as hex; empty when it is none.
func md5Of(s string) string {
	raw, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(raw) != 16 {
		return ""
	}
	return hex.EncodeToString(raw)
}

// single looks at one blob without listing its container.
func (a *azureSource) single(ctx context.Context, loc location, b azureBlobs, prior *record) (listing, error) {
	o := object{key: b.key, Name: b.key[strings.LastIndexByte(b.key, '/')+1:]}
	_, h, err := a.requests.fetchSmall(ctx, loc.String(), azureListHints, 0, func(ctx context.Context) (*http.Request, error) {
		req, err := a.authorised(ctx, loc, b, b.key, nil, nil)
		if err == nil {
			req.Method = http.MethodHead
			if b.login.key != nil {
				signAzure(req, b.account, b.login.key)
			}
		}
		return req, err
	})
	if err != nil {
		return listing{}, err
	}
	o.Size, o.Validator, o.md5 = parseSize(h.Get("Content-Length")), h.Get("ETag"), md5Of(h.Get("Content-MD5"))
	if o.Size < 0 || o.Validator == "" {
		return listing{}, fmt.Errorf("%s: the answer says no size or version", loc)
	}
	l := listing{objects: []object{o}}
	if err := a.limits.check(loc, l.objects); err != nil {
		return listing{}, err
	}
	l.unchanged = prior != nil && sameObjects(prior.Objects, l.objects)
	return l, nil
}

func (a *azureSource) request(ctx context.Context, loc location, o object, from int64) (*http.Request, error) {
	b, err := a.locate(loc)
	if err != nil {
		return nil, err
	}
	return a.authorised(ctx, loc, b, o.key, nil, func(req *http.Request) {
		setRange(req, from, o.to)
		if o.Validator != "" {
			req.Header.Set("If-Match", o.Validator)
		}
	})
}

func (a *azureSource) put(ctx context.Context, loc location, content []byte) error {
	b, err := a.locate(loc)
	if err != nil {
		return err
	}
	if b.key == "" || strings.HasSuffix(b.key, "/") {
		return errNoObject(loc)
	}
	_, _, err = a.requests.fetchSmall(ctx, loc.String(), azureListHints, maxPage, func(ctx context.Context) (*http.Request, error) {
		return a.authorised(ctx, loc, b, b.key, nil, func(req *http.Request) {
			carry(req, http.MethodPut, content)
			req.Header.Set("X-Ms-Blob-Type", "BlockBlob")
			req.Header.Set("Content-Length", strconv.Itoa(len(content))) // which is signed
		})
	})
	return err
}

// authorised makes a request for a blob, or for its container when key is
// empty.
func (a *azureSource) authorised(ctx context.Context, loc location, b azureBlobs, key string, query url.Values, edit func(*http.Request)) (*http.Request, error) {
	u := *b.endpoint
	u.Path += "/" + b.container
	if key != "" {
		u.Path += "/" + key
	}
	u.RawPath = escapeKey(u.Path)
	all := url.Values{}
	for _, values := range []url.Values{query, b.login.sas} {
		for k, v := range values {
			all[k] = v
		}
	}
	u.RawQuery = all.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: not a usable address", loc)
	}
	req.URL = &u // keeps the exact escaping that is signed
	req.Header.Set("X-Ms-Version", azureVersion)
	if edit != nil {
		edit(req)
	}
	switch {
	case b.login.sas != nil:
	case b.login.key != nil:
		signAzure(req, b.account, b.login.key)
	default:
		token, err := a.token(ctx, loc)
		if err != nil {
			return nil, err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
	}
	return req, nil
}

// azureLogin is who asks: at most one of sas and key is set.
type azureLogin struct {
	account  string // that it is for; empty: whichever
	endpoint string // of the account; empty: Azure's own
	sas      url.Values
	key      []byte
}

// azureLogin reads the variables of Azure's tools and of KServe.
func (e environment) azureLogin() azureLogin {
	l := azureLogin{account: e.Getenv("AZURE_STORAGE_ACCOUNT")}
	key, sas := e.firstEnv("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCESS_KEY"), e.Getenv("AZURE_STORAGE_SAS_TOKEN")
	for _, field := range strings.Split(e.Getenv("AZURE_STORAGE_CONNECTION_STRING"), ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		switch name {
		case "AccountName":
			l.account = value
		case "AccountKey":
			key = value
		case "SharedAccessSignature":
			sas = value
		case "BlobEndpoint":
			l.endpoint = value
		}
	}
	if values, err := url.ParseQuery(strings.TrimPrefix(sas, "?")); err == nil && sas != "" {
		l.sas = values
	} else if raw, err := base64.StdEncoding.DecodeString(key); err == nil && len(raw) > 0 {
		l.key = raw
	}
	return l
}
