package artifact

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// gcsSource reads Google Cloud Storage over its JSON API, as the application
// default credentials say, or anonymously where there are none.
type gcsSource struct {
	requests *requester
	limits   limits
	env      environment
	scope    string // what its tokens allow
	log      *slog.Logger

	mu      sync.Mutex
	tokens  oauth2.TokenSource
	noCreds time.Time // when credentials could last not be had
	why     string    // and why those that there are give no token
}

const (
	gcsReadScope  = "https://www.googleapis.com/auth/devstorage.read_only"
	gcsWriteScope = "https://www.googleapis.com/auth/devstorage.read_write"
)

// hints are those of a download: its object was listed a moment ago.
func (g *gcsSource) hints() hints {
	h := gcsListHints
	h.missingIsChange = true
	return h
}

var gcsListHints = hints{
	denied: "access denied; run `gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS " +
		"(public buckets need neither)",
	missing: "no such bucket or object; check the URI",
}

func (g *gcsSource) list(ctx context.Context, loc location, prior *record) (listing, error) {
	return listBucket(ctx, g.limits, loc, strings.TrimPrefix(loc.url.Path, "/"), prior, func(ctx context.Context, prefix, token string) (bucketPage, error) {
		return g.page(ctx, loc, prefix, token)
	})
}

// gcsList is the part of an objects.list answer that is read here. Size and
// generation are decimal strings, crc32c is base64 of four big-endian bytes.
type gcsList struct {
	NextPageToken string `json:"nextPageToken"`
	Items         []struct {
		Name            string `json:"name"`
		Size            string `json:"size"`
		Generation      string `json:"generation"`
		CRC32C          string `json:"crc32c"`
		ContentEncoding string `json:"contentEncoding"`
	} `json:"items"`
}

func (g *gcsSource) page(ctx context.Context, loc location, prefix, token string) (bucketPage, error) {
	query := url.Values{
		"prefix": {prefix}, "maxResults": {"1000"},
		"fields": {"nextPageToken,items(name,size,generation,crc32c,contentEncoding)"},
	}
	if token != "" {
		query.Set("pageToken", token)
	}
	body, _, err := g.requests.fetchSmall(ctx, loc.String(), gcsListHints, maxPage, func(ctx context.Context) (*http.Request, error) {
		return g.authorised(ctx, loc, "", query)
	})
	if err != nil {
		return bucketPage{}, g.whyDenied(err)
	}
	var l gcsList
	if err := json.Unmarshal(body, &l); err != nil {
		return bucketPage{}, fmt.Errorf("%s: the answer is no Cloud Storage listing: %w", loc, err)
	}
	page := bucketPage{next: l.NextPageToken}
	for _, i := range l.Items {
		o := object{key: i.Name, Size: parseSize(i.Size), Validator: i.Generation}
		if o.Size < 0 || o.Validator == "" {
			return bucketPage{}, fmt.Errorf("%s: the listing says no size or generation of %q", loc, i.Name)
		}
		if i.ContentEncoding == "gzip" {
			return bucketPage{}, fmt.Errorf("%s: %q is stored with Content-Encoding gzip; upload it unencoded", loc, i.Name)
		}
		if raw, err := base64.StdEncoding.DecodeString(i.CRC32C); err == nil && len(raw) == 4 {
			sum := binary.BigEndian.Uint32(raw)
			o.crc32c = &sum
		}
		page.objects = append(page.objects, o)
	}
	return page, nil
}

// request pins the object's generation, so a download never mixes two.
func (g *gcsSource) request(ctx context.Context, loc location, o object, from int64) (*http.Request, error) {
	req, err := g.authorised(ctx, loc, o.key, url.Values{"alt": {"media"}, "generation": {o.Validator}})
	if err == nil {
		setRange(req, from, o.to)
	}
	return req, err
}

// authorised makes a request for an object, or for the bucket's listing when
// key is empty.
func (g *gcsSource) authorised(ctx context.Context, loc location, key string, query url.Values) (*http.Request, error) {
	base, emulated := g.env.gcsBase()
	address := base + "/storage/v1/b/" + url.PathEscape(loc.url.Host) + "/o"
	if key != "" {
		address += "/" + strings.ReplaceAll(escapeKey(key), "/", "%2F")
	}
	return g.admitted(ctx, loc, address+"?"+query.Encode(), emulated)
}

