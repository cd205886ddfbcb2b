package artifact

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// hfSource reads repositories of the Hugging Face Hub, or of what HF_ENDPOINT
// names in its place, with the token of HF_TOKEN or of the file that `hf auth
// login` writes.
type hfSource struct {
	requests *requester
	limits   limits
	env      environment
	hub      string // address; empty: what HF_ENDPOINT names
}

var hfHints = hints{
	denied:  "no such repository, or access denied; check the URI, set HF_TOKEN (or run `hf auth login`), and accept the model's terms on its page if it is gated",
	missing: "no such repository, revision or file, or a private one; check the URI, HF_TOKEN and HF_ENDPOINT",
	text:    true, // of a hub cache
}

func (h *hfSource) hints() hints { return hfHints }

// hfRepo is what a URI names: hf://[datasets/|spaces/][org/]name[@revision][/path].
// As in KServe a colon may stand for the @. In a revision %2F is a slash.
type hfRepo struct {
	kind     string // models, datasets, spaces
	name     string // org/name, or the name of an old repository alone
	revision string
	path     string // of a file or folder; empty for all
}

func parseHF(loc location) (hfRepo, error) {
	r := hfRepo{kind: "models", revision: "main"}
	parts := strings.Split(strings.Trim(loc.url.Host+loc.url.Path, "/"), "/")
	if k := parts[0]; (k == "models" || k == "datasets" || k == "spaces") && len(parts) > 1 {
		r.kind, parts = k, parts[1:]
	}
	n := min(2, len(parts))
	if strings.ContainsAny(parts[0], "@:") {
		n = 1
	}
	r.name, r.path = strings.Join(parts[:n], "/"), strings.Join(parts[n:], "/")
	if i := strings.IndexAny(r.name, "@:"); i >= 0 {
		revision, err := url.PathUnescape(r.name[i+1:])
		if err != nil || revision == "" {
			return r, fmt.Errorf("%s: the revision after %c is empty or badly escaped", loc, r.name[i])
		}
		r.name, r.revision = r.name[:i], revision
	}
	for _, p := range strings.Split(r.name, "/") {
		if p == "" || p == "." || p == ".." {
			return r, fmt.Errorf("%s: write hf://ORG/NAME[@REVISION][/PATH]", loc)
		}
	}
	if r.path != "" && !localName(r.path) {
		return r, fmt.Errorf("%s: the path leaves the repository", loc)
	}
	return r, nil
}

// endpoint is the Hub's address, without a slash at its end.
func (h *hfSource) endpoint() (*url.URL, error) {
	raw := cmp.Or(h.env["HF_ENDPOINT"], h.hub, os.Getenv("HF_ENDPOINT"))
	if raw == "" {
		raw = "https://huggingface.co"
	}
	u, err := url.Parse(strings.TrimRight(raw, "/"))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" {
		return nil, errors.New("HF_ENDPOINT is not a URL such as http://127.0.0.1:8083")
	}
	return u, nil
}

// maxToken bounds the file of the token.
const maxToken = 4 << 10

// hfToken is the user's token, empty for none: HF_TOKEN, then the file.
func (e environment) hfToken() string {
	if t := strings.TrimSpace(e.firstEnv("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")); t != "" || e != nil {
		return t
	}
	if isTrue(os.Getenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
		return ""
	}
	at := os.Getenv("HF_TOKEN_PATH")
	if home := os.Getenv("HF_HOME"); at == "" && home != "" {
		at = filepath.Join(home, "token")
	} else if at == "" {
		cache := os.Getenv("XDG_CACHE_HOME")
		if home, err := os.UserHomeDir(); cache == "" && err == nil {
			cache = filepath.Join(home, ".cache")
		}
		at = filepath.Join(cache, "huggingface", "token")
	}
	if info, err := os.Stat(at); err != nil || info.Size() > maxToken || !info.Mode().IsRegular() {
		return ""
	}
	raw, err := os.ReadFile(at)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// get makes a request to the endpoint; the token goes to no other host, see
// guardRedirects.
func (h *hfSource) get(ctx context.Context, loc location, u *url.URL) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: not a usable address", loc)
	}
	if t := h.env.hfToken(); t != "" && !strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }) {
		req.Header.Set("Authorization", "Bearer "+t)
	}
	return req, nil
}

