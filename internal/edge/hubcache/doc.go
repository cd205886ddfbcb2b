// Package hubcache is a cache of the Hugging Face Hub that clients do not
// notice: HF_ENDPOINT points to it, and nothing else changes for them.
//
// A [Cache] is an http.Handler. It answers file requests (HEAD and GET of
// …/resolve/…) and the metadata routes clients use before them; every other
// path is passed on. Redirects are followed here, so clients see 200 and 206
// alone, and what would lead them past the cache (Xet) is taken out.
//
// Content is kept once, under the hash that the Hub gives it as ETag, and
// verified against it: SHA-256 for large files, git's blob SHA-1 for small
// ones. Who may read is asked of the Hub, per caller and revision, and believed
// for a short while; when the Hub cannot be asked, nobody may who was not just
// allowed, but for repositories known to be public.
//
// The folder holds
//
//	blobs/<2 hex>/<hash>                  complete, verified files
//	partial/<hash>                        downloads under way, resumable
//	repos/<repository key>/…              what the Hub said: commits, files, answers
//	pins.json                             what is never evicted
//
// and no name in it comes from outside: blobs are named by their hash, the rest
// by a hash of what it is about.
package hubcache
