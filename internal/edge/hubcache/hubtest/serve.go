package hubtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// pageSize is how many entries of a tree come at a time.
const pageSize = 3

func (h *Hub) note(r *http.Request, storage bool) Faults {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = append(h.requests, Request{storage, r.Method, r.URL.RequestURI(), r.Header.Get("Authorization"), r.Header.Get("Range"), r.Header.Clone()})
	return h.faults
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	if code != "" {
		w.Header().Set("X-Error-Code", code)
	}
	w.Header().Set("X-Error-Message", message)
	w.Header().Set("X-Request-Id", "Root=1-0")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(message))
}

func (h *Hub) serve(w http.ResponseWriter, r *http.Request) {
	faults := h.note(r, false)
	if faults.MuteHub != nil {
		select {
		case <-faults.MuteHub:
		case <-r.Context().Done():
			return
		}
	}
	if faults.Status != 0 {
		maps.Copy(w.Header(), faults.Header)
		http.Error(w, "no", faults.Status)
		return
	}
	w.Header().Set("Ratelimit", `"api";r=499;t=60`)
	path := r.URL.EscapedPath()
	switch {
	case path == "/api/whoami-v2":
		h.whoami(w, r)
	case strings.HasPrefix(path, "/api/resolve-cache/"):
		h.resolveCache(w, r, strings.TrimPrefix(path, "/api/resolve-cache/"), faults)
	case strings.HasPrefix(path, "/api/"):
		h.api(w, r, strings.TrimPrefix(path, "/api/"), faults)
	default:
		h.resolve(w, r, path, faults)
	}
}

