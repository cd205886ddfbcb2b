package artifact

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestAzureStringToSign is the example of Microsoft's page "Authorize with
// Shared Key".
func TestAzureStringToSign(t *testing.T) {
	req := httptest.NewRequest(http.MethodGet, "https://myaccount.blob.core.windows.net/mycontainer?restype=container&comp=metadata&timeout=20", nil)
	req.Header.Set("x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT")
	req.Header.Set("x-ms-version", "2015-02-21")
	want := "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n/myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20"
	if got := azureStringToSign(req, "myaccount"); got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// fakeAzure is an account with one container, as far as it is read here. The
// real thing's emulator is in test/peers/azure.
type fakeAzure struct {
	*httptest.Server
	mu      sync.Mutex
	blobs   map[string][]byte
	folders []string // markers of a hierarchical namespace
	sums    map[string]string
	auth    string // "key", "sas", "bearer", "blob": only blobs are public; "" for public
	seen    []*http.Request
}

var azureKey = []byte("a secret key of an account")

func newAzure(t *testing.T) *fakeAzure {
	f := &fakeAzure{blobs: map[string][]byte{}, sums: map[string]string{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	authority := httptest.NewTLSServer(f)
	t.Cleanup(authority.Close)
	before := entraTransport
	entraTransport = authority.Client().Transport
	t.Cleanup(func() { entraTransport = before })
	for _, v := range []string{"AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN", "AZURE_STORAGE_ACCOUNT",
		"AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZ_TENANT_ID", "AZ_CLIENT_ID", "AZ_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"} {
		t.Setenv(v, "")
		_ = os.Unsetenv(v) // until the test ends: an empty one counts for some
	}
	t.Setenv("AZURE_AUTHORITY_HOST", authority.URL)
	t.Setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential") // no identity of the machine that tests run on
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=models;BlobEndpoint="+f.URL)
	return f
}

func (f *fakeAzure) allows(r *http.Request, blob string) bool {
	switch f.auth {
	case "key":
		given := r.Header.Get("Authorization")
		sent := r.Clone(r.Context())
		if sent.ContentLength > 0 { // which a server has elsewhere than among the headers
			sent.Header.Set("Content-Length", strconv.FormatInt(sent.ContentLength, 10))
		}
		mac := hmac.New(sha256.New, azureKey)
		mac.Write([]byte(azureStringToSign(sent, "models")))
		at, err := http.ParseTime(r.Header.Get("X-Ms-Date"))
		return err == nil && time.Since(at) < time.Minute && given == "SharedKey models:"+base64.StdEncoding.EncodeToString(mac.Sum(nil))
	case "sas":
		return r.URL.Query().Get("sig") == "hunter2+/="
	case "bearer":
		return r.Header.Get("Authorization") == "Bearer entra-token-hunter2"
	case "blob":
		return blob != ""
	}
	return true
}

func (f *fakeAzure) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, r)
	switch r.URL.Path {
	case "/tenant/v2.0/.well-known/openid-configuration":
		at := "https://" + r.Host + "/tenant"
		_, _ = fmt.Fprintf(w, `{"issuer":"%s/v2.0","authorization_endpoint":"%s/oauth2/v2.0/authorize","token_endpoint":"%s/oauth2/v2.0/token"}`, at, at, at)
		return
	case "/msi": // a managed identity, as App Service has it
		if r.Header.Get("X-Identity-Header") != "hunter2" || r.URL.Query().Get("resource") != "https://storage.azure.com" {
			http.Error(w, `{"error":"invalid_request"}`, http.StatusBadRequest)
			return
		}
		_, _ = fmt.Fprintf(w, `{"access_token":"entra-token-hunter2","expires_on":"%d","resource":"https://storage.azure.com","token_type":"Bearer"}`, time.Now().Add(time.Hour).Unix())
		return
	case "/tenant/oauth2/v2.0/token":
		_ = r.ParseForm()
		if r.Form.Get("client_secret") != "hunter2" && r.Form.Get("client_assertion") != "hunter2" {
			http.Error(w, `{"error":"invalid_client"}`, http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprint(w, `{"access_token":"entra-token-hunter2","expires_in":3600,"token_type":"Bearer"}`)
		return
	}
	container, blob, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if container != "c" || !f.allows(r, blob) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `<?xml version="1.0"?><Error><Code>AuthenticationFailed</Code></Error>`)
		return
	}
	if blob == "" {
		f.list(w, r.URL.Query())
		return
	}
	if r.Method == http.MethodPut {
		content, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("X-Ms-Blob-Type") != "BlockBlob" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		f.blobs[blob] = content
		w.WriteHeader(http.StatusCreated)
		return
	}
	content, ok := f.blobs[blob]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("ETag", f.tag(blob))
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(content)))
}