// url makes an address of the endpoint from parts, each escaped but for its
// slashes.
func (h *hfSource) url(parts ...string) (*url.URL, error) {
	u, err := h.endpoint()
	if err != nil {
		return nil, err
	}
	escaped := u.EscapedPath()
	for _, p := range parts {
		escaped += "/" + p
	}
	if u.Path, err = url.PathUnescape(escaped); err != nil {
		return nil, err
	}
	u.RawPath = escaped
	return u, nil
}

// answersItself reports whether bytes come from the endpoint, not from a
// storage that it redirects to.
func (h *hfSource) answersItself(resp *http.Response) bool {
	u, err := h.endpoint()
	return err != nil || resp.Request.URL.Host == u.Host
}

func (h *hfSource) list(ctx context.Context, loc location, prior *record) (listing, error) {
	repo, err := parseHF(loc)
	if err != nil {
		return listing{}, err
	}
	commit, err := h.commit(ctx, loc, repo)
	if err != nil {
		return listing{}, err
	}
	entries, err := h.tree(ctx, loc, repo, commit)
	if err != nil {
		return listing{}, err
	}
	l := listing{folder: true}
	for _, e := range entries {
		name, ok := e.below(repo.path)
		if !ok {
			continue
		}
		if e.Path == repo.path {
			l.folder = false
		}
		l.objects = append(l.objects, e.object(name, hfResolve(repo, commit, e.Path)))
	}
	if repo.path == "" && repo.kind == "models" {
		l.objects = neededFiles(l.objects)
	}
	if len(l.objects) == 0 {
		return listing{}, fmt.Errorf("%s: revision %s has no such file or folder, or none that is needed", loc, clip(repo.revision))
	}
	l.unchanged = prior != nil && sameObjects(prior.Objects, l.objects)
	return l, nil
}

// commit resolves a revision, so that all files are of one.
func (h *hfSource) commit(ctx context.Context, loc location, repo hfRepo) (string, error) {
	u, err := h.url("api", repo.kind, escapeKey(repo.name), "revision", url.PathEscape(repo.revision))
	if err != nil {
		return "", err
	}
	body, _, err := h.requests.fetchSmall(ctx, loc.String(), hfHints, maxPage, func(ctx context.Context) (*http.Request, error) {
		return h.get(ctx, loc, u)
	})
	if err != nil {
		return "", err
	}
	var info struct{ SHA string }
	if err := json.Unmarshal(body, &info); err != nil || info.SHA == "" || strings.ContainsAny(info.SHA, "/?#%.") {
		return "", fmt.Errorf("%s: the answer names no commit; is HF_ENDPOINT a Hugging Face Hub?", loc)
	}
	return info.SHA, nil
}

// hfEntry is what a tree says of a file. OID is the SHA-1 of a git blob, that
// of LFS the SHA-256 of the content.
type hfEntry struct {
	Type string
	Path string
	Size int64
	OID  string
	LFS  *struct {
		OID  string
		Size int64
	}
}

// below is the file's name below a path, itself or the folder of it.
func (e hfEntry) below(at string) (string, bool) {
	if at == "" {
		return e.Path, true
	}
	if e.Path == at {
		return path.Base(at), true
	}
	return strings.CutPrefix(e.Path, at+"/")
}

func (e hfEntry) object(name, key string) object {
	o := object{Name: name, Size: e.Size, key: key, oid: strings.ToLower(e.OID)}
	if e.LFS != nil {
		o.Size, o.oid = e.LFS.Size, strings.TrimPrefix(strings.ToLower(e.LFS.OID), "sha256:")
	}
	if o.oid != "" {
		o.Validator = `"` + o.oid + `"`
	}
	return o
}

// maxTreePages bounds how many pages one listing has.
const maxTreePages = 1000

