package artifact

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/smithy-go/logging"
)

// s3Source reads S3 and what speaks its protocol, with the credentials, region
// and endpoint of the AWS environment and configuration files, and with the
// variables that KServe's storage initializer reads besides.
type s3Source struct {
	requests *requester
	limits   limits
	env      environment
	address  string // of the store, "" for that of env
	log      *slog.Logger

	mu       sync.Mutex
	endpoint *s3Endpoint       // nil before the first use
	regions  map[string]string // by bucket, learnt from answers
}

// s3Endpoint is where and as whom to ask.
type s3Endpoint struct {
	base    *url.URL // nil for Amazon itself
	virtual bool     // the bucket is part of the host name
	region  string
	creds   aws.CredentialsProvider // nil for anonymous

	// noCreds is when credentials could last not be had; they are not asked
	// for again for a while, as the search may take seconds.
	noCreds time.Time
}

// emptySHA256 is the digest of a request without a body.
const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// s3Sum is the header with the digest of a request's body.
const s3Sum = "X-Amz-Content-Sha256"

func (c *s3Source) hints() hints {
	return hints{
		denied: "access denied; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, " +
			"or awsAnonymousCredential=true for a public bucket",
		missing: "no such bucket or object; check the URI and AWS_ENDPOINT_URL",
	}
}

func (c *s3Source) list(ctx context.Context, loc location, prior *record) (listing, error) {
	return listBucket(ctx, c.limits, loc, strings.TrimPrefix(loc.url.Path, "/"), prior, func(ctx context.Context, prefix, token string) (bucketPage, error) {
		page, err := c.page(ctx, loc, prefix, token)
		var answer *answerError
		if errors.As(err, &answer) && c.learnRegion(loc.url.Host, answer.region) {
			return c.page(ctx, loc, prefix, token)
		}
		return page, err
	})
}

// s3List is the part of a ListObjectsV2 answer that is read here.
type s3List struct {
	EncodingType          string
	NextContinuationToken string
	IsTruncated           bool
	Contents              []struct {
		Key  string
		ETag string
		Size int64
	}
}

func (c *s3Source) page(ctx context.Context, loc location, prefix, token string) (bucketPage, error) {
	query := url.Values{"list-type": {"2"}, "prefix": {prefix}, "encoding-type": {"url"}}
	if token != "" {
		query.Set("continuation-token", token)
	}
	body, _, err := c.requests.fetchSmall(ctx, loc.String(), c.hints(), maxPage, func(ctx context.Context) (*http.Request, error) {
		return c.signed(ctx, loc, "", query, nil)
	})
	if err != nil {
		return bucketPage{}, whyDenied(err)
	}
	var l s3List
	if err := xml.Unmarshal(body, &l); err != nil {
		return bucketPage{}, fmt.Errorf("%s: the answer is no S3 listing; check AWS_ENDPOINT_URL: %w", loc, err)
	}
	var page bucketPage
	for _, o := range l.Contents {
		if l.EncodingType == "url" {
			if o.Key, err = url.QueryUnescape(o.Key); err != nil {
				return bucketPage{}, fmt.Errorf("%s: the listing holds a broken key", loc)
			}
		}
		page.objects = append(page.objects, object{key: o.Key, Size: max(o.Size, 0), Validator: o.ETag, md5: etagMD5(o.ETag)})
	}
	if l.IsTruncated {
		page.next = l.NextContinuationToken
	}
	return page, nil
}

// whyDenied explains a refusal by S3's error code.
func whyDenied(err error) error {
	var answer *answerError
	if !errors.As(err, &answer) {
		return err
	}
	switch answer.detail {
	case "SignatureDoesNotMatch":
		answer.hint = "AWS_SECRET_ACCESS_KEY is not the secret of AWS_ACCESS_KEY_ID, or the region is another than the store's"
	case "InvalidAccessKeyId":
		answer.hint = "the store does not know AWS_ACCESS_KEY_ID"
	case "ExpiredToken", "RequestTimeTooSkewed":
		answer.hint = "the credentials have expired, or this machine's clock is wrong"
	}
	return err
}