func (f *fakeAzure) tag(blob string) string {
	return fmt.Sprintf(`"0x%X"`, md5.Sum(f.blobs[blob]))[:18] + `"`
}

// list answers two names a page.
func (f *fakeAzure) list(w http.ResponseWriter, query url.Values) {
	var names []string
	for n := range f.blobs {
		names = append(names, n)
	}
	names = append(names, f.folders...)
	slices.Sort(names)
	var out strings.Builder
	out.WriteString(`<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>`)
	n, next := 0, ""
	for _, name := range names {
		if !strings.HasPrefix(name, query.Get("prefix")) || name < query.Get("marker") {
			continue
		}
		if n++; n > 2 {
			next = name
			break
		}
		kind, size := "", len(f.blobs[name])
		if slices.Contains(f.folders, name) {
			kind = "<ResourceType>directory</ResourceType>"
		}
		sum := md5.Sum(f.blobs[name])
		md5 := base64.StdEncoding.EncodeToString(sum[:])
		if f.sums[name] != "" {
			md5 = f.sums[name]
		}
		out.WriteString("<Blob><Name>")
		_ = xml.EscapeText(&out, []byte(name))
		fmt.Fprintf(&out, "</Name><Properties><Content-Length>%d</Content-Length><Etag>%s</Etag><Content-MD5>%s</Content-MD5>%s</Properties></Blob>",
			size, strings.Trim(f.tag(name), `"`), md5, kind)
	}
	out.WriteString("</Blobs><NextMarker>")
	_ = xml.EscapeText(&out, []byte(next))
	out.WriteString("</NextMarker></EnumerationResults>")
	_, _ = fmt.Fprint(w, out.String())
}

func TestFetchAzure(t *testing.T) {
	f := newAzure(t)
	large := randomBytes(5*testPiece+3, 90)
	f.blobs = map[string][]byte{"m/config.json": []byte(llama), "m/model.bin": large, "m/sub/é +&.txt": []byte("odd"), "m/sub/x": []byte("x"), "m2/no": nil}
	f.folders = []string{"m/sub"}
	want := []string{"config.json=" + llama, "model.bin=" + string(large), "sub/x=x", "sub/é +&.txt=odd"}
	for _, uri := range []string{"az://c/m", "az://c/m/", "az://models/c/m", "https://models.blob.core.windows.net/c/m"} {
		s := newStore(t, inTestPieces)
		path, err := s.Fetch(t.Context(), Request{URI: uri}, nil)
		if err != nil {
			t.Error(uri, err)
			continue
		}
		if got := contents(t, path); !slices.Equal(got, want) {
			t.Errorf("%s: %.200q", uri, got)
		}
		before := len(f.seen)
		if again, err := s.Fetch(t.Context(), Request{URI: uri}, nil); err != nil || again != path {
			t.Error(again, err)
		}
		for _, r := range f.seen[before:] {
			if r.URL.Query().Get("comp") != "list" {
				t.Errorf("asked for %s though nothing has changed", r.URL)
			}
		}
	}
	path, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "az://c/m/config.json"}, nil)
	if err != nil || filepath.Base(path) != "config.json" || mustRead(t, path) != llama {
		t.Error(path, err)
	}
	sum := md5.Sum([]byte("other"))
	f.sums["m/model.bin"] = base64.StdEncoding.EncodeToString(sum[:])
	_, err = newStore(t, nil).Fetch(t.Context(), Request{URI: "az://c/m"}, nil)
	wantError(t, err, "md5", "model.bin")
	for uri, word := range map[string]string{"az://c/none": "no object", "az://other/m": "403", "az://c": "", "https://x.blob.core.windows.net/": "write https://"} {
		if _, err := newStore(t, nil).Fetch(t.Context(), Request{URI: uri}, nil); word != "" {
			wantError(t, err, word)
		}
	}
}

