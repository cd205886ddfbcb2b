// Package artifact turns model URIs into local files and says what those files
// are.
//
// A [Store] fetches file://, http(s)://, s3://, gs://, az://, hf://, oci:// and
// upload:// URIs. Local files are served in place. Remote ones are downloaded
// once, resumed after an interruption, verified, and kept in the store's folder
// under a name derived from their URI and content, so a running replica never
// sees its files change. The least recently used that nobody needs go when the
// store exceeds its bound.
//
// [Inspect] reads the headers of model files (transformers' config.json,
// safetensors, XGBoost, LightGBM, GGUF, …) into [Facts]; [Store.Peek] does the
// same for a remote folder without downloading its weights. Every file is
// treated as hostile: all lengths are checked and all reads bounded.
//
// The store's folder holds
//
//	models/<uri key>/record.json      what the current copy is
//	models/<uri key>/<version>/…      complete copies, renamed into place
//	partial/<uri key>/…               downloads under way, resumable: a .part, its
//	                                  .part.json, and the .part.index of its pieces
//	uploads/<sha256>/…                files given by clients
package artifact
