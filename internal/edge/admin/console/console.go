// Package console is the page in a browser: its files, which the binary carries, and
// how a browser signs in. What the page shows and changes it asks of the admin API.
//
// The files in assets are made of the folder console at the root of the repository.
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"
)

//go:generate go -C ../../../../tools/console run . ../../console ../../internal/edge/admin/console/assets

//go:embed assets
var files embed.FS

// HeaderCSRF has the token that a page sends with each change.
const HeaderCSRF = "X-Roundhouse-Csrf"

// Policy is the Content-Security-Policy of the page: its own files, and nothing
// else, may run, style, load or frame it.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// maxSignIn bounds the body of a sign-in, in bytes.
const maxSignIn = 4 << 10

// Console answers the paths of the page that need no session.
type Console struct {
	sessions *Sessions
	// role returns what a token that is kept, not a link's, may do.
	role  func(token string) (Role, bool)
	files map[string]file
}

// file is one of the page's.
type file struct {
	kind, tag string
	data      []byte
	gzip      func() []byte // made at the first call
}

// New makes a console. role tells tokens that are kept.
func New(s *Sessions, role func(token string) (Role, bool)) (*Console, error) {
	c := &Console{sessions: s, role: role, files: map[string]file{}}
	err := fs.WalkDir(files, "assets", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		c.files["/"+strings.TrimPrefix(name, "assets/")] = file{kind: mime.TypeByExtension(path.Ext(name)), tag: `"` + hex.EncodeToString(sum[:12]) + `"`, data: data, gzip: sync.OnceValue(func() []byte { return compressed(data) })}
		return nil
	})
	return c, err
}

func compressed(data []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(data) // a buffer takes everything
	_ = z.Close()
	return out.Bytes()
}

// Handle adds the paths of the page.
func (c *Console) Handle(mux *http.ServeMux) {
	for name := range c.files {
		if name == "/index.html" {
			continue
		}
		mux.HandleFunc("GET "+name, func(w http.ResponseWriter, r *http.Request) { c.send(w, r, name) })
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { c.send(w, r, "/index.html") })
	mux.HandleFunc("POST /session", c.signIn)
	mux.HandleFunc("DELETE /session", c.signOut)
	mux.HandleFunc("GET /session", func(w http.ResponseWriter, r *http.Request) {
		is, ok := c.sessions.Of(r)
		if !ok {
			refuse(w, http.StatusUnauthorized, "no session: open the link that `roundhouse console` prints")
			return
		}
		c.tell(w, is, "")
	})
}

// Open reports whether a request is answered without a session: the page's files and
// the signing in.
func (c *Console) Open(r *http.Request) bool {
	if r.URL.Path == "/session" {
		return true
	}
	_, ok := c.files[r.URL.Path]
	return r.Method == http.MethodGet && (ok || r.URL.Path == "/")
}

func (c *Console) send(w http.ResponseWriter, r *http.Request, name string) {
	f := c.files[name]
	h := w.Header()
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding")
	h.Set("Content-Type", f.kind)
	h.Set("ETag", f.tag)
	body := f.data
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") && r.Header.Get("Range") == "" {
		h.Set("Content-Encoding", "gzip")
		body = f.gzip()
	}
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(body))
}

// signIn begins a session for a link's token, or one that is kept.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	if !SameOrigin(r) {
		refuse(w, http.StatusForbidden, "only this console's own page may sign in")
		return
	}
	var in struct {
		Token string `json:"token"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSignIn)).Decode(&in); err != nil {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("the body is not {\"token\": …}: %s", err))
		return
	}
	token := strings.TrimSpace(in.Token)
	role, ok := c.sessions.use(token)
	if !ok {
		role, ok = c.role(token)
	}
	if !ok {
		refuse(w, http.StatusUnauthorized, "this token does not sign in: a link works once, for an hour. `roundhouse console` prints another")
		return
	}
	is := c.sessions.begin(w, role)
	c.tell(w, is, c.sessions.CSRF(is))
}

// signOut ends the session of a browser.
func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	if !SameOrigin(r) {
		refuse(w, http.StatusForbidden, "only this console's own page may sign out")
		return
	}
	if err := c.sessions.end(w, r); err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// tell answers what a page has to know of its session. The token is told once, to the
// page that signed in: the cookie alone, which a server on another port of the host
// may see, changes nothing.
func (c *Console) tell(w http.ResponseWriter, is Session, csrf string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// An error means that the client is gone.
	_ = json.NewEncoder(w).Encode(map[string]any{"role": is.Role, "expires": is.Expires, "csrf": csrf})
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": message})
}

// SameOrigin reports whether a request comes from a page of this very server, or from
// no page: other ports of a host are other servers, but their pages' requests carry
// the host's cookies.
func SameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return false
	}
	o := r.Header.Get("Origin")
	if o == "" {
		return true
	}
	u, err := url.Parse(o)
	return err == nil && u.Host == r.Host
}