// admitted makes a request for an address, which shows the token that there is.
func (g *gcsSource) admitted(ctx context.Context, loc location, address string, emulated bool) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: STORAGE_EMULATOR_HOST is not an address such as localhost:4443", loc)
	}
	if emulated {
		return req, nil
	}
	if t := g.token(ctx); t != nil {
		t.SetAuthHeader(req)
	}
	return req, nil
}

func (g *gcsSource) put(ctx context.Context, loc location, content []byte) error {
	base, emulated := g.env.gcsBase()
	query := url.Values{"uploadType": {"media"}, "name": {strings.TrimPrefix(loc.url.Path, "/")}}
	address := base + "/upload/storage/v1/b/" + url.PathEscape(loc.url.Host) + "/o?" + query.Encode()
	_, _, err := g.requests.fetchSmall(ctx, loc.String(), gcsListHints, maxPage, func(ctx context.Context) (*http.Request, error) {
		req, err := g.admitted(ctx, loc, address, emulated)
		if err == nil {
			carry(req, http.MethodPost, content)
		}
		return req, err
	})
	return g.whyDenied(err)
}

func (e environment) gcsBase() (base string, emulated bool) {
	host := strings.TrimSuffix(e.Getenv("STORAGE_EMULATOR_HOST"), "/")
	switch {
	case host == "":
		return "https://storage.googleapis.com", false
	case strings.Contains(host, "://"):
		return host, true
	}
	return "http://" + host, true
}

// token returns nil when there are no credentials: the bucket may be public.
func (g *gcsSource) token(ctx context.Context) *oauth2.Token {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.noCreds) < time.Minute {
		return nil
	}
	if g.tokens == nil {
		// The token source outlives this request, so it gets the store's
		// client and no deadline of the caller.
		lasting := context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, g.requests.client)
		creds, err := g.env.googleCredentials(lasting, g.scope)
		if err != nil {
			g.noCreds = time.Now()
			g.log.DebugContext(ctx, "no Google credentials found; asking Cloud Storage anonymously", "error", err)
			return nil
		}
		g.tokens = oauth2.ReuseTokenSource(nil, creds.TokenSource)
	}
	t, err := g.tokens.Token()
	if err != nil {
		g.noCreds, g.why = time.Now(), tokenProblem(err)
		g.log.WarnContext(ctx, "the Google credentials give no token; asking Cloud Storage anonymously", "error", err)
		return nil
	}
	return t
}

// googleVariable holds a service account's file where a secret of KServe's is
// handed on key by key, as variables.
const googleVariable = "gcloud-application-credentials.json"

func (e environment) googleCredentials(ctx context.Context, scope string) (*google.Credentials, error) {
	if raw := e.Getenv(googleVariable); raw != "" && (e != nil || e.Getenv("GOOGLE_APPLICATION_CREDENTIALS") == "") {
		return google.CredentialsFromJSONWithType(ctx, []byte(raw), google.ServiceAccount, scope)
	}
	if e != nil {
		return nil, errors.New("there is no " + googleVariable)
	}
	return google.FindDefaultCredentials(ctx, scope)
}

// whyDenied adds to a refusal why the credentials gave no token.
func (g *gcsSource) whyDenied(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var answer *answerError
	if g.why != "" && Denied(err) && errors.As(err, &answer) {
		answer.hint = "it was asked anonymously, since the Google credentials give no token: " + g.why
	}
	return err
}

// tokenProblem is what a token's server says, in its own words for it: all else
// may quote what it was sent.
func tokenProblem(err error) string {
	var refused *oauth2.RetrieveError
	if !errors.As(err, &refused) || refused.Response == nil {
		return "its server cannot be asked"
	}
	var said struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	if json.Unmarshal(refused.Body, &said) != nil || said.Error == "" {
		return refused.Response.Status
	}
	return clip(strings.TrimSpace(said.Error + " " + said.Description))
}