// etagMD5 is the MD5 that the ETag of an object is that was uploaded in one
// piece. For an object encrypted with a key of KMS or the client's it is not;
// the answer's headers show that, see [part.heard].
func etagMD5(tag string) string {
	sum := strings.Trim(tag, `"`)
	if raw, err := hex.DecodeString(sum); err != nil || len(raw) != 16 {
		return ""
	}
	return strings.ToLower(sum)
}

// maxPage bounds one page of a listing: 1000 keys of at most 1024 bytes, with
// what surrounds them.
const maxPage = 8 << 20

func (c *s3Source) request(ctx context.Context, loc location, o object, from int64) (*http.Request, error) {
	return c.signed(ctx, loc, o.key, nil, func(req *http.Request) {
		setRange(req, from, o.to)
		if o.Validator != "" {
			req.Header.Set("If-Match", o.Validator)
		}
	})
}

func (c *s3Source) put(ctx context.Context, loc location, content []byte) error {
	key := strings.TrimPrefix(loc.url.Path, "/")
	send := func() error {
		_, _, err := c.requests.fetchSmall(ctx, loc.String(), c.hints(), maxPage, func(ctx context.Context) (*http.Request, error) {
			return c.signed(ctx, loc, key, nil, func(req *http.Request) {
				carry(req, http.MethodPut, content)
				sum := sha256.Sum256(content)
				req.Header.Set(s3Sum, hex.EncodeToString(sum[:]))
			})
		})
		return err
	}
	err := send()
	var answer *answerError
	if errors.As(err, &answer) && c.learnRegion(loc.url.Host, answer.region) {
		err = send()
	}
	return whyDenied(err)
}

// signed makes a request for a key, or for the bucket when key is empty.
func (c *s3Source) signed(ctx context.Context, loc location, key string, query url.Values, edit func(*http.Request)) (*http.Request, error) {
	e, err := c.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", loc, err)
	}
	region := c.region(loc, e)
	u := e.url(loc.url.Host, key, region)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: not a usable bucket name", loc)
	}
	req.URL = u // keeps the exact escaping that is signed
	if edit != nil {
		edit(req)
	}
	creds, ok := c.credentials(ctx, e)
	if !ok {
		return req, nil
	}
	sum := cmp.Or(req.Header.Get(s3Sum), emptySHA256)
	req.Header.Set(s3Sum, sum)
	err = v4.NewSigner().SignHTTP(ctx, creds, req, sum, "s3", region, time.Now(),
		func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err != nil {
		return nil, fmt.Errorf("%s: cannot sign the request: %w", loc, err)
	}
	return req, nil
}

// credentials reports false when there are none and the request must go
// unsigned.
func (c *s3Source) credentials(ctx context.Context, e *s3Endpoint) (aws.Credentials, bool) {
	if e.creds == nil {
		return aws.Credentials{}, false
	}
	c.mu.Lock()
	recent := time.Since(e.noCreds) < time.Minute
	c.mu.Unlock()
	if recent {
		return aws.Credentials{}, false
	}
	creds, err := e.creds.Retrieve(ctx)
	if err == nil {
		return creds, true
	}
	c.mu.Lock()
	e.noCreds = time.Now()
	c.mu.Unlock()
	c.log.WarnContext(ctx, "no AWS credentials found; asking S3 anonymously", "error", err)
	return aws.Credentials{}, false
}

// connect reads the environment once.
func (c *s3Source) connect(ctx context.Context) (*s3Endpoint, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.endpoint != nil {
		return c.endpoint, nil
	}
	cfg, err := c.configuration(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot read the AWS configuration: %w", err)
	}
	e := &s3Endpoint{region: cfg.Region, creds: cfg.Credentials}
	if e.region == "" {
		e.region = "us-east-1"
	}
	if own := c.env.kserveKeys(); own != nil {
		e.creds = own
	}
	if isTrue(c.env.Getenv("awsAnonymousCredential")) {
		e.creds = nil
	}
	address := cmp.Or(c.address, c.env.s3Address(cfg))
	if address != "" {
		if e.base, err = url.Parse(strings.TrimSuffix(address, "/")); err != nil || e.base.Host == "" {
			return nil, errors.New("AWS_ENDPOINT_URL or S3_ENDPOINT is not a URL such as http://localhost:9000")
		}
	}
	e.virtual = address == "" || isTrue(c.env.Getenv("S3_USER_VIRTUAL_BUCKET"))
	c.endpoint = e
	return e, nil
}