// loggedIn is a folder with a program in the place of Azure's command line, which
// somebody has logged in with.
func loggedIn(t *testing.T) string {
	dir := t.TempDir()
	script := "#!/bin/sh\ncase \"$*\" in *https://storage.azure.com*) ;; *) exit 1 ;; esac\n" +
		`echo '{"accessToken":"entra-token-hunter2","expires_on":4102444800,"tokenType":"Bearer"}'` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "az"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAzureLogins: a key, a signature in the environment and in the URI, the
// tokens of Entra, and a container that only lists for its owner; none shows.
func TestAzureLogins(t *testing.T) {
	f := newAzure(t)
	f.blobs["m.bin"] = []byte("model")
	sas := "sv=2021-08-06&sr=c&sp=rl&sig=" + url.QueryEscape("hunter2+/=")
	key := base64.StdEncoding.EncodeToString(azureKey)
	file := filepath.Join(t.TempDir(), "token")
	mustWrite(t, file, "hunter2\n")
	for _, c := range []struct {
		name, auth, uri string
		env             map[string]string
	}{
		{"public", "", "az://c/m.bin", nil},
		{"a key", "key", "az://c/m.bin", map[string]string{"AZURE_STORAGE_KEY": key}},
		{"KServe's key", "key", "az://c/m.bin", map[string]string{"AZURE_STORAGE_ACCESS_KEY": key}},
		{"a connection string", "key", "az://c/m.bin", map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "AccountName=models;AccountKey=" + key + ";BlobEndpoint=" + f.URL}},
		{"a signature", "sas", "az://c/m.bin", map[string]string{"AZURE_STORAGE_SAS_TOKEN": "?" + sas}},
		{"a signature in the URI", "sas", "https://models.blob.core.windows.net/c/m.bin?" + sas, nil},
		{"a token", "bearer", "az://c/m.bin", map[string]string{"AZURE_STORAGE_TOKEN": "entra-token-hunter2"}},
		{"a client", "bearer", "az://c/m.bin", map[string]string{"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "me", "AZURE_CLIENT_SECRET": "hunter2"}},
		{"a workload", "bearer", "az://c/m.bin", map[string]string{"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "me", "AZURE_FEDERATED_TOKEN_FILE": file}},
		{"a managed identity", "bearer", "az://c/m.bin", map[string]string{"AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential", "IDENTITY_ENDPOINT": f.URL + "/msi", "IDENTITY_HEADER": "hunter2"}},
		{"az login", "bearer", "az://c/m.bin", map[string]string{"AZURE_TOKEN_CREDENTIALS": "AzureCLICredential", "PATH": loggedIn(t) + ":" + os.Getenv("PATH")}},
		{"blobs are public", "blob", "az://c/m.bin", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			f.mu.Lock()
			f.auth = c.auth
			f.mu.Unlock()
			path, err := newStore(t, nil).Fetch(t.Context(), Request{URI: c.uri}, nil)
			if err != nil || mustRead(t, path) != "model" {
				t.Fatal(path, err)
			}
			f.mu.Lock()
			f.auth = "nobody"
			f.mu.Unlock()
			if c.auth == "" || c.auth == "blob" {
				return
			}
			f.mu.Lock()
			f.auth = map[string]string{"key": "sas", "sas": "key", "bearer": "key"}[c.auth]
			f.mu.Unlock()
			_, err = newStore(t, nil).Fetch(t.Context(), Request{URI: c.uri}, nil)
			wantError(t, err, "403", "AZURE_STORAGE_KEY")
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), key) {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
	// What is for one account is not shown to another.
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", sas)
	loc, err := parse(Request{URI: "https://other.blob.core.windows.net/c/m"})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := (&azureSource{}).locate(loc); err != nil || b.login.sas != nil || b.endpoint.Host != "other.blob.core.windows.net" {
		t.Errorf("%+v, %v", b, err)
	}
}