func (h *Hub) token(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

func (h *Hub) whoami(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	known := h.tokens[h.token(r)]
	h.mu.Unlock()
	if !known {
		refuse(w, http.StatusUnauthorized, "", "Invalid username or password.")
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write([]byte(`{"type":"user","name":"somebody","orgs":[]}`))
}

// split cuts segments into a repository's name and what follows it, which
// begins with one of words.
func split(segments []string, words ...string) (name string, rest []string) {
	for _, n := range []int{1, 2} {
		if len(segments) > n && slices.Contains(words, segments[n]) {
			return strings.Join(segments[:n], "/"), segments[n:]
		}
	}
	return strings.Join(segments, "/"), nil
}

// find looks a repository up and checks that the caller may go on: to read, or
// to know that it is there. It answers when not.
func (h *Hub) find(w http.ResponseWriter, r *http.Request, kind, name string, read bool) *Repo {
	h.mu.Lock()
	defer h.mu.Unlock()
	token := h.token(r)
	if token != "" && !h.tokens[token] {
		refuse(w, http.StatusUnauthorized, "", "Invalid credentials in Authorization header")
		return nil
	}
	if to, ok := h.renamed[key(kind, name)]; ok {
		w.Header().Set("Location", strings.Replace(r.URL.RequestURI(), name, to, 1))
		w.WriteHeader(http.StatusTemporaryRedirect)
		return nil
	}
	repo := h.repos[key(kind, name)]
	reader := repo != nil && slices.Contains(repo.readers, token)
	switch {
	case repo == nil && token == "", repo != nil && repo.private && token == "":
		refuse(w, http.StatusUnauthorized, "RepoNotFound", "Repository not found")
	case repo == nil || repo.private && !reader:
		refuse(w, http.StatusNotFound, "RepoNotFound", "Repository not found")
	case repo.gated && read && token == "":
		refuse(w, http.StatusUnauthorized, "GatedRepo", "Access to model "+name+" is restricted. You must have access to it and be authenticated to access it. Please log in.")
	case repo.gated && read && !reader:
		refuse(w, http.StatusForbidden, "GatedRepo", "Access to model "+name+" is restricted and you are not in the authorized list.")
	default:
		return repo
	}
	return nil
}

// at is the commit of a revision and its files, "" for none.
func (r *Repo) at(revision string) (commit string, tree map[string]file) {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	commit = revision
	if c, ok := r.refs[revision]; ok {
		commit = c
	}
	tree, ok := r.commits[commit]
	if !ok {
		return "", nil
	}
	return commit, tree
}

func unescape(s string) string {
	plain, err := url.PathUnescape(s)
	if err != nil {
		return s
	}
	return plain
}

func (h *Hub) resolve(w http.ResponseWriter, r *http.Request, path string, faults Faults) {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	kind := "models"
	if segments[0] == "datasets" || segments[0] == "spaces" {
		kind, segments = segments[0], segments[1:]
	}
	name, rest := split(segments, "resolve")
	if len(rest) < 3 {
		refuse(w, http.StatusNotFound, "", "Sorry, we can't find the page you are looking for.")
		return
	}
	repo := h.find(w, r, kind, name, true)
	if repo == nil {
		return
	}
	commit, tree := repo.at(unescape(rest[1]))
	if commit == "" {
		refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+unescape(rest[1]))
		return
	}
	w.Header().Set("X-Repo-Commit", commit)
	file := strings.Join(rest[2:], "/")
	f, ok := tree[unescape(file)]
	if !ok {
		refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	if !f.lfs {
		w.Header().Set("Location", "/api/resolve-cache/"+kind+"/"+name+"/"+commit+"/"+file+"?etag="+f.etag())
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	etag := `"` + f.etag() + `"`
	if faults.ETag != "" {
		etag = faults.ETag
	}
	w.Header().Set("X-Linked-Etag", etag)
	w.Header().Set("X-Linked-Size", strconv.FormatInt(int64(len(f.data))+faults.Extra, 10))
	w.Header().Set("X-Xet-Hash", strings.Repeat("ab", 32))
	w.Header().Set("Link", `<`+h.URL+`/api/`+kind+`/`+name+`/xet-read-token/`+commit+`>; rel="xet-auth", <https://cas.example/x>; rel="xet-reconstruction-info"`)
	to := h.storage.URL + "/" + repo.kind + "/" + repo.name + "/" + commit + "/" + f.etag() + "?Signature=secret&n=" + h.address()
	if faults.Location != "" {
		to = faults.Location
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusFound)
	_, _ = w.Write([]byte("Found. Redirecting"))
}

func (h *Hub) resolveCache(w http.ResponseWriter, r *http.Request, path string, faults Faults) {
	segments := strings.Split(path, "/")
	n := slices.IndexFunc(segments, func(s string) bool { return len(s) == 40 })
	if n < 2 {
		refuse(w, http.StatusNotFound, "", "no")
		return
	}
	repo := h.find(w, r, segments[0], strings.Join(segments[1:n], "/"), true)
	if repo == nil {
		return
	}
	commit, tree := repo.at(segments[n])
	f := tree[unescape(strings.Join(segments[n+1:], "/"))]
	w.Header().Set("X-Repo-Commit", commit)
	etag := `"` + f.etag() + `"`
	if faults.ETag != "" {
		etag = faults.ETag
	}
	w.Header().Set("Etag", etag)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	h.send(w, r, f.data, faults)
}

// serveStorage is the other host: it wants the address's signature, and nobody's
// token.
func (h *Hub) serveStorage(w http.ResponseWriter, r *http.Request) {
	faults := h.note(r, true)
	segments := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case faults.Storage != 0:
		http.Error(w, "no", faults.Storage)
		return
	case r.Header.Get("Authorization") != "":
		http.Error(w, "Only one auth mechanism allowed", http.StatusBadRequest)
		return
	case r.URL.Query().Get("Signature") != "secret" || len(segments) < 4 || faults.Addresses > 0 && h.uses(r.URL.Query().Get("n")) > faults.Addresses:
		http.Error(w, "AccessDenied", http.StatusForbidden)
		return
	}
	n := len(segments)
	h.mu.Lock()
	repo := h.repos[key(segments[0], strings.Join(segments[1:n-2], "/"))]
	h.mu.Unlock()
	if repo == nil {
		http.NotFound(w, r)
		return
	}
	_, tree := repo.at(segments[n-2])
	for _, f := range tree {
		if f.etag() == segments[n-1] {
			w.Header().Set("Etag", `"storage-`+f.oid+`-12"`)
			w.Header().Set("Content-Type", "application/octet-stream")
			h.send(w, r, f.data, faults)
			return
		}
	}
	http.NotFound(w, r)
}

// address makes the address at the storage another each time.
func (h *Hub) address() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.given++
	return strconv.Itoa(h.given)
}

func (h *Hub) uses(address string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used[address]++
	return h.used[address]
}

// send sends a file, as wrongly as it is told to.
func (h *Hub) send(w http.ResponseWriter, r *http.Request, data []byte, faults Faults) {
	out := &sender{ResponseWriter: w, hub: h, faults: faults, gone: r.Context().Done()}
	if faults.Cuts > 0 && r.Method == http.MethodGet {
		h.mu.Lock()
		if h.faults.Cuts > 0 {
			h.faults.Cuts--
			out.cut = true
		}
		h.mu.Unlock()
	}
	if faults.Corrupt && len(data) > 0 {
		data = bytes.Clone(data)
		data[len(data)/2] ^= 1
	}
	if faults.Truncate > 0 {
		data = data[:max(len(data)-faults.Truncate, 0)]
	}
	if faults.NoRange {
		r.Header.Del("Range")
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Length", strconv.FormatInt(int64(len(data))+faults.Extra, 10))
		return
	}
	http.ServeContent(out, r, "", time.Time{}, bytes.NewReader(data))
}

type sender struct {
	http.ResponseWriter
	hub    *Hub
	faults Faults
	cut    bool
	held   bool
	at     int
	gone   <-chan struct{}
}

func (s *sender) Write(p []byte) (int, error) {
	if at := s.faults.HoldAfter; s.faults.Hold != nil && !s.held && s.at+len(p) > at {
		s.held = true
		n, err := s.Write(p[:at-s.at])
		if err != nil {
			return n, err
		}
		_ = http.NewResponseController(s.ResponseWriter).Flush()
		select {
		case <-s.faults.Hold:
		case <-s.gone:
			return n, http.ErrAbortHandler
		}
		m, err := s.Write(p[n:])
		return n + m, err
	}
	if d := s.faults.Drip; d > 0 && len(p) > d {
		n, err := s.Write(p[:d])
		if err != nil {
			return n, err
		}
		m, err := s.Write(p[n:])
		return n + m, err
	} else if d > 0 {
		_ = http.NewResponseController(s.ResponseWriter).Flush()
		time.Sleep(2 * time.Millisecond)
	}
	cut := s.cut && s.at+len(p) > s.faults.CutAfter
	if cut {
		p = p[:s.faults.CutAfter-s.at]
	}
	n, err := s.ResponseWriter.Write(p)
	s.at += n
	s.hub.sent.Add(int64(n))
	if cut {
		_ = http.NewResponseController(s.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// api answers the routes below /api/ that clients download by.
func (h *Hub) api(w http.ResponseWriter, r *http.Request, path string, faults Faults) {
	segments := strings.Split(path, "/")
	if len(segments) < 2 || !slices.Contains([]string{"models", "datasets", "spaces"}, segments[0]) {
		refuse(w, http.StatusNotFound, "", "Sorry, we can't find the page you are looking for.")
		return
	}
	name, rest := split(segments[1:], "revision", "tree", "paths-info", "refs")
	repo := h.find(w, r, segments[0], name, false)
	if repo == nil {
		return
	}
	if len(rest) == 1 && rest[0] == "refs" {
		h.refs(w, repo)
		return
	}
	revision := "main"
	if len(rest) > 1 {
		revision = unescape(rest[1])
	}
	commit, tree := repo.at(revision)
	if commit == "" {
		refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+revision)
		return
	}
	switch {
	case len(rest) == 0 || rest[0] == "revision":
		h.info(w, repo, commit, tree)
	case rest[0] == "tree":
		h.tree(w, r, commit, tree, strings.Join(rest[2:], "/"), faults)
	case rest[0] == "paths-info":
		h.paths(w, r, tree)
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(v)
}

func (h *Hub) refs(w http.ResponseWriter, repo *Repo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	branches := []map[string]string{}
	for name, commit := range repo.refs {
		branches = append(branches, map[string]string{"name": name, "ref": "refs/heads/" + name, "targetCommit": commit})
	}
	answer(w, map[string]any{"branches": branches, "tags": []any{}, "converts": []any{}})
}

func (h *Hub) info(w http.ResponseWriter, repo *Repo, commit string, tree map[string]file) {
	siblings := []map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		siblings = append(siblings, map[string]string{"rfilename": name})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	answer(w, map[string]any{"_id": "1", "id": repo.name, "modelId": repo.name, "sha": commit, "private": repo.private, "gated": repo.gated, "tags": []string{},
		"downloads": 1, "likes": 2, "createdAt": "2024-01-02T03:04:05.000Z", "lastModified": "2024-01-02T03:04:05.000Z", "siblings": siblings, "author": "org", "disabled": false})
}

func describe(name string, f file) map[string]any {
	e := map[string]any{"type": "file", "path": name, "size": len(f.data), "oid": f.oid}
	if f.lfs {
		e["lfs"] = map[string]any{"oid": f.etag(), "size": len(f.data), "pointerSize": 134}
		e["xetHash"] = strings.Repeat("cd", 32)
	}
	return e
}

func (h *Hub) tree(w http.ResponseWriter, r *http.Request, commit string, tree map[string]file, below string, faults Faults) {
	names := slices.Sorted(maps.Keys(tree))
	names = slices.DeleteFunc(names, func(n string) bool { return below != "" && !strings.HasPrefix(n, unescape(below)+"/") })
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	from = min(max(from, 0), len(names))
	to := min(from+pageSize, len(names))
	out := []map[string]any{}
	for _, n := range names[from:to] {
		out = append(out, describe(n, tree[n]))
	}
	w.Header().Set("X-Repo-Commit", commit)
	if to < len(names) {
		q := r.URL.Query()
		q.Set("cursor", strconv.Itoa(to))
		w.Header().Set("Link", fmt.Sprintf(`<%s%s?%s>; rel="next"`, h.URL, r.URL.EscapedPath(), q.Encode()))
	}
	if faults.Link != "" {
		w.Header().Set("Link", faults.Link)
	}
	answer(w, out)
}

func (h *Hub) paths(w http.ResponseWriter, r *http.Request, tree map[string]file) {
	var wanted []string
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		var body struct{ Paths []string }
		_ = json.NewDecoder(r.Body).Decode(&body)
		wanted = body.Paths
	} else if r.ParseForm() == nil {
		wanted = r.PostForm["paths"]
	}
	out := []map[string]any{}
	for _, n := range wanted {
		if f, ok := tree[n]; ok {
			out = append(out, describe(n, f))
		}
	}
	answer(w, out)
}