// configuration is AWS's own: of this process's environment and files, or, where
// there are other credentials, of their variables alone.
func (c *s3Source) configuration(ctx context.Context) (aws.Config, error) {
	if c.env == nil {
		// What it finds on its way to credentials is nobody's concern: what comes of
		// it is said where they are needed.
		return awsconfig.LoadDefaultConfig(ctx, awsconfig.WithLogger(logging.Nop{}))
	}
	cfg := aws.Config{Region: c.env.firstEnv("AWS_REGION", "AWS_DEFAULT_REGION")}
	if id, secret := c.env.Getenv("AWS_ACCESS_KEY_ID"), c.env.Getenv("AWS_SECRET_ACCESS_KEY"); id != "" && secret != "" {
		cfg.Credentials = credentials.NewStaticCredentialsProvider(id, secret, c.env.Getenv("AWS_SESSION_TOKEN"))
	}
	if at := c.env.Getenv("AWS_ENDPOINT_URL"); at != "" {
		cfg.BaseEndpoint = aws.String(at)
	}
	return cfg, nil
}

// s3Address is the endpoint asked for: AWS's variables and files first, then
// KServe's, which name a host. Empty means Amazon.
func (e environment) s3Address(cfg aws.Config) string {
	if v := e.Getenv("AWS_ENDPOINT_URL_S3"); v != "" {
		return v
	}
	if v := aws.ToString(cfg.BaseEndpoint); v != "" {
		return v
	}
	host := e.Getenv("S3_ENDPOINT")
	if host == "" || strings.Contains(host, "://") {
		return host
	}
	if v := e.Getenv("S3_USE_HTTPS"); v != "" && !isTrue(v) {
		return "http://" + host
	}
	return "https://" + host
}

// kserveKeys are access keys under the names that KServe's secrets have them by,
// where nobody set AWS's own; nil for none.
func (e environment) kserveKeys() aws.CredentialsProvider {
	id, secret := e.Getenv("awsAccessKeyID"), e.Getenv("awsSecretAccessKey")
	if id == "" || secret == "" || e.Getenv("AWS_ACCESS_KEY_ID") != "" {
		return nil
	}
	return credentials.NewStaticCredentialsProvider(id, secret, "")
}

func isTrue(v string) bool { return v == "1" || strings.EqualFold(v, "true") }

// url is the address of a key. A bucket with dots in its name does not match
// Amazon's certificate as a host, so it goes into the path.
func (e *s3Endpoint) url(bucket, key, region string) *url.URL {
	u := &url.URL{Scheme: "https", Host: "s3." + region + ".amazonaws.com"}
	if e.base != nil {
		u = &url.URL{Scheme: e.base.Scheme, Host: e.base.Host, Path: e.base.Path}
	}
	if e.virtual && !strings.Contains(bucket, ".") {
		u.Host = bucket + "." + u.Host
	} else {
		u.Path += "/" + bucket
	}
	if key != "" || u.Path == "" {
		u.Path += "/" + key
	}
	u.RawPath = escapeKey(u.Path)
	return u
}

// escapeKey escapes every byte but the unreserved characters of RFC 3986 and
// the slash, which is the form that signatures are made over.
func escapeKey(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.~/", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func (c *s3Source) region(loc location, e *s3Endpoint) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.regions[loc.url.Host]; r != "" {
		return r
	}
	if own := loc.credentials; own != nil && own.Region != "" {
		return own.Region
	}
	return e.region
}

// learnRegion notes where a bucket is and reports whether that is news.
func (c *s3Source) learnRegion(bucket, region string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if region == "" || c.regions[bucket] == region || strings.ContainsAny(region, "/@:?#") {
		return false
	}
	if c.regions == nil || len(c.regions) >= 1000 {
		c.regions = map[string]string{}
	}
	c.regions[bucket] = region
	return true
}
