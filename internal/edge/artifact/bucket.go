package artifact

import (
	"context"
	"fmt"
	"strings"
)

// bucketPage is one page of a bucket's listing.
type bucketPage struct {
	objects []object // with key, Size, Validator set
	next    string   // token of the next page, or empty
}

// pager lists a bucket's keys with a prefix, in order, from a page token on.
type pager func(ctx context.Context, prefix, token string) (bucketPage, error)

// listBucket finds what loc names, which is key in its bucket: every object below it as a folder, else the
// one object of exactly that key.
func (s *Store) listBucket(ctx context.Context, loc location, key string, prior *record, page pager) (listing, error) {
	l, err := s.listFolder(ctx, loc, key, page)
	if err == nil && len(l.objects) == 0 && key != "" && !strings.HasSuffix(key, "/") {
		l, err = listOne(ctx, key, page)
	}
	if err != nil {
		return listing{}, err
	}
	if len(l.objects) == 0 {
		return listing{}, fmt.Errorf("artifact: %s: no object has this name or lies below it; check bucket and path", loc)
	}
	l.unchanged = prior != nil && sameObjects(prior.Objects, l.objects)
	return l, nil
}

func (s *Store) listFolder(ctx context.Context, loc location, key string, page pager) (listing, error) {
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
		if err := s.checkListing(loc, l.objects); err != nil {
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