func (h *hfSource) tree(ctx context.Context, loc location, repo hfRepo, commit string) ([]hfEntry, error) {
	next, err := h.url("api", repo.kind, escapeKey(repo.name), "tree", commit)
	if err != nil {
		return nil, err
	}
	next.RawQuery = "recursive=true"
	origin := *next
	var files []hfEntry
	for range maxTreePages {
		body, header, err := h.requests.fetchSmall(ctx, loc.String(), hfHints, maxPage, func(ctx context.Context) (*http.Request, error) {
			return h.get(ctx, loc, next)
		})
		if err != nil {
			return nil, err
		}
		var page []hfEntry
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, fmt.Errorf("%s: the answer is no listing of a Hugging Face Hub: %w", loc, err)
		}
		for _, e := range page {
			if e.Type == "file" && e.Size >= 0 {
				files = append(files, e)
			}
		}
		if len(files) > 10*h.limits.files {
			return nil, fmt.Errorf("%s: more than %d files are listed", loc, 10*h.limits.files)
		}
		link := nextLink(header)
		if link == "" {
			return files, nil
		}
		if next, err = origin.Parse(link); err != nil || next.Host != origin.Host || next.Scheme != origin.Scheme {
			return nil, fmt.Errorf("%s: the listing goes on at another host", loc)
		}
	}
	return nil, fmt.Errorf("%s: the listing does not end after %d pages", loc, maxTreePages)
}

// nextLink is the address of `Link: <…>; rel="next"`.
func nextLink(h http.Header) string {
	for _, line := range h.Values("Link") {
		for _, l := range strings.Split(line, ",") {
			address, rest, ok := strings.Cut(strings.TrimSpace(l), ">")
			if ok && strings.HasPrefix(address, "<") && strings.Contains(strings.ReplaceAll(rest, `"`, ""), "rel=next") {
				return address[1:]
			}
		}
	}
	return ""
}

// hfResolve is where a file's bytes are, below the endpoint.
func hfResolve(repo hfRepo, commit, file string) string {
	prefix := ""
	if repo.kind != "models" {
		prefix = repo.kind + "/"
	}
	return prefix + escapeKey(repo.name) + "/resolve/" + commit + "/" + escapeKey(file)
}

func (h *hfSource) request(ctx context.Context, loc location, o object, from int64) (*http.Request, error) {
	u, err := h.url(o.key)
	if err != nil {
		return nil, err
	}
	req, err := h.get(ctx, loc, u)
	if err == nil {
		// The address holds the commit, so the bytes cannot change.
		setRange(req, from, o.to)
	}
	return req, err
}

// duplicates are the endings of files that repeat the weights in another form.
var duplicates = []string{".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".tflite", ".gguf", ".mlmodel"}

// duplicateFolders hold the weights in other forms.
var duplicateFolders = []string{"original", "onnx", "openvino", "coreml", "metal"}

// neededFiles leaves out what no engine reads: the weights in other forms where
// there are safetensors, and what Git alone needs.
func neededFiles(objects []object) []object {
	tensors, named := false, false
	for _, o := range objects {
		top := !strings.Contains(o.Name, "/") && strings.HasSuffix(o.Name, ".safetensors")
		tensors = tensors || top
		named = named || top && strings.HasPrefix(o.Name, "model")
	}
	return slices.DeleteFunc(objects, func(o object) bool {
		base := path.Base(o.Name)
		return base == ".gitattributes" || base == ".gitignore" || tensors && duplicate(o.Name) ||
			named && strings.HasPrefix(o.Name, "consolidated") && strings.HasSuffix(o.Name, ".safetensors")
	})
}

// duplicate reports whether a file has the weights in another format than
// safetensors.
func duplicate(name string) bool {
	folder, _, inside := strings.Cut(name, "/")
	lower := strings.TrimSuffix(strings.ToLower(name), ".index.json")
	return inside && slices.Contains(duplicateFolders, folder) ||
		slices.ContainsFunc(duplicates, func(ending string) bool { return strings.HasSuffix(lower, ending) })
}
