package artifact

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// object is one remote file of an artifact.
type object struct {
	// Name is the slash-separated path of the file below the artifact.
	Name string `json:"name"`
	// Size is in bytes, -1 while unknown.
	Size int64 `json:"size"`
	// Validator tells versions apart: an ETag, a generation or a Last-Modified
	// date; empty when the server gives none.
	Validator string `json:"validator,omitempty"`
	// SHA256 is the hex digest of the content, known once downloaded.
	SHA256 string `json:"sha256,omitempty"`

	key    string  // full name at the source
	to     int64   // what is asked for ends here; 0 is the object's end
	oid    string  // SHA-256 of the content, or SHA-1 of it as a git blob, promised by the source
	linked bool    // arrived as a link to a blob
	layer  string  // kind of archive that is unpacked over those before it; empty for a file
	image  bool    // only its /models is wanted
	md5    string  // in hex, promised by the source
	crc32c *uint32 // Castagnoli checksum promised by the source
}

// listing is what a URI stands for at its source.
type listing struct {
	objects   []object
	folder    bool // the URI names a folder rather than the one object
	unchanged bool // the copy described by the prior record is current
}

// source reads one URI scheme. Everything it reads comes over HTTP, so that
// one downloader serves all.
type source interface {
	// list names the objects of loc. prior is the record of the newest complete
	// copy, or nil.
	list(ctx context.Context, loc location, prior *record) (listing, error)
	// request asks for an object's bytes from an offset on, on condition that
	// it is still the version of o.Validator.
	request(ctx context.Context, loc location, o object, from int64) (*http.Request, error)
}

// sources is the table of remote schemes: a new scheme is one entry.
func sources(cfg Config, r *requester, env environment, log *slog.Logger) map[string]source {
	most := limits{cfg.MaxFiles, cfg.MaxBytes}
	return map[string]source{
		"http":  &httpSource{requests: r, env: env},
		"https": &httpSource{requests: r, env: env},
		"s3":    &s3Source{requests: r, limits: most, env: env, log: log},
		"gs":    &gcsSource{requests: r, limits: most, env: env, scope: gcsReadScope, log: log},
		"hf":    &hfSource{requests: r, limits: most, env: env, hub: cfg.HubEndpoint},
		"oci":   &ociSource{requests: r, env: env},
		"az":    &azureSource{requests: r, limits: most, env: env},
	}
}

// Schemes lists the URI schemes this build reads, sorted.
func (s *Store) Schemes() []string {
	names := []string{"file", "upload"}
	for name := range s.sources.of(nil) {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (s *Store) source(loc location) (source, error) {
	var env environment
	if c := loc.credentials; c != nil {
		env = environment(c.Variables)
	}
	byScheme := s.sources.of(env)
	if isAzure(loc) {
		return byScheme["az"], nil
	}
	if src, ok := byScheme[loc.scheme]; ok {
		return src, nil
	}
	if loc.scheme == "pvc" {
		return nil, fmt.Errorf("%s: a claim of a cluster's volume is not there on one machine: mount what it holds, and name the files by file://PATH", loc)
	}
	return nil, fmt.Errorf("%s: nothing is fetched from %s://: use one of file://, %s://",
		strings.TrimSuffix(loc.String(), "/"), loc.scheme, strings.Join(service.FetchedSchemes, "://, "))
}

// limits bound one artifact.
type limits struct {
	files int
	bytes int64
}

// check refuses listings that are too large, empty, or would write
// outside their folder.
func (m limits) check(loc location, objects []object) error {
	if len(objects) > m.files {
		return fmt.Errorf("%s: more than %d files (maxFiles)", loc, m.files)
	}
	var total int64
	seen := make(map[string]bool, len(objects))
	for _, o := range objects {
		if !localName(o.Name) {
			return fmt.Errorf("%s: the object name %q would leave the model's folder; rename it at the source", loc, o.Name)
		}
		if seen[o.Name] {
			return fmt.Errorf("%s: two objects would be written to %q", loc, o.Name)
		}
		seen[o.Name] = true
		total += max(o.Size, 0)
		if total < 0 || total > m.bytes {
			return fmt.Errorf("%s: larger than %s (maxBytes)", loc, formatBytes(m.bytes))
		}
	}
	return nil
}

// localName reports whether name is a clean relative slash path that stays
// below the folder it is joined to.
func localName(name string) bool {
	return name != "." && filepath.IsLocal(name) && !strings.ContainsAny(name, "\\\x00") &&
		len(name) < 4096 && filepath.ToSlash(filepath.Clean(name)) == name
}

// bucketPage is one page of a bucket's listing.
type bucketPage struct {
	objects []object // with key, Size, Validator set
	next    string   // token of the next page, or empty
}

// pager lists a bucket's keys with a prefix, in order, from a page token on.
type pager func(ctx context.Context, prefix, token string) (bucketPage, error)

// listBucket finds what loc names, which is key in its bucket: every object
// below it as a folder, else the one object of exactly that key.
func listBucket(ctx context.Context, most limits, loc location, key string, prior *record, page pager) (listing, error) {
	l, err := listFolder(ctx, most, loc, key, page)
	if err == nil && len(l.objects) == 0 && key != "" && !strings.HasSuffix(key, "/") {
		l, err = listOne(ctx, key, page)
	}
	if err != nil {
		return listing{}, err
	}
	if len(l.objects) == 0 {
		return listing{}, fmt.Errorf("%s: no object has this name or lies below it; check bucket and path", loc)
	}
	l.unchanged = prior != nil && sameObjects(prior.Objects, l.objects)
	return l, nil
}

func listFolder(ctx context.Context, most limits, loc location, key string, page pager) (listing, error) {
	prefix := key
	if key != "" && !strings.HasSuffix(key, "/") {
		prefix += "/"
	}
	l := listing{folder: true}
	for token := ""; ; {
		p, err := page(ctx, prefix, token)
		if err != nil {
			return listing{}, err
		}
		for _, o := range p.objects {
			if strings.HasSuffix(o.key, "/") {
				continue // a console's marker for a folder
			}
			o.Name = strings.TrimPrefix(o.key, prefix)
			l.objects = append(l.objects, o)
		}
		if err := most.check(loc, l.objects); err != nil {
			return listing{}, err
		}
		if p.next == "" || p.next == token {
			return l, nil
		}
		token = p.next
	}
}

// listOne looks for one key. Keys come in byte order, so the key itself comes
// first among those it is a prefix of.
func listOne(ctx context.Context, key string, page pager) (listing, error) {
	p, err := page(ctx, key, "")
	if err != nil || len(p.objects) == 0 || p.objects[0].key != key {
		return listing{}, err
	}
	o := p.objects[0]
	o.Name = key[strings.LastIndexByte(key, '/')+1:]
	return listing{objects: []object{o}}, nil
}

func sameObjects(a, b []object) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].Size != b[i].Size || a[i].Validator != b[i].Validator || b[i].Validator == "" {
			return false
		}
	}
	return true
}
